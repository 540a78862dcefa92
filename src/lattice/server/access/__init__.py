"""Authentication, authorization, access reviews, the certificate authority, limits on attempts.

Imported by: app cli.commands server server.agents server.fleet_queries server.grpc server.live
server.resources server.ui_backend sim.world.
May import: errors kinds.meta clock server.requests store.
May touch: the store, keys and certificates.
"""
