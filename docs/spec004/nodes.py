"""Sections 4.3 and 4.4: nodes, and the placement of workloads."""

from docs.specification import Later, Row

NODES = "controllers/nodes/test_node_health.py"
RULES = "lifecycle/test_node_lifecycle.py"
LOOPS = "controllers/test_spec004_loops.py"
FILTERS = "scheduling/plugins/filters/test_spec003_filters.py"
BINDING = "controllers/scheduler/test_scheduler.py"

NODE_MANAGER = (
    Row(
        "registration",
        "server.agents.registration:Registrar.register",
        "server/agents/test_registration_messages.py::test_registration_writes_allowed_fields_once",
        (
            "server/agents/registration.py",
            '"runtimes": tuple(sorted(registration.runtimes)),',
            '"runtimes": (),',
        ),
    ),
    Row(
        "a heartbeat makes a node ready",
        "controllers.nodes.node_health:NodeHealthController.reconcile",
        f"{NODES}::test_node_resuming_heartbeats_on_its_session_is_ready",
        (
            "controllers/nodes/node_health.py",
            "delay_s = self.timeouts.heartbeat_interval / 2",
            "delay_s = readiness.requeue_after or self.concurrency.resync_s",
        ),
    ),
    Row(
        "a heartbeat brings what is in use",
        "controllers.nodes.node_health:NodeHealthController.usage",
        f"{NODES}::test_usage_is_live_and_written_on_significant_change",
        (
            "controllers/nodes/node_health.py",
            "            usage=usage,",
            "            usage=None,",
        ),
    ),
    Row(
        "missing heartbeats make it NotReady",
        "lifecycle.node_health:evaluate_node",
        f"{RULES}::test_evaluate_node[silent for 40 s: not ready, with an event]",
        (
            "lifecycle/node_health.py",
            "if was_lost or node.heartbeat_age >= timeouts.not_ready_after:",
            "if was_lost:",
        ),
    ),
    Row(
        "what a lost node ran starts elsewhere",
        "controllers.nodes.node_health:NodeHealthController.node_state",
        f"{NODES}::test_new_leader_restarts_eviction_timeout",
        (
            "controllers/nodes/node_health.py",
            "DecidedEviction(EvictionCause.NODE_LOST, failover.reason) if failover.is_allowed else None,",
            "None,",
        ),
    ),
    Row(
        "disk is counted",
        "scheduling.table.node_table:NodeTable.admit",
        f"{LOOPS}::test_disk_is_requested_counted_and_released",
        ("scheduling/table/node_table.py", "        self.allocate(row, ask.needs)", "        pass"),
    ),
)
PLACEMENT = (
    Row(
        "filter: readiness",
        "scheduling.plugins.filters.ready:Ready",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[Ready]",
        ("scheduling/plugins/filters/ready.py", 'UNREADY: rows.column("unready"),', ""),
    ),
    Row(
        "filter: CPU",
        "scheduling.plugins.filters.fit:Fit",
        f"{BINDING}::test_unschedulable_workload_waits_for_added_node",
        (
            "scheduling/plugins/filters/fit.py",
            "np.less(rows.free(resource), amount)",
            "np.less(rows.free(resource), 0)",
        ),
    ),
    Row(
        "filter: memory",
        "kinds.container:BYTE_RESOURCES",
        "scheduling/table/test_spec003_resources.py::test_node_capacity_limits_requests[memory in bytes]",
        ("kinds/container.py", 'frozenset({"memory", "storage"', 'frozenset({"storage"'),
    ),
    Row(
        "filter: labels",
        "scheduling.plugins.filters.node_selector:NodeSelector",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[NodeSelector]",
        (
            "scheduling/plugins/filters/node_selector.py",
            "return bool(ask.demands.node_selector)",
            "return False",
        ),
    ),
    Row(
        "filter: types of workload that a node supports",
        "scheduling.plugins.filters.runtime:Runtime",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[Runtime]",
        ("scheduling/plugins/filters/runtime.py", "return bool(ask.demands.runtime)", "return False"),
    ),
    Row(
        "filter: disk",
        "scheduling.table.workload_ask:demands_of",
        f"{LOOPS}::test_disk_is_requested_counted_and_released",
        (
            "scheduling/table/workload_ask.py",
            "if name != GPU and amount > 0",
            'if name not in (GPU, "storage") and amount > 0',
        ),
    ),
    Row(
        "the least used node first, by default for workloads of their own",
        "scheduling.cycle.cycle:CompositeScheduler.profile_of",
        "controllers/scheduler/test_profiles.py::test_each_workload_is_scheduled_by_its_own_profile",
        (
            "scheduling/cycle/cycle.py",
            "if self.standalone_profile is None or ask.demands.service:",
            "if True:",
        ),
    ),
    Row(
        "an assignment is persisted with its reasons",
        "scheduling.cycle.decision_record:chosen_records",
        f"{BINDING}::test_workload_is_bound_with_recorded_decision",
        (
            "scheduling/cycle/decision_record.py",
            'return {"reasons": {reason.summary()[:MAX_REASON_CHARS]: count for reason, count in counts[:MAX_REASONS]}}',
            "return {}",
        ),
    ),
)
PLACEMENT_LATER = (
    Later(
        "VM and compose workloads",
        "a workload is one or more processes or containers, and a node says which of the two it runs; anything else is refused",
    ),
)
