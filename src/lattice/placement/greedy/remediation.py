"""Answer all unschedulable replicas of the fleet together: with machines that are coming, with free capacity,
with the fewest new machines, or with a verdict.

Replicas that are not running anyway give up their machine in the trial fleet and are placed again, by
priority, in the same rounds as every missing replica; so the replicas of one lost machine share its
replacement. Every purchase is counted on the service, and the next one waits for a back-off. A class whose
empty machine did not accept a replica is not bought again for the service.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.meta.timestamps import format_timestamp, parse_time, parse_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import PROGRESSING_CONDITION, ROLLOUT_COMPLETE, SCALE_DOWN_WAITS
from lattice.kinds.service import Remediation as RemediationRecord
from lattice.lifecycle.replica_observation import ReplicaObservation, has_joined
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.place import place
from lattice.placement.greedy.unschedulable import (
    closed_cluster,
    growable_type,
    growth_blocker,
    node_group_of,
)
from lattice.placement.model.current_state import SURGE_PREFIX
from lattice.placement.model.demand import Demand, MachineRefusal
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.model.machine_catalog import fits_empty_machine
from lattice.placement.model.replica_index import Assignment
from lattice.placement.model.world import World

# The back-off after the first purchase for a service; it doubles with every further purchase.
FIRST_BACKOFF = timedelta(seconds=30)
MAX_BACKOFF = timedelta(hours=1)
# Purchases are forgotten after this time without an unschedulable replica.
FORGET_AFTER = timedelta(minutes=10)


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
    _records: dict[str, dict[tuple[str, str], RemediationRecord]] = field(default_factory=dict)
    _released: dict[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    # By ledger and service: the rate of a machine that the hard limit of the ledger refuses.
    refused_rates: dict[str, dict[str, int]] = field(default_factory=dict)
    # Rows of machines that this decision buys.
    _fresh: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.demands = dict(self.world.demands)
        nodes = self.world.of_kind(LatticeNode)
        # A node that was created a moment ago has no Ready condition yet: its machine is still coming.
        self._joined = {node.metadata.name for node in nodes if has_joined(node)}
        self._rows_before = set(self.fleet.machines.machine_type)
        for name, service in self.world.services.items():
            if service.status.remediation:
                valid = self.world.valid_remediation(service)
                self._records[name] = {(record.offer, record.node_class): record for record in valid}

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
        for replica in detached:
            self._answer(replica)
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

    def _answer(self, replica: _Detached) -> None:
        demand, node_group = replica.demand, replica.node_group
        name, cluster = demand.name, self.fleet.clusters[node_group[0]]
        demand = replica.demand = self.demands[name]
        row = self._machine_with_capacity(demand, node_group, is_coming=True)
        if row is not None:
            self.fleet.assign_replica(demand, row)
            return
        if name in self.rejected or self._is_backing_off(name, cluster, node_group[1]):
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
        # While no machine of the class has proved that it takes the replicas of the service, one at a time
        # gets a machine.
        if (
            self._may_help(demand, cluster, node_group[1])
            and not self._is_proven(name, cluster, node_group[1])
            and (
                self._released.get(name)
                or any(
                    self._is_coming(assignment.machine) for assignment in self.fleet.assignments.get(name, ())
                )
            )
        ):
            self.fleet.assign(replica.assignment)
            return
        self._release(replica)

    def _answer_disagreement(self, replica: _Detached, cluster: Cluster) -> None:
        """The trial fleet has a machine for the replica, and the scheduler rejects the machine: by a taint, a
        port, or another filter that placement does not know."""
        demand, node_group = replica.demand, replica.node_group
        refusing = self._refusing_node(demand, cluster, node_group)
        if cluster.name in self.observation.terminating_clusters:
            self.fleet.assign(replica.assignment)
        elif refusing:
            # Record that an empty machine of the class did not accept a replica.
            shortage = self.observation.shortages.get((demand.name, node_group))
            is_named = shortage is not None and shortage.node == refusing
            need = shortage.need if shortage and is_named else ""
            have = shortage.have if shortage and (is_named or not shortage.need) else ""
            offer = self.fleet.offers[cluster.offer_row].name
            refusal = MachineRefusal(offer, node_group[1], need, have)
            self.demands[demand.name] = replace(demand, refusals=(*demand.refusals, refusal))
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
        record = self._record(demand.name, cluster, node_group[1])
        if self._is_proven(demand.name, cluster, node_group[1]) and not record.attempts:
            return ""
        bought_at = parse_time(self.world.services[demand.name].status.last_scheduled)
        if record.attempts and record.next_at:
            bought_at = parse_timestamp(record.next_at) - _backoff(record.attempts)
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
        return node_group not in self.observation.blocked and any(
            map(self._is_coming, self._rows_of(node_group))
        )

    def _may_help(self, demand: Demand, cluster: Cluster, node_class: str) -> bool:
        """Whether a new machine of the class could take the replica, as far as placement knows."""
        types = self.fleet.offers[cluster.offer_row].types
        return any(kind.name == node_class and fits_empty_machine(demand, kind) for kind in types)

    def _is_proven(self, name: str, cluster: Cluster, node_class: str) -> bool:
        """Whether a replica of the service is bound to a machine of the class in the offer."""
        for bound_cluster, bound_class in self.observation.bound.get(name, ()):
            bound = self.fleet.clusters.get(bound_cluster)
            if bound is not None and (bound.offer_row, bound_class) == (cluster.offer_row, node_class):
                return True
        return False

    def _release(self, replica: _Detached) -> None:
        """Leave the replica to the placement rounds."""
        name = replica.demand.name
        self._released.setdefault(name, Counter())[replica.node_group] += 1
        self.unsettled_clusters.add(replica.node_group[0])

    def _buy(self, demand: Demand, cluster: Cluster, node_class: str) -> int | None:
        """Add one machine of the class to the cluster if limits and budgets allow it, and record the reason
        if they do not."""
        kind = growable_type(self.fleet, cluster, node_class)
        if kind is None or not fits_empty_machine(demand, kind):
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
        self._fresh |= rows - self._rows_before
        self.changed_services[demand.name] = None
        self.unsettled_clusters.add(cluster.name)
        self._count(demand.name, Remediation((cluster.name, ""), 1, is_moved=True))
        # The replica no longer waits for the machine that a ledger refused.
        for rates in self.refused_rates.values():
            rates.pop(demand.name, None)
        return True

    def finish(self) -> None:
        """Count the purchases that the placement rounds made for released replicas."""
        bought_rows = set(self.fleet.machines.machine_type) - self._rows_before - self._fresh
        for name in sorted(self._released, key=lambda name: _by_priority(self.demands[name])):
            assigned: Counter[NodeGroupKey] = Counter()
            machines: Counter[NodeGroupKey] = Counter()
            for assignment in self.fleet.assignments.get(name, ()):
                row, node_group = assignment.machine, node_group_of(self.fleet, assignment)
                if row in self._rows_before:
                    continue
                assigned[node_group] += 1
                if row in bought_rows:
                    bought_rows.discard(row)
                    machines[node_group] += 1
            for node_group, count in sorted(assigned.items()):
                self._count(name, Remediation(node_group, count, machines[node_group]))
                # Services that share a bought machine have all tried the class then.
                self._count_attempt(name, self.fleet.clusters[node_group[0]], node_group[1])
            elsewhere = self._released[name].total() - assigned.total()
            if elsewhere > 0 and self.fleet.replicas.count(name) >= self.demands[name].replicas:
                self._count(name, Remediation(min(self._released[name]), elsewhere, is_moved=True))

    def records(self, name: str) -> tuple[RemediationRecord, ...]:
        """The records of the service after this decision, by offer and class."""
        is_waiting = name in self.observation.unschedulable
        records = []
        for _, record in sorted(self._records.get(name, {}).items()):
            current = record
            if not is_waiting and not record.refused and record.reason:
                current = msgspec.structs.replace(record, reason="", need="", have="")
            if (
                not is_waiting
                and not current.refused
                and not current.surge_machines
                and self._is_old(current)
            ):
                continue
            records.append(current)
        return tuple(records)

    def surge_returns(self, is_settled: Mapping[str, bool]) -> list[SurgeReturn]:
        """The machines that were bought for surge replicas and are not needed any more, after the updates
        have ended; records of surge machines that cannot be given back are cleared."""
        returns: list[SurgeReturn] = []
        names: dict[NodeGroupKey, list[str]] = {}
        for name, records in self._records.items():
            for record in records.values():
                node_group = (record.cluster, record.node_class)
                if record.surge_machines and node_group[0] in self.fleet.clusters:
                    names.setdefault(node_group, []).append(name)
                elif record.surge_machines:
                    self._clear_surge(name, record)
        for node_group, updated in sorted(names.items()):
            if not is_settled[node_group[0]]:
                continue
            # An update that was paused and has no surge replica any more does not need the machine.
            running = [name for name in updated if not self._is_paused(name)]
            if any(name not in self.observation.rolled_out for name in running):
                continue
            returned = self._releasable_machine(node_group, set(updated))
            if returned is not None:
                returns.append(returned)
            for name in updated:
                for record in list(self._records[name].values()):
                    if (record.cluster, record.node_class) == node_group:
                        self._clear_surge(name, record)
        return returns

    def _is_paused(self, name: str) -> bool:
        conditions = self.world.services[name].status.conditions
        progress = find_condition(conditions, PROGRESSING_CONDITION)
        if progress is None or progress.status != "False":
            return False
        return progress.reason not in (ROLLOUT_COMPLETE, SCALE_DOWN_WAITS)

    def _releasable_machine(self, node_group: NodeGroupKey, updated: set[str]) -> SurgeReturn | None:
        """The bought machine with the fewest replicas, all of updated services, whose replicas fit on the other
        machines of the node group; the trial fleet loses the machine."""
        fleet, cluster = self.fleet, self.fleet.clusters[node_group[0]]
        if len(cluster.machines) <= cluster.min_nodes:
            return None
        counts = fleet.machines.replica_counts
        candidates = [
            row
            for row in self._rows_of(node_group)
            if counts[row]
            and counts[row].keys() <= updated
            and not fleet.machines.machine_type[row].is_joined
        ]
        for row in sorted(candidates, key=lambda row: (counts[row].total(), fleet.machines.names[row])):
            name = fleet.machines.names[row]
            if self._is_coming(row):
                continue
            residents = [
                assignment
                for service in sorted(counts[row])
                for assignment in fleet.assignments[service]
                if assignment.machine == row
            ]
            services = tuple(sorted(counts[row]))
            with fleet.attempt() as attempt:
                attempt.succeeded = self._refit(residents, node_group, row)
                if attempt.succeeded:
                    fleet.inventory.drop_machine(row)
            if attempt.succeeded:
                return SurgeReturn(node_group, name, services)
        return None

    def _refit(self, residents: list[Assignment], node_group: NodeGroupKey, row: int) -> bool:
        targets = [target for target in self._rows_of(node_group) if target != row]
        for assignment in residents:
            demand = self.demands[assignment.service]
            self.fleet.unassign(assignment)
            fits = self.fleet.groups.fits_on_machine
            feasible = next((target for target in targets if fits(demand, target)), None)
            if feasible is None:
                return False
            self.fleet.assign_replica(demand, feasible)
        return True

    def _clear_surge(self, name: str, record: RemediationRecord) -> None:
        key = (record.offer, record.node_class)
        self._records[name][key] = msgspec.structs.replace(record, surge_machines=0)

    def _count(self, name: str, remediation: Remediation) -> None:
        self.remediations.setdefault(name, []).append(remediation)

    def _record(self, name: str, cluster: Cluster, node_class: str) -> RemediationRecord:
        offer = self.fleet.offers[cluster.offer_row].name
        record = self._records.get(name, {}).get((offer, node_class))
        if record is not None:
            return record
        return RemediationRecord(
            offer=offer,
            node_class=node_class,
            cluster=cluster.name,
            generation=self.world.services[name].metadata.generation,
            class_generation=self.world.class_generation(node_class),
        )

    def _update(self, name: str, cluster: Cluster, node_class: str, **fields: object) -> None:
        record = msgspec.structs.replace(
            self._record(name, cluster, node_class), cluster=cluster.name, **fields
        )
        self._records.setdefault(name, {})[record.offer, record.node_class] = record

    def _count_attempt(self, name: str, cluster: Cluster, node_class: str) -> None:
        attempts = self._record(name, cluster, node_class).attempts + 1
        next_at = None
        if self.world.now is not None:
            next_at = format_timestamp(self.world.now + _backoff(attempts))
        self._update(
            name, cluster, node_class, attempts=attempts, next_at=next_at, reason="", need="", have=""
        )

    def _is_backing_off(self, name: str, cluster: Cluster, node_class: str) -> bool:
        next_at = self._record(name, cluster, node_class).next_at
        now: datetime | None = self.world.now
        if next_at is None or now is None:
            return False
        # A time far ahead of this clock was written by a leader whose clock was ahead (I-33).
        return now < parse_timestamp(next_at) <= now + MAX_BACKOFF

    def _is_old(self, record: RemediationRecord) -> bool:
        if record.next_at is None or self.world.now is None:
            return True
        age = self.world.now - parse_timestamp(record.next_at)
        return not -MAX_BACKOFF <= age < FORGET_AFTER


def _by_priority(demand: Demand) -> tuple[int, int, int, str]:
    """Higher priority first, then the larger replica, then the name."""
    needs = demand.effective_needs
    return (-demand.priority, -needs.get("cpu", 0), -needs.get("memory", 0), demand.name)


def _backoff(attempts: int) -> timedelta:
    factor: int = 2 ** (min(attempts, 10) - 1)
    return min(FIRST_BACKOFF * factor, MAX_BACKOFF)
