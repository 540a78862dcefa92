"""One module per filter plugin of placement.

Imported by: placement.explain placement.fit placement.greedy placement.optimise placement.plan
placement.plugins.scores placement.queries placement.status sim.planted_bugs.
May import: errors kinds kinds.meta engine placement.affinity placement.model placement.plugins.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
