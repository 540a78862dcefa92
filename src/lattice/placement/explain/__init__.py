"""Why a service is not placed: blockers, verdict, required infrastructure.

Imported by: placement.fit placement.queries placement.status.
May import: errors kinds kinds.meta engine placement.greedy placement.model placement.plugins
placement.plugins.filters.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
