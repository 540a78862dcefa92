"""The smallest changes that would make a service fit, each tried on a trial fleet.

Imported by: placement.queries.
May import: errors kinds kinds.meta engine placement.explain placement.greedy placement.inputs
placement.model placement.plugins placement.plugins.filters.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
