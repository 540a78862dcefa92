"""Bugs planted in the real code that the invariants must find.

Imported by: cli.commands sim.
May import: everything.
May touch: functions of the real code.
"""
