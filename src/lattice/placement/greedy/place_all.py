"""The placement loop of plan, controller and fit: place all services in the order of `placement_order`, with
services that depend on each other's latency as one group; find stale placements."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lattice.engine.decide import decide
from lattice.engine.explain import best_rows
from lattice.placement.greedy.affinity import add_headroom, broken_terms
from lattice.placement.greedy.gang import short_gangs
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.place import Placement, place, violated_rules
from lattice.placement.greedy.placement_order import ordered_demands, placement_order, tied_dependencies
from lattice.placement.greedy.profile import profile_of
from lattice.placement.greedy.scale_down import surplus_assignments
from lattice.placement.model.demand import Demand, ReplicaAsk, Requirement
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import is_type_allowed
from lattice.placement.model.offer import domain_of
from lattice.placement.model.replica_index import Assignment
from lattice.placement.plugins.filters.eligibility import ELIGIBILITY_FILTERS, eligible_offers

# Limit of offers that place_group tries as the site of the first service of a group.
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


class RoundPolicy(Protocol):
    """The decisions about the rounds of `place_in_rounds` in which plan, controller and fit differ.

    `PlanRounds`, `StagedRounds` (commit_stages) and `TrialRounds` (fit) are the implementations.
    """

    @property
    def removes_surplus(self) -> bool:
        """Whether a round first unassigns surplus replicas. Without it, replicas are only added."""
        ...

    @property
    def repeats_complete_services(self) -> bool:
        """Whether every round places all services again, so that a latency group keeps its complete services;
        otherwise a round places the services with missing replicas only."""
        ...

    def surplus_removed(self, demand: Demand, clusters: Sequence[str]) -> None:
        """Called after surplus replicas of the service were unassigned from the clusters."""
        ...

    def group_placed(self, group: Sequence[Demand]) -> None:
        """Called after the missing replicas of the group were placed, as far as they fit."""
        ...

    def shrinkable_clusters(self) -> Sequence[str]:
        """The clusters that lose their empty machines at the end of a round."""
        ...

    def is_done(self, placements: Mapping[str, Placement]) -> bool:
        """Whether the loop ends although the replica count may still grow."""
        ...


@dataclass(frozen=True, slots=True)
class PlanRounds:
    """The round policy of a plan: removed replicas and machines leave the fleet at once, and the loop ends
    when nothing changes."""

    fleet: Fleet
    removes_surplus: bool = True
    repeats_complete_services: bool = False

    def surplus_removed(self, demand: Demand, clusters: Sequence[str]) -> None:
        pass

    def group_placed(self, group: Sequence[Demand]) -> None:
        pass

    def shrinkable_clusters(self) -> Sequence[str]:
        return list(self.fleet.clusters)

    def is_done(self, placements: Mapping[str, Placement]) -> bool:
        return False


def place_all(demands: Iterable[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> dict[str, Placement]:
    """Place all services as a plan does; return a placement for every service that had missing replicas."""
    return place_in_rounds(demands, fleet, PlanRounds(fleet), keep_decisions)


def place_in_rounds(
    demands: Iterable[Demand], fleet: Fleet, policy: RoundPolicy, keep_decisions: int = 0
) -> dict[str, Placement]:
    """Place services and remove empty machines until the replica count is stable; return the last placement of
    every service that a round placed.

    A placement of a later service may open an overflow for an earlier service, and removed machines free
    capacity and budget.
    """
    pending = {demand.name: demand for demand in demands}
    placements: dict[str, Placement] = {}
    previous_replica_count = -1
    while previous_replica_count != fleet.replicas.total:
        # A first round that also removes replicas may by chance end with the count that it started with, so
        # its count proves nothing.
        is_comparable = bool(placements) or not policy.removes_surplus
        previous_replica_count = fleet.replicas.total if is_comparable else -1
        placements |= place_one_round(pending.values(), fleet, policy, keep_decisions)
        remove_empty_machines(fleet, policy.shrinkable_clusters())
        if policy.is_done(placements):
            break
        if policy.repeats_complete_services:
            continue
        pending = {
            name: demand
            for name, demand in pending.items()
            if name in placements and placements[name].missing and not demand.rule_conflict
        }
        if not pending:
            break
    return placements


def place_one_round(
    demands: Iterable[Demand], fleet: Fleet, policy: RoundPolicy, keep_decisions: int = 0
) -> dict[str, Placement]:
    """Unassign surplus replicas, then place missing replicas, in the order of
    `placement_order`; return the placements.

    All machines stay in the fleet: a machine is paid for until the machine is removed, so other replicas can
    use its free capacity.
    """
    demands_by_name = {demand.name: demand for demand in demands}
    if policy.removes_surplus:
        surplus_demands = [
            demand
            for demand in demands_by_name.values()
            if fleet.replicas.count(demand.name) > demand.replicas
        ]
        for demand in ordered_demands(surplus_demands):
            surplus = surplus_assignments(demand, fleet)
            if surplus:
                clusters = {fleet.machines.cluster[assignment.machine].name for assignment in surplus}
                for assignment in reversed(surplus):
                    fleet.unassign(assignment)
                policy.surplus_removed(demand, sorted(clusters))
    if not policy.repeats_complete_services:
        demands_by_name = incomplete(demands_by_name, fleet)
    placements: dict[str, Placement] = {}
    for group in placement_order(demands_by_name):
        for placement in place_whole_gangs(group, fleet, keep_decisions=keep_decisions):
            placements[placement.demand.name] = placement
        policy.group_placed(group)
    return placements


def incomplete(demands: Mapping[str, Demand], fleet: Fleet) -> dict[str, Demand]:
    """Return the demands that have missing replicas, or that no supply can satisfy."""
    return {
        name: demand
        for name, demand in demands.items()
        if fleet.replicas.count(name) < demand.replicas or demand.rule_conflict
    }


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
        gpu_limits = fleet.offers[machines.cluster[machine].offer_row].limits.gpus
        is_short = (
            any(free[machine, name] < 0 for name, _ in assignment.needs)
            or 0 < demand.max_per_node < replicas_on_machine[machine]
            # The offer limits GPUs in total and had no GPU left for the replica.
            or bool(demand.needs.get("gpu") and gpu_limits and not assignment.gpu_resource)
        )
        if is_short or not is_type_allowed(demand, machines.machine_type[machine]):
            outgrown.append(assignment)
            replicas_on_machine[machine] -= 1
            free.update({(machine, name): amount for name, amount in assignment.needs})
    return outgrown


def place_whole_gangs(group: Sequence[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> list[Placement]:
    """Place the group; if a gang ends with fewer replicas than its minimum, place the group without the
    services of that gang."""
    with fleet.attempt() as attempt:
        placements = place_group(group, fleet, keep_decisions=keep_decisions)
        short = short_gangs(group, fleet)
        attempt.succeeded = not short
    if not short:
        return placements
    unplaced = [placement for placement in placements if placement.demand.gang in short]
    for placement in unplaced:
        placement.assignments = []
        placement.missing = max(0, placement.demand.replicas - fleet.replicas.count(placement.demand.name))
    remaining = [demand for demand in group if demand.gang not in short]
    if not remaining:
        return unplaced
    return [*place_whole_gangs(remaining, fleet, keep_decisions=keep_decisions), *unplaced]


def place_group(group: Sequence[Demand], fleet: Fleet, *, keep_decisions: int = 0) -> list[Placement]:
    """Place the group one service after another; if a service stays incomplete, retry from every starting
    offer of the first service.

    If no attempt places the whole group, every service is placed on its own.
    """
    tied = tied_dependencies({demand.name: demand for demand in group})
    # A gang without dependencies between its services needs no common starting offer.
    if not any(tied.values()):
        return [place(demand, fleet, keep_decisions=keep_decisions) for demand in group]
    # Any other member is complete or not whatever the starting offer.
    decisive = {target for targets in tied.values() for target in targets}
    decisive.update(
        demand.name for demand in group if demand.bound_neighbours or demand.near_terms or demand.gang
    )
    # The first service may start in every offer that fits it, regardless of its dependencies.
    first = group[0]
    ask = ReplicaAsk(replace(first, ignored_limits=first.ignored_limits | {"dependencies"}))
    decision = decide(ask, fleet.table, profile_of(first.preferences))
    starting_offers = [fleet.offers[row].name for row in best_rows(decision, MAX_STARTING_OFFERS)]
    variants = [group]
    # Replicas that must share a machine with a replica of the group need a machine large enough for both.
    previously_violated: dict[str, list[str]] = {}
    if with_headroom := add_headroom(group):
        variants.append(with_headroom)
        previously_violated = {demand.name: _violated_rules(demand, fleet) for demand in group}
    for offer, variant in itertools.product(("", *starting_offers), variants):
        with fleet.attempt() as attempt:
            placements = _place_group_from(variant, offer, fleet, keep_decisions)
            is_complete = all(
                placement.is_complete for placement in placements if placement.demand.name in decisive
            )
            # A service of a cycle may have been placed without its latency limit, so every limit of the group
            # is checked again here.
            attempt.succeeded = is_complete and not any(
                misplaced_assignments(demand, fleet) or broken_terms(demand, fleet) for demand in group
            )
            # With headroom, fewer offers can host a replica: a spread over those may be uneven over all.
            if attempt.succeeded and variant is with_headroom:
                attempt.succeeded = not any(
                    set(_violated_rules(demand, fleet)).difference(previously_violated[demand.name])
                    for demand in group
                )
        if attempt.succeeded:
            for placement, demand in zip(placements, group, strict=True):
                # The variant was only for this attempt.
                placement.demand = demand
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
        members = {member.name for member in group}
        targets = {target for _, target in demand.latency_to}
        targets.update(*(term.targets for term in demand.near_terms))
        awaits_dependency = any(not fleet.assignments.get(target) for target in targets)
        depends_on_group = not targets.isdisjoint(members)
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
    """Return the replicas that violate the current requirements, and the reasons with the violated rules;
    None if all replicas may stay."""
    misplaced = misplaced_assignments(demand, fleet)
    broken_rules = [demand.rule_conflict] if demand.rule_conflict else _violated_rules(demand, fleet)
    if not misplaced and not (broken_rules and fleet.assignments.get(demand.name)):
        return None
    ask = ReplicaAsk(demand)
    reasons: list[str] = []
    rows = sorted(
        {fleet.machines.cluster[assignment.machine].offer_row for assignment in misplaced},
        key=lambda row: fleet.offers[row].name,
    )
    for plugin in ELIGIBILITY_FILTERS:
        if not plugin.applies(ask):
            continue
        for reason, mask in plugin.filter(ask, fleet.table).items():
            reasons += [
                f"{fleet.offers[row].name}: {reason.detail(fleet.table, row)}" for row in rows if mask[row]
            ]
    return StalePlacement(demand.name, tuple(misplaced), tuple(dict.fromkeys([*reasons, *broken_rules])))


def _violated_rules(demand: Demand, fleet: Fleet) -> list[str]:
    """List the violated rules over all replicas.

    A domain without replicas counts only if all replicas are in one domain, so an offer in a new region does
    not make an existing spread over several domains uneven.
    """
    counts = fleet.replicas.by_offer(demand.name)
    broken = [*violated_rules(demand, fleet, counts), *broken_terms(demand, fleet)]
    eligible = eligible_offers(ReplicaAsk(demand), fleet)
    for requirement in demand.spread:
        is_in_one_domain = len({domain_of(fleet.offers[row], requirement.value) for row in counts}) == 1
        if is_in_one_domain and str(requirement) in violated_rules(demand, fleet, counts, eligible):
            broken.append(str(requirement))
    return broken
