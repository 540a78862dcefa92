"""Sections 4.5 and 4.6: the reconciliation of workloads, and its frequency."""

from docs.specification import Row

TABLE = "lifecycle/test_workload.py"
LIFECYCLE = "lifecycle/workload.py"
RETRIES = "lifecycle/test_retry.py"

RECONCILIATION = (
    Row(
        "periodic, every five seconds unless said otherwise",
        "controllers.nodes.workloads:WorkloadController.reconcile",
        "controllers/test_spec004_loops.py::test_pending_workload_is_rechecked_every_interval",
        (
            "controllers/nodes/workloads.py",
            "return Requeue(min(*waits, self.recheck_interval_s)) if waits else None",
            "return Requeue(min(waits)) if waits else None",
        ),
    ),
    Row(
        "desired state, actual state as the agent says, action",
        "lifecycle.workload_status:WorkloadObservation",
        "controllers/nodes/test_workloads.py::test_workload_is_bound_applied_and_runs",
        (
            "controllers/nodes/workloads.py",
            "parse_actual_state(report.state),",
            '"Missing",',
        ),
    ),
    Row(
        "Running, Missing: Apply",
        "lifecycle.workload:Action.APPLY",
        f"{TABLE}::test_decide_desired_running[Running, Missing, never applied: Apply]",
        (
            LIFECYCLE,
            "return _decide_start(inputs, retry, grace_periods)",
            "return _decide_ordered(inputs, retry, grace_periods)",
        ),
    ),
    Row(
        "Running, Failed: Recreate",
        "lifecycle.workload:Action.RECREATE",
        f"{TABLE}::test_decide_desired_running[Running, Failed, wait over: Recreate]",
        (LIFECYCLE, "Decision(Action.RECREATE, reason, ", "Decision(Action.APPLY, reason, "),
    ),
    Row(
        "Stopped, Running: ApplyStopped",
        "lifecycle.workload:Action.APPLY_STOPPED",
        f"{TABLE}::test_decide_desired_stopped[Stopped, Running: ApplyStopped]",
        (
            LIFECYCLE,
            'return _order_once(inputs, Action.APPLY_STOPPED, "Stopping as requested", grace_periods.stop)',
            "return STOPPED",
        ),
    ),
    Row(
        "Deleted, anything: Delete",
        "lifecycle.workload:Action.DELETE",
        f"{TABLE}::test_decide_desired_deleted",
        (
            LIFECYCLE,
            'return _order_once(inputs, Action.DELETE, "Stopping before deletion", grace_periods.stop)',
            "return STOPPED",
        ),
    ),
    Row(
        "grace for what is not there yet",
        "lifecycle.workload:GracePeriods",
        f"{TABLE}::test_decide_desired_running[Missing, just applied: grace]",
        (
            LIFECYCLE,
            "return _wait_within_grace(grace - age, reason) or _decide_failure(",
            "return _decide_failure(",
        ),
    ),
    Row(
        "grace for a node that is not heard",
        "lifecycle.workload:Action.AWAIT_FAILOVER",
        f"{TABLE}::test_decide_desired_running[node silent: wait]",
        (
            LIFECYCLE,
            'case "Silent" if inputs.failover_reason and not is_spent:',
            'case "Silent" if not is_spent:',
        ),
    ),
    Row(
        "each action is persisted",
        "lifecycle.workload:Decision.is_stored",
        "controllers/nodes/test_workloads.py::test_deleted_workload_leaves_node_then_store",
        (
            LIFECYCLE,
            "return self.retry is not None or self.action not in UNSTORED_ACTIONS",
            "return self.retry is not None",
        ),
    ),
)
RETRY = (
    Row(
        "failures are counted, and the count is persisted",
        "lifecycle.retry:count_failure",
        f"{TABLE}::test_decide_desired_running[Running, Failed: counted, and wait]",
        (
            "lifecycle/retry.py",
            "attempts = (previous.attempts or 0) + 1",
            "attempts = previous.attempts or 0",
        ),
    ),
    Row(
        "waits double from 5 s",
        "lifecycle.retry:RetryPolicy.backoff",
        f"{RETRIES}::test_backoff_doubles_and_fifth_failure_is_final",
        ("lifecycle/retry.py", "2.0 ** min(failures - 1, 60)", "2.0 ** min(failures, 60)"),
    ),
    Row(
        "and are 120 s at most",
        "lifecycle.retry:RetryPolicy",
        f"{RETRIES}::test_backoff_is_capped_at_120_seconds",
        ("lifecycle/retry.py", "    max_backoff: float = 120.0", "    max_backoff: float = 160.0"),
    ),
    Row(
        "the last attempt ends it as failed",
        "lifecycle.retry:is_exhausted",
        f"{TABLE}::test_decide_desired_running[the fifth failure ends it]",
        (LIFECYCLE, "if is_exhausted(next_retry, grace_periods.retry):", "if False:"),
    ),
)
