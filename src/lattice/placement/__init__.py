"""Choosing pools, clusters and machines for the replicas of services; `queries` answers queries about them.

Imported by: nothing.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
