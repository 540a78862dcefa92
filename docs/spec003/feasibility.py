"""Section 6: what must hold for every placement."""

from docs.specification import Row

FILTERS = "scheduling/test_spec003_filters.py"

FEASIBILITY = (
    Row(
        "node_capacity never exceeded",
        "scheduling.room:lacks",
        "scheduling/test_schedule.py::test_a_profile_that_lets_through_what_does_not_fit_is_stopped_by_number",
        ("scheduling/room.py", "if amount > free:", "if False:"),
    ),
    Row(
        "node_status requires ready",
        "scheduling.plugins.ready:Ready",
        "scheduling/test_spec003_resources.py::test_only_nodes_that_are_well_take_workloads",
        (
            "scheduling/facts.py",
            'conditions.get("Ready", unsaid) == "True"',
            'conditions.get("Ready", unsaid) != "False"',
        ),
    ),
    Row(
        "resource_requests bounded_by_limits",
        "kinds.container:limit_problems",
        "scheduling/test_spec003_resources.py::test_requests_are_bounded_by_limits",
        (
            "kinds/container.py",
            "(requests[name]) > parse_resource(name)(limits[name])",
            "(requests[name]) >= parse_resource(name)(limits[name])",
        ),
    ),
    Row(
        "anti_affinity enforcement",
        "scheduling.nodes:NodeTable.repulsed_by",
        f"{FILTERS}::test_workload_anti_affinity[what is there keeps it away]",
        (
            "scheduling/census.py",
            "carriers.add(self._table, row, change)",
            "carriers.add(self._table, row, 0)",
        ),
    ),
    Row(
        "pod_spreading topology_constraint",
        "scheduling.domains:counts_itself",
        f"{FILTERS}::test_topology_spread",
        (
            "scheduling/plugins/topology_spread.py",
            "spread.max_skew - counts_itself(tally, ask)",
            "spread.max_skew",
        ),
    ),
    Row(
        "taints/tolerations",
        "scheduling.plugins.taints:Taints",
        f"{FILTERS}::test_taints",
        ("scheduling/plugins/taints.py", 'if taint.effect != "PreferNoSchedule")', ")"),
    ),
    Row(
        "volume_affinity",
        "scheduling.plugins.volume_zone:VolumeZone",
        f"{FILTERS}::test_volume_zone",
        ("scheduling/plugins/volume_zone.py", "~having(rows, key, value)", "having(rows, key, value)"),
    ),
    Row(
        "pod_priority / preemption",
        "scheduling.preempt:Preemptor.find",
        "scheduling/test_spec003_scheduler.py::test_equals_are_never_victims_even_if_fewer_would_do",
        ("scheduling/preempt.py", "self._sums.below(ask.priority)", "self._sums.below(0)"),
    ),
    Row(
        "scheduling_decision atomic",
        "scheduling.bind:Binder.bind_together",
        "scheduling/test_bind_groups.py::test_a_group_is_bound_all_or_nothing",
        ("scheduling/bind.py", "if ready < least:", "if False:"),
    ),
    Row(
        "binding_conflict reschedule",
        "scheduling.queue:Queue.failed",
        "scheduling/test_schedule.py::test_after_a_conflict_the_next_cycle_selects_anew",
        (
            "scheduling/bind.py",
            'changed since it was chosen", again=True)',
            'changed since it was chosen", again=False)',
        ),
    ),
)
