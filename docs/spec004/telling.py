"""Sections 4.7 and 4.8: events, and automation rules."""

from docs.specification import Row

LIFECYCLE = "lifecycle/workload.py"
WORKLOADS = "controllers/nodes/test_workloads.py"
ACTING = "controllers/automation/test_rules.py"

EVENTS = (
    Row(
        "append-only: each has a name of its own",
        "controllers.runtime.event_recorder:EventRecorder.event",
        f"{WORKLOADS}::test_permanent_failure_can_be_retried_on_request",
        (
            "controllers/runtime/event_recorder.py",
            """f"{metadata.name}.{uid.replace('-', '')[:16]}\"""",
            'f"{metadata.name}.event"',
        ),
    ),
    Row(
        "immutable: no component changes a recorded event",
        "server.access.authorization:reject_event_change",
        "server/test_spec004_server.py::test_events_are_immutable",
        ("server/resources/write.py", "    reject_event_change(call.user, served.resource, old)", "    pass"),
    ),
    Row(
        "WorkloadScheduled",
        "controllers.scheduler.binding_records:BindingRecords.bind",
        "controllers/scheduler/test_scheduler.py::test_workload_is_bound_with_recorded_decision",
        (
            "controllers/scheduler/binding_records.py",
            'return [put, self._event(workload, "WorkloadScheduled", f"Bound to node {binding.node}")]',
            "return [put]",
        ),
    ),
    Row(
        "WorkloadFailed",
        "lifecycle.workload:EVENT_REASONS",
        "lifecycle/test_workload.py::test_final_failure_is_not_retried[INVALID_IMAGE]",
        (LIFECYCLE, '    Action.MARK_FAILED: "WorkloadFailed",', ""),
    ),
    Row(
        "NodeLost",
        "lifecycle.node_health:NodeReadiness",
        "controllers/nodes/test_node_health.py::test_node_is_ready_on_heartbeat_and_lost_after_40_seconds",
        ("lifecycle/node_health.py", 'event = "NodeLost" if node.is_ready else ""', 'event = ""'),
    ),
    Row(
        "RetryTriggered",
        "lifecycle.workload:EVENT_REASONS",
        f"{WORKLOADS}::test_exiting_workload_backs_off_and_fails_after_five",
        (LIFECYCLE, '    Action.RECREATE: "RetryTriggered",', ""),
    ),
    Row(
        "Rescheduled",
        "lifecycle.workload:EVENT_REASONS",
        f"{WORKLOADS}::test_workload_of_lost_node_starts_elsewhere_in_two_minutes[stop]",
        (LIFECYCLE, '    Action.RESCHEDULE: "Rescheduled",', ""),
    ),
)
AUTOMATION = (
    Row(
        "rules are deterministic: once per crossing, under any leader",
        "lifecycle.automation:evaluate_rule",
        f"{ACTING}::test_new_leader_does_not_repeat_action_nor_write_at_rest",
        (
            "lifecycle/automation.py",
            "if (crossed_at := rule.status.crossed.get(measurement.object)) is not None:",
            "if (crossed_at := None) is not None:",
        ),
    ),
    Row(
        "a node's CPU above a threshold for a time",
        "lifecycle.automation:threshold",
        f"{ACTING}::test_busy_node_calls_webhook_once",
        ("lifecycle/automation.py", "+ 1, when.node_cpu.for_ms / 1000", "+ 1, 0.0"),
    ),
    Row(
        "alert after repeated failures",
        "controllers.automation.rules:AutomationController",
        f"{ACTING}::test_failing_workload_raises_one_alert",
        (
            "lifecycle/automation.py",
            "return when.workload_failures.count, 0.0",
            "return when.workload_failures.count + 1, 0.0",
        ),
    ),
    Row(
        "webhooks: https only, public addresses only",
        "controllers.automation.webhook_client:HttpsWebhookClient",
        "controllers/automation/test_webhook_client.py::test_private_hosts_are_not_called",
        (
            "controllers/automation/webhook_client.py",
            "if problem := address_problem(address, self._allowed):",
            'if problem := "":',
        ),
    ),
)
