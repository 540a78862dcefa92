"""Filter, score and pick over columns of candidates; knows no kind and no plugin.

Imported by: cli.output controllers.scheduler placement.explain placement.fit placement.greedy
placement.model placement.optimise placement.plugins placement.plugins.filters placement.plugins.scores
placement.queries placement.status scheduling scheduling.cycle scheduling.offline scheduling.plugins
scheduling.plugins.filters scheduling.plugins.scores scheduling.preemption scheduling.table.
May import: errors.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
