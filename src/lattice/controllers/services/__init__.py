"""Turn services into placements, ledger entries, clusters, machines, replicas and agreements; report status.

Imported by: controllers controllers.nodes sim.planted_bugs.
May import: errors kinds kinds.meta clock metrics diagnosis lifecycle placement.feed placement.greedy
placement.inputs placement.model placement.status providers store controllers.automation
controllers.garbage controllers.runtime.
May touch: the store through controllers.runtime.context, providers.
"""
