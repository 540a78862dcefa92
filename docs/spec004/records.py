"""Sections 4.1 and 4.2: API requests and stored records."""

from docs.specification import Row

CONTROL = "server/grpc/test_control_service.py"
SERVER = "server/test_spec004_server.py"
WORKLOADS = "controllers/nodes/test_workloads.py"

API = (
    Row(
        "requests are validated",
        "kinds.workload:LatticeWorkload.problems",
        f"{SERVER}::test_invalid_workload_is_rejected_without_write[nothing to run]",
        ("kinds/workload.py", '*container_problems(spec.containers, "spec.containers"),', ""),
    ),
    Row(
        "desired state is persisted before anything is done",
        "server.resources.write:write",
        f"{SERVER}::test_workload_is_stored_before_it_is_accepted",
        ("server/resources/write.py", "if pending.options.dry_run:", "if pending.old is None:"),
    ),
    Row(
        "read: ListNodes",
        "server.grpc.control_service:ControlService.ListNodes",
        f"{CONTROL}::test_lists_come_in_pages_and_by_label",
        (
            "server/grpc/control_service.py",
            '"limit": str(request.limit) if request.limit else "",',
            '"limit": "",',
        ),
    ),
    Row(
        "read: GetNode",
        "server.grpc.control_service:ControlService.GetNode",
        f"{CONTROL}::test_rights_equal_those_of_the_rest_api[a viewer reads]",
        (
            "server/grpc/control_service.py",
            'Target(self._nodes, "", _require_name(request.name))',
            'Target(self._nodes, "default", _require_name(request.name))',
        ),
    ),
    Row(
        "read: ListWorkloads",
        "server.grpc.control_service:ControlService.ListWorkloads",
        f"{CONTROL}::test_a_workload_from_apply_to_delete",
        (
            "server/grpc/control_service.py",
            "page = await self._list(self._workloads, request, rpc.user)",
            "page = await self._list(self._nodes, request, rpc.user)",
        ),
    ),
    Row(
        "read: GetWorkload",
        "server.grpc.control_messages:workload_message",
        f"{CONTROL}::test_a_workload_from_apply_to_delete",
        (
            "server/grpc/control_messages.py",
            'desired_state=spec.get("desiredState", "Running"),',
            'desired_state="Running",',
        ),
    ),
    Row(
        "read: GetClusterSummary",
        "server.live.usage_tables:summarize_cluster",
        f"{CONTROL}::test_cluster_summary_counts_resources",
        (
            "server/grpc/control_service.py",
            "summarize_cluster, nodes, workloads, request.cluster)",
            'summarize_cluster, nodes, workloads, "")',
        ),
    ),
    Row(
        "REST for the same",
        "server.resources.routes:expand_short_path",
        "server/resources/test_routes.py::test_short_addresses",
        ("server/resources/routes.py", '    ("workloads", "ID", "retry"): ("POST",),', ""),
    ),
)
STORE = (
    Row(
        "/nodes",
        "kinds.node:LatticeNode",
        "server/agents/test_registration_messages.py::test_registration_writes_allowed_fields_once",
        ("server/agents/registration.py", '"capacity": capacity,', '"capacity": {},'),
    ),
    Row(
        "/workloads",
        "controllers.runtime.object_writes:key_of",
        f"{WORKLOADS}::test_workload_is_bound_applied_and_runs",
        (
            "controllers/runtime/object_writes.py",
            "return Key(obj.resource.id, obj.metadata.namespace, obj.metadata.name)",
            'return Key(obj.resource.id, "", obj.metadata.name)',
        ),
    ),
    Row(
        "/assignments: the binding of a workload",
        "kinds.workload:Binding",
        "controllers/scheduler/test_scheduler.py::test_workload_is_bound_with_recorded_decision",
        (
            "controllers/scheduler/binding_records.py",
            "            binding=binding,",
            "            binding=None,",
        ),
    ),
    Row(
        "/reconciliation: what was last done about it, and when",
        "lifecycle.workload_status:next_status",
        "lifecycle/test_workload_status.py::test_decision_is_stored_with_its_time",
        (
            "lifecycle/workload_status.py",
            "last_action=str(decision.action), last_action_at=format_micro_time(now))",
            "last_action=str(decision.action))",
        ),
    ),
    Row(
        "/events",
        "controllers.runtime.event_recorder:EventRecorder",
        f"{WORKLOADS}::test_workload_is_bound_applied_and_runs",
        ("controllers/runtime/event_recorder.py", "            reason=reason,", '            reason="",'),
    ),
    Row(
        "/retries: the count of failures of a workload",
        "kinds.workload:Retry",
        f"{WORKLOADS}::test_back_off_continues_under_new_leader",
        (
            "lifecycle/workload_status.py",
            "        status = replace(status, retry=decision.retry)",
            "        pass",
        ),
    ),
    Row(
        "canonical record: what was declared apart from what became of it",
        "kinds.workload:WorkloadStatus",
        "controllers/test_spec004_loops.py::test_record_holds_spec_and_observed_status",
        (
            "lifecycle/workload_status.py",
            "status = replace(status, applied_revision=observation.report.revision, strict=strict)",
            "pass",
        ),
    ),
)
