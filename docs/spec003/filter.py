"""Section 2: filters reject nodes, each with a reason."""

from docs.specification import Row

FILTERS = "scheduling/plugins/filters/test_spec003_filters.py"

FILTER = (
    Row(
        "predicates",
        "scheduling.cycle.profile:FILTERS",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[Licence]",
        ("scheduling/cycle/profile.py", "    Licence(),", ""),
    ),
    Row(
        "node_pool",
        "scheduling.table.node_table:NodeTable.load",
        f"{FILTERS}::test_all_nodes_are_evaluated",
        ("engine/table.py", "        self.count += 1", "        self.count = 1"),
    ),
    Row(
        "eligible_nodes",
        "engine.explain:summarize",
        f"{FILTERS}::test_feasible_and_rejected_nodes_are_counted",
        (
            "engine/explain.py",
            "np.count_nonzero(decision.totals > REJECTED_TOTAL)",
            "np.count_nonzero(decision.totals >= REJECTED_TOTAL)",
        ),
    ),
    Row(
        "filtered_count",
        "engine.explain:rejection_counts",
        f"{FILTERS}::test_feasible_and_rejected_nodes_are_counted",
        ("engine/explain.py", "uncounted &= ~mask", "uncounted &= mask"),
    ),
    Row(
        "node_selector",
        "scheduling.plugins.filters.node_selector:NodeSelector",
        f"{FILTERS}::test_every_filter_is_in_the_default_profile[NodeSelector]",
        (
            "scheduling/plugins/filters/node_selector.py",
            "~rows_with_label(rows, key, value)",
            "rows_with_label(rows, key, value)",
        ),
    ),
    Row(
        "node_affinity",
        "scheduling.plugins.filters.node_affinity:NodeAffinity",
        f"{FILTERS}::test_node_affinity",
        (
            "kinds/meta/selector.py",
            "_is_greater(bound, value) for value, bound",
            "_is_greater(value, bound) for value, bound",
        ),
    ),
    Row(
        "tolerations",
        "kinds.constraints:Toleration.tolerates",
        f"{FILTERS}::test_tolerations",
        ("kinds/constraints.py", 'return self.key in ("", taint.key)', "return self.key == taint.key"),
    ),
    Row(
        "resource_feasibility_check",
        "scheduling.plugins.filters.fit:Fit",
        f"{FILTERS}::test_resource_fit",
        (
            "scheduling/plugins/filters/fit.py",
            "np.less(rows.free(resource), amount)",
            "np.less_equal(rows.free(resource), amount)",
        ),
    ),
    Row(
        "rejection_reasons",
        "scheduling.plugins.filters.fit:InsufficientResource",
        f"{FILTERS}::test_resource_fit",
        ("scheduling/plugins/filters/fit.py", "(free, self.need - free)", "(free, self.need)"),
    ),
    Row(
        "Filter trait",
        "engine.plugin:Filter",
        f"{FILTERS}::test_custom_filter",
        ("engine/decide.py", "reasons.update(plugin.filter(ask, rows))", "plugin.filter(ask, rows)"),
    ),
    Row(
        "pod_affinity",
        "scheduling.plugins.filters.inter_workload_affinity:WorkloadAffinity",
        f"{FILTERS}::test_workload_affinity",
        (
            "scheduling/plugins/filters/inter_workload_affinity.py",
            "unmet = ~in_occupied_domain(rows, key, counts, default=True)",
            "unmet = in_occupied_domain(rows, key, counts)",
        ),
    ),
    Row(
        "pod_anti_affinity",
        "scheduling.plugins.filters.inter_workload_affinity:WorkloadAntiAffinity",
        f"{FILTERS}::test_workload_anti_affinity[it avoids a placed workload]",
        (
            "scheduling/plugins/filters/inter_workload_affinity.py",
            "rejections[reason] = in_occupied_domain(rows, key, counts)",
            "rejections[reason] = ~in_occupied_domain(rows, key, counts)",
        ),
    ),
    Row(
        "topology_constraints",
        "scheduling.plugins.filters.topology_spread:TopologySpread",
        f"{FILTERS}::test_topology_spread",
        (
            "scheduling/plugins/filters/topology_spread.py",
            "counts > max_count, False)",
            "counts < max_count, False)",
        ),
    ),
)
