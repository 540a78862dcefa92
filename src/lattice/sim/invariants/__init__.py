"""What must hold, by the numbers of the list of invariants: each function is asked of every commit, or of the whole run."""
