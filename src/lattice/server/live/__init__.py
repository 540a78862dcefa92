"""What only the leader knows: usage, logs, spending, problems and diagnoses.

Imported by: app server server.grpc server.ui_backend.
May import: errors kinds kinds.meta clock diagnosis placement.inputs presence server.access server.agents
server.requests server.resources store.
May touch: the store, heartbeats.
"""
