"""The demand of a service: the requirements of the service and of every matching policy, resolved for
placement."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lattice.kinds.constraints import Spread, Toleration
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.meta.selector import Requirement as LabelDemand
from lattice.kinds.policy import (
    DEFAULT_MAX_NODES,
    DEFAULT_MIN_NODES,
    DEFAULT_PACKING_MILLIONTHS,
    LatticePlacementPolicy,
)
from lattice.kinds.service import LatticeService, service_key
from lattice.placement.affinity.terms import AffinityTerm

RequirementKind = Literal[
    "label",
    "compliance",
    "capability",
    "residency",
    "region",
    "minRegions",
    "spread",
    "latency",
    "affinity",
    "antiAffinity",
    "resource",
]
IgnorableLimit = Literal["prices", "budget", "capacity", "dependencies", "overflow", "reservation"]
SortKey = Literal["cost", "availableCapacity", "proximity"]
# Sort key, whether small values come first, weight.
Preferences = tuple[tuple[SortKey, bool, int], ...]
OFFER_TOPOLOGY_KEYS = ("region", "zone", "provider", "pool")
NODE_TOPOLOGY_KEYS = ("node", "kubernetes.io/hostname")
CHEAPEST_FIRST: Preferences = (("cost", True, 1),)
# Weight of the cost where no policy states cost or available capacity: beside nearness to neighbours it decides
# between equally near offers.
DEFAULT_COST_WEIGHT = 1
# Weight of nearness to neighbours without a latency limit, unless a policy states another weight.
DEFAULT_PROXIMITY_WEIGHT = 20
DEFAULT_SOURCE = "the default"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One hard requirement with its source; dropping single requirements shows which requirement blocks a
    service."""

    kind: RequirementKind
    # For example gdpr, us-east or region; the dependency of a latency; the name of a resource.
    value: str
    # service/api or policy/production.
    source: str
    # By kind: regions, skew, milliseconds, or an amount of the resource.
    amount: int = 0
    label: LabelDemand | None = None
    term: AffinityTerm | None = None

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
            case "affinity" | "antiAffinity":
                return self.value
            case "resource":
                return f"{self.value} of one replica"
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class ClusterRules:
    """The size rules of clusters for a service; services share clusters only under equal rules."""

    min_nodes: int = DEFAULT_MIN_NODES
    max_nodes: int = DEFAULT_MAX_NODES
    packing_millionths: int = DEFAULT_PACKING_MILLIONTHS
    prefix: str = ""

    @cached_property
    def hash(self) -> str:
        text = f"{self.min_nodes} {self.max_nodes} {self.packing_millionths} {self.prefix}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class MachineRefusal:
    """An empty, ready machine of the class in the offer did not accept a replica of the service."""

    offer: str
    node_class: str
    # What the replica needs and the machine has, as far as the scheduler named it.
    need: str = ""
    have: str = ""


@dataclass(frozen=True)
class Demand:
    """The resolved demand of a service; `ignored_limits` names limits that placement leaves out, to find the
    blockers of a service."""

    name: str  # namespace/name
    replicas: int
    requirements: tuple[Requirement, ...]
    requests: tuple[tuple[str, int], ...]  # of one replica, by resource
    gpu_model: str = ""
    rules: ClusterRules = ClusterRules()
    # The sources of the minimum and of the maximum of machines in a cluster.
    size_sources: tuple[str, str] = ("", "")
    preferences: Preferences = ()
    # Topology keys to spread over if possible, with the skew that still counts as even.
    soft_spread: tuple[tuple[str, int], ...] = ()
    calls: tuple[str, ...] = ()  # called services, and services to which the latency is limited
    # Services that call this service -> whether the caller limits the latency to this service.
    callers: tuple[tuple[str, bool], ...] = ()
    latency_to: tuple[tuple[str, str], ...] = ()  # name of a dependency -> service
    usable_reserves: frozenset[str] = frozenset()  # offers whose reserve the service may use
    tolerations: tuple[Toleration, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    max_per_node: int = 0  # replicas on one machine; 0: no limit
    # The runtimes that the containers need: container for an image, process for a command without image.
    runtimes: frozenset[str] = frozenset()
    # Offers and classes whose empty machines did not accept a replica of the service, with the reason.
    refusals: tuple[MachineRefusal, ...] = ()
    priority: int = 0
    rule_conflict: str = ""  # conflicting requirements, which no supply can satisfy
    ignored_limits: frozenset[IgnorableLimit] = frozenset()
    # `replicas.min` of the service; None: `replicas` is fixed and does not follow from the rules.
    min_replicas: int | None = None
    max_replicas: int | None = None  # `replicas.max`
    preferred_terms: tuple[AffinityTerm, ...] = ()
    # Required anti-affinity terms of other services that match this service.
    repelling_terms: tuple[AffinityTerm, ...] = ()
    # Amounts that each machine must have free beside a replica, for replicas that must share the machine.
    headroom: tuple[tuple[str, int], ...] = ()
    # The gang of the service, as namespace/name, and its minimum number of replicas; "": none.
    gang: str = ""
    min_member: int = 0

    def requirements_of(self, kind: RequirementKind) -> tuple[Requirement, ...]:
        return tuple(requirement for requirement in self.requirements if requirement.kind == kind)

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
        return max((requirement.amount for requirement in self.requirements_of("minRegions")), default=0)

    @cached_property
    def spread(self) -> tuple[Requirement, ...]:
        return self.requirements_of("spread")

    @cached_property
    def latency(self) -> tuple[Requirement, ...]:
        return self.requirements_of("latency")

    @cached_property
    def neighbours(self) -> tuple[str, ...]:
        """The called services and the callers."""
        return tuple(dict.fromkeys([*self.calls, *(caller for caller, _ in self.callers)]))

    @cached_property
    def bound_neighbours(self) -> tuple[str, ...]:
        """The neighbours to which this service limits the latency, or that limit the latency to this
        service."""
        bound = {target for _, target in self.latency_to}
        bound.update(caller for caller, is_bound in self.callers if is_bound)
        return tuple(neighbour for neighbour in self.neighbours if neighbour in bound)

    @cached_property
    def preferred_neighbours(self) -> tuple[str, ...]:
        """The neighbours without a latency limit: nearness to them is a preference."""
        bound = set(self.bound_neighbours)
        return tuple(neighbour for neighbour in self.neighbours if neighbour not in bound)

    @cached_property
    def own_terms(self) -> tuple[AffinityTerm, ...]:
        """The required affinity and anti-affinity terms of the service."""
        return tuple(requirement.term for requirement in self.requirements if requirement.term)

    @cached_property
    def required_terms(self) -> tuple[AffinityTerm, ...]:
        """The terms that must hold for a replica: its own, and the anti-affinity terms of other services."""
        return (*self.own_terms, *self.repelling_terms)

    @cached_property
    def terms(self) -> tuple[AffinityTerm, ...]:
        """All affinity terms: required and preferred ones of the service, and those of other services."""
        return (*self.required_terms, *self.preferred_terms)

    @cached_property
    def local_terms(self) -> tuple[AffinityTerm, ...]:
        """The required terms that clusters or machines decide."""
        return tuple(term for term in self.required_terms if term.is_local)

    @cached_property
    def near_terms(self) -> tuple[AffinityTerm, ...]:
        """The required affinity terms, without anti-affinity."""
        return tuple(term for term in self.own_terms if not term.is_anti)

    @cached_property
    def has_self_terms(self) -> bool:
        """Whether the replicas of the service are targets of an own term, so that every replica may change
        where the next one fits."""
        return any(self.name in term.targets for term in (*self.own_terms, *self.preferred_terms))

    @cached_property
    def needs(self) -> dict[str, int]:
        """Requests of one replica by resource; a resource whose requirement was dropped is left out."""
        required = {requirement.value for requirement in self.requirements_of("resource")}
        return {name: amount for name, amount in self.requests if name in required}

    @cached_property
    def effective_needs(self) -> dict[str, int]:
        """Needs of one replica with GPU shares rounded up, so that exactly as many shares fit as one GPU can
        hold.

        A share of 600 thousandths takes the GPU alone, so the share counts as 1000.
        """
        needs = dict(self.needs)
        share = needs.get("gpu", 0)
        if 0 < share < 1000:
            needs["gpu"] = -(-1000 // (1000 // share))
        return needs

    @cached_property
    def hosting_needs(self) -> dict[str, int]:
        """Free amounts that a machine must have for a replica: its effective needs and the headroom."""
        needs = dict(self.effective_needs)
        for name, amount in self.headroom:
            needs[name] = needs.get(name, 0) + amount
        return needs

    @cached_property
    def fixed_shape(self) -> Hashable:
        """The requirements that depend on properties of an offer only; demands of equal fixed shape share
        filter results."""
        fixed = ("label", "compliance", "capability", "residency")
        return frozenset(
            (requirement.kind, requirement.value)
            for requirement in self.requirements
            if requirement.kind in fixed
        )

    @property
    def machine_needs(self) -> Hashable:
        """The requirements of one replica on one machine."""
        return (
            tuple(sorted(self.needs.items())),
            self.gpu_model,
            self.tolerations,
            self.node_selector,
            self.max_per_node,
            self.runtimes,
        )

    @cached_property
    def refused_types(self) -> frozenset[tuple[str, str]]:
        """Offer and class of every refusal."""
        return frozenset((refusal.offer, refusal.node_class) for refusal in self.refusals)

    @cached_property
    def machine_shape(self) -> Hashable:
        """The inputs that decide the suitable machine types and the number of machines."""
        needs = tuple(sorted(self.needs.items()))
        # A limit per node counts the replicas of one service, so quotes are not shared between services then.
        # Affinity counts the replicas of named services, so quotes are not shared there either.
        service = self.name if self.max_per_node or self.local_terms else ""
        terms = (self.local_terms, self.headroom)
        where = (self.tolerations, self.node_selector, self.max_per_node, service, self.usable_reserves)
        machines = (self.gpu_model, self.runtimes, self.refusals)
        return (needs, machines, self.rules, self.replicas, self.ignored_limits, where, terms)

    @cached_property
    def shape(self) -> Hashable:
        """The cache key of plugin results: demands of equal shape get the same answers, and the same
        fleet-wide plugins apply."""
        return (
            self.fixed_shape,
            self.machine_shape,
            bool(self.latency),
            bool(self.spread),
            bool(self.bound_neighbours),
            bool(self.preferred_neighbours),
            bool(self.soft_spread),
            self.name if self.required_terms or self.preferred_terms else "",
        )

    def may_use_reserve(self, offer: str) -> bool:
        """Whether replicas may use the reserved machines of the offer."""
        return offer in self.usable_reserves or "reservation" in self.ignored_limits

    def without(self, dropped: Iterable[Requirement]) -> "Demand":
        """The demand without the dropped requirements, with the replica count recomputed."""
        excluded = set(dropped)
        return replace(
            self,
            requirements=tuple(
                requirement for requirement in self.requirements if requirement not in excluded
            ),
        ).with_replica_count()

    def with_rules(self, rules: ClusterRules) -> "Demand":
        return replace(self, rules=rules).with_replica_count()

    def with_replica_count(self) -> "Demand":
        """The demand with the replica count that follows from the rules, and with the conflict between the
        rules, if any."""
        if self.min_replicas is None:
            return self
        regions = {requirement.value for requirement in self.regions}
        replicas, conflict = max(self.min_replicas, len(regions), self.min_regions), ""
        if self.max_replicas is not None and replicas > self.max_replicas:
            widest = max(
                self.requirements_of("minRegions"), key=lambda requirement: requirement.amount, default=None
            )
            source = widest.source if widest else self.name
            conflict = (
                f"{source} wants replicas in {self.min_regions} regions, "
                f"replicas.max allows {self.max_replicas}"
            )
        elif self.rules.min_nodes > self.rules.max_nodes:
            least, most = self.size_sources
            conflict = (
                f"{least} wants clusters of at least {self.rules.min_nodes} nodes, "
                f"{most} of at most {self.rules.max_nodes}"
            )
        return replace(self, replicas=replicas, rule_conflict=conflict)


@dataclass(frozen=True, slots=True)
class ReplicaAsk:
    """One replica of a demand, for which the engine chooses an offer: any offer, or only offers of a region
    or an overflow."""

    demand: Demand
    region: str = ""  # this region only
    excluded_regions: frozenset[str] = frozenset()
    # Only the regions that this data center overflows to.
    overflow_source: str = ""
    # Choose the machine type that hosts the most of this number of replicas; 0: the cheapest type.
    capacity_target: int = 0

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


def resolve_demand(
    service: LatticeService,
    policies: Iterable[LatticePlacementPolicy],
    callers: Iterable[tuple[str, bool]] = (),
    usable_reserves: Iterable[str] = (),
    refusals: tuple[MachineRefusal, ...] = (),
    terms: Sequence[AffinityTerm] = (),
) -> Demand:
    """Resolve the demand of a service: every requirement of a matching policy holds, and every preference
    counts.

    `callers` are the services that call this service, with whether the caller limits the latency. `terms` are
    the affinity terms of the service, and the required anti-affinity terms of other services that match it.
    """
    spec = service.spec
    matching = sorted(
        (policy for policy in policies if policy.spec.applies_to(service.metadata.labels or {})),
        key=lambda policy: policy.metadata.name,
    )
    own = service_source(service.metadata.name)
    requests = spec.requests
    requirements = list(_own_requirements(service, own, requests))
    for term in terms:
        if term.is_own and not term.weight and not term.limits_to_one_per_node(service_key(service)):
            kind: RequirementKind = "antiAffinity" if term.is_anti else "affinity"
            requirements.append(Requirement(kind, str(term), own, term=term))
    for policy in matching:
        requirements.extend(_policy_requirements(policy))
    rules, size_sources = _cluster_rules(matching)
    demand = Demand(
        name=service_key(service),
        replicas=0,
        # A manifest may state a requirement twice; the order stays.
        requirements=tuple(dict.fromkeys(requirements)),
        requests=tuple(sorted(requests.items())),
        gpu_model=spec.placement.resources.gpu_model,
        rules=rules,
        size_sources=size_sources,
        soft_spread=tuple(
            (spread.topology_key, spread.max_skew) for spread in _offer_spreads(service, "ScheduleAnyway")
        ),
        calls=tuple(dict.fromkeys([*called_services(service).values(), *latency_targets(service).values()])),
        callers=tuple(callers),
        latency_to=tuple(latency_targets(service).items()),
        usable_reserves=frozenset(usable_reserves),
        tolerations=spec.placement.tolerations,
        node_selector=tuple(sorted(spec.placement.node_selector.items())),
        max_per_node=_max_per_node(service, matching, terms),
        runtimes=frozenset(container.runtime for container in spec.containers.values()),
        refusals=refusals,
        priority=spec.priority,
        min_replicas=spec.min_replicas,
        max_replicas=spec.replicas.max,
        preferred_terms=tuple(term for term in terms if term.weight),
        repelling_terms=tuple(term for term in terms if not term.is_own),
        gang=f"{service.metadata.namespace or DEFAULT_NAMESPACE}/{spec.group.name}" if spec.group else "",
        min_member=spec.group.min_member if spec.group else 0,
    )
    preferences = _preferences(matching, has_preferred_neighbours=bool(demand.preferred_neighbours))
    return replace(demand, preferences=preferences).with_replica_count()


def _preferences(
    policies: Sequence[LatticePlacementPolicy], *, has_preferred_neighbours: bool
) -> Preferences:
    """The preferences of all policies, equal ones with the sum of their weights; nearness to neighbours without
    a latency limit counts even if no policy states it."""
    weights: Counter[tuple[SortKey, bool]] = Counter()
    is_proximity_stated = False
    for policy in policies:
        for weighted in policy.spec.preferences:
            sort = weighted.preference.sort_by
            weights[sort, weighted.preference.order == "ascending"] += weighted.weight
            is_proximity_stated |= sort == "proximity"
    if has_preferred_neighbours:
        if not is_proximity_stated:
            weights["proximity", True] = DEFAULT_PROXIMITY_WEIGHT
        if weights["proximity", True] and not any(
            weight for (sort, _), weight in weights.items() if sort != "proximity"
        ):
            weights["cost", True] = DEFAULT_COST_WEIGHT
    else:
        del weights["proximity", True]
    return tuple(sorted((sort, ascending, weight) for (sort, ascending), weight in weights.items() if weight))


def _max_per_node(
    service: LatticeService, policies: Sequence[LatticePlacementPolicy], terms: Iterable[AffinityTerm]
) -> int:
    """The largest number of replicas on one machine by the spread rules over nodes and by anti-affinity to
    the service itself; 0 without a rule."""
    if any(not term.weight and term.limits_to_one_per_node(service_key(service)) for term in terms):
        return 1
    limits = [
        spread.max_skew
        for spread in service.spec.spread
        if spread.topology_key in NODE_TOPOLOGY_KEYS and spread.when_unsatisfiable == "DoNotSchedule"
    ]
    for policy in policies:
        rule = policy.spec.requirements.spread_constraint
        if rule and rule.topology_key == "node":
            limits.append(rule.max_skew)
    return min(limits, default=0)


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
    for spread in _offer_spreads(service, "DoNotSchedule"):
        yield Requirement("spread", spread.topology_key, source, spread.max_skew)
    for name, amount in requests.items():
        yield Requirement("resource", name, source, amount)


def _offer_spreads(service: LatticeService, when: Literal["DoNotSchedule", "ScheduleAnyway"]) -> list[Spread]:
    """The hard or soft spread rules of a service over offers; the scheduler handles rules over nodes."""
    return [
        spread
        for spread in service.spec.spread
        if spread.topology_key in OFFER_TOPOLOGY_KEYS and spread.when_unsatisfiable == when
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


def _cluster_rules(policies: Sequence[LatticePlacementPolicy]) -> tuple[ClusterRules, tuple[str, str]]:
    """The cluster rules of all policies, and the sources of minNodes and maxNodes.

    The largest minNodes, the smallest maxNodes, the smallest threshold and the first prefix count.
    """
    minima: list[tuple[int, str]] = []
    maxima: list[tuple[int, str]] = []
    thresholds: list[int] = []
    prefix = ""
    for policy in policies:
        stated, source = policy.spec.cluster_policy, f"policy/{policy.metadata.name}"
        if not stated:
            continue
        if stated.min_nodes is not None:
            # Negated: min() finds the largest number first, then the first source by name.
            minima.append((-stated.min_nodes, source))
        if stated.max_nodes is not None:
            maxima.append((stated.max_nodes, source))
        if stated.bin_packing_threshold is not None:
            thresholds.append(stated.packing_millionths)
        prefix = prefix or stated.name_prefix
    min_nodes, min_source = min(minima, default=(-DEFAULT_MIN_NODES, DEFAULT_SOURCE))
    max_nodes, max_source = min(maxima, default=(DEFAULT_MAX_NODES, DEFAULT_SOURCE))
    packing_millionths = min(thresholds, default=DEFAULT_PACKING_MILLIONTHS)
    return ClusterRules(-min_nodes, max_nodes, packing_millionths, prefix), (min_source, max_source)


def called_services(service: LatticeService) -> dict[str, str]:
    """The services that the service calls, by the name of the dependency."""
    namespace = service.metadata.namespace or DEFAULT_NAMESPACE
    called = {}
    for name, dependency in service.spec.resources.items():
        if name != "*" and dependency.is_service and dependency.is_outbound:
            called[name] = f"{dependency.namespace or namespace}/{dependency.id or name}"
    return called


def latency_targets(service: LatticeService) -> dict[str, str]:
    """By name in `latency` of the service: the service to which the latency is measured. This is the
    dependency of that name, or without one, the service of that name."""
    namespace = service.metadata.namespace or DEFAULT_NAMESPACE
    dependencies: Mapping[str, str] = {
        name: f"{dependency.namespace or namespace}/{dependency.id or name}"
        for name, dependency in service.spec.resources.items()
        if name != "*"
    }
    return {name: dependencies.get(name, f"{namespace}/{name}") for name in service.spec.placement.latency}


def service_source(name: str) -> str:
    """The source of the requirements that a service states; the name may include the namespace."""
    return f"service/{name.rpartition('/')[2]}"
