"""Section 7: the phases of the scheduler together."""

from docs.specification import Row

COMPOSED = "scheduling/cycle/test_spec003_scheduler.py"
CYCLES = "scheduling/cycle/test_cycle.py"

SCHEDULER = (
    Row(
        "Scheduler trait",
        "scheduling.cycle.cycle:CompositeScheduler",
        f"{COMPOSED}::test_cycle_keeps_batch_order",
        ("scheduling/cycle/cycle.py", "        for run in runs:", "        for run in reversed(runs):"),
    ),
    Row(
        "schedule() method",
        "scheduling.cycle.cycle:CompositeScheduler.cycle",
        f"{CYCLES}::test_cycle_expires_reservations_first",
        (
            "scheduling/cycle/cycle.py",
            "cycle = CycleResult(expired=self.reservations.expire(now))",
            "cycle = CycleResult()",
        ),
    ),
    Row(
        "ScheduleRequest",
        "scheduling.table.workload_ask:WorkloadAsk",
        f"{CYCLES}::test_placed_workload_is_not_scheduled_again",
        ("scheduling/cycle/cycle.py", "if ask.name in placements:", "if False:"),
    ),
    Row(
        "ScheduleDecision",
        "scheduling.cycle.cycle:CycleResult",
        f"{COMPOSED}::test_without_nodes_the_reason_says_so",
        (
            "scheduling/cycle/cycle.py",
            "rejection = result",
            "rejection = result; continue",
        ),
    ),
    Row(
        "SimpleScheduler",
        "scheduling.cycle.cycle:compose",
        f"{COMPOSED}::test_round_robin_without_scores_distributes_evenly",
        ("scheduling/cycle/cycle.py", "Selector(tie_breaker, rng)", "Selector()"),
    ),
    Row(
        "Filter phase",
        "engine.decide:decide",
        f"{COMPOSED}::test_profile_filters_reject_nodes",
        (
            "engine/decide.py",
            "wide_reasons = collect_rejections(ask, table, plugins.wide_filters)",
            "wide_reasons = {}",
        ),
    ),
    Row(
        "Score phase",
        "engine.decide:weighted_totals",
        f"{COMPOSED}::test_profile_scores_decide",
        (
            "engine/decide.py",
            "weighted_totals(ask, rows, scores, reasons)",
            "weighted_totals(ask, rows, (), reasons)",
        ),
    ),
    Row(
        "Select phase",
        "scheduling.cycle.tie_break:Selector.select",
        f"{COMPOSED}::test_selected_node_is_reserved",
        (
            "scheduling/cycle/cycle.py",
            "return Assignment(ask, selection.row, selection.score)",
            "return Assignment(ask, decision.chosen, selection.score)",
        ),
    ),
    Row(
        "Bind phase",
        "scheduling.cycle.cycle:CompositeScheduler.bind",
        f"{COMPOSED}::test_scheduled_workload_is_bound",
        (
            "scheduling/cycle/cycle.py",
            "await self.binder.bind(scheduled.reservation) for scheduled in ready if not scheduled.ask.group",
            "await self.binder.bind(scheduled.reservation) for scheduled in ready if scheduled.ask.group",
        ),
    ),
    Row(
        "state.concurrency",
        "scheduling.cycle.binder:StoredNodeState",
        f"{COMPOSED}::test_own_write_does_not_set_unknown_node_revision",
        ("scheduling/cycle/binder.py", "if self.node_revisions.get(request.node) == expected:", "if True:"),
    ),
    Row(
        "event.emission",
        "scheduling.cycle.binder:BindEvent.id",
        f"{COMPOSED}::test_each_bind_attempt_emits_its_own_event",
        (
            "scheduling/cycle/binder.py",
            'return f"{self.workload}.{self.reservation}"',
            "return self.workload",
        ),
    ),
)
