"""Affinity between services, resolved to the services and workloads that a term matches.

Imported by: placement.greedy placement.model placement.plugins.filters.
May import: errors kinds kinds.meta lifecycle placement.inputs.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
