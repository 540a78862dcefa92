"""The stored objects that placement reads, kept up to date by feeds of changes, and the world built from
them.

Imported by: cli.fleet controllers controllers.services server.fleet_queries sim.world.
May import: errors kinds kinds.meta placement.inputs placement.model.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
