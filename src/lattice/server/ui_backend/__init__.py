"""ui_backend."""
