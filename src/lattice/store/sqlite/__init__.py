"""The store on one SQLite file, written by one thread.

Imported by: app.
May import: errors clock store.
May touch: its file, its threads, the clock.
"""
