"""Section 4: the choice among the best nodes, and its reservation."""

from docs.specification import Row

SELECTS = "scheduling/cycle/test_tie_break.py"
HOLDS = "scheduling/cycle/test_reservations.py"

SELECT = (
    Row(
        "winner",
        "scheduling.cycle.tie_break:Selection",
        f"{SELECTS}::test_score_is_scaled_0_to_100",
        (
            "scheduling/cycle/tie_break.py",
            "row = int(rows[0]) if len(rows) == 1",
            "row = decision.runner_up if len(rows) == 1",
        ),
    ),
    Row(
        "candidates",
        "scheduling.cycle.tie_break:Selection",
        f"{SELECTS}::test_selection_draws_from_top_scores_only",
        (
            "scheduling/cycle/tie_break.py",
            "return Selection(row, score_of(decision, row), rows)",
            "return Selection(row, score_of(decision, row))",
        ),
    ),
    Row(
        "tiebreaker",
        "scheduling.cycle.tie_break:TieBreaker",
        f"{SELECTS}::test_fixed_tie_break_equals_engine_choice",
        (
            "scheduling/cycle/tie_break.py",
            "                return decision.chosen",
            "                return decision.runner_up",
        ),
    ),
    Row(
        "reservation",
        "scheduling.cycle.reservations:Reservation",
        f"{HOLDS}::test_reservation_ids_are_unique",
        ("scheduling/cycle/reservations.py", 'f"{self.holder}-{self._last_number}"', "self.holder"),
    ),
    Row(
        "reservation_timeout",
        "scheduling.cycle.reservations:Reservations",
        "scheduling/cycle/test_cycle.py::test_compose_builds_scheduler_from_profile",
        ("scheduling/cycle/reservations.py", "now + self.timeout,", "now + RESERVATION_TIMEOUT_S,"),
    ),
    Row(
        "selection_result",
        "scheduling.cycle.tie_break:Selection.fits",
        f"{SELECTS}::test_selection_without_candidates_has_a_problem",
        ("scheduling/cycle/tie_break.py", "return self.row != NO_ROW", "return True"),
    ),
    Row(
        "strategy: random",
        "scheduling.cycle.tie_break:TieBreaker.RANDOM",
        f"{SELECTS}::test_random_is_seeded_and_reaches_every_tie",
        ("scheduling/cycle/tie_break.py", "int(self.rng.random() * len(rows))", "0"),
    ),
    Row(
        "strategy: least_loaded",
        "scheduling.cycle.tie_break:TieBreaker.LEAST_LOADED",
        f"{SELECTS}::test_least_loaded_selects_emptiest_tie",
        (
            "scheduling/cycle/tie_break.py",
            "return int(rows[loads.argmin()])",
            "return int(rows[loads.argmax()])",
        ),
    ),
    Row(
        "strategy: round_robin",
        "scheduling.cycle.tie_break:TieBreaker.ROUND_ROBIN",
        "scheduling/cycle/test_spec003_scheduler.py::test_round_robin_without_scores_distributes_evenly",
        ("scheduling/cycle/tie_break.py", 'side="right"', 'side="left"'),
    ),
    Row(
        "is_expired()",
        "scheduling.cycle.reservations:Reservation.is_expired",
        f"{HOLDS}::test_expiry_is_inclusive",
        ("scheduling/cycle/reservations.py", "return now >= self.expires_at", "return now > self.expires_at"),
    ),
    Row(
        "Selector trait",
        "scheduling.cycle.tie_break:Selector",
        "scheduling/cycle/test_spec003_scheduler.py::test_selector_is_replaceable",
        (
            "scheduling/cycle/cycle.py",
            "selection = self.selector.select(decision)",
            "selection = Selector().select(decision)",
        ),
    ),
    Row(
        "weighted_random strategy",
        "scheduling.cycle.tie_break:TieBreaker.WEIGHTED_RANDOM",
        f"{SELECTS}::test_weighted_random_prefers_higher_scores",
        ("scheduling/cycle/tie_break.py", "target = self.rng.random() * sum(weights)", "target = 0.0"),
    ),
    Row(
        "affinity_based strategy",
        "scheduling.cycle.tie_break:TieBreaker.AFFINITY",
        f"{SELECTS}::test_affinity_selects_most_preferred_tie",
        (
            "scheduling/cycle/tie_break.py",
            "int(max(rows.tolist(), key=count_preferences))",
            "int(min(rows.tolist(), key=count_preferences))",
        ),
    ),
)
