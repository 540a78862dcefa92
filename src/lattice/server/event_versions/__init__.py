"""Events of events.k8s.io/v1: a view of the store in which the core events have the newer form.

Imported by: server.resources.
May import: errors kinds kinds.meta store.
May touch: the store.
"""
