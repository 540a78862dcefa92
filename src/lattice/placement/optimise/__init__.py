"""The cheapest whole fleet: linear program, solver, optimality gap, applying the solution.

Imported by: placement.queries.
May import: errors engine placement.greedy placement.model placement.plan placement.plugins.filters.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
