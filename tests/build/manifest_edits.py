"""Everything in manifests that blocks one service, and the manifests without it: what a person would edit,
independent of placement."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import ClusterPolicy, LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.model.world import World

MARK = "judged"
OWN = "own-"  # prefix of the policy copies of the service
Label = tuple[str, str, str]  # kind, value, source
Rewrite = Callable[[Any], Any]


@dataclass(frozen=True)
class ManifestBlocker:
    label: Label
    lift: Callable[[World], list[Kind]]  # the changed manifests without the blocker


def within(part: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(part, **fields)


def _spec(kind: Any, **fields: Any) -> Any:
    return within(kind, spec=within(kind.spec, **fields))


def _placement(service: Any, **fields: Any) -> Any:
    return _spec(service, placement=within(service.spec.placement, **fields))


def with_own_policies(world: World, name: str) -> World:
    """The world in which every policy that matches the service has a copy for it alone and no longer matches
    it itself."""
    service = world.services[name]
    labels = {**(service.metadata.labels or {}), MARK: "yes"}
    results: list[Kind] = [within(service, metadata=within(service.metadata, labels=labels))]
    for policy in world.policies:
        if policy.spec.applies_to(service.metadata.labels or {}):
            copied = within(policy, metadata=within(policy.metadata, name=f"{OWN}{policy.metadata.name}"))
            results += [_selecting(copied, "In"), _selecting(policy, "NotIn")]
    return world.with_objects(results)


def _selecting(policy: LatticePlacementPolicy, operator: Any) -> Any:
    before = policy.spec.selector or LabelSelector()
    more = Requirement(key=MARK, operator=operator, values=("yes",))
    return _spec(policy, selector=within(before, match_expressions=(*before.match_expressions, more)))


def manifest_blockers(world: World, name: str) -> list[ManifestBlocker]:
    own = [policy for policy in world.policies if policy.metadata.name.startswith(OWN)]
    service = world.services[name]
    return [
        *_of_service(service),
        *(item for policy in own for item in _of_policy(policy)),
        *_limits(name, own),
    ]


def _of_service(service: LatticeService) -> Iterator[ManifestBlocker]:
    placement, source = service.spec.placement, f"service/{service.metadata.name}"
    key = ("LatticeService", "default", service.metadata.name)

    def without(kind: str, value: str, rewrite: Rewrite) -> ManifestBlocker:
        return ManifestBlocker((kind, value, source), lambda world: [rewrite(world.objects[key])])

    if placement.pools:
        (label,) = placement.pools.requirements  # these worlds require one label at most
        yield without("label", str(label), lambda it: _placement(it, pools=None))
    for one in placement.compliance:
        yield without(
            "compliance",
            one.lower(),
            lambda it, one=one: _placement(it, compliance=_less(it.spec.placement.compliance, one)),
        )
    for one in placement.capabilities:
        yield without(
            "capability",
            one,
            lambda it, one=one: _placement(it, capabilities=_less(it.spec.placement.capabilities, one)),
        )
    if placement.data_residency:
        yield without("residency", placement.data_residency, lambda it: _placement(it, data_residency=""))
    for one in placement.required_regions:
        yield without(
            "region",
            one,
            lambda it, one=one: _placement(
                it, required_regions=_less(it.spec.placement.required_regions, one)
            ),
        )
    for one in placement.latency:
        yield without(
            "latency", one, lambda it, one=one: _placement(it, latency=_but(it.spec.placement.latency, one))
        )
    for item in service.spec.spread:
        if item.when_unsatisfiable == "DoNotSchedule":
            yield without("spread", item.topology_key, lambda it: _spec(it, spread=()))
    for resource, field in (("cpu", "cores"), ("memory", "memory_gi")):
        yield without(
            "resource",
            resource,
            lambda it, field=field: _placement(
                it, resources=within(it.spec.placement.resources, **{field: Decimal(0)})
            ),
        )


def _less(words: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(word for word in words if word != gone)


def _but(stated: dict[str, Any], gone: str) -> dict[str, Any]:
    return {name: item for name, item in stated.items() if name != gone}


def _of_policy(policy: LatticePlacementPolicy) -> Iterator[ManifestBlocker]:
    rules, key = policy.spec.requirements, ("LatticePlacementPolicy", "", policy.metadata.name)

    def without(kind: str, value: str, **fields: Any) -> ManifestBlocker:
        def lift(world: World) -> list[Kind]:
            there: Any = world.objects[key]
            return [_spec(there, requirements=within(there.spec.requirements, **fields))]

        return ManifestBlocker((kind, value, f"policy/{policy.metadata.name}"), lift)

    if rules.min_regions and rules.min_regions > 1:
        yield without("minRegions", "regions", min_regions=None)
    yield from (
        without("compliance", item, compliance=()) for item in rules.compliance
    )  # these policies require one at most
    yield from (without("capability", capability, capabilities=()) for capability in rules.capabilities)
    if rules.spread_constraint:
        yield without("spread", rules.spread_constraint.topology_key, spread_constraint=None)


def _limits(name: str, policies: list[LatticePlacementPolicy]) -> Iterator[ManifestBlocker]:
    everywhere = {
        "prices": _priced,
        "budget": _rich,
        "capacity": _roomy,
        "overflow": _ungated,
        "reservation": _unreserved,
    }
    for kind, rewrite in everywhere.items():
        yield ManifestBlocker(
            (kind, "", ""),
            lambda world, rewrite=rewrite: [
                each for old in world.objects.values() if (each := rewrite(old)) is not old
            ],
        )
    yield ManifestBlocker(("dependencies", "", ""), lambda world: [_not_waiting(world, name)])
    if any(policy.spec.cluster_policy for policy in policies):
        keys = [
            ("LatticePlacementPolicy", "", policy.metadata.name)
            for policy in policies
            if policy.spec.cluster_policy
        ]
        yield ManifestBlocker(
            ("clusterSize", "", ""), lambda world: [_any_size(world.objects[key]) for key in keys]
        )


def _any_size(policy: Any) -> Any:
    return _spec(policy, cluster_policy=ClusterPolicy(name_prefix=policy.spec.cluster_policy.name_prefix))


def _not_waiting(world: World, name: str) -> Any:
    """The service without latency limits to unplaced or undefined services."""
    service = world.services[name]
    there = {service.metadata.name for service in world.services.values() if service.status.placements}
    latency = {other: item for other, item in service.spec.placement.latency.items() if other in there}
    return _placement(service, latency=latency)


def _priced(kind: Any) -> Any:
    """A class without a price becomes free."""
    if not isinstance(kind, LatticeNodeClass) or kind.spec.cost_per_hour:
        return kind
    return _spec(kind, cost_per_hour=dict.fromkeys(kind.spec.providers, Decimal(0)))


def _rich(kind: Any) -> Any:
    if isinstance(kind, LatticePool) and kind.spec.budget:
        return _spec(kind, budget=None)
    if isinstance(kind, CloudInfrastructure):
        regions = {name: within(region, budget=None) for name, region in kind.spec.regions.items()}
        return _spec(kind, budget=None, regions=regions)
    if isinstance(kind, StaticInfrastructure) and kind.spec.overflow:
        return _spec(
            kind,
            overflow=within(
                kind.spec.overflow, limits=within(kind.spec.overflow.limits, max_monthly_spend=None)
            ),
        )
    return kind


MORE = 1000  # factor


def _roomy(kind: Any) -> Any:
    """Pools and clouds without limits; data centers with many times the machines, of the same size."""
    if isinstance(kind, LatticePool):
        return _spec(kind, capacity=type(kind.spec.capacity)())
    if isinstance(kind, CloudInfrastructure):
        regions = {
            name: within(region, quotas=within(region.quotas, max_clusters=None))
            for name, region in kind.spec.regions.items()
        }
        return _spec(kind, regions=regions)
    if isinstance(kind, StaticInfrastructure):
        return _with_machines(kind)
    return kind


def _with_machines(static: Any) -> Any:
    capacity, overflow = static.spec.capacity, static.spec.overflow
    gib = int(capacity.memory.removesuffix("Gi"))
    more = within(
        capacity, nodes=capacity.nodes * MORE, cores=capacity.cores * MORE, memory=f"{gib * MORE}Gi"
    )
    limits = within(overflow, limits=within(overflow.limits, max_clusters=None)) if overflow else None
    return _spec(static, capacity=more, overflow=limits)


def _ungated(kind: Any) -> Any:
    return (
        _spec(kind, overflow=None) if isinstance(kind, StaticInfrastructure) and kind.spec.overflow else kind
    )


def _unreserved(kind: Any) -> Any:
    return (
        _spec(kind, reservation=None)
        if isinstance(kind, StaticInfrastructure) and kind.spec.reservation
        else kind
    )
