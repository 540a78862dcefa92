"""Worlds for the fleet benchmark: the instances of Q3 as manifests, and large synthetic fleets."""

import csv
import random
from decimal import Decimal
from itertools import chain
from pathlib import Path

import msgspec

from bench.instances import DATA, Instance
from bench.instances import Service as Arriving
from bench.mixed import CLASSES, Mixed
from bench.mixed import Service as Spreading
from lattice.kinds.constraints import Spread
from lattice.kinds.container import Container
from lattice.kinds.infrastructure import (
    CloudInfrastructure,
    CloudRegion,
    CloudSpec,
    Location,
    StaticCapacity,
    StaticInfrastructure,
    StaticSpec,
)
from lattice.kinds.meta.base import Kind, Metadata
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.kinds.node_class import ClassResources, LatticeNodeClass, NodeClassSpec, ProviderNodeClass
from lattice.kinds.policy import (
    ClusterPolicy,
    LatticePlacementPolicy,
    PlacementPolicySpec,
    PolicyRequirements,
)
from lattice.kinds.pool import LatticePool, PoolBudget, PoolCapacity, PoolProvider, PoolSpec
from lattice.kinds.service import LatticeService, Placement, PlacementResources, Replicas, ServiceSpec
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import World

API = "lattice.dev/v1alpha1"
COMPLIANCE = ("soc2", "hipaa", "gdpr", "pci-dss")
# A rented machine has a single slot and a replica takes a slot, so that replicas share no rented machine.
SLOT = "machine"


def made(kind: type[Kind], name: str, spec: object, labels: dict[str, str] | None = None) -> Kind:
    namespace = "default" if kind.resource.namespaced else None
    metadata = Metadata(name=name, namespace=namespace or "", labels=labels or {})
    return kind(api_version=API, kind=kind.resource.kind, metadata=metadata, spec=spec)  # type: ignore[call-arg]


def q3_world(instance: Instance) -> World:
    """Real machine types with list prices: a machine per replica in a cloud, cores and memory by the unit in
    a data center."""
    listed = (DATA / "aws_on_demand.csv").read_text()
    objects: list[Kind] = [
        *_rented_classes(listed),
        *(_owned_class(center.name, center.cores, center.memory) for center in instance.data_centers),
    ]
    regions = sorted(set(chain.from_iterable(service.cost for service in instance.services)))
    objects.append(
        made(
            CloudInfrastructure,
            "aws",
            CloudSpec(provider="aws", regions={region: CloudRegion() for region in regions}),
        )
    )
    for center in instance.data_centers:
        location = Location(name=center.name, region=center.region)
        objects.append(
            made(
                StaticInfrastructure,
                center.name,
                StaticSpec(location=location, capacity=StaticCapacity(nodes=1), provider=center.name),
            )
        )
    objects += [
        made(
            LatticePlacementPolicy,
            f"regions-{count}",
            PlacementPolicySpec(
                selector=LabelSelector(match_labels={"regions": str(count)}),
                requirements=PolicyRequirements(min_regions=count),
                cluster_policy=ClusterPolicy(max_nodes=100_000),
            ),
        )
        for count in sorted({service.min_regions for service in instance.services})
    ]
    objects += [_q3_service(service) for service in instance.services]
    return World.of(objects, PriceBook.builtin().with_csv(listed, "aws_on_demand.csv", provider="aws"))


def _rented_classes(listed: str) -> list[Kind]:
    sizes = {
        row["instance_type"]: (row["vcpus"], row["memory_gib"]) for row in csv.DictReader(listed.splitlines())
    }
    return [
        made(
            LatticeNodeClass,
            name.replace(".", "-"),
            NodeClassSpec(
                providers={"aws": ProviderNodeClass(instance_type=name)},
                resources=ClassResources(cores=Decimal(cores), memory_gi=Decimal(memory), extended={SLOT: 1}),
            ),
        )
        for name, (cores, memory) in sorted(sizes.items())
    ]


def _owned_class(name: str, cores: int, memory: int) -> Kind:
    size = ClassResources(cores=Decimal(cores), memory_gi=Decimal(memory), extended={SLOT: 1_000_000})
    return made(
        LatticeNodeClass, f"{name}-all", NodeClassSpec(providers={name: ProviderNodeClass()}, resources=size)
    )


def _q3_service(service: Arriving) -> Kind:
    region_rule = Requirement(
        key="region", operator="In", values=tuple(sorted([*service.cost, *service.inside]))
    )
    placement = Placement(
        pools=LabelSelector(match_expressions=(region_rule,)),
        resources=PlacementResources(
            cores=Decimal(service.cpu), memory_gi=Decimal(service.memory), extended={SLOT: 1}
        ),
    )
    spec = ServiceSpec(
        containers={"main": Container(image="app")},
        placement=placement,
        replicas=Replicas(min=service.replicas),
    )
    return made(LatticeService, service.name, spec, {"regions": str(service.min_regions)})


def mixed_world(instance: Mixed) -> World:
    """Pools that sell several classes, and services with spread rules; clusters are filled to the brim."""
    objects: list[Kind] = []
    policies = PlacementPolicySpec(
        cluster_policy=ClusterPolicy(max_nodes=100_000, bin_packing_threshold=Decimal(1))
    )
    objects.append(made(LatticePlacementPolicy, "brim", policies))
    objects.append(
        made(
            LatticePlacementPolicy,
            "two-regions",
            PlacementPolicySpec(
                selector=LabelSelector(match_labels={"regions": "2"}),
                requirements=PolicyRequirements(min_regions=2),
            ),
        )
    )
    for pool in instance.pools:
        for name, price in pool.prices.items():
            cores = CLASSES[name][0]
            spec = NodeClassSpec(
                providers={"aws": ProviderNodeClass()},
                resources=ClassResources(cores=Decimal(cores), memory_gi=Decimal(4 * cores)),
                cost_per_hour={"aws": Decimal(price) / 1_000_000},
            )
            objects.append(made(LatticeNodeClass, f"{pool.name}-{name}", spec))
        spec = PoolSpec(
            provider=PoolProvider(type="aws", region=pool.region),
            node_classes=tuple(f"{pool.name}-{name}" for name in pool.prices),
        )
        objects.append(made(LatticePool, pool.name, spec))
    objects += [_mixed_service(service) for service in instance.services]
    return World.of(objects)


def _mixed_service(service: Spreading) -> Kind:
    spread = (Spread(topology_key="region", max_skew=service.max_skew, when_unsatisfiable="DoNotSchedule"),)
    region_rule = Requirement(key="region", operator="In", values=service.regions)
    placement = Placement(
        pools=LabelSelector(match_expressions=(region_rule,)),
        resources=PlacementResources(cores=Decimal(service.cores), memory_gi=Decimal(4 * service.cores)),
    )
    spec = ServiceSpec(
        containers={"main": Container(image="app")},
        placement=placement,
        replicas=Replicas(min=service.replicas),
        spread=spread if service.max_skew else (),
    )
    return made(LatticeService, service.name, spec, {"regions": str(service.min_regions)})


def large_world(pools: int, services: int, seed: int = 1) -> list[Kind]:
    """Pools in forty regions with compliance standards and budgets, and services of many shapes."""
    rng = random.Random(seed)
    objects: list[Kind] = []
    for number, (cores, memory, price) in enumerate(
        ((2, 4, "0.05"), (4, 16, "0.19"), (8, 32, "0.38"), (16, 64, "0.75"))
    ):
        spec = NodeClassSpec(
            providers={"aws": ProviderNodeClass(instance_type=f"type-{number}")},
            resources=ClassResources(cores=Decimal(cores), memory_gi=Decimal(memory)),
            cost_per_hour={"aws": Decimal(price)},
        )
        objects.append(made(LatticeNodeClass, f"class-{number}", spec))
    for number in range(pools):
        spec = PoolSpec(
            provider=PoolProvider(type="aws", region=f"region-{number % 40}"),
            capacity=PoolCapacity(max_nodes=200),
            budget=PoolBudget(max_monthly_cost=Decimal(20_000)),
            node_classes=tuple(f"class-{index}" for index in range(4)),
            labels={"tier": rng.choice(["production", "test"]), "compliance": rng.sample(COMPLIANCE, 2)},
        )
        objects.append(made(LatticePool, f"pool-{number:04}", spec))
    return [*objects, *(large_service(f"service-{number:05}", rng) for number in range(services))]


def large_service(name: str, rng: random.Random) -> Kind:
    resources = PlacementResources(
        cores=Decimal(rng.choice(["0.25", "0.5", "1", "2", "4"])),
        memory_gi=Decimal(rng.choice(["0.5", "1", "2", "4", "8", "16"])),
    )
    placement = Placement(resources=resources, compliance=(rng.choice(COMPLIANCE),))
    spec = ServiceSpec(
        containers={"main": Container(image="app")},
        placement=placement,
        replicas=Replicas(min=rng.randint(1, 4)),
    )
    return made(LatticeService, name, spec)


def tight_world(pools: int, nodes: int = 200, dollars: int = 20_000) -> list[Kind]:
    """The pools of `large_world` without services, with so many nodes and so many dollars per month."""
    objects = []
    for obj in large_world(pools, 0):
        if isinstance(obj, LatticePool):
            capacity, budget = PoolCapacity(max_nodes=nodes), PoolBudget(max_monthly_cost=Decimal(dollars))
            obj = msgspec.structs.replace(
                obj, spec=msgspec.structs.replace(obj.spec, capacity=capacity, budget=budget)
            )
        objects.append(obj)
    return objects


def hungry_service(name: str, replicas: int) -> Kind:
    """A service whose replica needs half of a large machine."""
    placement = Placement(
        resources=PlacementResources(cores=Decimal(8), memory_gi=Decimal(16)), compliance=("soc2",)
    )
    spec = ServiceSpec(
        containers={"main": Container(image="app")}, placement=placement, replicas=Replicas(min=replicas)
    )
    return made(LatticeService, name, spec)


def has_data() -> bool:
    return Path(DATA / "instances.py").exists()
