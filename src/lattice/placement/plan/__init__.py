"""What a change of manifests or a lost pool does to the fleet: plan and what-if.

Imported by: placement.optimise placement.queries.
May import: errors kinds kinds.meta lifecycle placement.greedy placement.inputs placement.model
placement.plugins.filters placement.status.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
