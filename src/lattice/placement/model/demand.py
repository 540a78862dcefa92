"""What does a service demand of the places where it goes, once all policies that match it are counted in?"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lattice.kinds.constraint import Spread, Toleration
from lattice.kinds.meta.selector import Requirement as LabelDemand
from lattice.kinds.policy import (
    DEFAULT_MAX_NODES,
    DEFAULT_MIN_NODES,
    DEFAULT_PACKING_MILLIONTHS,
    LatticePlacementPolicy,
)
from lattice.kinds.service import LatticeService, service_key

RequirementKind = Literal[
    "label", "compliance", "capability", "residency", "region", "minRegions", "spread", "latency", "resource"
]
IgnorableLimit = Literal["prices", "budget", "capacity", "dependencies", "overflow", "reservation"]
SortKey = Literal["cost", "availableCapacity"]
Preferences = tuple[tuple[SortKey, bool, int], ...]  # what to sort by, whether small comes first, weight
OFFER_TOPOLOGY_KEYS = ("region", "zone", "provider", "pool")
NODE_TOPOLOGY_KEYS = ("node", "kubernetes.io/hostname")
CHEAPEST_FIRST: Preferences = (("cost", True, 1),)
DEFAULT_SOURCE = "the default"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that must hold, and who says so. Dropping it is the smallest way to ask for less."""

    kind: RequirementKind
    value: str  # gdpr, us-east, region; the dependency of a latency; the name of a resource
    source: str  # service/api or policy/production
    amount: int = 0  # regions, skew, milliseconds, or how much of a resource
    label: LabelDemand | None = None

    def __str__(self) -> str:
        match self.kind:
            case "label":
                return f"pools with {self.value}"
            case "residency":
                return f"data residency {self.value}"
            case "region":
                return f"a replica in {self.value}"
            case "minRegions":
                return f"replicas in {self.amount} regions"
            case "spread":
                return f"spread over {self.value} with skew at most {self.amount}"
            case "latency":
                return f"{self.value} within {self.amount} ms"
            case "resource":
                return f"{self.value} of one replica"
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class ClusterRules:
    """How clusters for a service are sized. Services share clusters only under equal rules."""

    min_nodes: int = DEFAULT_MIN_NODES
    max_nodes: int = DEFAULT_MAX_NODES
    packing: int = DEFAULT_PACKING_MILLIONTHS  # millionths
    prefix: str = ""

    @cached_property
    def hash(self) -> str:
        text = f"{self.min_nodes} {self.max_nodes} {self.packing} {self.prefix}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Demand:
    """A service, resolved. `ignoring` names limits that are left out of account, to find out what stands in the way."""

    name: str  # namespace/name
    replicas: int
    requirements: tuple[Requirement, ...]
    requests: tuple[tuple[str, int], ...]  # of one replica, by resource
    gpu_model: str = ""
    rules: ClusterRules = ClusterRules()
    size_sources: tuple[str, str] = (
        "",
        "",
    )  # who wants as many machines in a cluster as the rules say, and who allows no more
    preferences: Preferences = ()
    soft_spread: tuple[
        tuple[str, int], ...
    ] = ()  # what it would like to be spread over, and the skew up to which that is even enough
    neighbours: tuple[str, ...] = ()  # services that it talks to, or that talk to it
    latency_to: tuple[tuple[str, str], ...] = ()  # name of a dependency -> service
    usable_reserves: frozenset[str] = frozenset()  # offers whose reserve it may use
    tolerations: tuple[Toleration, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    max_per_node: int = 0  # most replicas on one machine; 0: as many as fit
    priority: int = 0
    rule_conflict: str = ""  # a contradiction that no supply can cure
    ignored_limits: frozenset[IgnorableLimit] = frozenset()
    min_replicas: int | None = (
        None  # replicas.min of the service; None: `replicas` does not follow from the rules
    )
    max_replicas: int | None = None  # replicas.max

    def requirements_of(self, kind: RequirementKind) -> tuple[Requirement, ...]:
        return tuple(each for each in self.requirements if each.kind == kind)

    @cached_property
    def labels(self) -> tuple[Requirement, ...]:
        return self.requirements_of("label")

    @cached_property
    def compliance(self) -> tuple[Requirement, ...]:
        return self.requirements_of("compliance")

    @cached_property
    def capabilities(self) -> tuple[Requirement, ...]:
        return self.requirements_of("capability")

    @cached_property
    def residency(self) -> tuple[Requirement, ...]:
        return self.requirements_of("residency")

    @cached_property
    def regions(self) -> tuple[Requirement, ...]:
        return self.requirements_of("region")

    @cached_property
    def min_regions(self) -> int:
        return max((each.amount for each in self.requirements_of("minRegions")), default=0)

    @cached_property
    def spread(self) -> tuple[Requirement, ...]:
        return self.requirements_of("spread")

    @cached_property
    def latency(self) -> tuple[Requirement, ...]:
        return self.requirements_of("latency")

    @cached_property
    def needs(self) -> dict[str, int]:
        """Of one replica; a resource whose requirement was dropped is not asked for."""
        kept = {each.value for each in self.requirements_of("resource")}
        return {name: amount for name, amount in self.requests if name in kept}

    @cached_property
    def effective_needs(self) -> dict[str, int]:
        """Shares of a GPU are counted so that as many fit on one as really do: 600 thousandths take it whole."""
        needs = dict(self.needs)
        share = needs.get("gpu", 0)
        if 0 < share < 1000:
            needs["gpu"] = -(-1000 // (1000 // share))
        return needs

    @cached_property
    def fixed_shape(self) -> Hashable:
        fixed = ("label", "compliance", "capability", "residency")
        return frozenset((each.kind, each.value) for each in self.requirements if each.kind in fixed)

    @property
    def machine_needs(self) -> Hashable:
        """What one machine must have for one replica."""
        return (
            tuple(sorted(self.needs.items())),
            self.gpu_model,
            self.tolerations,
            self.node_selector,
            self.max_per_node,
        )

    @cached_property
    def machine_shape(self) -> Hashable:
        """Everything that decides which machines would do, and how many."""
        needs = tuple(sorted(self.needs.items()))
        whose = self.name if self.max_per_node else ""
        where = (self.tolerations, self.node_selector, self.max_per_node, whose, self.usable_reserves)
        return (needs, self.gpu_model, self.rules, self.replicas, self.ignored_limits, where)

    @cached_property
    def shape(self) -> Hashable:
        """Demands of one shape are asked of the same plugins, so it also says which of those that look at the whole fleet have a say."""
        return (
            self.fixed_shape,
            self.machine_shape,
            bool(self.latency),
            bool(self.spread),
            bool(self.neighbours),
            bool(self.soft_spread),
        )

    def may_use_reserve(self, offer: str) -> bool:
        """What is reserved there?"""
        return offer in self.usable_reserves or "reservation" in self.ignored_limits

    def without(self, dropped: Iterable[Requirement]) -> "Demand":
        gone = set(dropped)
        return replace(
            self, requirements=tuple(each for each in self.requirements if each not in gone)
        ).with_replica_count()

    def with_rules(self, rules: ClusterRules) -> "Demand":
        return replace(self, rules=rules).with_replica_count()

    def with_replica_count(self) -> "Demand":
        """With as many replicas as it wants under its rules, and the contradiction that is in them."""
        if self.min_replicas is None:
            return self
        wanted = max(self.min_replicas, len({each.value for each in self.regions}), self.min_regions)
        return replace(self, replicas=wanted, rule_conflict=self._find_rule_conflict(wanted))

    def _find_rule_conflict(self, wanted: int) -> str:
        if self.max_replicas is not None and wanted > self.max_replicas:
            widest = max(self.requirements_of("minRegions"), key=lambda each: each.amount, default=None)
            who = widest.source if widest else self.name
            return (
                f"{who} wants replicas in {self.min_regions} regions, replicas.max allows {self.max_replicas}"
            )
        if self.rules.min_nodes > self.rules.max_nodes:
            least, most = self.size_sources
            return f"{least} wants clusters of at least {self.rules.min_nodes} nodes, {most} of at most {self.rules.max_nodes}"
        return ""


@dataclass(frozen=True, slots=True)
class ReplicaAsk:
    """One replica of it, as the engine is asked: perhaps bound to a region, to new regions, or to the overflow of a data center."""

    demand: Demand
    region: str = ""  # only there
    excluded_regions: frozenset[str] = frozenset()  # only in other regions than these
    overflow_source: str = ""  # only where this data center overflows to
    capacity_target: int = (
        0  # on the class that holds most of so many replicas; 0: on the one that costs least
    )

    @property
    def name(self) -> str:
        return self.demand.name

    @property
    def shape(self) -> Hashable:
        return (self.demand.shape, self.overflow_source, self.capacity_target)

    @property
    def fixed_shape(self) -> Hashable:
        return self.demand.fixed_shape

    @property
    def needs(self) -> tuple[tuple[int, int], ...]:
        return ()

    @property
    def is_additive(self) -> bool:
        return False


def group_name(rules: str, overflow: str, reserve: str) -> str:
    """Clusters under equal rules, of the overflow of one data center, or on the reserve of one."""
    return f"{rules}/{overflow}/{reserve}"


def resolve_demand(
    service: LatticeService,
    policies: Iterable[LatticePlacementPolicy],
    neighbours: Sequence[str] = (),
    usable_reserves: Iterable[str] = (),
) -> Demand:
    """Hard rules of all matching policies hold, all their preferences count. `neighbours`: services that call this one."""
    spec = service.spec
    matching = sorted(
        (each for each in policies if each.spec.applies_to(service.metadata.labels or {})),
        key=lambda each: each.metadata.name,
    )
    own = service_source(service.metadata.name)
    requests = spec.requests
    requirements = list(_own_requirements(service, own, requests))
    for policy in matching:
        requirements.extend(_policy_requirements(policy))
    demand = Demand(
        name=service_key(service),
        replicas=0,
        requirements=tuple(dict.fromkeys(requirements)),
        requests=tuple(sorted(requests.items())),
        gpu_model=spec.placement.resources.gpu_model,
        rules=_rules(matching),
        size_sources=_size_sources(matching),
        preferences=tuple(
            (each.preference.sort_by, each.preference.order == "ascending", each.weight)
            for p in matching
            for each in p.spec.preferences
            if each.weight
        ),
        soft_spread=tuple(
            (each.topology_key, each.max_skew) for each in _offer_spreads(service, "ScheduleAnyway")
        ),
        neighbours=tuple(dict.fromkeys([*_called_services(service).values(), *neighbours])),
        latency_to=tuple(latency_targets(service).items()),
        usable_reserves=frozenset(usable_reserves),
        tolerations=spec.placement.tolerations,
        node_selector=tuple(sorted(spec.placement.node_selector.items())),
        max_per_node=_max_per_node(service, matching),
        priority=spec.priority,
        min_replicas=spec.min_replicas,
        max_replicas=spec.replicas.max,
    )
    return demand.with_replica_count()


def _max_per_node(service: LatticeService, policies: Sequence[LatticePlacementPolicy]) -> int:
    """Most replicas on one machine, by rules that spread them over nodes; 0: none does."""
    own = (
        each.max_skew
        for each in service.spec.spread
        if each.topology_key in NODE_TOPOLOGY_KEYS and each.when_unsatisfiable == "DoNotSchedule"
    )
    rules = (each.spec.requirements.spread_constraint for each in policies)
    return min((*own, *(each.max_skew for each in rules if each and each.topology_key == "node")), default=0)


def _own_requirements(
    service: LatticeService, source: str, requests: Mapping[str, int]
) -> Iterable[Requirement]:
    placement = service.spec.placement
    for label in placement.pools.requirements if placement.pools else ():
        yield Requirement("label", str(label), source, label=label)
    for value in placement.compliance:
        yield Requirement("compliance", value.lower(), source)
    for value in placement.capabilities:
        yield Requirement("capability", value.lower(), source)
    if placement.data_residency:
        yield Requirement("residency", placement.data_residency.lower(), source)
    for value in placement.required_regions:
        yield Requirement("region", value, source)
    for name, latency in placement.latency.items():
        yield Requirement("latency", name, source, latency.max_ms)
    for each in _offer_spreads(service, "DoNotSchedule"):
        yield Requirement("spread", each.topology_key, source, each.max_skew)
    for name, amount in requests.items():
        yield Requirement("resource", name, source, amount)


def _offer_spreads(service: LatticeService, when: Literal["DoNotSchedule", "ScheduleAnyway"]) -> list[Spread]:
    """Its own rules, or wishes, for how it is spread over offers; those about nodes are the scheduler's."""
    return [
        each
        for each in service.spec.spread
        if each.topology_key in OFFER_TOPOLOGY_KEYS and each.when_unsatisfiable == when
    ]


def _policy_requirements(policy: LatticePlacementPolicy) -> Iterable[Requirement]:
    rules, source = policy.spec.requirements, f"policy/{policy.metadata.name}"
    for value in rules.compliance:
        yield Requirement("compliance", value.lower(), source)
    for value in rules.capabilities:
        yield Requirement("capability", value.lower(), source)
    if rules.min_regions and rules.min_regions > 1:
        yield Requirement("minRegions", "regions", source, rules.min_regions)
    spread = rules.spread_constraint
    if spread and spread.topology_key in OFFER_TOPOLOGY_KEYS:
        yield Requirement("spread", spread.topology_key, source, spread.max_skew)


def _rules(policies: Sequence[LatticePlacementPolicy]) -> ClusterRules:
    """The largest minNodes, the smallest maxNodes and threshold."""
    stated = [each.spec.cluster_policy for each in policies if each.spec.cluster_policy]
    return ClusterRules(
        min_nodes=max(
            (each.min_nodes for each in stated if each.min_nodes is not None), default=DEFAULT_MIN_NODES
        ),
        max_nodes=min(
            (each.max_nodes for each in stated if each.max_nodes is not None), default=DEFAULT_MAX_NODES
        ),
        packing=min(
            (each.packing_millionths for each in stated if each.bin_packing_threshold is not None),
            default=DEFAULT_PACKING_MILLIONTHS,
        ),
        prefix=next((each.name_prefix for each in stated if each.name_prefix), ""),
    )


def _size_sources(policies: Sequence[LatticePlacementPolicy]) -> tuple[str, str]:
    """The policies whose minNodes and maxNodes count; the defaults are nobody's."""
    stated = [
        (f"policy/{each.metadata.name}", each.spec.cluster_policy)
        for each in policies
        if each.spec.cluster_policy
    ]
    least = [(-each.min_nodes, name) for name, each in stated if each.min_nodes is not None]
    most = [(each.max_nodes, name) for name, each in stated if each.max_nodes is not None]
    return min(least, default=(0, DEFAULT_SOURCE))[1], min(most, default=(0, DEFAULT_SOURCE))[1]


def _called_services(service: LatticeService) -> dict[str, str]:
    """Services that it calls, by the name it has for them."""
    own = service.metadata.namespace or "default"
    found = {}
    for name, dependency in service.spec.resources.items():
        if name != "*" and dependency.is_service and dependency.is_outbound:
            found[name] = f"{dependency.namespace or own}/{dependency.id or name}"
    return found


def latency_targets(service: LatticeService) -> dict[str, str]:
    """What a latency is measured to: the dependency of that name, else the service of that name."""
    own = service.metadata.namespace or "default"
    named: Mapping[str, str] = {
        name: f"{each.namespace or own}/{each.id or name}"
        for name, each in service.spec.resources.items()
        if name != "*"
    }
    return {name: named.get(name, f"{own}/{name}") for name in service.spec.placement.latency}


def service_source(name: str) -> str:
    """Who states what a service itself requires; its namespace may be with its name."""
    return f"service/{name.rpartition('/')[2]}"


def callers_by_service(services: Iterable[LatticeService]) -> dict[str, list[str]]:
    """Who calls whom, the other way round."""
    found: dict[str, list[str]] = {}
    for service in services:
        for called in _called_services(service).values():
            found.setdefault(called, []).append(service_key(service))
    return found
