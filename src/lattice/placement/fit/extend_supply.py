"""Options for changes by the platform team that extend an offer: its properties, machine types, capacity,
budget or overflow."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lattice.engine.plugin import Reason
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.explain.required_infrastructure import machine_class, required_for
from lattice.placement.fit.declare_unknown import state_latency
from lattice.placement.fit.join_machines import join_options
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
from lattice.placement.model.supply import compile_supply
from lattice.placement.model.world import object_key
from lattice.placement.plugins.filters.available import MachinesDiffer, ReplicaTooLarge
from lattice.placement.plugins.filters.budget import OverBudget, UnknownPrice
from lattice.placement.plugins.filters.capacity import InsufficientCapacity
from lattice.placement.plugins.filters.latency import LatencyExceeded
from lattice.placement.plugins.filters.overflow import OverflowClosed, offer_utilisation
from lattice.placement.plugins.rejection_reasons import MissingProperty, format_amount

# By kind of requirement: the field in manifests, and the attribute of the Python class.
PROPERTY_FIELDS = {
    "compliance": ("compliance", "compliance"),
    "capability": ("capabilities", "capabilities"),
    "residency": ("dataResidency", "data_residency"),
}
# Labels that describe the location of an offer; a change must not set them.
LOCATION_LABELS = frozenset({"region", "zone", "provider"})


def extensions(candidate: RejectedCandidate, reason: Reason) -> list[ChangeOption]:
    """Return the options that together remove the reason; an empty list if the platform cannot remove the
    reason."""
    match reason:
        case MissingProperty(requirement=requirement):
            return _property(candidate, requirement)
        case InsufficientCapacity() | ReplicaTooLarge() if candidate.offer.is_manual:
            return join_options(candidate)
        case InsufficientCapacity():
            return list(capacity_options(candidate))
        case OverBudget():
            return list(budget_options(candidate))
        case UnknownPrice():
            return list(price_options(candidate))
        case ReplicaTooLarge() | MachinesDiffer():
            # Return the options to allow the cheapest defined node class that fits, or to define a new
            # class.
            if isinstance(candidate.supply_object, StaticInfrastructure):
                return []
            name = _fitting_class(candidate) if isinstance(candidate.supply_object, LatticePool) else ""
            definition = [] if name else [_new_class(candidate)]
            # A cloud uses every class of its provider: the definition alone is enough.
            if isinstance(candidate.supply_object, CloudInfrastructure):
                return definition
            class_name = name or f"{candidate.demand.name.rpartition('/')[2]}-machine"
            sentence = f"allow machines of class {class_name} in {candidate.offer.name}"
            return [
                *definition,
                single_change(
                    platform_change(
                        candidate,
                        "spec.nodeClasses",
                        sentence,
                        lambda pool: with_spec(pool, node_classes=(*pool.spec.node_classes, class_name)),
                    )
                ),
            ]
        case OverflowClosed(static=data_center):
            return _open_overflow(candidate, data_center)
        case LatencyExceeded(requirement=requirement, service=service, is_unknown=True):
            return [state_latency(candidate, requirement, service)]
    return []


def _property(candidate: RejectedCandidate, requirement: Requirement) -> list[ChangeOption]:
    if requirement.kind == "label":
        return _label(candidate, requirement)
    path, field = PROPERTY_FIELDS[requirement.kind]
    property_name = requirement.kind if requirement.kind != "residency" else "data residency"
    sentence = f"add {property_name} {requirement.value} to {candidate.offer.name}"
    match candidate.supply_object:
        case LatticePool():
            where = f"spec.labels.{path}"

            def rewrite(supplier: Any) -> Any:
                return _pool_labels(supplier, {path: [*supplier.spec.label_values(path), requirement.value]})

        case CloudInfrastructure():
            # A region has one data residency: another value would replace the value that services may
            # require.
            if field == "data_residency" and candidate.offer.residency:
                return []
            where = f"spec.regions.{candidate.region}.{path}"

            def rewrite(supplier: Any) -> Any:
                spec, region = supplier.spec, candidate.region
                inherited = {"compliance": spec.compliance_of, "capabilities": spec.capabilities_of}
                value: Any = requirement.value
                if field != "data_residency":
                    value = (*inherited[field](region), value)
                changed = with_fields(spec.regions[region], **{field: value})
                return with_spec(supplier, regions={**spec.regions, region: changed})

        case _:
            if field == "data_residency" and candidate.offer.residency:
                return []
            where = f"spec.{path}"

            def rewrite(supplier: Any) -> Any:
                if field == "data_residency":
                    return with_spec(supplier, data_residency=requirement.value)
                values = (*getattr(supplier.spec, field), requirement.value)
                return with_spec(supplier, **{field: values})

    return [single_change(platform_change(candidate, where, sentence, rewrite, adds_property=True))]


def _pool_labels(pool: LatticePool, labels: Mapping[str, Any]) -> Any:
    """Return the pool with more labels.

    A pool without labels in its spec uses the labels of its metadata, so the change must copy these.
    """
    return with_spec(pool, labels={**(pool.spec.labels or pool.metadata.labels or {}), **labels})


def _label(candidate: RejectedCandidate, requirement: Requirement) -> list[ChangeOption]:
    """Return the option to add the label: one more value for a pool, a new label for other offers.

    Location labels are never changed, since they must stay true.
    """
    label = requirement.label
    if label is None or label.operator not in ("In", "Exists") or label.key in LOCATION_LABELS:
        return []
    name, value = label.key, label.values[0] if label.values else "yes"
    sentence = f"label {candidate.offer.name} with {name}={value}"
    if isinstance(candidate.supply_object, LatticePool):
        current = (candidate.supply_object.spec.labels or candidate.supply_object.metadata.labels or {}).get(
            name, ()
        )
        values = [*([current] if isinstance(current, str) else current), value]
        label_value = values if len(values) > 1 else value
        return [
            single_change(
                platform_change(
                    candidate,
                    f"spec.labels.{name}",
                    sentence,
                    lambda kind: _pool_labels(kind, {name: label_value}),
                    adds_property=True,
                )
            )
        ]
    # A metadata label has one value: another value would replace the value that services may select.
    if name in candidate.offer.labels:
        return []

    def rewrite(infrastructure: Any) -> Any:
        labels = {**(infrastructure.metadata.labels or {}), name: value}
        return with_fields(infrastructure, metadata=with_fields(infrastructure.metadata, labels=labels))

    path = f"metadata.labels.{name}"
    return [single_change(platform_change(candidate, path, sentence, rewrite, adds_property=True))]


def _fitting_class(candidate: RejectedCandidate) -> str:
    """Return the cheapest node class that fits the demand and that the pool does not allow yet, or an empty
    name."""
    classes = {}
    for (kind, _, name), resource in candidate.world.objects.items():
        if kind == "LatticeNodeClass":
            classes[name] = resource
    widened = with_spec(candidate.supply_object, node_classes=tuple(classes))
    offer = compile_supply([*classes.values(), widened], candidate.world.price_book).offers[0]
    needs, allowed_classes = candidate.demand.effective_needs, set(candidate.supply_object.spec.node_classes)
    fitting = [
        machine_type
        for machine_type in offer.types
        if machine_type.name not in allowed_classes
        and is_type_allowed(candidate.demand, machine_type)
        and all(machine_type.size.get(name, 0) >= amount for name, amount in needs.items())
    ]
    best = min(
        fitting,
        key=lambda machine_type: (not machine_type.is_priced, machine_type.rate, machine_type.name),
        default=None,
    )
    return best.name if best else ""


def _new_class(candidate: RejectedCandidate) -> ChangeOption:
    """Return the option to define a node class that has exactly the size of one replica; the price of the
    class is unknown."""
    name, provider = f"{candidate.demand.name.rpartition('/')[2]}-machine", candidate.offer.place.provider
    node_class = machine_class(required_for(candidate.demand, None, candidate.fleet), name, provider)
    size = " and ".join(
        f"{format_amount(resource, amount)} {resource}"
        for resource, amount in candidate.demand.effective_needs.items()
    )
    sentence = f"define node class {name} with {size} on {provider} (price unknown)"
    return single_change(
        ObjectChange(
            "platform",
            object_key(node_class),
            "spec",
            None,
            to_json_value(node_class.spec),
            sentence,
            lambda _: node_class,
        )
    )


def _open_overflow(candidate: RejectedCandidate, data_center: str) -> list[ChangeOption]:
    """Return the options to let the data center overflow to this offer: enable the overflow, or lower the
    trigger to the current use."""
    infrastructure = candidate.world.objects.get(("StaticInfrastructure", "", data_center))
    if (
        not isinstance(infrastructure, StaticInfrastructure)
        or infrastructure.spec.overflow is None
        or candidate.offer.kind != "cloud"
    ):
        return []
    overflow, used = (
        infrastructure.spec.overflow,
        offer_utilisation(candidate.fleet, candidate.fleet.row(data_center)),
    )
    options = []
    if not overflow.enabled or overflow.target != candidate.offer.owner:
        sentence = f"enable overflow of {data_center} to {candidate.offer.owner}"
        overflow_fields = {"enabled": True, "target": candidate.offer.owner}
        options.append(
            single_change(
                change_at_path(
                    infrastructure,
                    "platform",
                    "spec.overflow",
                    sentence,
                    lambda resource: _with_overflow(resource, **overflow_fields),
                )
            )
        )
    if used < overflow.trigger_millionths:
        # With nothing in use, no threshold above zero is reached.
        if not used:
            return []
        share = Decimal(used).scaleb(-6).normalize()
        trigger = with_fields(overflow.trigger, capacity_threshold=share)
        sentence = (
            f"lower the overflow trigger of {data_center} from"
            f" {_percent(overflow.trigger_millionths)} % to {_percent(used)} % in use"
        )
        options.append(
            single_change(
                change_at_path(
                    infrastructure,
                    "platform",
                    "spec.overflow.trigger.capacityThreshold",
                    sentence,
                    lambda resource: _with_overflow(resource, trigger=trigger),
                )
            )
        )
    return options


def _percent(millionths: int) -> str:
    return f"{millionths / 10_000:g}"


def _with_overflow(infrastructure: Any, **fields: Any) -> Any:
    return with_spec(infrastructure, overflow=with_fields(infrastructure.spec.overflow, **fields))
