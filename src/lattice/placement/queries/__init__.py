"""plan, why, fit, what-if, cost and optimise as query in, document out: the only door for server and CLI.

Imported by: cli.fleet server.fleet_queries.
May import: errors kinds.meta engine placement.explain placement.fit placement.greedy placement.inputs
placement.model placement.optimise placement.plan placement.plugins placement.plugins.filters
placement.status.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
