"""Sections 1 to 3: purpose, principles and components of the control plane."""

from docs.specification import Row

WORKLOADS = "controllers/nodes/test_workloads.py"
NODES = "controllers/nodes/test_node_health.py"
BINDING = "controllers/scheduler/test_scheduler.py"
AGENTS = "server/grpc/test_agent_listener.py"

PURPOSE = (
    Row(
        "control plane: placement",
        "controllers.scheduler.scheduler:SchedulingController",
        f"{BINDING}::test_running_loop_follows_changes",
        (
            "controllers/scheduler/table_updater.py",
            "Source(nodes, self.on_node_change), Source(workloads",
            "Source(workloads",
        ),
    ),
    Row(
        "control plane: reconciliation",
        "controllers.nodes.workloads:WorkloadController",
        f"{WORKLOADS}::test_workload_is_bound_applied_and_runs",
        (
            "controllers/nodes/workloads.py",
            "            if is_retry_requested",
            "            if True",
        ),
    ),
    Row(
        "control plane: node management",
        "controllers.nodes.node_health:NodeHealthController",
        f"{NODES}::test_node_is_ready_on_heartbeat_and_lost_after_40_seconds",
        (
            "controllers/nodes/node_health.py",
            "and is_draining(node) else readiness.state",
            'and is_draining(node) else "Ready"',
        ),
    ),
    Row(
        "workloads are run by agents, never by the control plane",
        "server.grpc.listener:AgentListener",
        "server/test_spec004_server.py::test_server_imports_no_agent_runtime",
        ("server/grpc/listener.py", "import asyncio", "import asyncio, lattice.agent.runtimes.process"),
    ),
)
PRINCIPLES = (
    Row(
        "desired state is persisted, and is the only source",
        "lifecycle.workload_status:build_input",
        f"{WORKLOADS}::test_back_off_continues_under_new_leader",
        ("lifecycle/workload_status.py", "        retry=status.retry,", "        retry=None,"),
    ),
    Row(
        "declarative: Running, Stopped or Deleted, and the loop converges",
        "lifecycle.workload:decide",
        f"{WORKLOADS}::test_restart_is_another_run_of_same_revision",
        (
            "lifecycle/workload.py",
            "return _decide_stopped(inputs, grace_periods)",
            "return _decide_running(inputs, grace_periods)",
        ),
    ),
    Row(
        "idempotent by workload and revision, on the agent too",
        "agent.plan:plan",
        "agent/test_plan.py::test_plan[a running instance is kept]",
        ("agent/plan.py", "for spec in specs if spec.id not in settled]", "for spec in specs]"),
    ),
    Row(
        "the control plane alone decides what is started again",
        "agent.host.runtime_protocol:Instance.covers_attempt",
        "agent/test_plan.py::test_plan[a failed instance waits for the control plane]",
        (
            "agent/host/runtime_protocol.py",
            "return self.is_live or (self.attempt >= attempt and not self.was_stopped_on_request)",
            "return self.is_live",
        ),
    ),
    Row(
        "decisions are persisted with their grounds",
        "controllers.scheduler.binding_records:BindingRecords.bind",
        f"{BINDING}::test_workload_is_bound_with_recorded_decision",
        (
            "controllers/scheduler/binding_records.py",
            "            decision=details.decision_record or status.decision,",
            "",
        ),
    ),
)
ARCHITECTURE = (
    Row(
        "control service over gRPC",
        "server.grpc.control_service:ControlService",
        "server/grpc/test_control_service.py::test_a_workload_from_apply_to_delete",
        (
            "server/grpc/listener.py",
            "            control_rpc.add_ControlServicer_to_server(self.control, server)",
            "            pass",
        ),
    ),
    Row(
        "agents are reached over gRPC",
        "agent.transport:GrpcTransport",
        f"{AGENTS}::test_machine_joins_and_runs_its_orders",
        (
            "server/grpc/listener.py",
            "await self.sessions.serve(peer, _GrpcStream(context))",
            "await self.sessions.serve(peer, context)",
        ),
    ),
    Row(
        "mTLS, without a mode that is insecure",
        "server.grpc.listener:AgentListener",
        f"{AGENTS}::test_peer_without_node_certificate_is_rejected[no certificate]",
        ("server/grpc/listener.py", "require_client_auth=True", "require_client_auth=False"),
    ),
)
