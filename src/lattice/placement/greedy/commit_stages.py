"""Place all services in commit stages, so that a controller can write and pay for every stage on its own.

The order of services and the placement loop are the same as in `plan`. Unlike `plan`, staged placement must
not count on capacity that running replicas still use: machines leave the fleet only in clusters where the
observed replicas are the placed replicas.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.service import Remediation as RemediationRecord
from lattice.lifecycle.replica_observation import ReplicaObservation
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.greedy.orphaned import (
    OrphanedReplicas,
    find_final_orphans,
    orphaned_replicas,
    subtract_orphans,
)
from lattice.placement.greedy.place import Placement
from lattice.placement.greedy.place_all import outgrown_assignments, place_in_rounds
from lattice.placement.greedy.remediation import JointRemediation, Remediation, SurgeReturn
from lattice.placement.greedy.unschedulable import node_group_of, payable_in_advance
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
    """The result of a staged decision: the trial fleet, the commit stages and the remediations, which add
    machines for unschedulable replicas or move the replicas."""

    world: World
    fleet: Fleet
    # Only services with missing replicas have a placement.
    placements: dict[str, Placement] = field(default_factory=dict)
    stages: list[CommitStage] = field(default_factory=list)
    remediations: dict[str, list[Remediation]] = field(default_factory=dict)
    # Clusters that keep all machines for now, because the replicas that run there differ from the placed
    # replicas.
    unsettled_clusters: set[str] = field(default_factory=set)
    # Node groups where a new machine is paid for before the replaced machine is gone.
    paid_in_advance: frozenset[NodeGroupKey] = frozenset()
    # By service: its purchases for unschedulable replicas. A service without an entry keeps its records.
    records: dict[str, tuple[RemediationRecord, ...]] = field(default_factory=dict)
    # By service: why the present bill is higher than that of a fresh plan. None: not compared.
    cost_messages: Mapping[str, str] | None = None
    # Machines of ended updates that are given back.
    surge_returns: list[SurgeReturn] = field(default_factory=list)
    # The demands of the decision, with the refusals that it found.
    demands: Mapping[str, Demand] = field(default_factory=dict)
    # By ledger and service: the rate of a machine for a waiting replica that the hard limit of the ledger
    # refuses.
    refused_rates: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Replicas that keep running in offers that were withdrawn.
    orphaned_replicas: OrphanedReplicas = field(default_factory=dict)

    @property
    def desired_machines(self) -> DesiredMachines:
        """The machines by cluster and node class after the last stage."""
        return {name: class_counts(self.fleet, cluster) for name, cluster in self.fleet.clusters.items()}

    @property
    def changes_placements(self) -> bool:
        """Whether a stage adds, moves or removes replicas. The stage of a service that fits nowhere does not."""
        for stage in self.stages:
            for name in stage.services:
                placement = self.placements.get(name)
                if placement is None or placement.assignments or name in self.remediations:
                    return True
        return False

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


@dataclass(frozen=True, slots=True)
class StagedRounds:
    """The round policy of the controller (see RoundPolicy): every service that changes gets a commit stage,
    and no placement counts on capacity that running replicas still use.

    A surplus replica runs until its stop is committed, so its cluster becomes unsettled; only settled clusters
    shrink.
    """

    decided: StagedDecision
    removes_surplus: bool = True
    repeats_complete_services: bool = False

    def surplus_removed(self, demand: Demand, clusters: Sequence[str]) -> None:
        self.decided.add_stage([demand.name])
        self.decided.unsettled_clusters.update(clusters)

    def group_placed(self, group: Sequence[Demand]) -> None:
        self.decided.add_stage([demand.name for demand in group])

    def shrinkable_clusters(self) -> Sequence[str]:
        return [name for name in self.decided.fleet.clusters if name not in self.decided.unsettled_clusters]

    def is_done(self, placements: Mapping[str, Placement]) -> bool:
        return False


def decide_stages(
    world: World,
    observation: ReplicaObservation,
    *,
    keep_decisions: int = 1,
    excluded_services: Mapping[str, str] = MappingProxyType({}),
    over_budget: frozenset[NodeGroupKey] = frozenset(),
) -> StagedDecision:
    """Decide placements for all services: remove surplus replicas, remediate unschedulable replicas, place
    missing replicas.

    Other replicas keep their machines. Services in `excluded_services`, with the reason, get no new replicas.
    `over_budget` names node groups for which a ledger rejected a machine; replicas that wait for such a machine are placed
    elsewhere.
    """
    fleet = world.build_fleet()
    find_final_orphans(world, fleet).commit_to(fleet)
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
    # In node groups that are paid in advance, the budget can pay for the missing machines now, so the
    # replicas of these groups need no remediation.
    joint = JointRemediation(
        world, fleet, observation, decided.unsettled_clusters, excluded_services, decided.paid_in_advance
    )
    joint.release()
    decided.demands = joint.demands
    for name in joint.changed_services:
        decided.add_stage([name])
    decided.orphaned_replicas = orphaned_replicas(world, fleet, observation.unschedulable)
    demands = [
        subtract_orphans(demand, decided.orphaned_replicas)
        for name, demand in joint.demands.items()
        if name not in excluded_services
    ]
    decided.placements = place_in_rounds(demands, fleet, StagedRounds(decided), keep_decisions)
    joint.finish()
    decided.remediations = joint.remediations
    decided.refused_rates = joint.refused_rates
    is_settled = {
        name: name not in decided.unsettled_clusters and name not in observation.terminating_clusters
        for name in fleet.clusters
    }
    decided.surge_returns = joint.surge_returns(is_settled)
    decided.records = {name: joint.records(name) for name in world.services}
    # A later service may make a machine of an earlier stage unnecessary: such a machine is not bought at all.
    final_machines = decided.desired_machines
    for index, stage in enumerate(decided.stages):
        needed_machines = {}
        for name, counts in stage.clusters.items():
            if name in final_machines:
                needed_machines[name] = counts & final_machines[name]
        decided.stages[index] = CommitStage(stage.services, needed_machines)
    # A stage that changes nothing would keep the fleet unsettled for as long as a service finds no place.
    machines = {cluster.metadata.name: cluster.spec.nodes for cluster in world.of_kind(LatticeCluster)}
    decided.stages = [stage for stage in decided.stages if _changes_anything(decided, stage, machines)]
    return decided


def _changes_anything(
    decided: StagedDecision, stage: CommitStage, machines: Mapping[str, Mapping[str, int]]
) -> bool:
    """Whether the stage places a replica elsewhere than it is stored, or needs other machines than its
    clusters have; `machines` are these, by cluster."""
    world, fleet = decided.world, decided.fleet
    for name in stage.services:
        stored: Counter[NodeGroupKey] = Counter()
        for placement in world.services[name].status.placements:
            stored[placement.cluster, placement.node] += placement.replicas or 0
        assignments = fleet.assignments.get(name, ())
        if name in decided.remediations or stored != Counter(
            node_group_of(fleet, assignment) for assignment in assignments
        ):
            return True
    for name, counts in stage.clusters.items():
        # A cluster may have to claim a joined machine.
        has_joined = any(fleet.machines.machine_type[row].is_joined for row in fleet.clusters[name].machines)
        if has_joined or counts != Counter(machines.get(name, {})):
            return True
    return False
