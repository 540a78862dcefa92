"""What every kind is made of: base classes, schema and validation, quantities, selectors, JSON, YAML and
JSONPath codecs.

Imported by: agent.runtimes app cli.client cli.commands cli.fleet cli.output controllers
controllers.automation controllers.garbage controllers.nodes controllers.runtime controllers.scheduler
controllers.services diagnosis kinds lifecycle manifest_files placement.affinity placement.explain
placement.feed placement.fit placement.greedy placement.inputs placement.model placement.plan
placement.plugins placement.plugins.filters placement.queries placement.status scheduling.cycle
scheduling.table server server.access server.agents server.discovery server.event_versions
server.fleet_queries server.grpc server.live server.requests server.resources server.ui_backend
sim.invariants sim.planted_bugs sim.scenarios sim.world.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
