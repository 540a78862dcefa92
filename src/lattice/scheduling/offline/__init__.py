"""`lattice simulate`: scheduling a list of workloads onto a list of nodes without a server.

Imported by: cli.commands cli.output.
May import: errors kinds engine scheduling.cycle scheduling.plugins scheduling.preemption
scheduling.table.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
