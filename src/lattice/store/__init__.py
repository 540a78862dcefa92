"""The store protocol, the in-memory store, the cache (informer), leader election, the watch feed, the
packing of commits.

Imported by: app controllers.automation controllers.garbage controllers.nodes controllers.runtime
controllers.scheduler controllers.services server.access server.agents server.event_versions
server.fleet_queries server.grpc server.live server.requests server.resources server.ui_backend
sim.invariants sim.planted_bugs sim.world store.etcd store.sqlite.
May import: errors process_tuning clock.
May touch: the clock.
"""
