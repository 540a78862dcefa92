"""One change to one object: what it says, what it makes of the object, and how far it may be taken."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.world import ObjectKey, World, object_key

_encoder = msgspec.json.Encoder(decimal_format="number")
Responsible = Literal["team", "platform"]


SupplyObject = LatticePool | CloudInfrastructure | StaticInfrastructure


@dataclass(frozen=True)
class ObjectChange:
    """`path` of the object goes from `before` to `after`. Equal if they say the same."""

    responsible: Responsible
    target: ObjectKey
    path: str
    old_value: Any = field(hash=False)
    new_value: Any = field(hash=False)
    sentence: str
    rewrite: Callable[[Any], Kind] | None = field(
        default=None, compare=False, repr=False
    )  # None: nothing is written
    adds_property: bool = False  # a certificate, label or the like: nothing is asked less, nothing is bought

    @property
    def subject(self) -> str:
        kind, namespace, name = self.target
        return f"{kind}/{namespace}/{name}" if namespace else f"{kind}/{name}"


@dataclass(frozen=True)
class ChangeOption:
    """A kind of change that may be made more or less strongly, from 1 to `strongest`; most are made or not."""

    name: tuple[str, ...]  # equal options have equal names
    build: Callable[[int], ObjectChange] = field(compare=False, repr=False)
    max_strength: int = 1
    measure_strength: Callable[[Fleet], int] | None = field(
        default=None, compare=False, repr=False
    )  # how strongly it was needed


def single_change(change: ObjectChange) -> ChangeOption:
    return ChangeOption((*change.target, change.path, repr(change.new_value)), lambda _: change)


def apply_changes(objects: Mapping[ObjectKey, Kind], changes: Iterable[ObjectChange]) -> list[Kind]:
    """The objects as they would be, each once."""
    found: dict[ObjectKey, Kind] = {}
    for each in changes:
        if each.rewrite is not None:
            found[each.target] = each.rewrite(found.get(each.target) or objects.get(each.target))
    return list(found.values())


def with_spec(kind: Any, **fields: Any) -> Any:
    """With these fields of its spec."""
    return msgspec.structs.replace(kind, spec=msgspec.structs.replace(kind.spec, **fields))


def with_fields(part: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(part, **fields)


def to_json_value(value: Any) -> Any:
    """As JSON has it."""
    return msgspec.json.decode(_encoder.encode(value))


def change_at_path(
    kind: Kind, who: Responsible, path: str, sentence: str, rewrite: Callable[[Any], Any]
) -> ObjectChange:
    """`before` and `after` are read off the object at the path itself."""
    after = rewrite(kind)
    return ObjectChange(
        who, object_key(kind), path, _value_at(kind, path), _value_at(after, path), sentence, rewrite
    )


def _value_at(kind: Kind, path: str) -> Any:
    found: Any = to_json_value(kind)
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """An offer and the object that it comes from, at the moment when a replica was turned away."""

    world: World
    fleet: Fleet
    row: int
    ask: ReplicaAsk
    supply_object: Any

    @property
    def offer(self) -> Offer:
        return self.fleet.offers[self.row]

    @property
    def demand(self) -> Demand:
        return self.ask.demand

    @property
    def region(self) -> str:
        return self.offer.place.region


def supply_object_of(offer: Offer, objects: Mapping[ObjectKey, Kind]) -> Any:
    kind = {"pool": "LatticePool", "cloud": "CloudInfrastructure", "static": "StaticInfrastructure"}[
        offer.kind
    ]
    return objects[kind, "", offer.owner]


def platform_change(
    stand: RejectedCandidate,
    path: str,
    sentence: str,
    rewrite: Callable[[Any], Any],
    *,
    adds_property: bool = False,
) -> ObjectChange:
    return replace(
        change_at_path(stand.supply_object, "platform", path, sentence, rewrite), adds_property=adds_property
    )
