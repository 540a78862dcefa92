"""Scenario scripts: a command, and what Lattice says.

Imported by: nothing.
May import: everything.
May touch: virtual time.
"""
