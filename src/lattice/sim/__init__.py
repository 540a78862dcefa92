"""The whole control plane in virtual time under faults; runs many seeds and reports.

Imported by: cli.commands.
May import: everything.
May touch: processes of its own.
"""
