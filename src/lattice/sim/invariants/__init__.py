"""What must hold in every history, by number, and the checker.

Imported by: sim sim.scenarios.
May import: everything.
May touch: a recorded history.
"""
