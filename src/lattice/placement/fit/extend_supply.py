"""What could an offer have more of: properties, machines, money, or openness to overflow?"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lattice.engine.plugin import Reason
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.explain.required_infrastructure import machine_class, required_for
from lattice.placement.fit.raise_limits import budget_options, capacity_options, price_options
from lattice.placement.model.demand import Requirement
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.object_changes import (
    ChangeOption,
    ObjectChange,
    RejectedCandidate,
    change_at_path,
    platform_change,
    single_change,
    to_json_value,
    with_fields,
    with_spec,
)
from lattice.placement.model.rejection_reasons import MissingProperty, format_amount
from lattice.placement.model.supply import compile_supply
from lattice.placement.model.world import object_key
from lattice.placement.plugins.filters.available import ReplicaTooLarge
from lattice.placement.plugins.filters.budget import OverBudget, UnknownPrice
from lattice.placement.plugins.filters.capacity import InsufficientCapacity
from lattice.placement.plugins.filters.overflow import OverflowClosed, offer_utilisation

PROPERTY_FIELDS = {  # kind of requirement: as people write the field, as the class has it
    "compliance": ("compliance", "compliance"),
    "capability": ("capabilities", "capabilities"),
    "residency": ("dataResidency", "data_residency"),
}
LOCATION_LABELS = frozenset({"region", "zone", "provider"})  # labels that say where an offer is


def extensions(stand: RejectedCandidate, reason: Reason) -> list[ChangeOption]:
    """All of these together would do away with the reason; none: the platform cannot."""
    match reason:
        case MissingProperty(requirement=lacked):
            return _property(stand, lacked)
        case InsufficientCapacity():
            return list(capacity_options(stand))
        case OverBudget():
            return list(budget_options(stand))
        case UnknownPrice():
            return list(price_options(stand))
        case ReplicaTooLarge():
            return _bigger_class(stand)
        case OverflowClosed(static=static):
            return _open_overflow(stand, static)
    return []


# --- properties ---


def _property(stand: RejectedCandidate, lacked: Requirement) -> list[ChangeOption]:
    if lacked.kind == "label":
        return _label(stand, lacked)
    path, field = PROPERTY_FIELDS[lacked.kind]
    sentence = f"add {lacked.kind if lacked.kind != 'residency' else 'data residency'} {lacked.value} to {stand.offer.name}"
    match stand.supply_object:
        case LatticePool():
            rewrite, where = (
                (lambda kind: _with_pool_property(kind, path, lacked.value)),
                f"spec.labels.{path}",
            )
        case CloudInfrastructure():
            if field == "data_residency" and stand.offer.residency:
                return []
            rewrite, where = (
                (lambda kind: _with_region_property(kind, stand.region, field, lacked.value)),
                f"spec.regions.{stand.region}.{path}",
            )
        case _:
            if field == "data_residency" and stand.offer.residency:
                return []
            rewrite, where = (lambda kind: _with_static_property(kind, field, lacked.value)), f"spec.{path}"
    return [single_change(platform_change(stand, where, sentence, rewrite, adds_property=True))]


def _with_pool_property(pool: LatticePool, label: str, value: str) -> Any:
    return _pool_labels(pool, {label: [*pool.spec.label_values(label), value]})


def _pool_labels(pool: LatticePool, more: Mapping[str, Any]) -> Any:
    """A pool without labels of its own is known by its metadata's: those must not be lost by giving it one."""
    return with_spec(pool, labels={**(pool.spec.labels or pool.metadata.labels or {}), **more})


def _with_region_property(cloud: CloudInfrastructure, region: str, field: str, value: str) -> Any:
    spec = cloud.spec
    known = {"compliance": spec.compliance_of, "capabilities": spec.capabilities_of}
    word = value if field == "data_residency" else (*known[field](region), value)
    return with_spec(
        cloud, regions={**spec.regions, region: with_fields(spec.regions[region], **{field: word})}
    )


def _with_static_property(static: StaticInfrastructure, field: str, value: str) -> Any:
    return with_spec(
        static, **{field: value if field == "data_residency" else (*getattr(static.spec, field), value)}
    )


def _label(stand: RejectedCandidate, lacked: Requirement) -> list[ChangeOption]:
    """A value more for a pool; a label that is not there yet for the others. What says where a place is stays true."""
    demanded = lacked.label
    if demanded is None or demanded.operator not in ("In", "Exists") or demanded.key in LOCATION_LABELS:
        return []
    name, value = demanded.key, demanded.values[0] if demanded.values else "yes"
    sentence = f"label {stand.offer.name} with {name}={value}"
    if isinstance(stand.supply_object, LatticePool):
        has = (stand.supply_object.spec.labels or stand.supply_object.metadata.labels or {}).get(name, ())
        values = [*([has] if isinstance(has, str) else has), value]
        word = values if len(values) > 1 else value
        return [
            single_change(
                platform_change(
                    stand,
                    f"spec.labels.{name}",
                    sentence,
                    lambda kind: _pool_labels(kind, {name: word}),
                    adds_property=True,
                )
            )
        ]
    if name in stand.offer.labels:
        return []
    return [
        single_change(
            platform_change(
                stand,
                f"metadata.labels.{name}",
                sentence,
                lambda kind: _metadata_label(kind, name, value),
                adds_property=True,
            )
        )
    ]


def _metadata_label(kind: Any, name: str, value: str) -> Any:
    return with_fields(
        kind, metadata=with_fields(kind.metadata, labels={**(kind.metadata.labels or {}), name: value})
    )


# --- machines and overflow ---


def _bigger_class(stand: RejectedCandidate) -> list[ChangeOption]:
    """The cheapest class that is defined, not yet in the pool, and big enough; else one to be defined."""
    if isinstance(stand.supply_object, StaticInfrastructure):
        return []
    name = _fitting_class(stand) if isinstance(stand.supply_object, LatticePool) else ""
    new = [] if name else [_new_class(stand)]
    if isinstance(stand.supply_object, CloudInfrastructure):
        return new
    added = name or f"{stand.demand.name.rpartition('/')[2]}-machine"
    sentence = f"allow machines of class {added} in {stand.offer.name}"
    return [
        *new,
        single_change(
            platform_change(stand, "spec.nodeClasses", sentence, lambda kind: _with_class(kind, added))
        ),
    ]


def _with_class(pool: LatticePool, name: str) -> Any:
    return with_spec(pool, node_classes=(*pool.spec.node_classes, name))


def _fitting_class(stand: RejectedCandidate) -> str:
    classes = {
        name: each for (kind, _, name), each in stand.world.objects.items() if kind == "LatticeNodeClass"
    }
    widened = with_spec(stand.supply_object, node_classes=tuple(classes))
    offer = compile_supply([*classes.values(), widened], stand.world.price_book).offers[0]
    needs, known = stand.demand.effective_needs, set(stand.supply_object.spec.node_classes)
    fitting = [
        each
        for each in offer.types
        if each.name not in known
        and is_type_allowed(stand.demand, each)
        and all(each.size.get(name, 0) >= amount for name, amount in needs.items())
    ]
    best = min(fitting, key=lambda each: (not each.is_priced, each.rate, each.name), default=None)
    return best.name if best else ""


def _new_class(stand: RejectedCandidate) -> ChangeOption:
    """Exactly as big as one replica. What it costs only its provider knows."""
    name, provider = f"{stand.demand.name.rpartition('/')[2]}-machine", stand.offer.place.provider
    made = machine_class(required_for(stand.demand, None, stand.fleet), name, provider)
    size = " and ".join(
        f"{format_amount(resource, amount)} {resource}"
        for resource, amount in stand.demand.effective_needs.items()
    )
    sentence = (
        f"define a class {name} of machines with {size} on {provider}, at a price that is not known here"
    )
    return single_change(
        ObjectChange(
            "platform", object_key(made), "spec", None, to_json_value(made.spec), sentence, lambda _: made
        )
    )


def _open_overflow(stand: RejectedCandidate, static: str) -> list[ChangeOption]:
    """Let the data center overflow to here: enable it, or lower the trigger to where it is now."""
    kind = stand.world.objects.get(("StaticInfrastructure", "", static))
    if (
        not isinstance(kind, StaticInfrastructure)
        or kind.spec.overflow is None
        or stand.offer.kind != "cloud"
    ):
        return []
    overflow, used = kind.spec.overflow, offer_utilisation(stand.fleet, stand.fleet.row(static))
    found = []
    if not overflow.enabled or overflow.target != stand.offer.owner:
        sentence = f"let {static} overflow to {stand.offer.owner}"
        opened = {"enabled": True, "target": stand.offer.owner}
        found.append(
            single_change(
                change_at_path(
                    kind, "platform", "spec.overflow", sentence, lambda each: _with_overflow(each, **opened)
                )
            )
        )
    if used < overflow.trigger_millionths:
        if not used:
            return []
        share = Decimal(used).scaleb(-6).normalize()
        trigger = with_fields(overflow.trigger, capacity_threshold=share)
        sentence = f"let {static} overflow from {_percent(used)} % in use instead of {_percent(overflow.trigger_millionths)} %"
        found.append(
            single_change(
                change_at_path(
                    kind,
                    "platform",
                    "spec.overflow.trigger.capacityThreshold",
                    sentence,
                    lambda each: _with_overflow(each, trigger=trigger),
                )
            )
        )
    return found


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:g}"


def _with_overflow(static: Any, **fields: Any) -> Any:
    return with_spec(static, overflow=with_fields(static.spec.overflow, **fields))
