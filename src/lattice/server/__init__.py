"""`app`: the HTTP server, which passes each request to the folder that answers its path.

Imported by: app.
May import: errors kinds kinds.meta metrics tracing server.access server.agents server.discovery
server.fleet_queries server.http server.live server.requests server.resources server.ui_backend.
May touch: HTTP connections.
"""
