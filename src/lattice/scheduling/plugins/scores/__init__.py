"""One module per score plugin of the scheduler.

Imported by: scheduling.cycle.
May import: errors kinds engine scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
