"""Every service to its place, one after the other, in steps that can each be written and paid for by itself.

The order and the answers are those of `plan`. What it may not count on is what others still hold: machines leave the fleet only where
everything that is seen is where it is meant to be.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.machine_choice import class_counts, remove_empty_machines
from lattice.placement.greedy.orphaned import OrphanedReplicas, orphaned_replicas, subtract_orphans
from lattice.placement.greedy.place import Placement
from lattice.placement.greedy.place_all import by_priority, latency_groups, outgrown_assignments, place_group
from lattice.placement.greedy.scale_down import surplus_assignments
from lattice.placement.greedy.unschedulable import Remediation, payable_in_advance, remediate
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World

DesiredMachines = Mapping[str, Counter[str]]  # machines by cluster, then by class


@dataclass(frozen=True, slots=True)
class CommitStage:
    """Services that are written together, and the machines that their clusters have by then."""

    services: tuple[str, ...]
    clusters: DesiredMachines


@dataclass
class StagedDecision:
    world: World
    fleet: Fleet
    placements: dict[str, Placement] = field(default_factory=dict)  # of services that lacked replicas
    stages: list[CommitStage] = field(default_factory=list)
    remediations: dict[str, list[Remediation]] = field(default_factory=dict)
    unsettled_clusters: set[str] = field(default_factory=set)  # clusters whose machines all stay for now
    paid_in_advance: frozenset[NodeGroupKey] = (
        frozenset()
    )  # where a machine is paid for before the one that it replaces is gone
    orphaned_replicas: OrphanedReplicas = field(
        default_factory=dict
    )  # replicas that run on where nothing is offered any more

    @property
    def desired_machines(self) -> DesiredMachines:
        """In the end."""
        return {name: class_counts(self.fleet, each) for name, each in self.fleet.clusters.items()}

    def add_stage(self, services: Sequence[str]) -> None:
        """As it is now. Who was noted before is written only once, with the last of it."""
        fresh = frozenset(services)
        kept = [
            CommitStage(tuple(each for each in stage.services if each not in fresh), stage.clusters)
            for stage in self.stages
        ]
        machines, clusters = self.fleet.machines, {}
        for name in services:
            for seat in self.fleet.assignments.get(name, ()):
                cluster = machines.cluster[seat.machine]
                clusters[cluster.name] = cluster
        touched = {name: class_counts(self.fleet, each) for name, each in clusters.items()}
        self.stages = [*(stage for stage in kept if stage.services), CommitStage(tuple(services), touched)]


def decide_stages(
    world: World,
    seen: ReplicaObservation,
    *,
    keep_decisions: int = 1,
    excluded_services: Collection[str] = (),
    over_budget: frozenset[NodeGroupKey] = frozenset(),
) -> StagedDecision:
    """Fewer where fewer are wanted, more where more are; the rest stays where it is. `but`: services that get no more; `too_dear`: where
    a machine that is wanted was refused, so that whoever waits for it looks elsewhere."""
    fleet = world.build_fleet()
    decided = StagedDecision(world, fleet, unsettled_clusters=set(seen.unsettled_clusters))
    for cluster in fleet.clusters.values():
        if not cluster.machines:
            cluster.max_nodes = 0  # given up: it comes to no new machines, and its number is not given again
    for name in sorted(seen.updated_services & world.demands.keys()):
        if outgrowing := outgrown_assignments(world.demands[name], fleet):
            decided.unsettled_clusters.update(
                fleet.machines.cluster[seat.machine].name for seat in outgrowing
            )
            for seat in outgrowing:
                fleet.unassign(seat)
    decided.paid_in_advance = payable_in_advance(fleet, seen) - over_budget
    for name in sorted(seen.unschedulable.keys() & world.demands.keys()):
        stuck = Counter(
            {
                cell: count
                for cell, count in seen.unschedulable[name].items()
                if cell not in decided.paid_in_advance
            }
        )
        if name not in excluded_services and (found := remediate(world.demands[name], fleet, stuck, seen)):
            decided.remediations[name] = found
            decided.add_stage([name])
            decided.unsettled_clusters.update(each.node_group[0] for each in found)
    decided.orphaned_replicas = orphaned_replicas(world, fleet, seen.unschedulable)
    _place_all(
        decided,
        {
            name: subtract_orphans(each, decided.orphaned_replicas)
            for name, each in world.demands.items()
            if name not in excluded_services
        },
        keep_decisions,
    )
    _drop_superseded_machines(decided)
    return decided


def _drop_superseded_machines(decided: StagedDecision) -> None:
    """Machines that came with one service, and that another made needless, are not bought at all."""
    last = decided.desired_machines
    for at, stage in enumerate(decided.stages):
        kept = {name: counts & last[name] for name, counts in stage.clusters.items() if name in last}
        decided.stages[at] = CommitStage(stage.services, kept)


def _place_all(decided: StagedDecision, demands: Mapping[str, Demand], keep: int) -> None:
    """As `arrange_all` does: a late one may open an overflow for an early one, and machines that nobody needs any more leave room."""
    fleet, wanted = decided.fleet, demands
    before = -1
    while before != fleet.replica_count:
        before = fleet.replica_count if decided.placements else -1
        _remove_surplus(wanted, decided)
        found = _place_missing(wanted, decided, keep)
        remove_empty_machines(
            fleet, [name for name in fleet.clusters if name not in decided.unsettled_clusters]
        )
        wanted = {
            name: wanted[name]
            for name, each in found.items()
            if each.missing and not each.demand.rule_conflict
        }
        if not wanted:
            break


def _remove_surplus(wanted: Mapping[str, Demand], decided: StagedDecision) -> None:
    """Whoever goes is there until it has gone: its machine stays for now, unless it has none yet."""
    fleet = decided.fleet
    for demand in by_priority(wanted.values()):
        leaving = surplus_assignments(demand, fleet)
        if not leaving:
            continue
        clusters = sorted({fleet.machines.cluster[seat.machine].name for seat in leaving})
        for seat in reversed(leaving):
            fleet.unassign(seat)
        decided.add_stage([demand.name])
        decided.unsettled_clusters.update(clusters)


def _place_missing(wanted: Mapping[str, Demand], decided: StagedDecision, keep: int) -> dict[str, Placement]:
    fleet = decided.fleet
    lacking = {
        name: each
        for name, each in wanted.items()
        if len(fleet.assignments.get(name, ())) < each.replicas or each.rule_conflict
    }
    found: dict[str, Placement] = {}
    for group in latency_groups(lacking):
        for placement in place_group(group, fleet, keep_decisions=keep):
            found[placement.demand.name] = placement
        decided.add_stage([each.name for each in group])
    decided.placements |= found
    return found
