"""Where kinds live: one protocol, one adapter per backend, and what is built on it."""
