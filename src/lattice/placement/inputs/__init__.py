"""Figures that placement reads: price book, price catalog, latencies, ledger arithmetic.

Imported by: cli.fleet controllers.automation controllers.services diagnosis placement.affinity
placement.feed placement.fit placement.greedy placement.model placement.plan placement.queries
placement.status server.fleet_queries server.live sim.planted_bugs sim.world.
May import: errors kinds kinds.meta.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
