"""`controller_set`: all controllers of one leader's term, wired together.

Imported by: app sim.world.
May import: errors controllers.automation controllers.garbage controllers.nodes controllers.runtime
controllers.scheduler controllers.services kinds.meta lifecycle placement.feed providers scheduling.cycle
scheduling.table settings.
May touch: the store through controllers.runtime.context, fenced by the term.
"""
