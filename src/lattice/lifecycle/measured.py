"""Is what a node uses now so different from what was last written down that it is worth writing?"""

from collections.abc import Mapping

from lattice.kinds.node import NodeUsage

SHARE = 0.2  # of what the node has; less is the breathing of a machine, and a system at rest writes nothing
PAUSE = 60.0  # seconds at least between two writes


def is_news(before: NodeUsage | None, now: NodeUsage, capacity: Mapping[str, int], age: float) -> bool:
    """`age`: seconds since it was last written, by this server."""
    if before is None:
        return True
    if age < PAUSE:
        return False
    return any(
        abs((new or 0) - (old or 0)) > SHARE * (room or max(old or 0, new or 0))
        for old, new, room in (
            (before.cpu, now.cpu, capacity.get("cpu")),
            (before.memory, now.memory, capacity.get("memory")),
            (before.disk, now.disk, capacity.get("storage")),
        )
    )
