"""Pages, sign-in and the event stream of the web page.

Imported by: app server.
May import: errors kinds kinds.meta clock lifecycle server.access server.live server.requests
server.resources store.
May touch: HTTP connections, the store.
"""
