"""Section 3: scores rank the feasible nodes."""

from docs.specification import Row

SCORES = "scheduling/plugins/scores/test_spec003_scores.py"

SCORE = (
    Row(
        "scoring_functions",
        "scheduling.cycle.profile:SCORES",
        f"{SCORES}::test_specified_scores_exist",
        ("scheduling/cycle/profile.py", "    Price(),", ""),
    ),
    Row(
        "weights",
        "scheduling.cycle.profile:ProfileSpec",
        f"{SCORES}::test_weights",
        ("engine/decide.py", "np.multiply(values, weight, out=values)", "values"),
    ),
    Row(
        "ranked_nodes",
        "engine.explain:top_candidates",
        f"{SCORES}::test_candidates_are_ranked_with_score_parts",
        ("engine/explain.py", "totals[row] = REJECTED_TOTAL", "pass"),
    ),
    Row(
        "final_score",
        "engine.explain:RankedCandidate",
        f"{SCORES}::test_candidates_are_ranked_with_score_parts",
        (
            "engine/explain.py",
            "sum(part.score * part.weight for part in parts)",
            "sum(part.score for part in parts)",
        ),
    ),
    Row(
        "resource_balance",
        "scheduling.plugins.scores.balanced_resources:BalancedResources",
        f"{SCORES}::test_balanced_resources",
        ("scheduling/plugins/scores/balanced_resources.py", "np.abs(high, out=high)", "pass"),
    ),
    Row(
        "spreading",
        "scheduling.plugins.scores.service_spread:ServiceSpread",
        f"{SCORES}::test_service_spread_counts_nodes_and_zones",
        (
            "scheduling/plugins/scores/service_spread.py",
            "np.divide(np.float32(0.5), replicas, out=replicas)",
            "np.multiply(np.float32(0.5), replicas, out=replicas)",
        ),
    ),
    Row(
        "binpacking",
        "scheduling.plugins.scores.bin_packing:BinPacking",
        f"{SCORES}::test_bin_packing_counts_requested_resources",
        (
            "scheduling/plugins/scores/bin_packing.py",
            "return mean_share_with_workload(ask, rows)",
            "return 1 - mean_share_with_workload(ask, rows)",
        ),
    ),
    Row(
        "preferred_affinity",
        "scheduling.plugins.scores.node_preference:NodePreference",
        f"{SCORES}::test_node_preferences_count_by_weight",
        (
            "scheduling/plugins/scores/node_preference.py",
            "rows_matching_any(rows, (preference.term,)) * np.float32(preference.weight)",
            "rows_matching_any(rows, (preference.term,))",
        ),
    ),
    Row(
        "normalized_value bounds",
        "engine.explain:MAX_SCORE",
        f"{SCORES}::test_score_is_weighted_mean_from_0_to_100",
        ("engine/explain.py", "MAX_SCORE = 100.0", "MAX_SCORE = 1.0"),
    ),
    Row(
        "calculate_final_score",
        "scheduling.cycle.tie_break:score_of",
        f"{SCORES}::test_score_is_weighted_mean_from_0_to_100",
        ("scheduling/cycle/tie_break.py", "MAX_SCORE * total / weight)", "MAX_SCORE * total)"),
    ),
    Row(
        "Scorer trait",
        "engine.plugin:Score",
        f"{SCORES}::test_custom_score",
        ("engine/decide.py", "for score, weight in scores:", "for score, weight in scores[1:]:"),
    ),
    Row(
        "anti_affinity scoring",
        "scheduling.plugins.scores.preferred_affinity:PreferredAntiAffinity",
        f"{SCORES}::test_preferred_workload_affinity[anti-preferred workloads repel it]",
        (
            "scheduling/plugins/scores/preferred_affinity.py",
            "np.divide(np.float32(preference.weight), in_domain",
            "np.multiply(np.float32(preference.weight), in_domain",
        ),
    ),
    Row(
        "topology_spread scoring",
        "scheduling.plugins.scores.soft_spread:SoftSpread",
        f"{SCORES}::test_soft_spread_prefers_emptier_domains",
        ("scheduling/plugins/scores/soft_spread.py", "total += evenness(", "total -= evenness("),
    ),
)
