"""Why a service, a workload or a machine does not run, and what is wrong in the fleet, from stored objects.

Imported by: controllers.nodes controllers.services server.live.
May import: errors kinds kinds.meta lifecycle placement.inputs.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
