"""Agent sessions on the leader: codec, registration, join, log requests, the proxy to the leader.

Imported by: app server server.grpc server.live sim.invariants sim.planted_bugs sim.world.
May import: errors kinds kinds.meta clock metrics tracing lifecycle presence server.access server.requests
store wire.
May touch: connections to agents, heartbeats, the store.
"""
