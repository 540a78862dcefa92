"""Which two rules for a service exclude one another, and who says so?"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lattice.engine.table import Flags
from lattice.placement.model.demand import Demand, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer

OF_A_PLACE = ("label", "compliance", "capability", "residency", "region")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the rules, and the policy or service that states it."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.text} ({self.source})"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Each could be kept alone."""

    one: Side
    other: Side
    because: str

    def __str__(self) -> str:
        return f"{self.one} and {self.other}: {self.because}"


def contradictions(demand: Demand, fleet: Fleet) -> Iterator[Contradiction]:
    """Rules about numbers, whatever the fleet; and what no pool has both of, though there is a pool with each."""
    yield from _by_number(demand)
    placed = [(each, _kept(each, fleet)) for each in demand.requirements if each.kind in OF_A_PLACE]
    for (one, here), (other, there) in combinations(placed, 2):
        both_regions = one.kind == other.kind == "region"  # one replica in each
        if not both_regions and here.any() and there.any() and not (here & there).any():
            yield Contradiction(_side(one), _side(other), "no pool has both")


def _by_number(demand: Demand) -> Iterator[Contradiction]:
    least, most = demand.rules.min_nodes, demand.rules.max_nodes
    if least > most:
        one, other = demand.sized_by
        yield Contradiction(
            Side(f"clusters of at least {least} nodes", one),
            Side(f"of at most {most}", other),
            "no number is both",
        )
    for each in demand.of("minRegions"):
        if demand.most is not None and each.amount > demand.most:
            allowed = Side(
                f"at most {demand.most} replica{'s' if demand.most != 1 else ''}",
                f"service/{demand.name.rpartition('/')[2]}",
            )
            yield Contradiction(_side(each), allowed, "one replica is in one region")


def _side(each: Requirement) -> Side:
    return Side(str(each), each.source)


def _kept(required: Requirement, fleet: Fleet) -> Flags:
    return np.array([not offer.closed and _is_kept(required, offer) for offer in fleet.offers], np.bool_)


def _is_kept(required: Requirement, offer: Offer) -> bool:
    match required.kind:
        case "compliance":
            return required.value in offer.compliance
        case "capability":
            return required.value in offer.capabilities
        case "residency":
            return required.value in offer.residency
        case "region":
            return offer.is_in(required.value)
    return required.label is None or required.label.matches(offer.labels)
