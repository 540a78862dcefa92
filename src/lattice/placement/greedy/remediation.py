"""Answer all unschedulable replicas of the fleet together: with machines that are coming, with free capacity,
with the fewest new machines, or with a verdict.

Replicas that are not running anyway give up their machine in the trial fleet and are placed again, by
priority, in the same rounds as every missing replica; so the replicas of one lost machine share its
replacement. Every purchase is counted on the service, and the next one waits for a back-off. A class whose
empty machine did not accept a replica is not bought again for replicas of its shape, of whichever service. Until
a machine of the class has accepted a replica of the shape, one such machine at a time is bought in a cluster; a
gang, whose replicas bind together, gets all its machines at once.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.timestamps import parse_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import PROGRESSING_CONDITION, ROLLOUT_COMPLETE, SCALE_DOWN_WAITS
from lattice.kinds.service import Remediation as RemediationRecord
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import (
    ReplicaObservation,
    has_joined,
    is_terminating,
    replica_shape,
)
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.place import place
from lattice.placement.greedy.scale_down import empty_machine
from lattice.placement.greedy.unschedulable import (
    closed_cluster,
    growth_blocker,
    machine_type_for,
    node_group_of,
)
from lattice.placement.inputs.purchase_records import PurchaseRecords, purchase_time
from lattice.placement.model.current_state import SURGE_PREFIX
from lattice.placement.model.demand import Demand, MachineRefusal
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.machine_catalog import fits_empty_machine
from lattice.placement.model.replica_index import Assignment
from lattice.placement.model.world import World


@dataclass(frozen=True, slots=True)
class Remediation:
    """How the unschedulable replicas of a service in one node group are helped: with machines that are
    bought, with machines that are bought for several services, or in another node group."""

    node_group: NodeGroupKey
    replicas: int
    machines: int = 0
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class SurgeReturn:
    """A machine that was bought for surge replicas of updates that have ended: its replicas fit on the other
    machines of the group."""

    node_group: NodeGroupKey
    node: str
    services: tuple[str, ...]


@dataclass(slots=True)
class _Detached:
    """An unschedulable replica whose assignment is taken back."""

    demand: Demand
    node_group: NodeGroupKey
    assignment: Assignment


@dataclass
class JointRemediation:
    """One joint decision about the unschedulable replicas of all services.

    `rejected` maps services that a ledger has rejected in this reconcile to the text of the rejection: they
    get no machine. Waiting replicas of node groups in `skipped` get the machine that is paid in advance.
    """

    world: World
    fleet: Fleet
    observation: ReplicaObservation
    unsettled_clusters: set[str]
    rejected: Mapping[str, str] = field(default_factory=dict)
    skipped: Collection[NodeGroupKey] = ()
    # The demands of this decision: those of the world, with the refusals that it finds.
    demands: dict[str, Demand] = field(default_factory=dict)
    remediations: dict[str, list[Remediation]] = field(default_factory=dict)
    # Services whose placement or machines this decision changes before the placement rounds.
    changed_services: dict[str, None] = field(default_factory=dict)
    _released: dict[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    # By service: its replicas by node group before this decision.
    _assigned: dict[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    # Gangs whose unschedulable replicas all fit on machines that have joined.
    _fitting_gangs: set[str] = field(default_factory=set)
    # By ledger and service: the rate of a machine that the hard limit of the ledger refuses.
    refused_rates: dict[str, dict[str, int]] = field(default_factory=dict)
    # Rows of machines that this decision buys.
    _fresh: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.demands = dict(self.world.demands)
        nodes = self.world.of_kind(LatticeNode)
        # A node that was created a moment ago has no Ready condition yet: its machine is still coming.
        self._joined = {node.metadata.name for node in nodes if has_joined(node)}
        # Names, since the row of a dropped machine is used again.
        self._machines_before = set(self.fleet.machines.row_of)
        stored = {
            name: self.world.valid_remediation(service)
            for name, service in self.world.services.items()
            if service.status.remediation
        }
        self._records = PurchaseRecords(stored, self.world.now, self._new_record)

    def release(self) -> None:
        """Take back the assignments of unschedulable replicas that no machine will accept, and buy machines
        for surge replicas; the placement rounds place the released replicas again."""
        placed, surges = self._waiting_replicas()
        detached: list[_Detached] = []
        for name, node_group, count in placed:
            assignments = [
                assignment
                for assignment in self.fleet.assignments.get(name, ())
                if node_group_of(self.fleet, assignment) == node_group
            ]
            # The unbound replicas of a group are the last ones.
            for assignment in assignments[::-1][:count]:
                self.fleet.unassign(assignment)
                detached.append(_Detached(self.demands[name], node_group, assignment))
        self._fitting_gangs = self._find_fitting_gangs(detached)
        partners = self._near_partners({replica.demand.name for replica in detached})
        for replica in detached:
            self._answer(replica, is_joint=replica.demand.name in partners)
        for name, node_group, count in surges:
            for _ in range(count):
                self._answer_surge(self.demands[name], node_group)

    def _waiting_replicas(
        self,
    ) -> tuple[list[tuple[str, NodeGroupKey, int]], list[tuple[str, NodeGroupKey, int]]]:
        """Unschedulable replicas by service and node group, by priority, then the largest first: those that
        stand for placed replicas, and surge replicas."""
        placed: list[tuple[str, NodeGroupKey, int]] = []
        surges: list[tuple[str, NodeGroupKey, int]] = []
        names = [name for name in self.observation.unschedulable if name in self.demands]
        for name in sorted(names, key=lambda name: _by_priority(self.demands[name])):
            bound = self.observation.bound.get(name, Counter())
            assigned = Counter(
                node_group_of(self.fleet, assignment) for assignment in self.fleet.assignments.get(name, ())
            )
            self._assigned[name] = assigned
            for node_group, count in sorted(self.observation.unschedulable[name].items()):
                if node_group in self.skipped or node_group[0] not in self.fleet.clusters:
                    continue
                unbound = min(count, max(0, assigned[node_group] - bound[node_group]))
                if unbound:
                    placed.append((name, node_group, unbound))
                # A replica of a group without a placement is about to be stopped.
                if count > unbound and assigned[node_group]:
                    surges.append((name, node_group, count - unbound))
        return placed, surges

    def _find_fitting_gangs(self, detached: list[_Detached]) -> set[str]:
        gangs = {replica.demand.gang for replica in detached} - {""}
        with self.fleet.what_if():
            for replica in detached:
                demand = replica.demand
                if demand.gang in gangs:
                    row = self._machine_with_capacity(demand, replica.node_group, is_coming=False)
                    if row is None:
                        gangs.discard(demand.gang)
                    else:
                        self.fleet.assign_replica(demand, row)
        return gangs

    def _near_partners(self, detached: set[str]) -> set[str]:
        """The services with unschedulable replicas that must share a cluster or machine with such a replica of
        another service."""
        partners: set[str] = set()
        for name in detached:
            for term in self.demands[name].near_terms:
                targets = detached.intersection(term.targets) - {name}
                if term.is_local and targets:
                    partners |= {name, *targets}
        return partners

    def _answer(self, replica: _Detached, *, is_joint: bool) -> None:
        """Find a machine for the replica. With `is_joint`, the placement rounds place it together with the replicas
        that it must be near."""
        demand, node_group = replica.demand, replica.node_group
        name, cluster = demand.name, self.fleet.clusters[node_group[0]]
        demand = replica.demand = self.demands[name]
        is_waiting = name in self.rejected or self._is_backing_off(name, cluster, node_group[1])
        if is_joint and not is_waiting:
            self._release(replica)
            return
        row = self._machine_with_capacity(demand, node_group, is_coming=True)
        if row is not None:
            self.fleet.assign_replica(demand, row)
            return
        if is_waiting:
            self.fleet.assign(replica.assignment)
            return
        if self._machine_with_capacity(demand, node_group, is_coming=False) is not None:
            self._answer_disagreement(replica, cluster)
            return
        if node_group in self.observation.blocked and any(map(self._is_coming, self._rows_of(node_group))):
            # The missing machines of the group come when its leaving machines are gone.
            if not self._move(demand, node_group):
                self.fleet.assign(replica.assignment)
            return
        # While no machine of the class has proved that it takes replicas of the shape, one at a time gets a
        # machine.
        if (
            not demand.gang
            and any(
                kind.name == node_group[1] and fits_empty_machine(demand, kind)
                for kind in self.fleet.offers[cluster.offer_row].types
            )
            and not self._is_proven(name, cluster, node_group[1])
            and self._is_in_flight(name, node_group)
        ):
            self.fleet.assign(replica.assignment)
            return
        self._release(replica)

    def _is_in_flight(self, name: str, node_group: NodeGroupKey) -> bool:
        """Whether a machine is about to be bought, or is coming, for a waiting replica of the shape of the
        service: for the service itself in whichever cluster, for other services in the node group."""
        own_rows = [assignment.machine for assignment in self.fleet.assignments.get(name, ())]
        if self._released.get(name) or any(map(self._is_coming, own_rows)):
            return True
        for peer in self._peers(name):
            if self._released.get(peer, Counter())[node_group]:
                return True
            for assignment in self.fleet.assignments.get(peer, ()):
                is_coming = self._is_coming(assignment.machine)
                if is_coming and node_group_of(self.fleet, assignment) == node_group:
                    return True
        return False

    def _peers(self, name: str) -> list[str]:
        """The other services with unschedulable replicas of the same shape."""
        shape = self.world.shape_of(self.world.services[name])
        return [peer for peer in self._waiting_by_shape.get(shape, ()) if peer != name]

    @cached_property
    def _waiting_by_shape(self) -> dict[str, list[str]]:
        waiting: dict[str, list[str]] = {}
        for name in self.observation.unschedulable:
            if service := self.world.services.get(name):
                waiting.setdefault(self.world.shape_of(service), []).append(name)
        return waiting

    def _answer_disagreement(self, replica: _Detached, cluster: Cluster) -> None:
        """The trial fleet has a machine for the replica, and the scheduler rejects the machine: by a taint, a
        port, or another filter that placement does not know."""
        demand, node_group = replica.demand, replica.node_group
        refusing = self._refusing_node(demand, cluster, node_group)
        # A gang binds only as a whole: a machine that is there before the others has refused nothing.
        is_gang_waiting = bool(demand.gang) and demand.gang not in self._fitting_gangs
        if is_gang_waiting or cluster.name in self.observation.terminating_clusters:
            self.fleet.assign(replica.assignment)
        elif refusing:
            # Record that an empty machine of the class did not accept a replica.
            shortage = self.observation.shortages.get((demand.name, node_group))
            is_named = shortage is not None and shortage.node == refusing
            need = shortage.need if shortage and is_named else ""
            have = shortage.have if shortage and (is_named or not shortage.need) else ""
            offer = self.fleet.offers[cluster.offer_row].name
            refusal = MachineRefusal(offer, node_group[1], need, have)
            for name in (demand.name, *self._peers(demand.name)):
                if (offer, node_group[1]) not in self.demands[name].refused_types:
                    refusals = (*self.demands[name].refusals, refusal)
                    self.demands[name] = replace(self.demands[name], refusals=refusals)
            reason = f"the empty node {refusing} did not accept a replica"
            self._update(
                demand.name, cluster, node_group[1], refused=True, reason=reason, need=need, have=have
            )
            self._release(replica)
        elif self._awaits_machines(node_group):
            self.fleet.assign(replica.assignment)
        elif (row := self._buy(demand, cluster, node_group[1])) is not None:
            self.fleet.assign_replica(demand, row)
            self._count(demand.name, Remediation(node_group, 1, 1))
        elif not self._move(demand, node_group):
            self.fleet.assign(replica.assignment)

    def _refusing_node(self, demand: Demand, cluster: Cluster, node_group: NodeGroupKey) -> str:
        """An empty node that came for the service and does not accept its replica; empty if there is none.

        A node that a user has changed, such as by a taint, says something about its class only if a second
        machine was bought, or if there are two such nodes.
        """
        record = self._last_purchase(demand.name, cluster, node_group[1])
        if self._is_proven(demand.name, cluster, node_group[1]) and not record.attempts:
            return ""
        last_scheduled = parse_time(self.world.services[demand.name].status.last_scheduled)
        bought_at = purchase_time(record) or last_scheduled
        edited: list[str] = []
        for node in self.observation.idle_nodes.get(node_group, ()):
            created_at = parse_time(node.created_at)
            is_newer = bought_at is None or (created_at is not None and created_at >= bought_at)
            is_bought = not node.is_joined_machine
            if is_bought and is_newer and (record.attempts or not node.is_edited):
                return node.name
            if is_bought and is_newer:
                edited.append(node.name)
        return edited[0] if len(edited) > 1 else ""

    def _answer_surge(self, demand: Demand, node_group: NodeGroupKey) -> None:
        """Find a machine in the node group of a surge replica: the replica runs beside those that are placed,
        until an update or a drain has stopped one of them."""
        name, cluster = demand.name, self.fleet.clusters[node_group[0]]
        row = self._machine_with_capacity(demand, node_group, is_coming=True)
        if row is not None:
            if row in self._fresh:
                self._count(name, Remediation(node_group, 1))
                self._update(name, cluster, node_group[1], surge_machines=1, reason="", need="", have="")
                self.changed_services[name] = None
            self._hold(demand, row)
            return
        if name in self.rejected:
            self._update(name, cluster, node_group[1], reason=self.rejected[name], need="", have="")
            return
        if self._is_backing_off(name, cluster, node_group[1]):
            return
        # One machine at a time for the replicas of one service.
        holds = self.fleet.assignments.get(f"{SURGE_PREFIX}{name}", ())
        if any(node_group_of(self.fleet, assignment) == node_group for assignment in holds):
            return
        if self._machine_with_capacity(demand, node_group, is_coming=False) is not None and (
            cluster.name in self.observation.terminating_clusters
            or self.observation.idle_nodes.get(node_group)
            or self._awaits_machines(node_group)
        ):
            return
        row = self._buy(demand, cluster, node_group[1])
        if row is not None:
            self._count(name, Remediation(node_group, 1, 1))
            record = self._record(name, cluster, node_group[1])
            self._update(name, cluster, node_group[1], surge_machines=record.surge_machines + 1)
            self._hold(demand, row)
            return
        # The running replica that the surge replica will replace may be placed elsewhere.
        assignments = [
            assignment
            for assignment in self.fleet.assignments.get(name, ())
            if node_group_of(self.fleet, assignment) == node_group
        ]
        if assignments:
            with self.fleet.attempt() as attempt:
                self.fleet.unassign(assignments[-1])
                attempt.succeeded = self._move(demand, node_group)

    def _hold(self, demand: Demand, row: int) -> None:
        """Reserve capacity of the machine for a surge replica."""
        needs = tuple(demand.effective_needs.items())
        self.fleet.assign(Assignment(f"{SURGE_PREFIX}{demand.name}", row, needs))

    def _machine_with_capacity(
        self, demand: Demand, node_group: NodeGroupKey, *, is_coming: bool
    ) -> int | None:
        """The first machine of the node group that fits a replica, among the machines that are bought and
        have not joined, or among the machines that have."""
        if is_coming and node_group in self.observation.blocked:
            candidates = [row for row in self._rows_of(node_group) if row in self._fresh]
        else:
            candidates = [row for row in self._rows_of(node_group) if self._is_coming(row) == is_coming]
        fits = self.fleet.groups.fits_on_machine
        return next((row for row in candidates if fits(demand, row)), None)

    def _rows_of(self, node_group: NodeGroupKey) -> Iterator[int]:
        cluster = self.fleet.clusters[node_group[0]]
        for row in cluster.machines:
            if self.fleet.machines.machine_type[row].name == node_group[1]:
                yield row

    def _is_coming(self, row: int) -> bool:
        return self.fleet.machines.names[row] not in self._joined

    def _awaits_machines(self, node_group: NodeGroupKey) -> bool:
        """Whether a machine of the node group is coming, or is bought by this decision."""
        is_blocked = node_group in self.observation.blocked
        return any(
            row in self._fresh or (not is_blocked and self._is_coming(row))
            for row in self._rows_of(node_group)
        )

    def _is_proven(self, name: str, cluster: Cluster, node_class: str) -> bool:
        """Whether a replica of this shape, of any service, is bound to a machine of the class in the offer."""
        shape = self.world.shape_of(self.world.services[name])
        return (shape, cluster.offer_row, node_class) in self._proven_types

    @cached_property
    def _proven_types(self) -> frozenset[tuple[str, int, str]]:
        """Shape, offer row and class of every bound replica."""
        machines, shapes = self.fleet.machines, dict[str, str]()
        proven = set()
        for workload in self.world.of_kind(LatticeWorkload):
            binding = workload.status.binding
            row = machines.row_of.get(binding.node) if binding else None
            if row is None or not workload.spec.service or is_terminating(workload):
                continue
            shape = shapes.get(workload.spec.revision)
            if shape is None:
                shape = shapes[workload.spec.revision] = replica_shape(workload.spec)
            proven.add((shape, machines.cluster[row].offer_row, machines.machine_type[row].name))
        return frozenset(proven)

    def _release(self, replica: _Detached) -> None:
        """Leave the replica to the placement rounds."""
        name = replica.demand.name
        self._released.setdefault(name, Counter())[replica.node_group] += 1
        self.unsettled_clusters.add(replica.node_group[0])

    def _buy(self, demand: Demand, cluster: Cluster, node_class: str) -> int | None:
        """Add one machine of the class to the cluster if limits and budgets allow it, and record the reason
        if they do not."""
        kind = machine_type_for(demand, self.fleet, cluster, node_class)
        if kind is None:
            blocker = growth_blocker(demand, self.fleet, cluster, node_class)
            self._update(
                demand.name, cluster, node_class, reason=blocker.text, need=blocker.need, have=blocker.have
            )
            if blocker.ledger:
                self.refused_rates.setdefault(blocker.ledger, {})[demand.name] = blocker.rate
            return None
        row = self.fleet.inventory.add_machine(cluster, kind)
        self._fresh.add(row)
        self._count_attempt(demand.name, cluster, node_class)
        self.changed_services[demand.name] = None
        self.unsettled_clusters.add(cluster.name)
        return row

    def _move(self, demand: Demand, node_group: NodeGroupKey) -> bool:
        """Place the missing replica of the service outside of the node group, and outside of the machines that
        Lattice makes for its cluster."""
        cluster = self.fleet.clusters[node_group[0]]
        with self.fleet.attempt() as attempt, closed_cluster(self.fleet, cluster, node_group[1]):
            placement = place(demand, self.fleet)
            rows = {assignment.machine for assignment in placement.assignments}
            coming = {
                node_group_of(self.fleet, assignment)
                for assignment in placement.assignments
                if self._is_coming(assignment.machine)
            }
            # A machine that comes for a move is a purchase like any other: its back-off has to be over.
            is_too_early = any(
                self._is_backing_off(demand.name, self.fleet.clusters[name], node_class)
                for name, node_class in coming
            )
            attempt.succeeded = (placement.is_complete or bool(rows)) and not is_too_early
        if not attempt.succeeded:
            return False
        for name, node_class in sorted(coming):
            self._count_attempt(demand.name, self.fleet.clusters[name], node_class)
        names = self.fleet.machines.names
        self._fresh |= {row for row in rows if names[row] not in self._machines_before}
        self.changed_services[demand.name] = None
        self.unsettled_clusters.add(cluster.name)
        self._count(demand.name, Remediation((cluster.name, ""), 1, is_moved=True))
        # The replica no longer waits for the machine that a ledger refused.
        for rates in self.refused_rates.values():
            rates.pop(demand.name, None)
        return True

    def finish(self) -> None:
        """Count the purchases that the placement rounds made for released replicas."""
        names = self.fleet.machines.names
        fresh = {names[row] for row in self._fresh if row in self.fleet.machines.machine_type}
        bought = set(self.fleet.machines.row_of) - self._machines_before - fresh
        for name in sorted(self._released, key=lambda name: _by_priority(self.demands[name])):
            assigned: Counter[NodeGroupKey] = Counter()
            machines: Counter[NodeGroupKey] = Counter()
            for assignment in self.fleet.assignments.get(name, ()):
                machine, node_group = names[assignment.machine], node_group_of(self.fleet, assignment)
                if machine in self._machines_before:
                    continue
                assigned[node_group] += 1
                if machine in bought:
                    bought.discard(machine)
                    machines[node_group] += 1
            for node_group, count in sorted(assigned.items()):
                self._count(name, Remediation(node_group, count, machines[node_group]))
                # Services that share a bought machine have all tried the class then.
                self._count_attempt(name, self.fleet.clusters[node_group[0]], node_group[1])
            staying = Counter(
                node_group_of(self.fleet, assignment) for assignment in self.fleet.assignments.get(name, ())
            )
            moved = (self._assigned[name] - staying).total() - assigned.total()
            if moved > 0 and self.fleet.replicas.count(name) >= self.demands[name].replicas:
                self._count(name, Remediation(min(self._released[name]), moved, is_moved=True))

    def records(self, name: str) -> tuple[RemediationRecord, ...]:
        """The records of the service after this decision, by offer and class."""
        return self._records.to_store(name, is_waiting=name in self.observation.unschedulable)

    def surge_returns(self, is_settled: Mapping[str, bool]) -> list[SurgeReturn]:
        """The machines that were bought for surge replicas and are not needed any more, after the updates
        have ended; records of surge machines that cannot be given back are cleared."""
        returns: list[SurgeReturn] = []
        updated: dict[NodeGroupKey, dict[str, RemediationRecord]] = {}
        for name, record in self._records.with_surge_machines():
            if record.cluster in self.fleet.clusters:
                updated.setdefault((record.cluster, record.node_class), {})[name] = record
            else:
                self._records.update(name, record, surge_machines=0)
        for node_group, records in sorted(updated.items()):
            if not is_settled[node_group[0]]:
                continue
            if any(name not in self.observation.rolled_out and not self._is_paused(name) for name in records):
                continue
            for _ in range(sum(record.surge_machines for record in records.values())):
                returned = self._releasable_machine(node_group, set(records))
                if returned is None:
                    break
                returns.append(returned)
            for name, record in records.items():
                self._records.update(name, record, surge_machines=0)
        return returns

    def _is_paused(self, name: str) -> bool:
        """Whether the update was paused: without a surge replica it does not need the machine any more."""
        conditions = self.world.services[name].status.conditions
        progress = find_condition(conditions, PROGRESSING_CONDITION)
        if progress is None or progress.status != "False":
            return False
        return progress.reason not in (ROLLOUT_COMPLETE, SCALE_DOWN_WAITS)

    def _releasable_machine(self, node_group: NodeGroupKey, updated: set[str]) -> SurgeReturn | None:
        """A machine of the node group with replicas of updated services only, which fit on the other machines of
        the group; the trial fleet loses the machine."""
        fleet, cluster = self.fleet, self.fleet.clusters[node_group[0]]
        if len(cluster.machines) <= cluster.min_nodes:
            return None
        counts, rows = fleet.machines.replica_counts, list(self._rows_of(node_group))
        candidates = [
            row
            for row in rows
            if counts[row]
            and counts[row].keys() <= updated
            and not fleet.machines.machine_type[row].is_joined
            and not self._is_coming(row)
        ]
        for row in sorted(candidates, key=lambda row: (counts[row].total(), fleet.machines.names[row])):
            returned = SurgeReturn(node_group, fleet.machines.names[row], tuple(sorted(counts[row])))
            if empty_machine(row, rows, fleet, self.demands):
                fleet.inventory.drop_machine(row)
                return returned
        return None

    def _count(self, name: str, remediation: Remediation) -> None:
        self.remediations.setdefault(name, []).append(remediation)

    def _new_record(self, name: str, offer: str, node_class: str) -> RemediationRecord:
        service = self.world.services[name]
        return RemediationRecord(
            offer=offer,
            node_class=node_class,
            shape=self.world.shape_of(service),
            generation=service.metadata.generation,
            class_generation=self.world.class_generation(node_class),
        )

    def _record(self, name: str, cluster: Cluster, node_class: str) -> RemediationRecord:
        return self._records.get(name, self.fleet.offers[cluster.offer_row].name, node_class)

    def _update(self, name: str, cluster: Cluster, node_class: str, **fields: object) -> None:
        record = self._record(name, cluster, node_class)
        shape = self.world.shape_of(self.world.services[name])
        self._records.update(name, record, cluster=cluster.name, shape=shape, **fields)

    def _count_attempt(self, name: str, cluster: Cluster, node_class: str) -> None:
        self._update(name, cluster, node_class)
        self._records.count_attempt(name, self._record(name, cluster, node_class))

    def _last_purchase(self, name: str, cluster: Cluster, node_class: str) -> RemediationRecord:
        """The record of the last purchase for the service; for its shape, while no machine has accepted a replica of
        the shape."""
        record = self._record(name, cluster, node_class)
        if self._is_proven(name, cluster, node_class):
            return record
        records = [record, *(self._record(peer, cluster, node_class) for peer in self._peers(name))]
        return max(records, key=lambda candidate: (candidate.attempts, candidate.next_at or ""))

    def _is_backing_off(self, name: str, cluster: Cluster, node_class: str) -> bool:
        return self._records.is_backing_off(self._last_purchase(name, cluster, node_class))


def _by_priority(demand: Demand) -> tuple[int, int, int, str]:
    """Higher priority first, then the larger replica, then the name."""
    needs = demand.effective_needs
    return (-demand.priority, -needs.get("cpu", 0), -needs.get("memory", 0), demand.name)
