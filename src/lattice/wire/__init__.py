"""Messages between agents and servers, and the connection that carries them.

Imported by: agent agent.host server.agents server.grpc sim.world.
May import: errors.
May touch: connections.
"""
