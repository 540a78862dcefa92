"""One module per command.

Imported by: nothing.
May import: errors kinds kinds.meta clock tracing settings agent agent.host agent.runtimes app cli.client
cli.fleet cli.output scheduling.offline server.access server.discovery server.requests server.resources
sim sim.planted_bugs.
May touch: standard streams, files that the user names.
"""
