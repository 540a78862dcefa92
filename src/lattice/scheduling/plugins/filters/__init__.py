"""One module per filter plugin of the scheduler.

Imported by: scheduling.cycle scheduling.preemption sim.planted_bugs.
May import: errors kinds engine scheduling.plugins scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
