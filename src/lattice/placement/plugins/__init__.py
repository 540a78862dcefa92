"""What all placement plugins share: how a plugin reads the fleet, rejection reasons.

Imported by: placement.explain placement.fit placement.plugins.filters placement.plugins.scores
placement.queries placement.status.
May import: errors kinds.meta engine placement.model.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""
