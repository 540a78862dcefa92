"""One node: the session with the leader, the executor of assignments, identity, state file.

Imported by: cli.commands sim.planted_bugs sim.world.
May import: errors kinds clock tracing wire agent.host.
May touch: the connection to the server, its folder.
"""
