"""greedy."""
