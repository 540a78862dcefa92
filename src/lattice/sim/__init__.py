"""Run the whole control plane in virtual time under faults, for many seeds, and report.

Imported by: cli.commands.
May import: everything.
May touch: processes of its own.
"""
