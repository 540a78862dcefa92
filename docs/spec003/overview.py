"""Overview: the seven parts of the specification."""

from docs.specification import Row

OVERVIEW = (
    Row(
        "scheduling.resources",
        "kinds.qos:eviction_order",
        "scheduling/table/test_spec003_resources.py::test_eviction_order_by_qos",
        (
            "kinds/qos.py",
            "return (-qos, over",
            "return (qos, over",
        ),
    ),
    Row(
        "scheduling.filter",
        "scheduling.cycle.profile:FILTERS",
        "scheduling/plugins/filters/test_spec003_filters.py::test_host_port_in_use_rejects_node",
        (
            "scheduling/plugins/filters/host_ports.py",
            "rows.column(port_column((number, protocol)))",
            'rows.column("unready")',
        ),
    ),
    Row(
        "scheduling.score",
        "scheduling.cycle.profile:PRESETS",
        "scheduling/plugins/scores/test_spec003_scores.py::test_preset_decides_by_its_weights",
        (
            "scheduling/cycle/profile.py",
            '_preset("fullest-first", BinPacking=1.0)',
            '_preset("fullest-first", LeastTaken=1.0)',
        ),
    ),
    Row(
        "scheduling.select",
        "scheduling.cycle.tie_break:Selector",
        "scheduling/cycle/test_tie_break.py::test_weighted_random_prefers_higher_scores",
        (
            "scheduling/cycle/tie_break.py",
            "totals, runner_up = decision.totals, decision.runner_up",
            "totals, runner_up, self = decision.totals, decision.runner_up, Selector(self.tie_breaker, top=self.top + 1)",
        ),
    ),
    Row(
        "scheduling.bind",
        "scheduling.cycle.binder:Binder",
        "scheduling/cycle/test_binder.py::test_pessimistic_mode_verifies_stored_capacity",
        ("scheduling/cycle/binder.py", "if amount > free:", "if False:"),
    ),
    Row(
        "scheduling.feasibility",
        "scheduling.plugins.filters.runtime:Runtime",
        "scheduling/plugins/filters/test_spec003_filters.py::test_every_filter_is_in_the_default_profile[Runtime]",
        (
            "scheduling/plugins/filters/runtime.py",
            "runtime not in runtimes",
            "runtime in runtimes",
        ),
    ),
    Row(
        "scheduling.scheduler",
        "scheduling.cycle.cycle:wakes_on",
        "scheduling/cycle/test_cycle.py::test_unschedulable_workload_has_reason_and_wake_events",
        (
            "scheduling/cycle/cycle.py",
            'events |= getattr(plugin, "wakes_on", ALL_EVENTS)',
            "events |= ALL_EVENTS",
        ),
    ),
)
