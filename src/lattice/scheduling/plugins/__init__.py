"""What all scheduling plugins share: rejection reasons and cluster events.

Imported by: controllers.scheduler scheduling.cycle scheduling.offline scheduling.plugins.filters
scheduling.preemption.
May import: errors engine scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
