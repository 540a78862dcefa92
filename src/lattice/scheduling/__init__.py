"""Workload -> node: filter, score, select, reserve and bind, inside one table of nodes."""
