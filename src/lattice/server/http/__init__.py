"""HTTP responses: headers, conditional requests, compression, watches over WebSocket.

Imported by: server.
May import: errors server.requests.
May touch: HTTP connections.
"""
