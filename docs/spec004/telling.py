"""Sections 4.7 and 4.8: what happened is told, and rules act on it."""

from docs.specification import Row

LIFECYCLE = "lifecycle/workload.py"
WORKLOADS = "controllers/nodes/test_workloads.py"
ACTING = "controllers/automation/test_rules.py"

EVENTS = (
    Row(
        "append-only: each has a name of its own",
        "controllers.runtime.event_recorder:EventRecorder.event",
        f"{WORKLOADS}::test_what_trying_again_cannot_help_fails_at_once_and_a_person_may_ask_again",
        (
            "controllers/runtime/event_recorder.py",
            """f"{metadata.name}.{uid.replace('-', '')[:16]}\"""",
            'f"{metadata.name}.event"',
        ),
    ),
    Row(
        "immutable: nobody changes what was told",
        "server.access.authorization:reject_event_change",
        "server/test_spec004_server.py::test_what_lattice_told_is_changed_by_nobody",
        ("server/resources/write.py", "    reject_event_change(call.user, served.resource, old)", "    pass"),
    ),
    Row(
        "WorkloadScheduled",
        "controllers.scheduler.binding_records:BindingRecords.bind",
        "controllers/scheduler/test_scheduler.py::test_a_workload_that_needs_a_node_gets_one_and_it_is_written_down_why",
        (
            "controllers/scheduler/binding_records.py",
            'return [put, self._event(workload, "WorkloadScheduled", f"bound to node {to.node}")]',
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
        "lifecycle.node_health:NodeVerdict",
        "controllers/nodes/test_node_health.py::test_a_node_is_ready_once_its_agent_is_heard_and_lost_after_forty_seconds",
        ("lifecycle/node_health.py", 'event = "NodeLost" if node.is_ready else ""', 'event = ""'),
    ),
    Row(
        "RetryTriggered",
        "lifecycle.workload:EVENT_REASONS",
        f"{WORKLOADS}::test_one_that_ends_waits_longer_each_time_and_is_given_up_after_the_fifth",
        (LIFECYCLE, '    Action.RECREATE: "RetryTriggered",', ""),
    ),
    Row(
        "Rescheduled",
        "lifecycle.workload:EVENT_REASONS",
        f"{WORKLOADS}::test_what_a_silent_node_ran_starts_elsewhere_after_two_minutes[stop]",
        (LIFECYCLE, '    Action.RESCHEDULE: "Rescheduled",', ""),
    ),
)
AUTOMATION = (
    Row(
        "rules are deterministic: once per crossing, whoever leads",
        "lifecycle.automation:evaluate_rule",
        f"{ACTING}::test_another_server_does_not_act_on_the_same_crossing_and_nothing_is_written_at_rest",
        (
            "lifecycle/automation.py",
            "if (known := rule.status.crossed.get(each.object)) is not None:",
            "if (known := None) is not None:",
        ),
    ),
    Row(
        "a node's CPU above a threshold for a time",
        "lifecycle.automation:threshold",
        f"{ACTING}::test_a_node_that_stays_busy_calls_the_webhook_once",
        ("lifecycle/automation.py", "+ 1, when.node_cpu.for_ms / 1000", "+ 1, 0.0"),
    ),
    Row(
        "alert after repeated failures",
        "controllers.automation.rules:AutomationController",
        f"{ACTING}::test_a_workload_that_fails_again_and_again_raises_one_alert",
        (
            "lifecycle/automation.py",
            "return when.workload_failures.count, 0.0",
            "return when.workload_failures.count + 1, 0.0",
        ),
    ),
    Row(
        "webhooks: https only, public addresses only",
        "controllers.automation.webhook_client:HttpsWebhookClient",
        "controllers/automation/test_webhook_client.py::test_the_inside_is_not_called",
        (
            "controllers/automation/webhook_client.py",
            "if wrong := address_problem(address, self._allowed):",
            'if wrong := "":',
        ),
    ),
)
