"""What could an offer have more of: properties, machines, money, or openness to overflow?"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lattice.engine.plugin import Reason
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.model.machine_catalog import is_allowed
from lattice.placement.model.edits import Change, Option, once, plain, respecified, within, written
from lattice.placement.model.demand import Requirement
from lattice.placement.fit.raise_limits import more_money, more_room, price
from lattice.placement.plugins.filters.available import TooBig
from lattice.placement.plugins.filters.budget import OverBudget, Unpriced
from lattice.placement.plugins.filters.capacity import Full
from lattice.placement.plugins.filters.overflow import Gated, utilisation
from lattice.placement.model.reasons import Lacks, show
from lattice.placement.explain.required_infrastructure import machine_class, required_for
from lattice.placement.model.stand import Stand, set_field
from lattice.placement.model.supply import compile_supply
from lattice.placement.model.world import key

WRITTEN = {  # kind of requirement: as people write the field, as the class has it
    "compliance": ("compliance", "compliance"),
    "capability": ("capabilities", "capabilities"),
    "residency": ("dataResidency", "data_residency"),
}
PLACE = frozenset({"region", "zone", "provider"})  # labels that say where an offer is


def extensions(stand: Stand, reason: Reason) -> list[Option]:
    """All of these together would do away with the reason; none: the platform cannot."""
    match reason:
        case Lacks(requirement=lacked):
            return _property(stand, lacked)
        case Full():
            return list(more_room(stand))
        case OverBudget():
            return list(more_money(stand))
        case Unpriced():
            return list(price(stand))
        case TooBig():
            return _bigger_class(stand)
        case Gated(static=static):
            return _gate(stand, static)
    return []


# --- properties ---


def _property(stand: Stand, lacked: Requirement) -> list[Option]:
    if lacked.kind == "label":
        return _label(stand, lacked)
    path, field = WRITTEN[lacked.kind]
    sentence = f"add {lacked.kind if lacked.kind != 'residency' else 'data residency'} {lacked.value} to {stand.offer.name}"
    match stand.kind:
        case LatticePool():
            rewrite, where = (lambda kind: _pool_word(kind, path, lacked.value)), f"spec.labels.{path}"
        case CloudInfrastructure():
            if field == "data_residency" and stand.offer.residency:
                return []
            rewrite, where = (
                (lambda kind: _region_word(kind, stand.region, field, lacked.value)),
                f"spec.regions.{stand.region}.{path}",
            )
        case _:
            if field == "data_residency" and stand.offer.residency:
                return []
            rewrite, where = (lambda kind: _static_word(kind, field, lacked.value)), f"spec.{path}"
    return [once(set_field(stand, where, sentence, rewrite, adds_property=True))]


def _pool_word(pool: LatticePool, label: str, value: str) -> Any:
    return _pool_labels(pool, {label: [*pool.spec.label_values(label), value]})


def _pool_labels(pool: LatticePool, more: Mapping[str, Any]) -> Any:
    """A pool without labels of its own is known by its metadata's: those must not be lost by giving it one."""
    return respecified(pool, labels={**(pool.spec.labels or pool.metadata.labels or {}), **more})


def _region_word(cloud: CloudInfrastructure, region: str, field: str, value: str) -> Any:
    spec = cloud.spec
    known = {"compliance": spec.compliance_of, "capabilities": spec.capabilities_of}
    word = value if field == "data_residency" else (*known[field](region), value)
    return respecified(cloud, regions={**spec.regions, region: within(spec.regions[region], **{field: word})})


def _static_word(static: StaticInfrastructure, field: str, value: str) -> Any:
    return respecified(
        static, **{field: value if field == "data_residency" else (*getattr(static.spec, field), value)}
    )


def _label(stand: Stand, lacked: Requirement) -> list[Option]:
    """A value more for a pool; a label that is not there yet for the others. What says where a place is stays true."""
    demanded = lacked.label
    if demanded is None or demanded.operator not in ("In", "Exists") or demanded.key in PLACE:
        return []
    name, value = demanded.key, demanded.values[0] if demanded.values else "yes"
    sentence = f"label {stand.offer.name} with {name}={value}"
    if isinstance(stand.kind, LatticePool):
        has = (stand.kind.spec.labels or stand.kind.metadata.labels or {}).get(name, ())
        values = [*([has] if isinstance(has, str) else has), value]
        word = values if len(values) > 1 else value
        return [
            once(
                set_field(
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
        once(
            set_field(
                stand,
                f"metadata.labels.{name}",
                sentence,
                lambda kind: _metadata_label(kind, name, value),
                adds_property=True,
            )
        )
    ]


def _metadata_label(kind: Any, name: str, value: str) -> Any:
    return within(kind, metadata=within(kind.metadata, labels={**(kind.metadata.labels or {}), name: value}))


# --- machines and overflow ---


def _bigger_class(stand: Stand) -> list[Option]:
    """The cheapest class that is defined, not yet in the pool, and big enough; else one to be defined."""
    if isinstance(stand.kind, StaticInfrastructure):
        return []
    name = _fitting_class(stand) if isinstance(stand.kind, LatticePool) else ""
    new = [] if name else [_new_class(stand)]
    if isinstance(stand.kind, CloudInfrastructure):
        return new
    added = name or f"{stand.demand.name.rpartition('/')[2]}-machine"
    sentence = f"allow machines of class {added} in {stand.offer.name}"
    return [*new, once(set_field(stand, "spec.nodeClasses", sentence, lambda kind: _with_class(kind, added)))]


def _with_class(pool: LatticePool, name: str) -> Any:
    return respecified(pool, node_classes=(*pool.spec.node_classes, name))


def _fitting_class(stand: Stand) -> str:
    classes = {
        name: each for (kind, _, name), each in stand.world.objects.items() if kind == "LatticeNodeClass"
    }
    widened = respecified(stand.kind, node_classes=tuple(classes))
    offer = compile_supply([*classes.values(), widened], stand.world.book).offers[0]
    needs, known = stand.demand.effective_needs, set(stand.kind.spec.node_classes)
    fitting = [
        each
        for each in offer.types
        if each.name not in known
        and is_allowed(stand.demand, each)
        and all(each.size.get(name, 0) >= amount for name, amount in needs.items())
    ]
    best = min(fitting, key=lambda each: (not each.is_priced, each.rate, each.name), default=None)
    return best.name if best else ""


def _new_class(stand: Stand) -> Option:
    """Exactly as big as one replica. What it costs only its provider knows."""
    name, provider = f"{stand.demand.name.rpartition('/')[2]}-machine", stand.offer.place.provider
    made = machine_class(required_for(stand.demand, None, stand.fleet), name, provider)
    size = " and ".join(
        f"{show(resource, amount)} {resource}" for resource, amount in stand.demand.effective_needs.items()
    )
    sentence = (
        f"define a class {name} of machines with {size} on {provider}, at a price that is not known here"
    )
    return once(Change("platform", key(made), "spec", None, plain(made.spec), sentence, lambda _: made))


def _gate(stand: Stand, static: str) -> list[Option]:
    """Let the data center overflow to here: enable it, or lower the trigger to where it is now."""
    kind = stand.world.objects.get(("StaticInfrastructure", "", static))
    if (
        not isinstance(kind, StaticInfrastructure)
        or kind.spec.overflow is None
        or stand.offer.kind != "cloud"
    ):
        return []
    overflow, used = kind.spec.overflow, utilisation(stand.fleet, stand.fleet.row(static))
    found = []
    if not overflow.enabled or overflow.target != stand.offer.owner:
        sentence = f"let {static} overflow to {stand.offer.owner}"
        opened = {"enabled": True, "target": stand.offer.owner}
        found.append(
            once(
                written(
                    kind, "platform", "spec.overflow", sentence, lambda each: _overflowing(each, **opened)
                )
            )
        )
    if used < overflow.trigger_millionths:
        if not used:
            return []
        share = Decimal(used).scaleb(-6).normalize()
        trigger = within(overflow.trigger, capacity_threshold=share)
        sentence = f"let {static} overflow from {_percent(used)} % in use instead of {_percent(overflow.trigger_millionths)} %"
        found.append(
            once(
                written(
                    kind,
                    "platform",
                    "spec.overflow.trigger.capacityThreshold",
                    sentence,
                    lambda each: _overflowing(each, trigger=trigger),
                )
            )
        )
    return found


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:g}"


def _overflowing(static: Any, **fields: Any) -> Any:
    return respecified(static, overflow=within(static.spec.overflow, **fields))
