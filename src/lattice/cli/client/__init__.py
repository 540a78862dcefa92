"""Talking to a server: HTTP, configuration, names of kinds, manifests, watches.

Imported by: cli.commands cli.fleet.
May import: errors kinds kinds.meta manifest_files cli.output.
May touch: HTTP connections, files that the user names.
"""
