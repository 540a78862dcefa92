"""Sections 4.3 and 4.4: nodes, and who goes where."""

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
        "server/agents/test_registration_messages.py::test_registration_is_written_once_and_only_what_an_agent_may_say",
        ("server/agents/registration.py", '"runtimes": tuple(sorted(said.runtimes)),', '"runtimes": (),'),
    ),
    Row(
        "a heartbeat makes a node ready",
        "controllers.nodes.node_health:NodeHealthController.reconcile",
        f"{NODES}::test_a_node_that_speaks_again_on_the_same_connection_is_ready_again",
        (
            "controllers/nodes/node_health.py",
            'again = self.timeouts.heartbeat_interval / 2 if verdict.state == "NotReady" else verdict.requeue_after',
            "requeue_after = verdict.requeue_after",
        ),
    ),
    Row(
        "a heartbeat brings what is in use",
        "controllers.nodes.node_health:NodeHealthController.usage",
        f"{NODES}::test_usage_is_live_and_written_only_when_it_is_news",
        (
            "controllers/nodes/node_health.py",
            "            usage=self._usage(node),",
            "            usage=None,",
        ),
    ),
    Row(
        "missing heartbeats make it NotReady",
        "lifecycle.node_health:evaluate_node",
        f"{RULES}::test_evaluate_node[silent for 40 s: not ready, with an event]",
        (
            "lifecycle/node_health.py",
            "if was_lost or node.heartbeat_age >= times.not_ready_after:",
            "if was_lost:",
        ),
    ),
    Row(
        "what a lost node ran starts elsewhere",
        "controllers.nodes.node_health:NodeHealthController.node_state",
        f"{NODES}::test_a_new_leader_counts_the_two_minutes_anew",
        (
            "controllers/nodes/node_health.py",
            'NodeState("Abandoned" if found.is_allowed else "Silent", True,',
            'NodeState("Silent", True,',
        ),
    ),
    Row(
        "disk is counted",
        "scheduling.table.node_table:NodeTable.admit",
        f"{LOOPS}::test_disk_is_asked_for_counted_and_given_back",
        ("scheduling/table/node_table.py", "        self.allocate(row, ask.needs)", "        pass"),
    ),
)
PLACEMENT = (
    Row(
        "filter: readiness",
        "scheduling.plugins.filters.ready:Ready",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[Ready]",
        ("scheduling/plugins/filters/ready.py", 'UNREADY: rows.column("unready"), ', ""),
    ),
    Row(
        "filter: CPU",
        "scheduling.plugins.filters.fit:Fit",
        f"{BINDING}::test_without_room_it_sleeps_until_a_node_is_added",
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
        "scheduling.table.ask:demands_of",
        f"{LOOPS}::test_disk_is_asked_for_counted_and_given_back",
        (
            "scheduling/table/ask.py",
            "if name != GPU and amount > 0",
            'if name not in (GPU, "storage") and amount > 0',
        ),
    ),
    Row(
        "the least used node first, by default for workloads of their own",
        "scheduling.cycle.cycle:CompositeScheduler.profile_of",
        "controllers/scheduler/test_profiles.py::test_each_is_decided_by_its_own_profile_and_says_so",
        (
            "scheduling/cycle/cycle.py",
            "return self.profile if self.standalone_profile is None or ask.demands.service else self.standalone_profile",
            "return self.profile",
        ),
    ),
    Row(
        "an assignment is persisted with its reasons",
        "scheduling.cycle.decision_record:chosen_records",
        f"{BINDING}::test_a_workload_that_needs_a_node_gets_one_and_it_is_written_down_why",
        (
            "scheduling/cycle/decision_record.py",
            'return {"reasons": {reason.summary()[:MAX_REASON_CHARS]: count for reason, count in found[:MAX_REASONS]}} if found else {}',
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
