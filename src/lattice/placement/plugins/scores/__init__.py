"""One module per score plugin of placement.

Imported by: placement.greedy.
May import: errors engine placement.model placement.plugins placement.plugins.filters.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
