"""Every service to its place: who comes first, who belongs together, and what is wrong with what runs already."""

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
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.plugins.filters.eligibility import ELIGIBILITY_FILTERS, eligible_offers
from lattice.placement.plugins.filters.spread import domain_of

MAX_STARTING_OFFERS = 32  # places tried for a group before giving up
GROUP_SOURCE = "placed together"  # source of the requirement that ties a group to a site


@dataclass(frozen=True, slots=True)
class StalePlacement:
    """Replicas that run where they would not be put today. They stay until moving them is asked for."""

    service: str
    assignments: tuple[Assignment, ...]
    reasons: tuple[str, ...]


def place_all_once(
    demands: Iterable[Demand], fleet: Fleet, *, keep_decisions: int = 0
) -> dict[str, Placement]:
    """Fewer where fewer are wanted, more where more are; the rest stays where it is. Answers for services that lacked replicas.

    Machines stay, whoever leaves them: they are paid for until they are gone, and whoever comes meanwhile finds them there.
    """
    wanted = {each.name: each for each in demands}
    for demand in by_priority(wanted.values()):
        for seat in reversed(surplus_assignments(demand, fleet)):
            fleet.unassign(seat)
    lacking = {
        name: each
        for name, each in wanted.items()
        if len(fleet.assignments.get(name, ())) < each.replicas or each.rule_conflict
    }
    found: dict[str, Placement] = {}
    for group in latency_groups(lacking):
        for placement in place_group(group, fleet, keep_decisions=keep_decisions):
            found[placement.demand.name] = placement
    return found


def place_all(demands: Iterable[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> dict[str, Placement]:
    """As often as it takes: a late one may open an overflow for an early one, and machines that nobody needs any more leave room."""
    wanted = {each.name: each for each in demands}
    found: dict[str, Placement] = {}
    before = -1
    while before != fleet.replica_count:
        before = (
            fleet.replica_count if found else -1
        )  # the first time some go and others come; after that they only come
        found |= place_all_once(wanted.values(), fleet, keep_decisions=keep_decisions)
        remove_empty_machines(fleet, list(fleet.clusters))
        wanted = {
            name: wanted[name]
            for name, each in found.items()
            if each.missing and not each.demand.rule_conflict
        }
        if not wanted:
            break
    return found


def outgrown_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """Replicas whose machine is too small or too crowded for what is asked now, or is not one that they may be on any more."""
    machines, found = fleet.machines, []
    left: Counter[tuple[int, str]] = Counter()  # what would be free on a machine if those found were gone
    held: Counter[int] = Counter()
    for seat in fleet.assignments.get(demand.name, ()):
        at = seat.machine
        if not held[at]:
            left.update(
                {(at, name): int(machines.free(machines.add_resource(name))[at]) for name, _ in seat.needs}
            )
            held[at] = machines.replica_counts[at][demand.name]
        is_short = (
            any(left[at, name] < 0 for name, _ in seat.needs)
            or 0 < demand.max_per_node < held[at]
            or _lacks_gpu(seat, demand, fleet)
        )
        if is_short or not is_type_allowed(demand, machines.machine_type[at]):
            found.append(seat)
            held[at] -= 1
            left.update({(at, name): amount for name, amount in seat.needs})
    return found


def _lacks_gpu(seat: Assignment, demand: Demand, fleet: Fleet) -> bool:
    """None was left for it where a place counts its GPUs as a whole."""
    offer = fleet.offers[fleet.machines.cluster[seat.machine].offer_row]
    return bool(demand.needs.get("gpu") and offer.limits.gpus) and not seat.gpu_resource


def by_priority(demands: Iterable[Demand]) -> list[Demand]:
    """Important ones first, then by name."""
    return sorted(demands, key=lambda each: (-each.priority, each.name))


def latency_groups(lacking: dict[str, Demand]) -> Iterator[list[Demand]]:
    """Services that wait for one another's place because of a latency limit, dependencies first; most are alone."""
    near = {
        name: [target for each, target in demand.latency_to if target in lacking and target != name]
        for name, demand in lacking.items()
    }
    root = {name: name for name in lacking}

    def top(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for name, targets in near.items():
        for target in targets:
            root[top(name)] = top(target)
    members: dict[str, list[Demand]] = {}
    for demand in by_priority(lacking.values()):
        members.setdefault(top(demand.name), []).append(demand)
    for group in members.values():
        yield _dependencies_first(group, near)


def _dependencies_first(group: Sequence[Demand], near: dict[str, list[str]]) -> list[Demand]:
    by_name = {each.name: each for each in group}
    done: dict[str, Demand] = {}

    def visit(name: str, path: frozenset[str]) -> None:
        if name in done or name in path:
            return
        for target in sorted(near[name]):
            visit(target, path | {name})
        done[name] = by_name[name]

    for each in group:
        visit(each.name, frozenset())
    return list(done.values())


def place_group(group: Sequence[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> list[Placement]:
    """One after the other; where that leaves one out, again from each site that the first of them could begin at."""
    if len(group) == 1:
        return [place(group[0], fleet, keep_decisions=keep_decisions)]
    for site in ("", *_starting_offers(group[0], fleet)):
        with fleet.attempt() as attempt:
            found = _place_group_from(group, site, fleet, keep_decisions)
            attempt.succeeded = all(each.is_complete for each in found) and not _beyond_latency(group, fleet)
        if attempt.succeeded:
            return found
    return _place_individually(group, fleet, keep_decisions)


def _starting_offers(first: Demand, fleet: Fleet) -> list[str]:
    ask = ReplicaAsk(replace(first, ignored_limits=first.ignored_limits | {"dependencies"}))
    decision = decide(ask, fleet.table, profile_of(first.preferences))
    return [fleet.offers[row].name for row in best_rows(decision, MAX_STARTING_OFFERS)]


def _place_group_from(group: Sequence[Demand], site: str, fleet: Fleet, keep: int) -> list[Placement]:
    """A member whose dependency comes later in a circle goes without that limit; it is checked when all are placed."""
    found: list[Placement] = []
    for demand in group:
        tied = demand
        if site and not found:
            tied = replace(
                demand, requirements=(*demand.requirements, Requirement("region", site, GROUP_SOURCE))
            )
        waiting = any(not fleet.assignments.get(target) for _, target in demand.latency_to)
        inside = any(target in {each.name for each in group} for _, target in demand.latency_to)
        if waiting and inside:
            tied = replace(tied, ignored_limits=tied.ignored_limits | {"dependencies"})
        placement = place(tied, fleet, keep_decisions=keep)
        placement.demand = demand
        found.append(placement)
    return found


def _place_individually(group: Sequence[Demand], fleet: Fleet, keep: int) -> list[Placement]:
    """Together they do not fit: as many as do, and the rest with the reason why not."""
    return [place(demand, fleet, keep_decisions=keep) for demand in group]


def _beyond_latency(group: Sequence[Demand], fleet: Fleet) -> list[str]:
    return [demand.name for demand in group if misplaced_assignments(demand, fleet)]


def misplaced_assignments(demand: Demand, fleet: Fleet) -> list[Assignment]:
    """Replicas in offers where the service may not be, by what it demands of a place."""
    seats = fleet.assignments.get(demand.name, ())
    if not seats:
        return []
    may = eligible_offers(ReplicaAsk(demand), fleet)
    return [seat for seat in seats if not may[fleet.machines.cluster[seat.machine].offer_row]]


def find_stale_placement(demand: Demand, fleet: Fleet) -> StalePlacement | None:
    """None: it is where it would be put today, or at least may be."""
    seats = misplaced_assignments(demand, fleet)
    rules = [demand.rule_conflict] if demand.rule_conflict else _violated_rules(demand, fleet)
    if not seats and not (rules and fleet.assignments.get(demand.name)):
        return None
    return StalePlacement(
        demand.name, tuple(seats), tuple(dict.fromkeys([*_reasons(demand, fleet, seats), *rules]))
    )


def _violated_rules(demand: Demand, fleet: Fleet) -> list[str]:
    """Rules over all replicas that do not hold. A new region does not make an even spread uneven; all in one of several never was even."""
    counts = fleet.replicas_by_offer(demand.name)
    broken = violated_rules(demand, fleet, counts)
    may = eligible_offers(ReplicaAsk(demand), fleet)
    for each in demand.spread:
        alone = len({domain_of(fleet.offers[row], each.value) for row in counts}) == 1
        if alone and str(each) in violated_rules(demand, fleet, counts, may):
            broken.append(str(each))
    return broken


def _reasons(demand: Demand, fleet: Fleet, seats: Sequence[Assignment]) -> Iterator[str]:
    ask = ReplicaAsk(demand)
    rows = sorted(
        {fleet.machines.cluster[seat.machine].offer_row for seat in seats},
        key=lambda row: fleet.offers[row].name,
    )
    for each in ELIGIBILITY_FILTERS:
        if not each.applies(ask):
            continue
        for reason, mask in each.filter(ask, fleet.table).items():
            for row in rows:
                if mask[row]:
                    yield f"{fleet.offers[row].name}: {reason.detail(fleet.table, row)}"
