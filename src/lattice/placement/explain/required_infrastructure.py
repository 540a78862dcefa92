"""What would a new region or data center need to have, for a service to fit?"""

from collections.abc import Iterator, Mapping, Sequence
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
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.meta.quantity import MIB, MILLI, format_bytes, format_cores
from lattice.kinds.node_class import ClassResources, LatticeNodeClass, NodeClassSpec, ProviderNodeClass
from lattice.placement.explain.blockers import PlacementFailure, open_rows
from lattice.placement.model.demand import ClusterRules, Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.rejection_reasons import FixedReason
from lattice.placement.plugins.filters.region import NotInRequiredRegion, RegionAlreadyUsed

API_VERSION = "lattice.dev/v1alpha1"


@dataclass(frozen=True, slots=True)
class RequiredInfrastructure:
    """`count` places, each with all of this; one in each of `regions`, the others wherever it is not `other_than`.

    None at all: no place would help.
    """

    place_count: int
    machines: int  # of one replica's size, with nothing on them
    machine_size: Mapping[str, int]  # milli-cores, bytes, milli-GPUs and counts
    regions: tuple[str, ...] = ()
    excluded_regions: tuple[str, ...] = ()  # regions that would not help
    compliance: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    residency: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    latency_limits: tuple[
        tuple[str, int, tuple[str, ...]], ...
    ] = ()  # dependency, milliseconds, and where it is
    node_labels: Mapping[str, str] = field(default_factory=dict)
    gpu_model: str = ""

    def properties(self) -> dict[str, Any]:
        """As a platform engineer reads it; what does not matter is left out."""
        if not self.place_count:
            return {}
        size = {name: _format_amount(name, amount) for name, amount in self.machine_size.items()}
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


def _format_amount(name: str, amount: int) -> str | int:
    if name in ("cpu", "gpu"):
        return format_cores(amount)
    return format_bytes(amount) if name in ("memory", "storage") else amount


def region_pattern(regions: Sequence[str]) -> str:
    """One name for several regions: us-* if they begin alike."""
    if len(regions) < 2:
        return "".join(regions)
    first = {each.partition("-")[0] for each in regions}
    return (
        f"{first.pop()}-*" if len(first) == 1 and all("-" in each for each in regions) else ", ".join(regions)
    )


def required_for(demand: Demand, failure: PlacementFailure | None, fleet: Fleet) -> RequiredInfrastructure:
    missing = max(1, demand.replicas - len(fleet.assignments.get(demand.name, ())))
    regions, other_than, count = _required_regions(demand, failure, fleet)
    return RequiredInfrastructure(
        place_count=count,
        machines=_machine_count(missing, demand.rules),
        machine_size=demand.effective_needs,
        regions=regions,
        excluded_regions=other_than,
        compliance=_values(demand, "compliance"),
        capabilities=_values(demand, "capability"),
        residency=_values(demand, "residency"),
        labels=dict(_labels(demand)),
        latency_limits=tuple(_latency_limits(demand, fleet)),
        node_labels=dict(demand.node_selector),
        gpu_model=demand.gpu_model if demand.needs.get("gpu") else "",
    )


def _values(demand: Demand, kind: Any) -> tuple[str, ...]:
    return tuple(sorted({each.value for each in demand.requirements_of(kind)}))


def _machine_count(replicas: int, rules: ClusterRules) -> int:
    """Clusters are filled one after the other, and each begins with as many machines as the rules say."""
    most = max(1, rules.max_nodes)
    whole = (replicas - 1) // most
    return whole * most + max(rules.min_nodes, replicas - whole * most)


def _required_regions(
    demand: Demand, failure: PlacementFailure | None, fleet: Fleet
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Required regions where nothing could take it; regions that are there already, if others are wanted; and how many places it takes."""
    if failure is None:
        return (), (), 1
    able = [
        fleet.offers[row]
        for row in np.flatnonzero(
            open_rows(failure, NotInRequiredRegion, RegionAlreadyUsed, FixedReason)
        ).tolist()
    ]
    held = [fleet.offers[row] for row in fleet.offer_rows_of(demand.name)]
    lacking = tuple(
        each.value for each in demand.regions if not any(offer.is_in(each.value) for offer in (*able, *held))
    )
    there = {offer.region for offer in (*able, *held)}
    short = max(0, demand.min_regions - len(there) - len(lacking))
    if lacking or short:
        return lacking, tuple(sorted(there)) if short else (), len(lacking) + short
    return (failure.ask.region,) if failure.ask.region else (), (), 1


def _labels(demand: Demand) -> Iterator[tuple[str, str]]:
    for each in demand.labels:
        if each.label and each.label.operator == "In":
            yield each.label.key, each.label.values[0]
        elif each.label and each.label.operator == "Exists":
            yield each.label.key, "yes"


def _latency_limits(demand: Demand, fleet: Fleet) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    targets = dict(demand.latency_to)
    for each in demand.latency:
        places = sorted({fleet.offers[row].name for row in fleet.offer_rows_of(targets[each.value])})
        yield each.value, each.amount, tuple(places)


def as_infrastructure(required: RequiredInfrastructure, name: str = "required") -> list[Kind]:
    """Exactly that, as objects one could apply: a data center for each place, and the class of its machines."""
    if not required.place_count:
        return []
    elsewhere = (f"{name}-{number}" for number in range(len(required.regions) + 1, required.place_count + 1))
    regions = (*required.regions, *elsewhere)
    return [
        machine_class(required, name, name),
        *(_data_center(required, name, region, number) for number, region in enumerate(regions, 1)),
    ]


def machine_class(required: RequiredInfrastructure, name: str, provider: str) -> LatticeNodeClass:
    """Machines that hold one replica, and nothing beside it."""
    size = dict(required.machine_size)
    memory, storage = size.pop("memory", 0), size.pop("storage", 0)
    resources = ClassResources(
        cores=Decimal(size.pop("cpu", 0)).scaleb(-3),
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
    near = {place: f"{ms}ms" for _, ms, places in reversed(required.latency_limits) for place in places}
    spec = StaticSpec(
        location=Location(name=f"{name}-{number}", region=region),
        capacity=StaticCapacity(nodes=required.machines),
        provider=name,
        network=StaticNetwork(latency_to=near),
        compliance=required.compliance,
        capabilities=required.capabilities,
        data_residency="".join(required.residency[:1]),
    )
    metadata = Metadata(name=f"{name}-{number}", labels=dict(required.labels))
    return StaticInfrastructure(
        api_version=API_VERSION, kind="StaticInfrastructure", metadata=metadata, spec=spec
    )
