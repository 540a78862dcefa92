"""The entry point of server and CLI for plan, why, fit, what-if, cost and optimise: query in, document out.

Imported by: cli.fleet server.fleet_queries.
May import: errors kinds.meta engine placement.explain placement.fit placement.greedy placement.inputs
placement.model placement.optimise placement.plan placement.plugins placement.plugins.filters
placement.status.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
