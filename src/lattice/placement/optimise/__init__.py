"""optimise."""
