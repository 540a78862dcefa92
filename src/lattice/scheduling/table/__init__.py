"""The node table: resources, GPUs, ports, topology, the index of placed workloads, the GPU demand learned
from them.

Imported by: app controllers controllers.nodes controllers.scheduler scheduling scheduling.cycle
scheduling.offline scheduling.plugins scheduling.plugins.filters scheduling.plugins.scores
scheduling.preemption sim.planted_bugs.
May import: errors kinds kinds.meta engine.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
