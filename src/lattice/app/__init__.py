"""The composition root: builds every object of a server and hands it to the others.

Imported by: cli.commands sim.world.
May import: errors process_tuning kinds kinds.meta clock metrics tracing settings presence manifest_files
lifecycle scheduling.cycle scheduling.table providers store store.sqlite store.etcd controllers
controllers.runtime controllers.garbage controllers.automation server server.access server.agents
server.discovery server.fleet_queries server.grpc server.live server.requests server.resources
server.ui_backend ui agent.runtimes.
May touch: files, sockets, signals.
"""
