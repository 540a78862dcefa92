"""The trial fleet: offers with usage, clusters, machines, replicas and committed money, where every change
can be undone."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from lattice.engine.table import Flags, Floats, Integers, Table
from lattice.engine.tie_order import tie_rank
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.inputs.latency import Latencies
from lattice.placement.model.demand import Demand, group_name
from lattice.placement.model.journal import Attempt, Journal
from lattice.placement.model.offer import NO_LIMIT, Budget, MachineType, Offer
from lattice.placement.model.quote_source import QuoteSource
from lattice.placement.model.supply import overflow_account

OFFER_RESOURCES = ("nodes", "cpu", "memory", "clusters")
_NO_REPLICAS: Counter[int] = Counter()
CountKey = TypeVar("CountKey", int, str)


@dataclass(slots=True, eq=False)
class Cluster:
    """Machines of one offer for services under equal rules."""

    name: str
    offer_row: int
    # Hash of the rules, the data center whose overflow the cluster is, and the offer whose reserve the cluster is on.
    group: str
    min_nodes: int
    max_nodes: int
    # Millionths of utilisation: above, the cluster gets another machine before it is filled further.
    packing_threshold: int
    overflow_source: str = ""
    # The cluster is on the reserve of the offer: only services that may use the reserve are in the cluster.
    is_reserved: bool = False
    machines: list[int] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})
    size: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})

    @property
    def utilisation(self) -> int:
        """Millionths used of cpu or memory, the larger of the two."""
        shares = [
            self.used[name] * MILLIONTHS // self.size[name]
            for name in ("cpu", "memory")
            if 0 < self.size[name] < NO_LIMIT
        ]
        return max(shares, default=0)

    @property
    def is_below_threshold(self) -> bool:
        return self.utilisation < self.packing_threshold


@dataclass(frozen=True, slots=True)
class Assignment:
    """One replica on one machine."""

    service: str
    machine: int
    needs: tuple[tuple[str, int], ...]
    # The GPU count of the offer that the replica is counted against.
    gpu_resource: str = ""


class MachineTable(Table):
    """Table of machines, a row per machine."""

    def __init__(self) -> None:
        super().__init__(("cpu", "memory", "storage", "gpu"))
        self.add_column("offer", np.int32)
        self.add_column("group", np.int32)
        self.add_column("type", np.int32)
        # The node is not ready, cordoned or draining: no new replica is assigned.
        self.add_column("closed", np.bool_)
        self.cluster: dict[int, Cluster] = {}
        self.machine_type: dict[int, MachineType] = {}
        self.replica_counts: dict[int, Counter[str]] = {}

    def init_rows(self, rows: Sequence[int], offer: int, group: int, kind: int) -> None:
        """Set the columns of new, empty machines."""
        columns, index = self._columns, rows[0] if len(rows) == 1 else rows
        columns["offer"][index], columns["group"][index], columns["type"][index] = offer, group, kind
        columns["closed"][index] = False
        for row in rows:
            self.touch(row)


class OfferTable(Table):
    """Table of offers, a row per offer; through the table plugins reach the fleet and the quotes."""

    fleet: "Fleet"
    quotes: QuoteSource
    # Masks over properties of the offers, with the predicate that recomputes a row when an offer is replaced.
    masks: dict[object, tuple[Callable[[Offer], bool], Flags]]
    scores: dict[object, Floats]


class Fleet:
    """Offers, clusters, machines and assignments; inside `what_if` or `attempt` the journal records how to
    undo a change."""

    def __init__(self, offers: Iterable[Offer], budgets: Mapping[str, Budget], latencies: Latencies) -> None:
        ordered = sorted(offers, key=lambda offer: tie_rank(0, offer.name))
        self.table = OfferTable(OFFER_RESOURCES)
        self.table.fleet, self.table.masks, self.table.scores = self, {}, {}
        self.offers: list[Offer] = []
        self.latencies = latencies
        self.budgets = dict(budgets)
        self.committed: Counter[str] = Counter()  # micro-dollars per hour, by ledger
        self.clusters: dict[str, Cluster] = {}
        self.clusters_by_offer: list[dict[str, Cluster]] = []  # by row
        self.machines = MachineTable()
        self.machines_by_offer: list[set[int]] = []  # by row
        self.assignments: dict[str, list[Assignment]] = {}  # by service
        self._replicas_by_offer: dict[str, Counter[int]] = {}
        self._replicas_by_cluster: dict[str, Counter[str]] = {}
        # By row; the number of a deleted cluster is not given again.
        self.next_cluster_number: dict[int, int] = {}
        self.overflow_clusters: Counter[str] = Counter()
        # By service: the services that must be near, with the largest round trip in milliseconds.
        self.dependants: Mapping[str, Sequence[tuple[str, int]]] = {}
        # Cluster groups as numbers, for the column of the machine table.
        self.group_ids: dict[str, int] = {}
        type_names: set[str] = set()
        for offer in ordered:
            type_names.update(machine_type.name for machine_type in offer.types)
        self.type_ids = {name: number for number, name in enumerate(sorted(type_names))}
        # By row: machines of clusters that are not on the reserve.
        self.unreserved_nodes_used: list[int] = []
        self._journal = Journal()
        self._offers_by_ledger: dict[str, list[int]] = {}
        self.table.add_column("lost", np.bool_)
        for offer in ordered:
            row = self.table.add(offer.name, _totals(offer))
            self.offers.append(offer)
            self.clusters_by_offer.append({})
            self.machines_by_offer.append(set())
            self.unreserved_nodes_used.append(0)
            for name in offer.budgets:
                self._offers_by_ledger.setdefault(name, []).append(row)
        self.nodes_per_cluster: Integers = np.array(
            [offer.limits.nodes_per_cluster for offer in ordered], np.int64
        )
        # Micro-dollars per hour that may still be committed, by row.
        self.headroom_by_offer: Integers = np.array(
            [self.headroom(row) for row in range(len(ordered))], np.int64
        )
        self.is_budgeted: Flags = np.array(
            [self.has_budget_limit(row) for row in range(len(ordered))], np.bool_
        )
        self._index_offers()

    def _index_offers(self) -> None:
        self.static_rows: list[int] = []
        self.overflow_rows: list[int] = []
        reserving, hints = set(), set()
        for row, offer in enumerate(self.offers):
            if offer.reserved_nodes:
                reserving.add(offer.name)
            if offer.is_static:
                self.static_rows.append(row)
            if offer.overflow is not None:
                self.overflow_rows.append(row)
            if offer.closed_reason:
                hints.add(offer.reopen_hint)
        self.offers_with_reserve, self.reopen_hints = frozenset(reserving), sorted(hints)

    def row(self, offer: str) -> int:
        return self.table.row_of[offer]

    def replace_offers(self, offers: Iterable[Offer], budgets: Iterable[Budget]) -> None:
        """Replace offers and budgets of the same names in their rows, outside of the journal.

        The caller puts the previous offers back, and renews the quotes if machine types differ.
        """
        touched = set()
        for offer in offers:
            touched.add(row := self.row(offer.name))
            previous = self.offers[row]
            for version in (previous, offer):
                touched.update(self._overflow_targets(version))
            self.offers[row] = offer
            self.table.resize(offer.name, _totals(offer))
            self.nodes_per_cluster[row] = offer.limits.nodes_per_cluster
            # The cached masks would still describe the previous offer.
            for holds, mask in self.table.masks.values():
                mask[row] = holds(offer)
            # Only static offers have a reserve or an overflow: any other offer changes at most the hints.
            if offer.is_static or offer.reopen_hint != previous.reopen_hint:
                self._index_offers()
        for budget in budgets:
            self.budgets[budget.name] = budget
            touched.update(self._offers_by_ledger.get(budget.name, ()))
        for row in touched:
            self.headroom_by_offer[row], self.is_budgeted[row] = (
                self.headroom(row),
                self.has_budget_limit(row),
            )
            self.table.touch_fixed(row)
        self.table.scores.clear()

    @cached_property
    def _rtt_ms(self) -> Integers:
        return self.latencies.matrix([offer.place for offer in self.offers])

    def ms_to_nearest(self, rows: list[int]) -> Integers:
        """Milliseconds from every offer to the nearest offer of the given rows."""
        nearest: Integers = self._rtt_ms[:, rows].min(axis=1)
        return nearest

    def mark_lost(self, row: int) -> None:
        """Reject every replica for the offer, as if the offer were deleted."""
        was_lost = bool(self.table.column("lost")[row])
        self._set_lost(row, True)
        self._journal.record_undo(self._set_lost, row, was_lost)

    def _set_lost(self, row: int, is_lost: bool) -> None:
        self.table.set(row, "lost", is_lost, fixed=False)

    # --- money ---

    def commit_cap(self, ledger: str) -> int:
        budget = self.budgets.get(ledger)
        return NO_LIMIT if budget is None else budget.commit_cap

    def headroom(self, row: int, overflow: str = "") -> int:
        """Micro-dollars per hour that may still be committed in the offer, over all ledgers that pay; may be
        negative."""
        return min(
            (self.commit_cap(ledger) - self.committed[ledger] for ledger in self.ledgers(row, overflow)),
            default=NO_LIMIT,
        )

    def ledgers(self, row: int, overflow: str = "") -> tuple[str, ...]:
        """Names of the ledgers that pay for a machine of the offer, with the ledger of the overflow source,
        if any."""
        own = self.offers[row].budgets
        return (*own, overflow_account(overflow).ledger_name) if overflow else own

    def has_budget_limit(self, row: int, overflow: str = "") -> bool:
        """Whether a ledger of the offer has a limit, hard or soft, so that machines need a price."""
        return any(
            self.budgets[ledger].limit is not None
            for ledger in self.ledgers(row, overflow)
            if ledger in self.budgets
        )

    def is_shared_ledger(self, ledger: str) -> bool:
        """Whether the ledger pays for machines of two or more offers."""
        return len(self._offers_by_ledger.get(ledger, ())) > 1

    def _commit_rate(self, row: int, overflow: str, rate: int) -> None:
        if not rate:
            return
        if overflow:
            self._touch_overflow_targets(overflow)
        for ledger in self.ledgers(row, overflow):
            self.committed[ledger] += rate
            # Without a cap the headroom of the offers that share the ledger stays as it is.
            if self.commit_cap(ledger) < NO_LIMIT:
                for sharing_row in self._offers_by_ledger.get(ledger, ()):
                    self.headroom_by_offer[sharing_row] = self.headroom(sharing_row)
                    if sharing_row != row:
                        self.table.touch(sharing_row)

    def _touch_overflow_targets(self, overflow: str) -> None:
        if overflow in self.table.row_of:
            for row in self._overflow_targets(self.offers[self.row(overflow)]):
                self.table.touch(row)

    def _overflow_targets(self, static: Offer) -> list[int]:
        """Rows of the regions that the data center overflows to; the rows share the limits of the overflow."""
        overflow = static.overflow
        if overflow is None:
            return []
        return [row for row, offer in enumerate(self.offers) if offer.owner == overflow.target]

    # --- clusters and machines ---

    def group_of(self, demand: Demand, overflow: str, row: int) -> str:
        """The group of clusters that are created for the demand in the offer."""
        offer = self.offers[row].name
        return group_name(demand.rules.hash, overflow, offer if offer in demand.usable_reserves else "")

    def accepting_groups(self, demand: Demand, overflow: str) -> tuple[str, ...]:
        """The groups of clusters that accept the demand; a service with a reserve may join clusters outside
        of the reserve too."""
        reserves = (
            demand.usable_reserves.union(self.offers_with_reserve)
            if "reservation" in demand.ignored_limits
            else demand.usable_reserves
        )
        return tuple(group_name(demand.rules.hash, overflow, reserve) for reserve in ("", *sorted(reserves)))

    def growable_groups(self, demand: Demand, overflow: str, row: int) -> tuple[str, ...]:
        """The groups of clusters that may grow for the demand in the offer; all accepting groups if
        reservations are ignored."""
        return (
            self.accepting_groups(demand, overflow)
            if "reservation" in demand.ignored_limits
            else (self.group_of(demand, overflow, row),)
        )

    def accepting_machines(self, demand: Demand, overflow: str) -> Flags | None:
        """Mask of the machines in clusters that accept the demand; None if no cluster does."""
        group_ids = [
            self.group_ids[name] for name in self.accepting_groups(demand, overflow) if name in self.group_ids
        ]
        group = self.machines.column("group")
        if len(group_ids) > 1:
            return np.isin(group, group_ids)
        return group == group_ids[0] if group_ids else None

    def unreserved_nodes_left(self, row: int) -> int:
        """Machines that clusters outside of the reserve may still add; negative if the clusters already use
        part of the reserve."""
        offer = self.offers[row]
        return (
            offer.limits.nodes - offer.reserved_nodes - self.unreserved_nodes_used[row]
            if offer.reserved_nodes
            else NO_LIMIT
        )

    def add_cluster(self, cluster: Cluster, number: int) -> None:
        """Add an empty cluster; the number keeps later clusters of the offer from getting the same name."""
        self.clusters[cluster.name] = cluster
        self.clusters_by_offer[cluster.offer_row][cluster.name] = cluster
        next_number = self.next_cluster_number.get(cluster.offer_row, 1)
        self.next_cluster_number[cluster.offer_row] = max(next_number, number + 1)
        if cluster.overflow_source:
            self.overflow_clusters[cluster.overflow_source] += 1
            self._touch_overflow_targets(cluster.overflow_source)
        self.table.allocate(cluster.offer_row, [(self.table.resource_index["clusters"], 1)])
        self._journal.record_undo(self._remove_cluster, cluster.name, next_number)

    def skip_cluster_numbers(self, offer: str, number: int) -> None:
        """Give numbers below `number` to no further cluster of the offer."""
        row = self.table.row_of.get(offer)
        if row is not None:
            self.next_cluster_number[row] = max(self.next_cluster_number.get(row, 1), number)

    def _remove_cluster(self, name: str, number: int | None = None) -> None:
        cluster = self.clusters.pop(name)
        del self.clusters_by_offer[cluster.offer_row][name]
        if number is not None:
            self.next_cluster_number[cluster.offer_row] = number
        if cluster.overflow_source:
            self.overflow_clusters[cluster.overflow_source] -= 1
            self._touch_overflow_targets(cluster.overflow_source)
        self.table.allocate(cluster.offer_row, [(self.table.resource_index["clusters"], -1)])

    def drop_cluster(self, name: str) -> None:
        """Remove an empty cluster; the number of the cluster is not given again."""
        cluster = self.clusters[name]
        self._remove_cluster(name)
        # Number 0 leaves the next number of the offer as it is.
        self._journal.record_undo(self.add_cluster, cluster, 0)

    def add_machine(self, cluster: Cluster, kind: MachineType, name: str = "") -> int:
        return self.add_machines(
            cluster, kind, [name] if name else self.new_machine_names(cluster, kind.name, 1)
        )[0]

    def add_machines(self, cluster: Cluster, kind: MachineType, names: Sequence[str]) -> list[int]:
        machines = self.machines
        rows = machines.add_identical(
            names, {resource: min(amount, NO_LIMIT) for resource, amount in kind.size.items()}
        )
        number = self.type_ids.setdefault(kind.name, len(self.type_ids))
        for row in rows:
            machines.cluster[row], machines.machine_type[row], machines.replica_counts[row] = (
                cluster,
                kind,
                Counter(),
            )
            self._journal.record_undo(self._remove_machine, row)
        group_id = self.group_ids.setdefault(cluster.group, len(self.group_ids))
        machines.init_rows(rows, cluster.offer_row, group_id, number)
        cluster.machines += rows
        self.machines_by_offer[cluster.offer_row].update(rows)
        self._resize(cluster, kind, len(rows))
        self._commit_rate(cluster.offer_row, cluster.overflow_source, len(rows) * kind.rate)
        return rows

    def new_machine_names(self, cluster: Cluster, kind: str, count: int) -> list[str]:
        """Unused names for `count` machines that do not exist yet."""
        numbered = (f"{cluster.name}/{kind}/{number}" for number in itertools.count(len(cluster.machines)))
        return list(itertools.islice((name for name in numbered if name not in self.machines.row_of), count))

    def _resize(self, cluster: Cluster, kind: MachineType, count: int) -> None:
        index = self.table.resource_index
        if not cluster.is_reserved:
            self.unreserved_nodes_used[cluster.offer_row] += count
        amounts = {name: kind.size.get(name, 0) for name in ("cpu", "memory")}
        for name, amount in amounts.items():
            cluster.size[name] += count * amount
        usage = [(index[name], count * amount) for name, amount in amounts.items() if amount < NO_LIMIT]
        self.table.allocate(cluster.offer_row, [(index["nodes"], count), *usage])

    def drop_machine(self, row: int) -> None:
        """Remove an empty machine."""
        cluster, kind, name = (
            self.machines.cluster[row],
            self.machines.machine_type[row],
            self.machines.names[row],
        )
        is_closed = bool(self.machines.column("closed")[row])
        self._remove_machine(row)
        self._journal.record_undo(self._restore_machine, cluster, kind, name, is_closed)

    def _restore_machine(self, cluster: Cluster, kind: MachineType, name: str, is_closed: bool) -> None:
        row = self.add_machine(cluster, kind, name)
        self.machines.set(row, "closed", is_closed, fixed=False)

    def _remove_machine(self, row: int) -> None:
        machines = self.machines
        cluster, kind = machines.cluster.pop(row), machines.machine_type.pop(row)
        del machines.replica_counts[row]
        cluster.machines.remove(row)
        self.machines_by_offer[cluster.offer_row].discard(row)
        machines.remove(machines.names[row])
        self._resize(cluster, kind, -1)
        self._commit_rate(cluster.offer_row, cluster.overflow_source, -kind.rate)

    # --- replicas ---

    def assign(self, assignment: Assignment) -> None:
        self._apply_usage(assignment, 1)
        self._index_assignment(assignment)
        self._journal.record_undo(self._undo_assign, assignment)

    def _index_assignment(self, assignment: Assignment) -> None:
        """Count the replica under its service, offer and cluster."""
        service, cluster = assignment.service, self.machines.cluster[assignment.machine]
        assignments = self.assignments.get(service)
        if assignments is None:
            (
                self.assignments[service],
                self._replicas_by_offer[service],
                self._replicas_by_cluster[service],
            ) = (
                [assignment],
                Counter({cluster.offer_row: 1}),
                Counter({cluster.name: 1}),
            )
            return
        assignments.append(assignment)
        self._replicas_by_offer[service][cluster.offer_row] += 1
        self._replicas_by_cluster[service][cluster.name] += 1

    def assign_all(self, assignments: Sequence[Assignment]) -> None:
        """Assign many replicas at once: faster than `assign`, but not undoable, and only for offers that do
        not count GPUs in total."""
        machines = self.machines
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
            self._index_assignment(assignment)
        for name, (rows, amounts) in usage.items():
            machines.allocate_many(machines.add_resource(name), rows, amounts)
        for row in dict.fromkeys(assignment.machine for assignment in assignments):
            machines.touch(row)
            self.table.touch(machines.cluster[row].offer_row)

    def unassign(self, assignment: Assignment) -> None:
        self._undo_assign(assignment)
        self._journal.record_undo(self.assign, assignment)

    def _undo_assign(self, assignment: Assignment) -> None:
        assignments = self.assignments[assignment.service]
        if assignments[-1] == assignment:
            assignments.pop()
        else:
            assignments.reverse()
            # The latest of equal assignments goes: the list is searched from its end.
            assignments.remove(assignment)
            assignments.reverse()
        cluster = self.machines.cluster[assignment.machine]
        _decrement(self._replicas_by_offer[assignment.service], cluster.offer_row)
        _decrement(self._replicas_by_cluster[assignment.service], cluster.name)
        if not assignments:
            del (
                self.assignments[assignment.service],
                self._replicas_by_offer[assignment.service],
                self._replicas_by_cluster[assignment.service],
            )
        self._apply_usage(assignment, -1)

    def _apply_usage(self, assignment: Assignment, sign: int) -> None:
        machines, row = self.machines, assignment.machine
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
        if assignment.gpu_resource:
            self.table.allocate(
                cluster.offer_row,
                [(self.table.resource_index[assignment.gpu_resource], sign * dict(assignment.needs)["gpu"])],
            )
        self.table.touch(cluster.offer_row)

    @property
    def replica_count(self) -> int:
        return sum(map(len, self.assignments.values()))

    def offer_rows_of(self, service: str) -> list[int]:
        """Rows of the offers with replicas of the service, without duplicates."""
        return list(self.replicas_by_offer(service))

    def replicas_by_offer(self, service: str) -> Counter[int]:
        """Replicas of the service by offer row."""
        return self._replicas_by_offer.get(service, _NO_REPLICAS)

    def clusters_of(self, service: str) -> Iterable[str]:
        """Names of the clusters with replicas of the service, without duplicates."""
        return self._replicas_by_cluster.get(service, ())

    # --- undo ---

    def what_if(self) -> AbstractContextManager[None]:
        """A context whose changes are all undone on exit."""
        return self._journal.what_if()

    def attempt(self) -> AbstractContextManager[Attempt]:
        """A context whose changes are undone on exit, unless the attempt is marked as succeeded."""
        return self._journal.attempt()


def _decrement(counts: Counter[CountKey], key: CountKey) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _totals(offer: Offer) -> dict[str, int]:
    limits = offer.limits
    totals = {
        "nodes": limits.nodes,
        "cpu": limits.milli,
        "memory": limits.memory,
        "clusters": limits.clusters,
    }
    return totals | {f"gpu:{model}": count for model, count in limits.gpus.items()}
