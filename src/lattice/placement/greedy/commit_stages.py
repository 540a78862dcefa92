"""Place all services in commit stages, so that a controller can write and pay for every stage on its own.

The order of services and the results are the same as in `plan`. Unlike `plan`, staged placement must not
count on capacity that running replicas still use: machines leave the fleet only in clusters where every
observed replica runs at its desired place.
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

# Machines by cluster, then by node class.
DesiredMachines = Mapping[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class CommitStage:
    """Services that a controller commits together, with the machines that their clusters need for these
    services."""

    services: tuple[str, ...]
    clusters: DesiredMachines


@dataclass
class StagedDecision:
    """The result of a staged decision: the trial fleet, the commit stages and the remediations of
    unschedulable replicas."""

    world: World
    fleet: Fleet
    # Only services with missing replicas have a placement.
    placements: dict[str, Placement] = field(default_factory=dict)
    stages: list[CommitStage] = field(default_factory=list)
    remediations: dict[str, list[Remediation]] = field(default_factory=dict)
    # Clusters that keep all machines for now.
    unsettled_clusters: set[str] = field(default_factory=set)
    # Node groups where a new machine is paid for before the replaced machine is gone.
    paid_in_advance: frozenset[NodeGroupKey] = frozenset()
    # Replicas that keep running in offers that were withdrawn.
    orphaned_replicas: OrphanedReplicas = field(default_factory=dict)

    @property
    def desired_machines(self) -> DesiredMachines:
        """The machines by cluster and node class after the last stage."""
        return {name: class_counts(self.fleet, cluster) for name, cluster in self.fleet.clusters.items()}

    def add_stage(self, services: Sequence[str]) -> None:
        """Add a stage for the services with the current machines of their clusters.

        A service is in one stage only: the method removes the services from earlier stages, and drops stages
        that become empty.
        """
        # A service is committed once, in its last stage.
        moved_services = frozenset(services)
        earlier_stages = [
            CommitStage(tuple(name for name in stage.services if name not in moved_services), stage.clusters)
            for stage in self.stages
        ]
        machines, clusters = self.fleet.machines, {}
        for name in services:
            for assignment in self.fleet.assignments.get(name, ()):
                cluster = machines.cluster[assignment.machine]
                clusters[cluster.name] = cluster
        touched = {name: class_counts(self.fleet, cluster) for name, cluster in clusters.items()}
        self.stages = [
            *(stage for stage in earlier_stages if stage.services),
            CommitStage(tuple(services), touched),
        ]


def decide_stages(
    world: World,
    observation: ReplicaObservation,
    *,
    keep_decisions: int = 1,
    excluded_services: Collection[str] = (),
    over_budget: frozenset[NodeGroupKey] = frozenset(),
) -> StagedDecision:
    """Decide placements for all services: remove surplus replicas, remediate unschedulable replicas, place
    missing replicas.

    Other replicas keep their machines. Services in `excluded_services` get no new replicas. `over_budget`
    names node groups for which a ledger rejected a machine; replicas that wait for such a machine are placed
    elsewhere.
    """
    fleet = world.build_fleet()
    decided = StagedDecision(world, fleet, unsettled_clusters=set(observation.unsettled_clusters))
    for cluster in fleet.clusters.values():
        if not cluster.machines:
            # A decommissioned cluster gets no new machines; the record stays so that no cluster reuses the
            # number.
            cluster.max_nodes = 0
    # Replicas that outgrew their machine are placed again; their machines stay until these replicas have
    # stopped.
    for name in sorted(observation.updated_services & world.demands.keys()):
        if outgrowing := outgrown_assignments(world.demands[name], fleet):
            decided.unsettled_clusters.update(
                fleet.machines.cluster[assignment.machine].name for assignment in outgrowing
            )
            for assignment in outgrowing:
                fleet.unassign(assignment)
    decided.paid_in_advance = payable_in_advance(fleet, observation) - over_budget
    for name in sorted(observation.unschedulable.keys() & world.demands.keys()):
        # Node groups that are paid in advance get their machine without a remediation.
        unschedulable = Counter(
            {
                node_group: count
                for node_group, count in observation.unschedulable[name].items()
                if node_group not in decided.paid_in_advance
            }
        )
        if name not in excluded_services and (
            remediations := remediate(world.demands[name], fleet, unschedulable, observation)
        ):
            decided.remediations[name] = remediations
            decided.add_stage([name])
            decided.unsettled_clusters.update(remediation.node_group[0] for remediation in remediations)
    decided.orphaned_replicas = orphaned_replicas(world, fleet, observation.unschedulable)
    _place_all(
        decided,
        {
            name: subtract_orphans(demand, decided.orphaned_replicas)
            for name, demand in world.demands.items()
            if name not in excluded_services
        },
        keep_decisions,
    )
    # A later service may make a machine of an earlier stage unnecessary: such a machine is not bought at all.
    final_machines = decided.desired_machines
    for index, stage in enumerate(decided.stages):
        needed_machines = {}
        for name, counts in stage.clusters.items():
            if name in final_machines:
                needed_machines[name] = counts & final_machines[name]
        decided.stages[index] = CommitStage(stage.services, needed_machines)
    return decided


def _place_all(decided: StagedDecision, demands: Mapping[str, Demand], keep_decisions: int) -> None:
    """Remove surplus and place missing replicas until the replica count is stable, as `place_all` does.

    A placement of a later service may open an overflow for an earlier service, and removed machines free
    capacity.
    """
    fleet, pending = decided.fleet, demands
    previous_replica_count = -1
    while previous_replica_count != fleet.replicas.total:
        # The first round may remove replicas, so its count does not show whether a second round helps.
        previous_replica_count = fleet.replicas.total if decided.placements else -1
        _remove_surplus(pending, decided)
        placements = _place_missing(pending, decided, keep_decisions)
        # Machines of unsettled clusters may still run replicas, so only settled clusters shrink.
        remove_empty_machines(
            fleet, [name for name in fleet.clusters if name not in decided.unsettled_clusters]
        )
        pending = {
            name: pending[name]
            for name, placement in placements.items()
            if placement.missing and not placement.demand.rule_conflict
        }
        if not pending:
            break


def _remove_surplus(demands: Mapping[str, Demand], decided: StagedDecision) -> None:
    """Unassign surplus replicas and mark their clusters as unsettled: a machine stays until the surplus
    replica has stopped."""
    fleet = decided.fleet
    for demand in by_priority(demands.values()):
        surplus = surplus_assignments(demand, fleet)
        if not surplus:
            continue
        clusters = sorted({fleet.machines.cluster[assignment.machine].name for assignment in surplus})
        for assignment in reversed(surplus):
            fleet.unassign(assignment)
        decided.add_stage([demand.name])
        decided.unsettled_clusters.update(clusters)


def _place_missing(
    demands: Mapping[str, Demand], decided: StagedDecision, keep_decisions: int
) -> dict[str, Placement]:
    fleet = decided.fleet
    demands_to_place = {
        name: demand
        for name, demand in demands.items()
        if fleet.replicas.count(name) < demand.replicas or demand.rule_conflict
    }
    placements: dict[str, Placement] = {}
    for group in latency_groups(demands_to_place):
        for placement in place_group(group, fleet, keep_decisions=keep_decisions):
            placements[placement.demand.name] = placement
        decided.add_stage([demand.name for demand in group])
    decided.placements |= placements
    return placements
