"""The seven parts of the specification as a whole."""

from docs.specification import Row

OVERVIEW = (
    Row(
        "scheduling.resources",
        "scheduling.resources:eviction_order",
        "scheduling/test_spec003_resources.py::test_best_effort_goes_first_and_guaranteed_last",
        (
            "scheduling/resources.py",
            "key=lambda each: (-each[1], each[2], each[0])",
            "key=lambda each: (each[1], each[2], each[0])",
        ),
    ),
    Row(
        "scheduling.filter",
        "scheduling.profile:FILTERS",
        "scheduling/test_spec003_filters.py::test_a_port_in_use_rules_a_node_out",
        (
            "scheduling/plugins/host_ports.py",
            "rows.column(port_column((number, protocol)))",
            'rows.column("unready")',
        ),
    ),
    Row(
        "scheduling.score",
        "scheduling.profile:PRESETS",
        "scheduling/test_spec003_scores.py::test_a_preset_decides_by_its_weights",
        (
            "scheduling/profile.py",
            '_preset("fullest-first", BinPacking=1.0)',
            '_preset("fullest-first", LeastTaken=1.0)',
        ),
    ),
    Row(
        "scheduling.select",
        "scheduling.select:Selector",
        "scheduling/test_select.py::test_weighted_random_prefers_the_better_of_the_best_few",
        (
            "scheduling/select.py",
            "return _best_few(decision, self.top)",
            "return _best_few(decision, self.top + 1)",
        ),
    ),
    Row(
        "scheduling.bind",
        "scheduling.bind:Binder",
        "scheduling/test_bind.py::test_pessimistic_verifies_what_the_ledger_says",
        ("scheduling/bind.py", "if amount > have:", "if False:"),
    ),
    Row(
        "scheduling.feasibility",
        "scheduling.plugins.runtime:Runtime",
        "scheduling/test_spec003_filters.py::test_every_filter_is_asked[Runtime]",
        ("scheduling/plugins/runtime.py", "runtime not in facts.runtimes", "runtime in facts.runtimes"),
    ),
    Row(
        "scheduling.scheduler",
        "scheduling.schedule:wakes_on",
        "scheduling/test_schedule.py::test_who_fits_nowhere_is_told_why_and_what_could_help",
        ("scheduling/schedule.py", 'named |= getattr(each, "wakes_on", ANYTHING)', "named |= ANYTHING"),
    ),
)
