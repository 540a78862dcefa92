"""The placement algorithm: one service, all services, commit stages, scale-down, orphaned replicas.

Imported by: controllers.services placement.explain placement.fit placement.optimise placement.plan
placement.queries placement.status sim.planted_bugs.
May import: errors kinds kinds.meta engine lifecycle placement.affinity placement.inputs placement.model
placement.plugins.filters placement.plugins.scores.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
