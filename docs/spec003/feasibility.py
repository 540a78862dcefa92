"""Section 6: invariants of every placement."""

from docs.specification import Row

FILTERS = "scheduling/plugins/filters/test_spec003_filters.py"

FEASIBILITY = (
    Row(
        "node_capacity never exceeded",
        "scheduling.table.resource_fit:unfit_reason",
        "scheduling/cycle/test_cycle.py::test_reservation_rejects_overcommit_of_lax_profile",
        ("scheduling/table/resource_fit.py", "if amount > free:", "if False:"),
    ),
    Row(
        "node_status requires ready",
        "scheduling.plugins.filters.ready:Ready",
        "scheduling/table/test_spec003_resources.py::test_only_ready_nodes_take_workloads",
        (
            "scheduling/table/node_info.py",
            'else default_ready) == "True"',
            'else default_ready) != "False"',
        ),
    ),
    Row(
        "resource_requests bounded_by_limits",
        "kinds.container:limit_problems",
        "scheduling/table/test_spec003_resources.py::test_requests_are_bounded_by_limits",
        (
            "kinds/container.py",
            "(requests[name]) > resource_parser(name)(limits[name])",
            "(requests[name]) >= resource_parser(name)(limits[name])",
        ),
    ),
    Row(
        "anti_affinity enforcement",
        "scheduling.table.node_table:NodeTable.anti_affinity_against",
        f"{FILTERS}::test_workload_anti_affinity[a placed workload repels it]",
        (
            "scheduling/table/workload_index.py",
            "term_counts.add(self._table, row, change)",
            "term_counts.add(self._table, row, 0)",
        ),
    ),
    Row(
        "pod_spreading topology_constraint",
        "scheduling.table.topology_domains:counts_workload",
        f"{FILTERS}::test_topology_spread",
        (
            "scheduling/plugins/filters/topology_spread.py",
            "spread.max_skew - counts_workload(topology_counts, ask)",
            "spread.max_skew",
        ),
    ),
    Row(
        "taints/tolerations",
        "scheduling.plugins.filters.taints:Taints",
        f"{FILTERS}::test_taints",
        ("scheduling/plugins/filters/taints.py", 'if taint.effect != "PreferNoSchedule")', ")"),
    ),
    Row(
        "volume_affinity",
        "scheduling.plugins.filters.volume_zone:VolumeZone",
        f"{FILTERS}::test_volume_zone",
        (
            "scheduling/plugins/filters/volume_zone.py",
            "~rows_with_label(rows, key, value)",
            "rows_with_label(rows, key, value)",
        ),
    ),
    Row(
        "pod_priority / preemption",
        "scheduling.preemption.preemptor:Preemptor.find",
        "scheduling/cycle/test_spec003_scheduler.py::test_equal_priority_is_never_preempted",
        (
            "scheduling/preemption/preemptor.py",
            "self._reclaimable.for_priority(ask.priority)",
            "self._reclaimable.for_priority(0)",
        ),
    ),
    Row(
        "scheduling_decision atomic",
        "scheduling.cycle.binder:Binder.bind_gang",
        "scheduling/cycle/test_binder_gangs.py::test_gang_is_bound_all_or_nothing",
        ("scheduling/cycle/binder.py", "if len(ready) >= least:", "if True:"),
    ),
    Row(
        "binding_conflict reschedule",
        "scheduling.cycle.scheduling_queue:SchedulingQueue.requeue_failed",
        "scheduling/cycle/test_cycle.py::test_next_cycle_reselects_after_conflict",
        (
            "scheduling/cycle/binder.py",
            'changed after the decision", is_retriable=True)',
            'changed after the decision", is_retriable=False)',
        ),
    ),
)
