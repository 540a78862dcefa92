"""A request and its reply: options, bodies, Kubernetes protobuf, Status errors, the catalog of served kinds.

Imported by: app cli.commands cli.fleet server server.access server.agents server.discovery
server.fleet_queries server.grpc server.http server.live server.resources server.ui_backend sim.world.
May import: errors kinds.meta server.apply store.
May touch: values, and the store's types.
"""
