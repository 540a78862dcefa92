"""Choosing pools, clusters and machines for the replicas of services; `queries` is the door for callers.

Imported by: nothing.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
