"""`app`: the HTTP server that gives each path to its folder.

Imported by: app.
May import: errors kinds kinds.meta metrics tracing server.access server.agents server.discovery
server.fleet_queries server.live server.requests server.resources server.ui_backend.
May touch: HTTP connections.
"""
