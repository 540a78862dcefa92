"""Section 7: the phases put together."""

from docs.specification import Row

COMPOSED = "scheduling/test_spec003_scheduler.py"
CYCLES = "scheduling/test_schedule.py"

SCHEDULER = (
    Row(
        "Scheduler trait",
        "scheduling.schedule:CompositeScheduler",
        f"{COMPOSED}::test_a_batch_keeps_its_order",
        ("scheduling/schedule.py", "        for run in runs:", "        for run in reversed(runs):"),
    ),
    Row(
        "schedule() method",
        "scheduling.schedule:CompositeScheduler.cycle",
        f"{CYCLES}::test_expired_reservations_make_room_first",
        ("scheduling/schedule.py", "cycle = Cycle(expired=self.reservations.expire(now))", "cycle = Cycle()"),
    ),
    Row(
        "ScheduleRequest",
        "scheduling.ask:WorkloadAsk",
        f"{CYCLES}::test_one_that_has_its_place_already_is_not_placed_again",
        ("scheduling/schedule.py", "if ask.name in placements:", "if False:"),
    ),
    Row(
        "ScheduleDecision",
        "scheduling.schedule:Cycle",
        f"{COMPOSED}::test_without_nodes_everybody_is_told_that_there_are_none",
        (
            "scheduling/schedule.py",
            "cycle.unplaced.append(Unplaced(ask, answer.why, answer.wakes_on, answer.kinds))",
            "pass",
        ),
    ),
    Row(
        "SimpleScheduler",
        "scheduling.schedule:compose",
        f"{COMPOSED}::test_round_robin_without_scores_deals_workloads_out_in_turn",
        ("scheduling/schedule.py", "Selector(TieBreaker(spec.tie_breaker), dice)", "Selector()"),
    ),
    Row(
        "Filter phase",
        "engine.decide:decide",
        f"{COMPOSED}::test_the_filters_of_the_profile_rule_out",
        ("engine/decide.py", "more = refusals_of(ask, table, plan.wide_filters)", "more = {}"),
    ),
    Row(
        "Score phase",
        "engine.decide:weighed",
        f"{COMPOSED}::test_the_scores_of_the_profile_decide",
        ("engine/decide.py", "weighed(ask, rows, scores, reasons)", "weighed(ask, rows, (), reasons)"),
    ),
    Row(
        "Select phase",
        "scheduling.select:Selector.select",
        f"{COMPOSED}::test_the_selected_one_is_taken",
        (
            "scheduling/schedule.py",
            "return Seat(ask, selection.row, selection.score)",
            "return Seat(ask, decision.chosen, selection.score)",
        ),
    ),
    Row(
        "Bind phase",
        "scheduling.schedule:CompositeScheduler.bind",
        f"{COMPOSED}::test_what_is_placed_is_bound",
        (
            "scheduling/schedule.py",
            "for each in ready if not each.ask.group]",
            "for each in ready if each.ask.group]",
        ),
    ),
    Row(
        "state.concurrency",
        "scheduling.bind:NodeState",
        f"{COMPOSED}::test_our_own_write_on_top_of_unknown_ones_is_not_mistaken_for_knowing_them",
        ("scheduling/bind.py", "if self.seen.get(request.node) == expected:", "if True:"),
    ),
    Row(
        "event.emission",
        "scheduling.bind:BindEvent.id",
        f"{COMPOSED}::test_each_attempt_is_an_event_of_its_own",
        ("scheduling/bind.py", 'return f"{self.workload}.{self.reservation}"', "return self.workload"),
    ),
)
