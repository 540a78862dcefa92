"""Choose the workloads to evict so that a workload of higher priority fits.

Imported by: controllers.scheduler scheduling scheduling.cycle scheduling.offline sim.planted_bugs.
May import: errors kinds engine scheduling.plugins scheduling.plugins.filters scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
