"""Where does a replica that was turned away stand: which offer, of which object, and what becomes of the object if one field changes?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lattice.kinds.meta.base import Kind
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.model.edits import Change, written
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.world import Key, World

Supplier = LatticePool | CloudInfrastructure | StaticInfrastructure


@dataclass(frozen=True, slots=True)
class Stand:
    """An offer and the object that it comes from, at the moment when a replica was turned away."""

    world: World
    fleet: Fleet
    row: int
    ask: ReplicaAsk
    kind: Any

    @property
    def offer(self) -> Offer:
        return self.fleet.offers[self.row]

    @property
    def demand(self) -> Demand:
        return self.ask.demand

    @property
    def region(self) -> str:
        return self.offer.place.region


def supplier(offer: Offer, objects: Mapping[Key, Kind]) -> Any:
    kind = {"pool": "LatticePool", "cloud": "CloudInfrastructure", "static": "StaticInfrastructure"}[
        offer.kind
    ]
    return objects[kind, "", offer.owner]


def set_field(
    stand: Stand, path: str, sentence: str, rewrite: Callable[[Any], Any], *, adds_property: bool = False
) -> Change:
    return replace(written(stand.kind, "platform", path, sentence, rewrite), adds_property=adds_property)
