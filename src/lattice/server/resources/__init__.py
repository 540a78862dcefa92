"""The REST verbs: routes, get, list, watch, write, admission, sub-resources, tables.

Imported by: app cli.commands cli.fleet server server.discovery server.fleet_queries server.grpc
server.live server.ui_backend sim.planted_bugs sim.world.
May import: errors kinds kinds.meta clock tracing lifecycle server.access server.apply
server.event_versions server.requests store.
May touch: the store.
"""
