"""Node health, eviction, workload lifecycle, drift.

Imported by: controllers sim.planted_bugs.
May import: errors kinds kinds.meta clock metrics diagnosis lifecycle presence store scheduling.table
controllers.runtime controllers.services.
May touch: the store through controllers.runtime.context, heartbeats.
"""
