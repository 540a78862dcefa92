"""Replicas of the trial fleet: assignments to machines, counted by service, offer and cluster."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lattice.placement.model.demand import Demand
from lattice.placement.model.inventory import ClusterInventory
from lattice.placement.model.journal import Journal
from lattice.placement.model.offer import OfferTable

_NO_REPLICAS: Counter[int] = Counter()
CountKey = TypeVar("CountKey", int, str)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One replica on one machine."""

    service: str
    machine: int
    needs: tuple[tuple[str, int], ...]
    # The resource of the offer that counts the GPUs of the replica, if the offer counts GPUs in total.
    gpu_resource: str = ""
    # The service may use the reserve of the offer.
    is_entitled: bool = False


class ReplicaIndex:
    """All assignments. Assigning a replica also changes the usage of the machine, the cluster and the offer;
    the journal records how to undo it."""

    def __init__(self, table: OfferTable, inventory: ClusterInventory, journal: Journal) -> None:
        self._table, self._inventory, self._journal = table, inventory, journal
        self._machines = inventory.machines
        self.assignments: dict[str, list[Assignment]] = {}  # by service
        self._by_offer: dict[str, Counter[int]] = {}
        self._by_cluster: dict[str, Counter[str]] = {}

    @property
    def total(self) -> int:
        return sum(map(len, self.assignments.values()))

    def count(self, service: str) -> int:
        return len(self.assignments.get(service, ()))

    def offer_rows(self, service: str) -> list[int]:
        """Rows of the offers with replicas of the service, without duplicates."""
        return list(self.by_offer(service))

    def by_offer(self, service: str) -> Counter[int]:
        """Replicas of the service by offer row."""
        return self._by_offer.get(service, _NO_REPLICAS)

    def clusters(self, service: str) -> Iterable[str]:
        """Names of the clusters with replicas of the service, without duplicates."""
        return self._by_cluster.get(service, ())

    def assign_replica(self, demand: Demand, machine: int) -> Assignment:
        """Assign one replica to the machine; if the offer counts GPUs in total, count the GPUs of the replica
        against the offer."""
        row, needs = self._machines.cluster[machine].offer_row, demand.effective_needs
        has_gpu_limit = needs.get("gpu") and self._table.offers[row].limits.gpus
        gpu_resource = self._table.gpu_resource_for(demand, row) if has_gpu_limit else ""
        is_entitled = self._table.offers[row].name in demand.usable_reserves
        assignment = Assignment(demand.name, machine, tuple(needs.items()), gpu_resource, is_entitled)
        self.assign(assignment)
        return assignment

    def assign(self, assignment: Assignment) -> None:
        self._apply_usage(assignment, 1)
        self._add(assignment)
        self._journal.record_undo(self._remove, assignment)

    def unassign(self, assignment: Assignment) -> None:
        self._remove(assignment)
        self._journal.record_undo(self.assign, assignment)

    def bulk_assignments(self, demand: Demand, machines: Sequence[int]) -> list[Assignment] | None:
        """Assignments to be applied later by `assign_all`; None if a machine belongs to an offer that counts
        GPUs in total."""
        for machine in machines:
            if self._table.offers[self._machines.cluster[machine].offer_row].limits.gpus:
                return None
        needs = tuple(demand.effective_needs.items())
        reserves = demand.usable_reserves
        return [
            Assignment(
                demand.name,
                machine,
                needs,
                is_entitled=bool(reserves)
                and self._table.offers[self._machines.cluster[machine].offer_row].name in reserves,
            )
            for machine in machines
        ]

    def assign_all(self, assignments: Sequence[Assignment]) -> None:
        """Assign many replicas at once: faster than `assign`, but not undoable, and only for offers that do
        not count GPUs in total."""
        machines = self._machines
        # By resource: machines and amounts.
        usage: dict[str, tuple[list[int], list[int]]] = {}
        for assignment in assignments:
            row = assignment.machine
            used, counts = machines.cluster[row].used, machines.replica_counts[row]
            counts[assignment.service] = counts.get(assignment.service, 0) + 1
            for name, amount in assignment.needs:
                if name in used:
                    used[name] += amount
                rows, amounts = usage.get(name) or usage.setdefault(name, ([], []))
                rows.append(row)
                amounts.append(amount)
            self._count_unentitled(assignment, 1)
            self._add(assignment)
        for name, (rows, amounts) in usage.items():
            machines.allocate_many(machines.add_resource(name), rows, amounts)
        for row in dict.fromkeys(assignment.machine for assignment in assignments):
            machines.touch(row)
            self._table.touch(machines.cluster[row].offer_row)

    def _add(self, assignment: Assignment) -> None:
        """Count the replica under its service, offer and cluster."""
        service, cluster = assignment.service, self._machines.cluster[assignment.machine]
        assignments = self.assignments.get(service)
        if assignments is None:
            self.assignments[service] = [assignment]
            self._by_offer[service], self._by_cluster[service] = Counter(), Counter()
        else:
            assignments.append(assignment)
        self._by_offer[service][cluster.offer_row] += 1
        self._by_cluster[service][cluster.name] += 1

    def _remove(self, assignment: Assignment) -> None:
        service, cluster = assignment.service, self._machines.cluster[assignment.machine]
        assignments = self.assignments[service]
        if assignments[-1] == assignment:
            assignments.pop()
        else:
            assignments.reverse()
            # The latest of equal assignments is removed: the list is searched from its end.
            assignments.remove(assignment)
            assignments.reverse()
        if assignments:
            _decrement(self._by_offer[service], cluster.offer_row)
            _decrement(self._by_cluster[service], cluster.name)
        else:
            del self.assignments[service], self._by_offer[service], self._by_cluster[service]
        self._apply_usage(assignment, -1)

    def _apply_usage(self, assignment: Assignment, sign: int) -> None:
        machines, row = self._machines, assignment.machine
        cluster, counts = machines.cluster[row], machines.replica_counts[row]
        machines.allocate(
            row, [(machines.add_resource(name), sign * amount) for name, amount in assignment.needs]
        )
        counts[assignment.service] += sign
        if not counts[assignment.service]:
            del counts[assignment.service]
        for name, amount in assignment.needs:
            if name in cluster.used:
                cluster.used[name] += sign * amount
        self._count_unentitled(assignment, sign)
        if assignment.gpu_resource:
            self._table.allocate(
                cluster.offer_row,
                [(self._table.resource_index[assignment.gpu_resource], sign * dict(assignment.needs)["gpu"])],
            )
        self._table.touch(cluster.offer_row)

    def _count_unentitled(self, assignment: Assignment, sign: int) -> None:
        row = self._machines.cluster[assignment.machine].offer_row
        if assignment.is_entitled or not self._table.offers[row].is_static:
            return
        usage = self._inventory.unentitled_usage[row]
        for name, amount in assignment.needs:
            usage[name] += sign * amount


def _decrement(counts: Counter[CountKey], key: CountKey) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
