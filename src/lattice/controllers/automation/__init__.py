"""automation."""
