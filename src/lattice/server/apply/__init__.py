"""Patches, server-side apply, managed fields.

Imported by: server.requests server.resources.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
