"""The reconcile loop, work queue, controller context, object writes, event recorder.

Imported by: app controllers controllers.automation controllers.garbage controllers.nodes
controllers.scheduler controllers.services sim.planted_bugs sim.world.
May import: errors kinds kinds.meta clock metrics tracing presence store scheduling.cycle.
May touch: the store (every write fenced), the clock, a background thread.
"""
