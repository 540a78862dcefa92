"""Resource fit and utilisation of one node in plain numbers."""

from collections.abc import Mapping


def fits(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Whether a node has the needed amounts free. An exact fit is a fit; a resource that the node does not
    have counts as 0."""
    return all(amount <= free.get(name, 0) for name, amount in need.items())


def utilisation(used: Mapping[str, int], total: Mapping[str, int]) -> float:
    """The utilisation of the fullest resource of a node, from 0 to 1."""
    shares = (used.get(name, 0) / amount for name, amount in total.items() if amount > 0)
    return min(1.0, max(0.0, max(shares, default=0.0)))
