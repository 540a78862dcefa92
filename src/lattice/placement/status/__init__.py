"""Status and conditions of services, pools, infrastructure and clusters, computed from a fleet.

Imported by: controllers.services placement.plan placement.queries sim.planted_bugs.
May import: errors kinds kinds.meta engine lifecycle placement.inputs placement.model placement.greedy
placement.explain placement.plugins placement.plugins.filters.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
