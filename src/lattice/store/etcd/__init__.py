"""The store on etcd.

Imported by: app.
May import: errors clock store.
May touch: connections to etcd, the clock.
"""
