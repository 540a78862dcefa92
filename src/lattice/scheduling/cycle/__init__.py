"""The scheduling queue and cycle, gangs, reservations, binder, decision records, the scheduler cache.

Imported by: app cli.fleet controllers controllers.runtime controllers.scheduler scheduling
scheduling.offline sim.invariants sim.planted_bugs sim.scenarios sim.world.
May import: errors kinds kinds.meta engine lifecycle scheduling.plugins scheduling.plugins.filters
scheduling.plugins.scores scheduling.preemption scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
