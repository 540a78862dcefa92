"""Plugins that filter and score offers for a replica.

Imported by: nothing.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
