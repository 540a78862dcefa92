"""Services of the machine: cgroups, watchdog, probes, usage, and the protocol of runtimes.

Imported by: agent agent.runtimes cli.commands sim.invariants sim.scenarios sim.world.
May import: errors kinds clock wire.
May touch: the host.
"""
