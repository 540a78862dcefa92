"""Describe the infrastructure that a service needs to fit: the properties of new regions or data centers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from lattice.kinds.infrastructure import (
    Location,
    StaticCapacity,
    StaticInfrastructure,
    StaticNetwork,
    StaticSpec,
)
from lattice.kinds.meta.base import GROUP, VERSION, Kind, Metadata
from lattice.kinds.meta.quantity import MIB, MILLI, format_bytes, format_cores
from lattice.kinds.node_class import ClassResources, LatticeNodeClass, NodeClassSpec, ProviderNodeClass
from lattice.placement.explain.blockers import PlacementFailure, open_rows
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.filters.region import NotInRequiredRegion, RegionAlreadyUsed
from lattice.placement.plugins.rejection_reasons import FixedReason

API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class RequiredInfrastructure:
    """`place_count` new places (regions or data centers), all with these properties.

    One place is in every region of `regions`; other places are outside `excluded_regions`. With `place_count`
    0 no new place helps.
    """

    place_count: int
    # The number of empty machines, sized for one replica.
    machines: int
    # By resource: milli-cores, bytes, milli-GPUs and counts.
    machine_size: Mapping[str, int]
    regions: tuple[str, ...] = ()
    # Regions that would not help.
    excluded_regions: tuple[str, ...] = ()
    compliance: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    residency: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    # The dependency, the limit in milliseconds, and the offers where the dependency runs.
    latency_limits: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    node_labels: Mapping[str, str] = field(default_factory=dict)
    gpu_model: str = ""

    def properties(self) -> dict[str, Any]:
        """Return the properties in the words of the manifests, without properties that do not matter."""
        if not self.place_count:
            return {}
        size: dict[str, str | int] = {}
        for name, amount in self.machine_size.items():
            if name in ("cpu", "gpu"):
                size[name] = format_cores(amount)
            else:
                size[name] = format_bytes(amount) if name in ("memory", "storage") else amount
        listed = {
            "region": region_pattern(self.regions),
            "regionOtherThan": list(self.excluded_regions),
            "compliance": list(self.compliance),
            "capabilities": list(self.capabilities),
            "dataResidency": ", ".join(self.residency),
            "labels": dict(self.labels),
            "latency": {name: {"maxMs": ms, "to": list(places)} for name, ms, places in self.latency_limits},
            "machine": {
                **size,
                **({"gpuModel": self.gpu_model} if self.gpu_model else {}),
                **self.node_labels,
            },
            "machines": self.machines,
        }
        return {
            "places": self.place_count,
            "requiredProperties": {name: value for name, value in listed.items() if value},
        }


NO_INFRASTRUCTURE = RequiredInfrastructure(place_count=0, machines=0, machine_size={})


def region_pattern(regions: Sequence[str]) -> str:
    """Return one name for several regions: `us-*` if all regions share the first part of their names, else a
    list."""
    if len(regions) < 2:
        return "".join(regions)
    prefixes = {region.partition("-")[0] for region in regions}
    if len(prefixes) == 1 and all("-" in region for region in regions):
        return f"{prefixes.pop()}-*"
    return ", ".join(regions)


def required_for(demand: Demand, failure: PlacementFailure | None, fleet: Fleet) -> RequiredInfrastructure:
    """Compute the infrastructure that the demand needs after the placement failure."""
    missing = max(1, demand.replicas - len(fleet.assignments.get(demand.name, ())))
    # Clusters are filled one after another, and a cluster starts with the minimum number of machines.
    rules = demand.rules
    max_nodes = max(1, rules.max_nodes)
    full_clusters = (missing - 1) // max_nodes
    regions, excluded_regions, place_count = _required_regions(demand, failure, fleet)
    labels: dict[str, str] = {}
    for requirement in demand.labels:
        label = requirement.label
        if label and label.operator == "In":
            labels[label.key] = label.values[0]
        elif label and label.operator == "Exists":
            labels[label.key] = "yes"
    targets = dict(demand.latency_to)
    latency_limits: list[tuple[str, int, tuple[str, ...]]] = []
    for requirement in demand.latency:
        target_rows = fleet.replicas.offer_rows(targets[requirement.value])
        target_offers = sorted({fleet.offers[row].name for row in target_rows})
        latency_limits.append((requirement.value, requirement.amount, tuple(target_offers)))
    return RequiredInfrastructure(
        place_count=place_count,
        machines=max_nodes * full_clusters + max(rules.min_nodes, missing - max_nodes * full_clusters),
        machine_size=demand.effective_needs,
        regions=regions,
        excluded_regions=excluded_regions,
        compliance=_values(demand, "compliance"),
        capabilities=_values(demand, "capability"),
        residency=_values(demand, "residency"),
        labels=labels,
        latency_limits=tuple(latency_limits),
        node_labels=dict(demand.node_selector),
        gpu_model=demand.gpu_model if demand.needs.get("gpu") else "",
    )


def _values(demand: Demand, kind: Any) -> tuple[str, ...]:
    return tuple(sorted({requirement.value for requirement in demand.requirements_of(kind)}))


def _required_regions(
    demand: Demand, failure: PlacementFailure | None, fleet: Fleet
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return required regions without a usable offer, regions that do not help, and the number of new
    places."""
    if failure is None:
        return (), (), 1
    open_offers = [
        fleet.offers[row]
        for row in np.flatnonzero(
            open_rows(failure, NotInRequiredRegion, RegionAlreadyUsed, FixedReason)
        ).tolist()
    ]
    current_offers = [fleet.offers[row] for row in fleet.replicas.offer_rows(demand.name)]
    missing_regions = tuple(
        requirement.value
        for requirement in demand.regions
        if not any(offer.matches_region(requirement.value) for offer in (*open_offers, *current_offers))
    )
    # Regions with a replica or a usable offer count for the minimum number of regions.
    covered_regions = {offer.region for offer in (*open_offers, *current_offers)}
    additional_regions = max(0, demand.min_regions - len(covered_regions) - len(missing_regions))
    if missing_regions or additional_regions:
        return (
            missing_regions,
            tuple(sorted(covered_regions)) if additional_regions else (),
            len(missing_regions) + additional_regions,
        )
    return (failure.ask.region,) if failure.ask.region else (), (), 1


def as_infrastructure(required: RequiredInfrastructure, name: str = "required") -> list[Kind]:
    """Return the required infrastructure as objects to apply: one data center for every place, and the node
    class of its machines."""
    if not required.place_count:
        return []
    free_regions = (
        f"{name}-{number}" for number in range(len(required.regions) + 1, required.place_count + 1)
    )
    regions = (*required.regions, *free_regions)
    return [
        machine_class(required, name, name),
        *(_data_center(required, name, region, number) for number, region in enumerate(regions, 1)),
    ]


def machine_class(required: RequiredInfrastructure, name: str, provider: str) -> LatticeNodeClass:
    """Return a node class whose machines hold exactly one replica."""
    size = dict(required.machine_size)
    memory, storage = size.pop("memory", 0), size.pop("storage", 0)
    millicores = size.pop("cpu", 0)

    resources = ClassResources(
        # As written by users: a quantity in milli-cores, or whole cores.
        cores=(millicores // MILLI if millicores % MILLI == 0 else millicores / MILLI),
        # Rounded up to whole mebibytes and GPUs: a smaller machine would not hold the replica.
        storage_gi=Decimal(-(-storage // MIB)) / 1024,
        gpu=-(-size.pop("gpu", 0) // MILLI),
        gpu_model=required.gpu_model,
        extended=dict(size.items()),
    )
    spec = NodeClassSpec(
        providers={provider: ProviderNodeClass(memory=f"{memory}b")},
        resources=resources,
        labels=dict(required.node_labels),
    )
    return LatticeNodeClass(
        api_version=API_VERSION, kind="LatticeNodeClass", metadata=Metadata(name=name), spec=spec
    )


def _data_center(
    required: RequiredInfrastructure, name: str, region: str, number: int
) -> StaticInfrastructure:
    latency_to = {}
    # Reversed, so that the first limit wins where two dependencies run in the same place.
    for _, limit_ms, places in reversed(required.latency_limits):
        for place in places:
            latency_to[place] = f"{limit_ms}ms"
    spec = StaticSpec(
        location=Location(name=f"{name}-{number}", region=region),
        capacity=StaticCapacity(nodes=required.machines),
        provider=name,
        network=StaticNetwork(latency_to=latency_to),
        compliance=required.compliance,
        capabilities=required.capabilities,
        data_residency="".join(required.residency[:1]),
    )
    metadata = Metadata(name=f"{name}-{number}", labels=dict(required.labels))
    return StaticInfrastructure(
        api_version=API_VERSION, kind="StaticInfrastructure", metadata=metadata, spec=spec
    )
