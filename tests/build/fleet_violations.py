"""A naive check of a placed fleet: the limits it exceeds and the rules it breaks, as text."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import Offer
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState

GIB = 1 << 30
MONTH = 720
OVERFLOW = "lattice.dev/overflow-of"


def violations(settled: FleetState) -> list[str]:
    applied = settled.resulting_world()
    return [
        *_limits(applied),
        *_money(applied),
        *_machines(settled.fleet),
        *_reserves(settled),
        *_rules(settled),
    ]


def new_violations(before: FleetState, after: FleetState) -> list[str]:
    """Violations after that did not exist before, or are worse."""
    known = dict(map(_measured, violations(before)))
    return [
        violation
        for violation in violations(after)
        if (output := _measured(violation))[1] > known.get(output[0], 0)
    ]


def _measured(complaint: str) -> tuple[str, float]:
    what, _, amounts = complaint.rpartition(": ")
    have, of, _ = amounts.partition(" of ")
    return (what, float(have)) if of and have.replace(".", "", 1).isdigit() else (complaint, 1)


def _clusters(world: World, offer: str) -> list[LatticeCluster]:
    return [
        cluster
        for cluster in world.objects.values()
        if isinstance(cluster, LatticeCluster) and cluster.spec.pool == offer
    ]


def _class(world: World, name: str) -> LatticeNodeClass:
    result = world.objects["LatticeNodeClass", "", name]
    assert isinstance(result, LatticeNodeClass)
    return result


def _over(what: str, have: float | Decimal, most: float | Decimal | None) -> Iterator[str]:
    if most is not None and have > most:
        yield f"{what}: {have} of {most}"


def _limits(world: World) -> Iterator[str]:
    for item in world.objects.values():
        if isinstance(item, LatticePool):
            yield from _pool_limits(world, item)
        elif isinstance(item, CloudInfrastructure):
            yield from _cloud_limits(world, item)
        elif isinstance(item, StaticInfrastructure):
            made = _clusters(world, item.metadata.name)
            yield from _over(
                f"{item.metadata.name} nodes",
                sum(one.spec.desired_nodes for one in made),
                item.spec.capacity.nodes,
            )
        elif isinstance(item, LatticeCluster):
            yield from _over(f"{item.metadata.name} nodes", item.spec.desired_nodes, item.spec.max_nodes)
            yield from _over(
                f"{item.metadata.name} least nodes", item.spec.min_nodes, item.spec.desired_nodes
            )


def _pool_limits(world: World, pool: LatticePool) -> Iterator[str]:
    nodes: Counter[str] = Counter()
    for cluster in _clusters(world, pool.metadata.name):
        nodes.update(cluster.spec.nodes)
    capacity, name = pool.spec.capacity, pool.metadata.name
    size = {node: _class(world, node).spec.resources for node in nodes}
    yield from _over(f"{name} nodes", nodes.total(), capacity.max_nodes)
    yield from _over(
        f"{name} cores",
        sum(Decimal(str(size[node].cores)) * nodes[node] for node in nodes),
        capacity.max_cores,
    )
    yield from _over(
        f"{name} memory",
        sum(Decimal(str(size[node].memory_gi)) * nodes[node] for node in nodes),
        capacity.max_memory_gi,
    )


def _cloud_limits(world: World, cloud: CloudInfrastructure) -> Iterator[str]:
    for region, stated in cloud.spec.regions.items():
        made = _clusters(world, f"{cloud.metadata.name}/{region}")
        most = [
            item
            for item in (stated.quotas.max_clusters, cloud.spec.defaults.max_clusters_per_region)
            if item is not None
        ]
        nodes = [
            item
            for item in (stated.quotas.max_nodes_per_cluster, cloud.spec.defaults.max_nodes_per_cluster)
            if item is not None
        ]
        yield from _over(f"{region} clusters", len(made), min(most, default=None))
        for cluster in made:
            yield from _over(
                f"{cluster.metadata.name} nodes", cluster.spec.desired_nodes, min(nodes, default=None)
            )


def _hourly(world: World, clusters: list[LatticeCluster]) -> Decimal:
    """Dollars per hour. A class without a price counts as zero and is a violation under a budget."""
    total = Decimal(0)
    for cluster in clusters:
        for name, count in cluster.spec.nodes.items():
            total += (
                Decimal(str(_class(world, name).spec.cost_per_hour.get(cluster.spec.provider, 0))) * count
            )
    return total


def _unpriced(world: World, clusters: list[LatticeCluster]) -> Iterator[str]:
    for cluster in clusters:
        for name in cluster.spec.nodes:
            if cluster.spec.provider not in _class(world, name).spec.cost_per_hour:
                yield f"{cluster.metadata.name}: {name} has no price, but a budget"


def _money(world: World) -> Iterator[str]:
    for item in world.objects.values():
        name = item.metadata.name
        if (
            isinstance(item, LatticePool)
            and item.spec.budget
            and item.spec.budget.max_monthly_cost is not None
        ):
            made = _clusters(world, name)
            yield from _over(
                f"{name} money", _hourly(world, made) * MONTH, Decimal(str(item.spec.budget.max_monthly_cost))
            )
            yield from _unpriced(world, made)
        elif isinstance(item, CloudInfrastructure):
            yield from _cloud_money(world, item)
        elif isinstance(item, StaticInfrastructure) and item.spec.overflow:
            limits = item.spec.overflow.limits
            spilled = [
                one
                for one in world.objects.values()
                if isinstance(one, LatticeCluster) and one.spec.labels.get(OVERFLOW) == name
            ]
            yield from _over(f"{name} overflow clusters", len(spilled), limits.max_clusters)
            most = None if limits.max_monthly_spend is None else Decimal(str(limits.max_monthly_spend))
            yield from _over(f"{name} overflow money", _hourly(world, spilled) * MONTH, most)
            yield from (
                f"{name} spills to {one.spec.pool}"
                for one in spilled
                if one.spec.infrastructure != item.spec.overflow.target
            )


def _cloud_money(world: World, cloud: CloudInfrastructure) -> Iterator[str]:
    name, whole = cloud.metadata.name, cloud.spec.budget
    made = {region: _clusters(world, f"{name}/{region}") for region in cloud.spec.regions}
    is_hard = bool(whole and whole.hard_limit)
    if whole and whole.monthly is not None and is_hard:
        yield from _over(
            f"{name} money",
            sum(_hourly(world, item) for item in made.values()) * MONTH,
            Decimal(str(whole.monthly)),
        )
    for region, stated in cloud.spec.regions.items():
        budget = stated.budget
        if (
            budget
            and budget.monthly is not None
            and (is_hard if budget.hard_limit is None else budget.hard_limit)
        ):
            yield from _over(
                f"{name}/{region} money", _hourly(world, made[region]) * MONTH, Decimal(str(budget.monthly))
            )


def _machines(fleet: Fleet) -> Iterator[str]:
    """Allocations beyond the size of a machine."""
    taken: dict[int, Counter[str]] = defaultdict(Counter)
    for seats in fleet.assignments.values():
        for seat in seats:
            taken[seat.machine].update(dict(seat.needs))
    for machine, amounts in taken.items():
        for resource, amount in amounts.items():
            yield from _over(
                f"{fleet.machines.names[machine]} {resource}",
                amount,
                fleet.machines.machine_type[machine].size.get(resource, 0),
            )


def _reserves(settled: FleetState) -> Iterator[str]:
    """Reserved machines in clusters with services outside the reserve, and GPUs beyond the count of a data
    center."""
    fleet = settled.fleet
    for row, offer in enumerate(fleet.offers):
        if not offer.is_static:
            continue
        if offer.reservation:
            admitted = {
                name
                for name, service in settled.world.services.items()
                if offer.reservation.admits(service.metadata.labels or {})
            }
            held = [
                [fleet.machines.replica_counts[machine] for machine in cluster.machines]
                for cluster in fleet.inventory.clusters_by_offer[row].values()
            ]
            others = sum(
                len(machines)
                for machines in held
                if any(service not in admitted for machine in machines for service in machine)
            )
            yield from _over(
                f"{offer.name} machines beside the reserve", others, offer.limits.nodes - offer.reserved_nodes
            )
            for name in offer.reserved_amounts:
                used = sum(
                    dict(seat.needs).get(name, 0)
                    for service, seats in fleet.assignments.items()
                    for seat in seats
                    if service not in admitted and seat.machine in fleet.inventory.machines_by_offer[row]
                )
                yield from _over(f"{offer.name} {name} beside the reserve", used, offer.unreserved(name))
        gpus = sum(
            dict(seat.needs).get("gpu", 0)
            for seats in fleet.assignments.values()
            for seat in seats
            if seat.machine in fleet.inventory.machines_by_offer[row]
        )
        if gpus:
            yield from _over(f"{offer.name} gpus", gpus, sum(offer.limits.gpus.values()))


def _rules(settled: FleetState) -> Iterator[str]:
    """Rules of an offer hold for every replica; rules over all replicas hold for fully placed services."""
    for name, service in settled.world.services.items():
        offers = _offers(settled.fleet, name)
        for offer in offers:
            yield from (
                f"{name} in {offer.name}: {place_rule}"
                for place_rule in _place_rules(settled, service, offer)
            )
        if offers and name not in settled.unplaced:
            yield from (f"{name}: {whole_rule}" for whole_rule in _whole_rules(settled, service, offers))


def _offers(fleet: Fleet, service: str) -> list[Offer]:
    return [
        fleet.offers[fleet.machines.cluster[seat.machine].offer_row]
        for seat in fleet.assignments.get(service, ())
    ]


def _lower(words: Iterable[str]) -> set[str]:
    return {word.lower() for word in words}


def _place_rules(settled: FleetState, service: LatticeService, offer: Offer) -> Iterator[str]:
    placement, policies = service.spec.placement, _policies(settled.world, service)
    wanted = {**(placement.pools.match_labels if placement.pools else {})}
    yield from (f"label {key}" for key, value in wanted.items() if value not in offer.labels.get(key, ()))
    required_compliance = _lower(placement.compliance).union(
        *(_lower(policy.spec.requirements.compliance) for policy in policies)
    )
    yield from (f"compliance {name}" for name in required_compliance - offer.compliance)
    abilities = _lower(placement.capabilities).union(
        *(_lower(policy.spec.requirements.capabilities) for policy in policies)
    )
    yield from (f"capability {ability}" for ability in abilities - offer.capabilities)
    if placement.data_residency and placement.data_residency.lower() not in offer.residency:
        yield "residency"
    for name, stated in placement.latency.items():
        there = _offers(settled.fleet, f"default/{name}")
        trips = [
            rtt.ms for other in there if (rtt := settled.world.latencies.between(offer.place, other.place))
        ]
        if not trips or min(trips) > stated.max_ms:
            yield f"latency to {name}: {min(trips, default=None)} of {stated.max_ms}"


def _policies(world: World, service: LatticeService) -> list[LatticePlacementPolicy]:
    return [policy for policy in world.policies if policy.spec.applies_to(service.metadata.labels or {})]


def _whole_rules(settled: FleetState, service: LatticeService, offers: list[Offer]) -> Iterator[str]:
    policies = _policies(settled.world, service)
    for region in service.spec.placement.required_regions:
        if not any(region in (offer.name, offer.place.region) for offer in offers):
            yield f"no replica in {region}"
    least = max((policy.spec.requirements.min_regions or 0 for policy in policies), default=0)
    if len({offer.region for offer in offers}) < least:
        yield f"fewer than {least} regions"
    rules = [
        (item.topology_key, item.max_skew)
        for item in service.spec.spread
        if item.when_unsatisfiable == "DoNotSchedule"
    ]
    rules += [
        (rule.topology_key, rule.max_skew)
        for policy in policies
        if (rule := policy.spec.requirements.spread_constraint)
    ]
    for key, skew in rules:
        yield from _skew(settled, service, key, skew)


def _domain(offer: Offer, key: str) -> str:
    return {
        "region": offer.region,
        "zone": f"{offer.region}/{offer.place.zone}",
        "provider": offer.place.provider,
    }.get(key, offer.name)


def _skew(settled: FleetState, service: LatticeService, key: str, most: int) -> Iterator[str]:
    fleet, name = settled.fleet, f"default/{service.metadata.name}"
    if key == "node":
        fullest = max(Counter(seat.machine for seat in fleet.assignments[name]).values())
        yield from _over("on one machine", fullest, most)
        return
    counts = Counter(_domain(offer, key) for offer in _offers(fleet, name))
    could = {
        _domain(offer, key) for row, offer in enumerate(fleet.offers) if _may(settled, service, offer, row)
    }
    inside = [counts[domain] for domain in could]
    yield from _over(f"skew over {key}", max(inside, default=0) - min(inside, default=0), most)


def _may(settled: FleetState, service: LatticeService, offer: Offer, row: int) -> bool:
    serves = settled.fleet.quotes.machine_fit(
        settled.world.demands[f"default/{service.metadata.name}"]
    ).can_host[:, row]
    return not offer.closed_reason and bool(serves.any()) and not list(_place_rules(settled, service, offer))
