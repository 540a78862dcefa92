"""Overview: the seven parts of the specification."""

from docs.specification import Row

OVERVIEW = (
    Row(
        "scheduling.resources",
        "scheduling.table.qos:eviction_order",
        "scheduling/table/test_spec003_resources.py::test_best_effort_goes_first_and_guaranteed_last",
        (
            "scheduling/table/qos.py",
            "key=lambda workload: (-workload[1], workload[2], workload[0])",
            "key=lambda workload: (workload[1], workload[2], workload[0])",
        ),
    ),
    Row(
        "scheduling.filter",
        "scheduling.cycle.profile:FILTERS",
        "scheduling/plugins/filters/test_spec003_filters.py::test_a_port_in_use_rules_a_node_out",
        (
            "scheduling/plugins/filters/host_ports.py",
            "rows.column(port_column((number, protocol)))",
            'rows.column("unready")',
        ),
    ),
    Row(
        "scheduling.score",
        "scheduling.cycle.profile:PRESETS",
        "scheduling/plugins/scores/test_spec003_scores.py::test_a_preset_decides_by_its_weights",
        (
            "scheduling/cycle/profile.py",
            '_preset("fullest-first", BinPacking=1.0)',
            '_preset("fullest-first", LeastTaken=1.0)',
        ),
    ),
    Row(
        "scheduling.select",
        "scheduling.cycle.tie_break:Selector",
        "scheduling/cycle/test_tie_break.py::test_weighted_random_prefers_the_better_of_the_best_few",
        (
            "scheduling/cycle/tie_break.py",
            "return _top_rows(decision, self.top)",
            "return _top_rows(decision, self.top + 1)",
        ),
    ),
    Row(
        "scheduling.bind",
        "scheduling.cycle.binder:Binder",
        "scheduling/cycle/test_binder.py::test_pessimistic_verifies_what_the_ledger_says",
        ("scheduling/cycle/binder.py", "if amount > free:", "if False:"),
    ),
    Row(
        "scheduling.feasibility",
        "scheduling.plugins.filters.runtime:Runtime",
        "scheduling/plugins/filters/test_spec003_filters.py::test_every_filter_is_asked[Runtime]",
        (
            "scheduling/plugins/filters/runtime.py",
            "runtime not in runtimes",
            "runtime in runtimes",
        ),
    ),
    Row(
        "scheduling.scheduler",
        "scheduling.cycle.cycle:wakes_on",
        "scheduling/cycle/test_cycle.py::test_who_fits_nowhere_is_told_why_and_what_could_help",
        (
            "scheduling/cycle/cycle.py",
            'events |= getattr(plugin, "wakes_on", ALL_EVENTS)',
            "events |= ALL_EVENTS",
        ),
    ),
)
