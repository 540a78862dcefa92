"""The invariants that must hold in every recorded history, by number, and their checker.

Imported by: sim sim.scenarios.
May import: everything.
May touch: a recorded history.
"""
