"""The simulated world: event loop, clocks, network, store, servers, machines, users, faults.

Imported by: sim sim.invariants sim.scenarios.
May import: everything.
May touch: virtual time.
"""
