"""The scheduler loop and the durable side of binding.

Imported by: controllers sim.planted_bugs.
May import: errors kinds kinds.meta engine lifecycle metrics tracing store scheduling.cycle
scheduling.plugins scheduling.preemption scheduling.table controllers.runtime.
May touch: the store through controllers.runtime.context.
"""
