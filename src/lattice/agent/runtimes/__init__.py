"""Ways to run a container of a workload, behind one protocol."""
