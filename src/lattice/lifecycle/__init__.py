"""State machines that controllers carry out: they decide the next action for a workload, a node, a rollout
or the machines of a cluster.

Imported by: app controllers controllers.automation controllers.nodes controllers.scheduler
controllers.services diagnosis placement.affinity placement.greedy placement.model placement.plan
placement.status scheduling.cycle server.agents server.resources server.ui_backend sim.invariants
sim.planted_bugs sim.world.
May import: errors kinds kinds.meta.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
