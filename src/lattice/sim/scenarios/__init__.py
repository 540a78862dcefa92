"""Scenario scripts: commands, and the output of Lattice.

Imported by: nothing.
May import: everything.
May touch: virtual time.
"""
