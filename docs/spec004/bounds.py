"""Sections 12 to 14 and the list of gaps: features out of scope, known gaps and acceptance criteria."""

from docs.specification import Later, Row

WORKLOADS = "controllers/nodes/test_workloads.py"
AGENT = "agent/test_session.py"

OUT_OF_SCOPE = (
    Row(
        "no images are built: one is named, and a node that has no use for it says so",
        "agent.runtimes.router:RuntimeRouter",
        "agent/runtimes/test_container.py::test_node_without_podman_rejects_images_only",
        (
            "kinds/container.py",
            'return "container" if self.image else "process"',
            'return "process"',
        ),
    ),
    Row(
        "no runtime is driven by the server: it sends what is wanted, and its nodes do it",
        "server.agents.codec:encode_assignment",
        "server/agents/test_sessions.py::test_order_carries_ports_limits_and_environment",
        ("server/agents/codec.py", "        revision=run.revision,", ""),
    ),
    Row(
        "no store of logs: the last lines of what failed, and no more",
        "lifecycle.workload_status:MAX_LOG_CHARS",
        "lifecycle/test_workload_status.py::test_decision_is_stored_with_its_time",
        (
            "lifecycle/workload_status.py",
            "last_log=observation.log[-MAX_LOG_CHARS:]",
            "last_log=observation.log",
        ),
    ),
    Row(
        "agents do not reconcile by themselves: they do what they were told, and nothing before they were told",
        "agent.executor:Executor",
        f"{AGENT}::test_restarted_agent_waits_for_orders",
        (
            "agent/executor.py",
            "self._wake = asyncio.Event()",
            "self._wake, self.may_act = asyncio.Event(), True",
        ),
    ),
)
KNOWN_GAPS = (
    Row(
        "events are streamed",
        "server.grpc.control_service:ControlService.WatchEvents",
        "server/grpc/test_control_service.py::test_events_are_streamed_as_they_occur",
        (
            "server/grpc/control_service.py",
            'requirements = {"involvedObject.kind": request.kind, "involvedObject.name": request.name}',
            "requirements = {}",
        ),
    ),
    Row(
        "placement knows the topology",
        "scheduling.plugins.filters.topology_spread:TopologySpread",
        "scheduling/plugins/filters/test_spec003_filters.py::test_topology_spread",
        (
            "scheduling/plugins/filters/topology_spread.py",
            "counts > max_count, False)",
            "counts < max_count, False)",
        ),
    ),
    Row(
        "retrying is a part of the API, with a version like the rest of it",
        "server.resources.subresources:retry",
        "server/resources/test_subresources.py::test_admin_may_retry_owned_workload",
        ("lifecycle/retry.py", "RETRY_REQUESTED_ANNOTATION: now}}", "RETRY_REQUESTED_ANNOTATION: now[:4]}}"),
    ),
)
KNOWN_GAPS_LATER = (
    Later("federation", "one installation is one fleet; several do not know of each other"),
    Later(
        "quotas and rate limits of tenants",
        "budgets limit what may be spent, by pool and by cloud; join tokens are limited by address",
    ),
)
ACCEPTANCE = (
    Row(
        "persisted before it is carried out",
        "lifecycle.workload:desired_run",
        "lifecycle/test_workload_orders.py::test_desired_run[only just bound]",
        (
            "lifecycle/workload.py",
            '{"", Action.ASSIGN, Action.DELETE,',
            '{"", Action.DELETE,',
        ),
    ),
    Row(
        "idempotent by revision, and agents insist on it",
        "agent.plan:plan",
        "agent/test_plan.py::test_plan[an update first stops the old revision]",
        (
            "agent/plan.py",
            "instance.is_live and _stop_reason(instance, assignment) for instance in own",
            "False for instance in own",
        ),
    ),
    Row(
        "no hot loop: a system at rest writes nothing",
        "controllers.nodes.workloads:WorkloadController",
        f"{WORKLOADS}::test_a_system_at_rest_writes_nothing",
        (
            "controllers/nodes/workloads.py",
            "        if status == workload.status and metadata is None:",
            "        if False:",
        ),
    ),
    Row(
        "retries survive a restart",
        "kinds.meta.timestamps:format_micro_time",
        "lifecycle/test_retry.py::test_backoff_survives_restart_to_the_microsecond",
        ("kinds/meta/timestamps.py", '"%Y-%m-%dT%H:%M:%S.%fZ"', '"%Y-%m-%dT%H:%M:%SZ"'),
    ),
    Row(
        "a lost node's workloads are moved in an order that is always the same",
        "lifecycle.node_health:evict_silent_nodes",
        "lifecycle/test_node_lifecycle.py::test_longest_silent_node_first_and_rate_is_per_zone",
        (
            "lifecycle/node_health.py",
            "for node in sorted(overdue.values(), key=lambda node: (-node.heartbeat_age, node.name)):",
            "for node in overdue.values():",
        ),
    ),
    Row(
        "everything that is done is told and counted",
        "lifecycle.workload:Decision.event",
        "lifecycle/test_spec004_actions.py::test_every_action_has_an_event",
        ("lifecycle/workload.py", '    Action.RELEASE: "WorkloadReleased",', ""),
    ),
)
PRIORITIES = (
    Row(
        "disk-aware scheduling, and nodes that say how much they have",
        "agent.host.usage:capacity",
        "agent/host/test_usage.py::test_node_meter_reads_this_machine",
        ("agent/host/usage.py", '"disk": disk.f_blocks * disk.f_frsize,', '"disk": 0,'),
    ),
    Row(
        "bounded workers: a slow worker delays no other key",
        "controllers.runtime.loop:Concurrency",
        "controllers/runtime/test_loop.py::test_slow_key_does_not_block_others_and_times_out",
        (
            "controllers/runtime/loop.py",
            "_InFlight(task, now + self.concurrency.timeout_s)",
            "_InFlight(task, math.inf)",
        ),
    ),
    Row(
        "optimistic writes to etcd: one transaction that compares and swaps",
        "store.etcd.store:EtcdStore.commit",
        "contract/test_store.py::test_one_of_concurrent_writers_wins_each_round[etcd]",
        ("store/etcd/store.py", "            if write.expect is not None:", "            if False:"),
    ),
    Row(
        "core counters, by the names that dashboards look for",
        "metrics:REGISTRY",
        "controllers/test_spec004_loops.py::test_counters_have_documented_names",
        ("metrics.py", '"node_unhealthy_total"', '"lattice_node_unhealthy_total"'),
    ),
    Row(
        "automation: rules, and hooks that are tried again",
        "controllers.automation.webhook_queue:ATTEMPT_DELAYS_S",
        "controllers/automation/test_rules.py::test_failing_webhook_is_reported_after_three_attempts",
        (
            "controllers/automation/webhook_queue.py",
            "ATTEMPT_DELAYS_S = (0.0, 1.0, 5.0)",
            "ATTEMPT_DELAYS_S = (0.0, 1.0)",
        ),
    ),
    Row(
        "leadership is handed over",
        "store.election:Election",
        "store/test_election.py::test_stopped_leader_hands_over_within_a_second",
        ("store/election.py", "await self._with_timeout(self.store.resign(term), RESIGN_TIMEOUT_S)", "pass"),
    ),
)
