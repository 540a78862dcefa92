"""Machines made and removed: provider protocol, local processes, a fake for tests.

Imported by: app controllers controllers.services sim.world.
May import: errors kinds clock.
May touch: processes and files of machines.
"""
