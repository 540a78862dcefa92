"""Tables, formats and messages on the terminal.

Imported by: cli cli.client cli.commands cli.fleet.
May import: errors kinds kinds.meta engine scheduling.offline.
May touch: standard streams.
"""
