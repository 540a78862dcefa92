"""How a workload runs: processes, containers, a fake.

Imported by: app cli.commands sim.scenarios sim.world.
May import: errors kinds kinds.meta clock agent.host.
May touch: processes and containers of the host.
"""
