"""The gRPC listener for agents and the control API.

Imported by: app.
May import: errors kinds kinds.meta server.access server.agents server.live server.requests
server.resources store wire.
May touch: gRPC connections.
"""
