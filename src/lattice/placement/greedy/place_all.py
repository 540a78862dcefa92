"""Place all services: by priority, with services that depend on each other's latency as one group; find stale
placements."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lattice.engine.decide import decide
from lattice.engine.explain import best_rows
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.place import Placement, place, violated_rules
from lattice.placement.greedy.profile import profile_of
from lattice.placement.greedy.scale_down import surplus_assignments
from lattice.placement.model.demand import Demand, ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.replica_index import Assignment
from lattice.placement.plugins.filters.eligibility import ELIGIBILITY_FILTERS, eligible_offers
from lattice.placement.plugins.filters.spread import domain_of

# Offers that place_group tries as the site of the first service of a group.
MAX_STARTING_OFFERS = 32
# The source of the requirement that ties a group to an offer.
GROUP_SOURCE = "placed together"


@dataclass(frozen=True, slots=True)
class StalePlacement:
    """Running replicas whose offer violates the current requirements. The replicas stay until a user asks to
    move them."""

    service: str
    assignments: tuple[Assignment, ...]
    reasons: tuple[str, ...]


def place_all_once(
    demands: Iterable[Demand], fleet: Fleet, *, keep_decisions: int = 0
) -> dict[str, Placement]:
    """Unassign surplus replicas, then place missing replicas; return the placements of services with missing
    replicas.

    All machines stay in the fleet: a machine is paid for until the machine is removed, so other replicas can
    use its free capacity.
    """
    demands_by_name = {demand.name: demand for demand in demands}
    for demand in by_priority(demands_by_name.values()):
        for assignment in reversed(surplus_assignments(demand, fleet)):
            fleet.unassign(assignment)
    demands_to_place = {
        name: demand
        for name, demand in demands_by_name.items()
        if fleet.replicas.count(name) < demand.replicas or demand.rule_conflict
    }
    placements: dict[str, Placement] = {}
    for group in latency_groups(demands_to_place):
        for placement in place_group(group, fleet, keep_decisions=keep_decisions):
            placements[placement.demand.name] = placement
    return placements


def place_all(demands: Iterable[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> dict[str, Placement]:
    """Place all services and remove empty machines until the replica count is stable.

    A placement of a later service may open an overflow for an earlier service, and removed machines free
    capacity.
    """
    pending = {demand.name: demand for demand in demands}
    placements: dict[str, Placement] = {}
    previous_replica_count = -1
    while previous_replica_count != fleet.replicas.total:
        # The first round also removes replicas; only later rounds have a count that never shrinks.
        previous_replica_count = fleet.replicas.total if placements else -1
        placements |= place_all_once(pending.values(), fleet, keep_decisions=keep_decisions)
        remove_empty_machines(fleet, list(fleet.clusters))
        pending = {
            name: pending[name]
            for name, placement in placements.items()
            if placement.missing and not placement.demand.rule_conflict
        }
        if not pending:
            break
    return placements


def outgrown_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """Return assignments whose machine is too small or too crowded for the current requests, or has a type
    that the demand excludes."""
    machines, outgrown = fleet.machines, []
    # Free resources by machine and resource, as if the outgrown replicas were gone.
    free: Counter[tuple[int, str]] = Counter()
    replicas_on_machine: Counter[int] = Counter()
    for assignment in fleet.assignments.get(demand.name, ()):
        machine = assignment.machine
        if not replicas_on_machine[machine]:
            free.update(
                {
                    (machine, name): int(machines.free(machines.add_resource(name))[machine])
                    for name, _ in assignment.needs
                }
            )
            replicas_on_machine[machine] = machines.replica_counts[machine][demand.name]
        is_short = (
            any(free[machine, name] < 0 for name, _ in assignment.needs)
            or 0 < demand.max_per_node < replicas_on_machine[machine]
            or _lacks_gpu(assignment, demand, fleet)
        )
        if is_short or not is_type_allowed(demand, machines.machine_type[machine]):
            outgrown.append(assignment)
            replicas_on_machine[machine] -= 1
            free.update({(machine, name): amount for name, amount in assignment.needs})
    return outgrown


def _lacks_gpu(assignment: Assignment, demand: Demand, fleet: Fleet) -> bool:
    """Report whether the offer limits GPUs in total and had no GPU left for the replica."""
    offer = fleet.offers[fleet.machines.cluster[assignment.machine].offer_row]
    return bool(demand.needs.get("gpu") and offer.limits.gpus) and not assignment.gpu_resource


def by_priority(demands: Iterable[Demand]) -> list[Demand]:
    """Sort demands by descending priority, then by name."""
    return sorted(demands, key=lambda demand: (-demand.priority, demand.name))


def latency_groups(demands: dict[str, Demand]) -> Iterator[list[Demand]]:
    """Yield groups of services that wait for each other because of latency limits, dependencies first. Most
    groups have one service."""
    dependencies = {
        name: [target for _, target in demand.latency_to if target in demands and target != name]
        for name, demand in demands.items()
    }
    # Union-find: services with a latency limit between them get the same root.
    root = {name: name for name in demands}

    def root_of(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for name, targets in dependencies.items():
        for target in targets:
            root[root_of(name)] = root_of(target)
    members: dict[str, list[Demand]] = {}
    for demand in by_priority(demands.values()):
        members.setdefault(root_of(demand.name), []).append(demand)
    for group in members.values():
        yield _dependencies_first(group, dependencies)


def _dependencies_first(group: Sequence[Demand], dependencies: dict[str, list[str]]) -> list[Demand]:
    by_name = {demand.name: demand for demand in group}
    ordered: dict[str, Demand] = {}

    def visit(name: str, path: frozenset[str]) -> None:
        # A name in the path closes a dependency cycle; the cycle is cut here.
        if name in ordered or name in path:
            return
        for target in sorted(dependencies[name]):
            visit(target, path | {name})
        ordered[name] = by_name[name]

    for demand in group:
        visit(demand.name, frozenset())
    return list(ordered.values())


def place_group(group: Sequence[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> list[Placement]:
    """Place the group one service after another; if a service stays incomplete, retry from every starting
    offer of the first service.

    If no attempt places the whole group, every service is placed on its own.
    """
    if len(group) == 1:
        return [place(group[0], fleet, keep_decisions=keep_decisions)]
    # The first service may start in every offer that fits without regard to its dependencies.
    first = group[0]
    ask = ReplicaAsk(replace(first, ignored_limits=first.ignored_limits | {"dependencies"}))
    decision = decide(ask, fleet.table, profile_of(first.preferences))
    starting_offers = [fleet.offers[row].name for row in best_rows(decision, MAX_STARTING_OFFERS)]
    for offer in ("", *starting_offers):
        with fleet.attempt() as attempt:
            placements = _place_group_from(group, offer, fleet, keep_decisions)
            is_complete = all(placement.is_complete for placement in placements)
            # A service of a cycle was placed without its latency limit: the whole group must keep every
            # limit.
            attempt.succeeded = is_complete and not any(
                misplaced_assignments(demand, fleet) for demand in group
            )
        if attempt.succeeded:
            return placements
    return [place(demand, fleet, keep_decisions=keep_decisions) for demand in group]


def _place_group_from(
    group: Sequence[Demand], site: str, fleet: Fleet, keep_decisions: int
) -> list[Placement]:
    """Place the group with the first service tied to `site`, an offer name, or to no offer if `site` is
    empty.

    A service with a dependency later in the cycle is placed without the latency limit; `place_group` checks
    the limit afterwards.
    """
    placements: list[Placement] = []
    for demand in group:
        variant = demand
        if site and not placements:
            variant = replace(
                demand, requirements=(*demand.requirements, Requirement("region", site, GROUP_SOURCE))
            )
        awaits_dependency = any(not fleet.assignments.get(target) for _, target in demand.latency_to)
        depends_on_group = any(target in {member.name for member in group} for _, target in demand.latency_to)
        if awaits_dependency and depends_on_group:
            variant = replace(variant, ignored_limits=variant.ignored_limits | {"dependencies"})
        placement = place(variant, fleet, keep_decisions=keep_decisions)
        # The variant was only for this attempt.
        placement.demand = demand
        placements.append(placement)
    return placements


def misplaced_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """Return the assignments in offers that the requirements of the demand exclude."""
    assignments = fleet.assignments.get(demand.name, ())
    if not assignments:
        return []
    eligible = eligible_offers(ReplicaAsk(demand), fleet)
    return [
        assignment
        for assignment in assignments
        if not eligible[fleet.machines.cluster[assignment.machine].offer_row]
    ]


def find_stale_placement(demand: Demand, fleet: Fleet) -> StalePlacement | None:
    """Return the replicas and rules that violate the current requirements, or None if all replicas may
    stay."""
    misplaced = misplaced_assignments(demand, fleet)
    broken_rules = [demand.rule_conflict] if demand.rule_conflict else _violated_rules(demand, fleet)
    if not misplaced and not (broken_rules and fleet.assignments.get(demand.name)):
        return None
    return StalePlacement(
        demand.name,
        tuple(misplaced),
        tuple(dict.fromkeys([*_reasons(demand, fleet, misplaced), *broken_rules])),
    )


def _violated_rules(demand: Demand, fleet: Fleet) -> list[str]:
    """List the violated rules over all replicas.

    An offer in a new region does not make an existing spread uneven; a spread with all replicas in one of
    several domains is uneven.
    """
    counts = fleet.replicas.by_offer(demand.name)
    broken = violated_rules(demand, fleet, counts)
    eligible = eligible_offers(ReplicaAsk(demand), fleet)
    for requirement in demand.spread:
        is_in_one_domain = len({domain_of(fleet.offers[row], requirement.value) for row in counts}) == 1
        if is_in_one_domain and str(requirement) in violated_rules(demand, fleet, counts, eligible):
            broken.append(str(requirement))
    return broken


def _reasons(demand: Demand, fleet: Fleet, assignments: Sequence[Assignment]) -> Iterator[str]:
    ask = ReplicaAsk(demand)
    rows = sorted(
        {fleet.machines.cluster[assignment.machine].offer_row for assignment in assignments},
        key=lambda row: fleet.offers[row].name,
    )
    for plugin in ELIGIBILITY_FILTERS:
        if not plugin.applies(ask):
            continue
        for reason, mask in plugin.filter(ask, fleet.table).items():
            for row in rows:
                if mask[row]:
                    yield f"{fleet.offers[row].name}: {reason.detail(fleet.table, row)}"
