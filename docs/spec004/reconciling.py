"""Sections 4.5 and 4.6: what is done about a workload, and how often."""

from docs.specification import Row

TABLE = "scheduling/test_lifecycle.py"
LIFECYCLE = "scheduling/lifecycle.py"
RETRIES = "scheduling/test_retry.py"

RECONCILIATION = (
    Row(
        "periodic, every five seconds unless said otherwise",
        "controllers.workloads:Workloads.reconcile",
        "controllers/test_spec004_loops.py::test_one_that_something_is_awaited_of_is_looked_at_every_interval",
        (
            "controllers/workloads.py",
            "return Again(min(*waits, self.interval)) if waits else None",
            "return Again(min(waits)) if waits else None",
        ),
    ),
    Row(
        "desired state, actual state as the agent says, action",
        "scheduling.observed:Sight",
        "controllers/test_workloads.py::test_it_is_bound_applied_and_runs",
        (
            "controllers/workloads.py",
            'return Sight("Ready", True, _report(spoken, knows), spoken.ready,',
            'return Sight("Ready", True, Report(), spoken.ready,',
        ),
    ),
    Row(
        "Running, Missing: Apply",
        "scheduling.lifecycle:Action.APPLY",
        f"{TABLE}::test_what_is_to_run[Running, Missing, never applied: Apply]",
        (LIFECYCLE, "    return _start(found, retry, graces)", "    return _ordered(found, retry, graces)"),
    ),
    Row(
        "Running, Failed: Recreate",
        "scheduling.lifecycle:Action.RECREATE",
        f"{TABLE}::test_what_is_to_run[Running, Failed, wait over: Recreate]",
        (LIFECYCLE, "return Decision(Action.RECREATE,", "return Decision(Action.APPLY,"),
    ),
    Row(
        "Stopped, Running: ApplyStopped",
        "scheduling.lifecycle:Action.APPLY_STOPPED",
        f"{TABLE}::test_what_is_to_be_stopped[Stopped, Running: ApplyStopped]",
        (
            LIFECYCLE,
            'return _once(found, Action.APPLY_STOPPED, "it is to be stopped", graces.stop)',
            "return STOPPED",
        ),
    ),
    Row(
        "Deleted, anything: Delete",
        "scheduling.lifecycle:Action.DELETE",
        f"{TABLE}::test_what_is_to_be_deleted",
        (
            LIFECYCLE,
            'return _once(found, Action.DELETE, "it is to be deleted", graces.stop)',
            "return STOPPED",
        ),
    ),
    Row(
        "grace for what is not there yet",
        "scheduling.lifecycle:Graces",
        f"{TABLE}::test_what_is_to_run[Missing, just applied: grace]",
        (
            LIFECYCLE,
            'return _within(grace - age, "its node has been told to start it") or _failure(',
            "return _failure(",
        ),
    ),
    Row(
        "grace for a node that is not heard",
        "scheduling.lifecycle:Action.AWAIT_FAILOVER",
        f"{TABLE}::test_what_is_to_run[node silent: wait]",
        (LIFECYCLE, 'case "Abandoned" if not spent:', 'case "Silent" | "Abandoned" if not spent:'),
    ),
    Row(
        "each action is persisted",
        "scheduling.lifecycle:Decision.is_stored",
        "controllers/test_workloads.py::test_a_deleted_one_leaves_its_node_then_the_store",
        (
            LIFECYCLE,
            "return self.retry is not None or self.action not in WAITS",
            "return self.retry is not None",
        ),
    ),
)
RETRY = (
    Row(
        "failures are counted, and the count is persisted",
        "scheduling.retry:failed",
        f"{TABLE}::test_what_is_to_run[Running, Failed: counted, and wait]",
        (
            "scheduling/retry.py",
            "    attempts = (before.attempts or 0) + 1",
            "    attempts = before.attempts or 0",
        ),
    ),
    Row(
        "waits double from 5 s",
        "scheduling.retry:RetryRules.wait",
        f"{RETRIES}::test_the_waits_are_5_10_20_40_and_the_fifth_failure_is_the_last",
        ("scheduling/retry.py", "2.0 ** min(failures - 1, 60)", "2.0 ** min(failures, 60)"),
    ),
    Row(
        "and are 120 s at most",
        "scheduling.retry:RetryRules",
        f"{RETRIES}::test_with_more_attempts_the_waits_go_on_to_80_and_end_at_120",
        ("scheduling/retry.py", "    longest: float = 120.0", "    longest: float = 160.0"),
    ),
    Row(
        "the last attempt ends it as failed",
        "scheduling.retry:is_spent",
        f"{TABLE}::test_what_is_to_run[the fifth failure ends it]",
        (LIFECYCLE, "    if is_spent(after, graces.retry):", "    if False:"),
    ),
)
