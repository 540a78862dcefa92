"""One proposed change to one object: the sentence for users and the rewritten object; and options for
changes, some of adjustable strength."""

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
    """A change of `path` in an object from the old value to the new value; changes with equal fields are
    equal."""

    responsible: Responsible
    target: ObjectKey
    path: str
    old_value: Any = field(hash=False)
    new_value: Any = field(hash=False)
    sentence: str
    # None: the change is advice only, no object is written.
    rewrite: Callable[[Any], Kind] | None = field(default=None, compare=False, repr=False)
    # The change only adds a property, such as a compliance standard or a label: no requirement is relaxed,
    # and no machine is bought.
    adds_property: bool = False
    # The round trip that the change states: two offers and milliseconds.
    latency: tuple[str, str, int] | None = None

    @property
    def subject(self) -> str:
        kind, namespace, name = self.target
        return f"{kind}/{namespace}/{name}" if namespace else f"{kind}/{name}"


@dataclass(frozen=True)
class ChangeOption:
    """A change of adjustable size: strength 1 is the smallest change (for example a limit raised by one
    machine), `max_strength` the largest. Most changes have a single strength."""

    name: tuple[str, ...]  # identity: options of equal names are equal
    build: Callable[[int], ObjectChange] = field(compare=False, repr=False)
    max_strength: int = 1
    # Measures the strength that the trial fleet really used.
    measure_strength: Callable[[Fleet], int] | None = field(default=None, compare=False, repr=False)


def single_change(change: ObjectChange) -> ChangeOption:
    return ChangeOption((*change.target, change.path, repr(change.new_value)), lambda _: change)


def apply_changes(objects: Mapping[ObjectKey, Kind], changes: Iterable[ObjectChange]) -> list[Kind]:
    """The changed objects, without duplicates: later changes of an object build on earlier changes."""
    changed: dict[ObjectKey, Kind] = {}
    for change in changes:
        if change.rewrite is not None:
            changed[change.target] = change.rewrite(changed.get(change.target) or objects.get(change.target))
    return list(changed.values())


def with_spec(kind: Any, **fields: Any) -> Any:
    """The object with the given fields of the spec replaced."""
    return msgspec.structs.replace(kind, spec=msgspec.structs.replace(kind.spec, **fields))


def with_fields(part: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(part, **fields)


def to_json_value(value: Any) -> Any:
    """The value as JSON would decode it, as plain lists, dicts and numbers."""
    return msgspec.json.decode(_encoder.encode(value))


def change_at_path(
    kind: Kind, responsible: Responsible, path: str, sentence: str, rewrite: Callable[[Any], Any]
) -> ObjectChange:
    """A change whose old and new value are read from the object at the path, before and after the rewrite."""
    rewritten = rewrite(kind)
    return ObjectChange(
        responsible,
        object_key(kind),
        path,
        _value_at(kind, path),
        _value_at(rewritten, path),
        sentence,
        rewrite,
    )


def _value_at(kind: Kind, path: str) -> Any:
    value: Any = to_json_value(kind)
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """An offer that the engine rejected for a replica, the object behind the offer, and the world and fleet
    of that moment."""

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
    rejected: RejectedCandidate,
    path: str,
    sentence: str,
    rewrite: Callable[[Any], Any],
    *,
    adds_property: bool = False,
) -> ObjectChange:
    return replace(
        change_at_path(rejected.supply_object, "platform", path, sentence, rewrite),
        adds_property=adds_property,
    )
