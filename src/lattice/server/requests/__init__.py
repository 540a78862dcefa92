"""requests."""
