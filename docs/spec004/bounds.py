"""Sections 12 to 14, and the list of gaps: what the control plane leaves to others, what was open, and what must hold."""

from docs.specification import Later, Row

WORKLOADS = "controllers/nodes/test_workloads.py"
AGENT = "agent/test_session.py"

OUT_OF_SCOPE = (
    Row(
        "no images are built: one is named, and a node that has no use for it says so",
        "agent.runtimes.router:RuntimeRouter",
        "agent/runtimes/test_container.py::test_a_node_without_containers_refuses_images_and_runs_the_rest",
        (
            "agent/runtimes/router.py",
            'return "container" if container.image else "process"',
            'return "process"',
        ),
    ),
    Row(
        "no runtime is driven by the server: it sends what is wanted, and its nodes do it",
        "server.agents.codec:encode_assignment",
        "server/agents/test_sessions.py::test_an_order_carries_what_the_node_needs",
        ("server/agents/codec.py", "        revision=order.revision,", ""),
    ),
    Row(
        "no store of logs: the last lines of what failed, and no more",
        "lifecycle.workload_status:MAX_LOG_CHARS",
        "lifecycle/test_workload_status.py::test_decision_is_stored_with_its_time",
        ("lifecycle/workload_status.py", "last_log=sight.log[-MAX_LOG_CHARS:]", "last_log=sight.log"),
    ),
    Row(
        "agents do not reconcile by themselves: they do what they were told, and nothing before they were told",
        "agent.executor:Executor",
        f"{AGENT}::test_after_a_restart_nothing_is_done_before_the_control_plane_was_heard",
        ("agent/executor.py", "self.may_act = False  # only", "self.may_act = True  # only"),
    ),
)
KNOWN_GAPS = (
    Row(
        "events are streamed",
        "server.grpc.control_service:ControlService.WatchEvents",
        "server/grpc/test_control_service.py::test_events_are_told_as_they_come",
        (
            "server/grpc/control_service.py",
            'demands = {"involvedObject.kind": request.kind, "involvedObject.name": request.name}',
            "demands = {}",
        ),
    ),
    Row(
        "placement knows the topology",
        "scheduling.plugins.filters.topology_spread:TopologySpread",
        "scheduling/plugins/filters/test_spec003_filters.py::test_topology_spread",
        ("scheduling/plugins/filters/topology_spread.py", "counts > most, False)", "counts < most, False)"),
    ),
    Row(
        "retrying is a part of the API, with a version like the rest of it",
        "server.resources.subresources:retry",
        "server/resources/test_subresources.py::test_an_administrator_may_retry_what_a_service_owns",
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
            'NO_RUN_ACTIONS = frozenset({"", Action.ASSIGN,',
            'NO_RUN_ACTIONS = frozenset({"",',
        ),
    ),
    Row(
        "idempotent by revision, and agents insist on it",
        "agent.plan:plan",
        "agent/test_plan.py::test_plan[an update first stops the old one]",
        (
            "agent/plan.py",
            'if order.desired != "Running" or any(each.is_live and _stop_reason(each, order) for each in there):',
            'if order.desired != "Running":',
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
            "for node in sorted(overdue.values(), key=lambda each: (-each.heartbeat_age, each.name)):",
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
        "agent/host/test_usage.py::test_the_machine_itself",
        ("agent/host/usage.py", '"disk": disk.f_blocks * disk.f_frsize}', '"disk": 0}'),
    ),
    Row(
        "bounded workers, of which a slow one holds up nobody",
        "controllers.runtime.loop:Concurrency",
        "controllers/runtime/test_loop.py::test_one_slow_key_does_not_hold_up_the_others_and_is_broken_off_in_the_end",
        (
            "controllers/runtime/loop.py",
            "_InFlight(task, now + self.concurrency.timeout_s)",
            "_InFlight(task, math.inf)",
        ),
    ),
    Row(
        "optimistic writes to etcd: one transaction that compares and swaps",
        "store.etcd.store:EtcdStore.commit",
        "contract/test_store.py::test_of_concurrent_writers_exactly_one_wins_each_round[etcd]",
        ("store/etcd/store.py", "            if write.expect is not None:", "            if False:"),
    ),
    Row(
        "core counters, by the names that dashboards look for",
        "metrics:REGISTRY",
        "controllers/test_spec004_loops.py::test_the_counters_have_the_names_that_dashboards_look_for",
        ("metrics.py", '"node_unhealthy_total"', '"lattice_node_unhealthy_total"'),
    ),
    Row(
        "automation: rules, and hooks that are tried again",
        "controllers.automation.webhook_queue:ATTEMPT_DELAYS_S",
        "controllers/automation/test_rules.py::test_a_webhook_that_does_not_answer_is_tried_three_times_and_then_told_of",
        (
            "controllers/automation/webhook_queue.py",
            "ATTEMPT_DELAYS_S = (0.0, 1.0, 5.0)",
            "ATTEMPT_DELAYS_S = (0.0, 1.0)",
        ),
    ),
    Row(
        "leadership is handed over",
        "store.election:Election",
        "store/test_election.py::test_a_stopped_leader_hands_over_within_a_second",
        ("store/election.py", "await self._with_timeout(self.store.resign(term), RESIGN_TIMEOUT_S)", "pass"),
    ),
)
