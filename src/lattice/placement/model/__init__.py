"""The snapshot of the fleet; resolved demands; offers; the trial fleet, on which placement tries changes and
undoes them; quotes and costs.

Imported by: cli.fleet controllers.services placement.explain placement.feed placement.fit
placement.greedy placement.optimise placement.plan placement.plugins placement.plugins.filters
placement.plugins.scores placement.queries placement.status server.fleet_queries sim.planted_bugs.
May import: errors kinds kinds.meta engine lifecycle placement.affinity placement.inputs.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
