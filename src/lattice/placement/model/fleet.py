"""The fleet as it is or would be: offers with what is taken of them, clusters, machines, replicas and money, all of it undoable."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from lattice.engine.table import Flags, Floats, Integers, Table
from lattice.engine.tie_order import tie_rank
from lattice.placement.inputs.latency import Latencies
from lattice.placement.model.demand import Demand, group_name
from lattice.placement.model.journal import Attempt, Journal
from lattice.placement.model.offer import NO_LIMIT, Budget, MachineType, Offer
from lattice.placement.model.supply import overflow_account

if TYPE_CHECKING:
    from lattice.placement.model.quotes import Quotes

OFFER_RESOURCES = ("nodes", "cpu", "memory", "clusters")
MILLIONTHS = 1_000_000
_NO_REPLICAS: Counter[int] = Counter()
K = TypeVar("K", int, str)


@dataclass(slots=True, eq=False)
class Cluster:
    """Machines that were made in one offer for services under equal rules."""

    name: str
    offer_row: int  # of its offer
    group: str  # hash of the rules, the data center that it is the overflow of, and the one whose reserve it is on
    min_nodes: int
    max_nodes: int
    packing_threshold: int  # millionths: fuller clusters are grown rather than filled
    overflow_source: str = ""
    is_reserved: bool = (
        False  # only those are in it whom the reserve of its offer is for, and nobody else comes
    )
    machines: list[int] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})
    size: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})

    @property
    def utilisation(self) -> int:
        """Millionths taken of cpu or memory, whichever is more."""
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
    gpu_resource: str = ""  # the offer's own count of GPUs that it is taken from


class MachineTable(Table):
    """One row a machine."""

    def __init__(self) -> None:
        super().__init__(("cpu", "memory", "storage", "gpu"))
        self.add_column("offer", np.int32)
        self.add_column("group", np.int32)
        self.add_column("type", np.int32)
        self.add_column("closed", np.bool_)  # not ready, cordoned or draining: nothing new goes there
        self.cluster: dict[int, Cluster] = {}
        self.machine_type: dict[int, MachineType] = {}
        self.replica_counts: dict[int, Counter[str]] = {}

    def init_rows(self, rows: Sequence[int], offer: int, group: int, kind: int) -> None:
        """Of new machines: nothing is on them yet."""
        columns, at = self._columns, rows[0] if len(rows) == 1 else rows
        columns["offer"][at], columns["group"][at], columns["type"][at] = offer, group, kind
        columns["closed"][at] = False
        for row in rows:
            self.touch(row)


class OfferTable(Table):
    """One row an offer. Plugins reach the fleet, and what replicas would take there, through it."""

    fleet: "Fleet"
    quotes: "Quotes"
    masks: dict[
        object, tuple[Callable[[Offer], bool], Flags]
    ]  # where something about the offers themselves holds
    scores: dict[object, Floats]


class Fleet:
    """`table`: one row an offer. Changes are written to a journal while somebody may want to undo them."""

    def __init__(self, offers: Iterable[Offer], budgets: Mapping[str, Budget], latencies: Latencies) -> None:
        kept = sorted(offers, key=lambda each: tie_rank(0, each.name))
        self.table = OfferTable(OFFER_RESOURCES)
        self.table.fleet, self.table.masks, self.table.scores = self, {}, {}
        self.offers: list[Offer] = []
        self.latencies = latencies
        self.budgets = dict(budgets)
        self.committed: Counter[str] = Counter()  # micro-dollars per hour, by ledger
        self.clusters: dict[str, Cluster] = {}
        self.clusters_by_offer: list[dict[str, Cluster]] = []  # of each row
        self.machines = MachineTable()
        self.machines_by_offer: list[set[int]] = []  # machines of each offer
        self.assignments: dict[str, list[Assignment]] = {}  # by service
        self._replicas_by_offer: dict[str, Counter[int]] = {}
        self._replicas_by_cluster: dict[str, Counter[str]] = {}
        self.next_cluster_number: dict[int, int] = {}  # by row: clusters are counted up, never down
        self.overflow_clusters: Counter[str] = Counter()
        self.dependants: Mapping[
            str, Sequence[tuple[str, int]]
        ] = {}  # of a service: who has to be near it, within how many milliseconds
        self.group_ids: dict[str, int] = {}  # of clusters, as machines know them
        self.type_ids = {
            name: number
            for number, name in enumerate(sorted({each.name for offer in kept for each in offer.types}))
        }
        self.unreserved_nodes_used: list[
            int
        ] = []  # by row: machines of clusters that are not kept for anybody
        self._journal = Journal()
        self._offers_by_ledger: dict[str, list[int]] = {}
        self.table.add_column("lost", np.bool_)
        for offer in kept:
            self._add_offer(offer)
        self.nodes_per_cluster: Integers = np.array(
            [offer.limits.nodes_per_cluster for offer in kept], np.int64
        )
        self.headroom_by_offer: Integers = np.array(
            [self.headroom(row) for row in range(len(kept))], np.int64
        )  # to commit, by row
        self.is_budgeted: Flags = np.array([self.has_budget_limit(row) for row in range(len(kept))], np.bool_)
        self._index_offers()

    def _index_offers(self) -> None:
        self.offers_with_reserve = frozenset(offer.name for offer in self.offers if offer.reserved_nodes)
        self.static_rows = [row for row, offer in enumerate(self.offers) if offer.is_static]
        self.overflow_rows = [row for row, offer in enumerate(self.offers) if offer.overflow is not None]
        self.reopen_hints = sorted({offer.reopen_hint for offer in self.offers if offer.closed_reason})

    def _add_offer(self, offer: Offer) -> None:
        row = self.table.add(offer.name, _totals(offer))
        self.offers.append(offer)
        self.clusters_by_offer.append({})
        self.machines_by_offer.append(set())
        self.unreserved_nodes_used.append(0)
        for name in offer.budgets:
            self._offers_by_ledger.setdefault(name, []).append(row)

    def row(self, offer: str) -> int:
        return self.table.row_of[offer]

    def replace_offers(self, offers: Iterable[Offer], budgets: Iterable[Budget]) -> None:
        """Instead of those of the same names, in the same places. Whoever alters puts back, and renews the quotes if classes differ."""
        touched = set()
        for offer in offers:
            touched.add(row := self.row(offer.name))
            before = self.offers[row]
            for each in (before, offer):
                touched.update(self._overflow_targets(each))
            self.offers[row] = offer
            self.table.resize(offer.name, _totals(offer))
            self.nodes_per_cluster[row] = offer.limits.nodes_per_cluster
            for holds, mask in self.table.masks.values():
                mask[row] = holds(offer)
            if offer.is_static or offer.reopen_hint != before.reopen_hint:
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
    def _milliseconds(self) -> Integers:
        return self.latencies.matrix([offer.place for offer in self.offers])

    def ms_to_nearest(self, rows: list[int]) -> Integers:
        """Milliseconds from each offer to the nearest of these."""
        found: Integers = self._milliseconds[:, rows].min(axis=1)
        return found

    def mark_lost(self, row: int) -> None:
        """As if the offer were not there."""
        before = bool(self.table.column("lost")[row])
        self._set_lost(row, True)
        self._journal.record_undo(self._set_lost, row, before)

    def _set_lost(self, row: int, is_lost: bool) -> None:
        self.table.set(row, "lost", is_lost, fixed=False)

    # --- money ---

    def commit_cap(self, ledger: str) -> int:
        budget = self.budgets.get(ledger)
        return NO_LIMIT if budget is None else budget.commit_cap

    def headroom(self, row: int, overflow: str = "") -> int:
        """Micro-dollars per hour that may still be committed here, over all budgets that it is paid from."""
        return min(
            (self.commit_cap(each) - self.committed[each] for each in self.ledgers(row, overflow)),
            default=NO_LIMIT,
        )

    def ledgers(self, row: int, overflow: str = "") -> tuple[str, ...]:
        own = self.offers[row].budgets
        return (*own, overflow_account(overflow).ledger_name) if overflow else own

    def has_budget_limit(self, row: int, overflow: str = "") -> bool:
        """Is there a budget, hard or soft, that needs to know prices?"""
        return any(
            self.budgets[each].limit is not None
            for each in self.ledgers(row, overflow)
            if each in self.budgets
        )

    def is_shared_ledger(self, ledger: str) -> bool:
        """Are machines of several offers paid from it?"""
        return len(self._offers_by_ledger.get(ledger, ())) > 1

    def _commit_rate(self, row: int, overflow: str, rate: int) -> None:
        if not rate:
            return
        if overflow:
            self._touch_overflow_targets(overflow)
        for ledger in self.ledgers(row, overflow):
            self.committed[ledger] += rate
            if self.commit_cap(ledger) < NO_LIMIT:
                for other in self._offers_by_ledger.get(ledger, ()):
                    self.headroom_by_offer[other] = self.headroom(other)
                    if other != row:
                        self.table.touch(other)

    def _touch_overflow_targets(self, overflow: str) -> None:
        if overflow in self.table.row_of:
            for row in self._overflow_targets(self.offers[self.row(overflow)]):
                self.table.touch(row)

    def _overflow_targets(self, static: Offer) -> list[int]:
        """All regions that a data center overflows to: they share its limits."""
        spilling = static.overflow
        return (
            [row for row, offer in enumerate(self.offers) if offer.owner == spilling.target]
            if spilling
            else []
        )

    # --- clusters and machines ---

    def group_of(self, demand: Demand, overflow: str, row: int) -> str:
        """Of clusters that are made for it there."""
        offer = self.offers[row].name
        return group_name(demand.rules.hash, overflow, offer if offer in demand.usable_reserves else "")

    def accepting_groups(self, demand: Demand, overflow: str) -> tuple[str, ...]:
        """Of clusters that take it: whom a reserve is for may be among others, too."""
        kept = (
            demand.usable_reserves.union(self.offers_with_reserve)
            if "reservation" in demand.ignored_limits
            else demand.usable_reserves
        )
        return tuple(group_name(demand.rules.hash, overflow, reserve) for reserve in ("", *sorted(kept)))

    def growable_groups(self, demand: Demand, overflow: str, row: int) -> tuple[str, ...]:
        """Of clusters that are filled and grow for it there: all of its rules, if it is asked what would be without reserves."""
        return (
            self.accepting_groups(demand, overflow)
            if "reservation" in demand.ignored_limits
            else (self.group_of(demand, overflow, row),)
        )

    def accepting_machines(self, demand: Demand, overflow: str) -> Flags | None:
        """Machines of clusters that take it; None: there are none."""
        known = [
            self.group_ids[name] for name in self.accepting_groups(demand, overflow) if name in self.group_ids
        ]
        group = self.machines.column("group")
        if len(known) > 1:
            return np.isin(group, known)
        return group == known[0] if known else None

    def unreserved_nodes_left(self, row: int) -> int:
        """Machines that clusters of others than those whom a reserve is for may still have; below 0: they have too many."""
        offer = self.offers[row]
        return (
            offer.limits.nodes - offer.reserved_nodes - self.unreserved_nodes_used[row]
            if offer.reserved_nodes
            else NO_LIMIT
        )

    def add_cluster(self, cluster: Cluster, number: int) -> None:
        self.clusters[cluster.name] = cluster
        self.clusters_by_offer[cluster.offer_row][cluster.name] = cluster
        before = self.next_cluster_number.get(cluster.offer_row, 1)
        self.next_cluster_number[cluster.offer_row] = max(before, number + 1)
        if cluster.overflow_source:
            self.overflow_clusters[cluster.overflow_source] += 1
            self._touch_overflow_targets(cluster.overflow_source)
        self.table.allocate(cluster.offer_row, [(self.table.resource_index["clusters"], 1)])
        self._journal.record_undo(self._remove_cluster, cluster.name, before)

    def skip_cluster_numbers(self, offer: str, number: int) -> None:
        """Clusters up to this number were there already."""
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
        """Empty by now. Its number is not given again."""
        cluster = self.clusters[name]
        self._remove_cluster(name)
        self._journal.record_undo(self._restore_cluster, cluster)

    def _restore_cluster(self, cluster: Cluster) -> None:
        self.add_cluster(cluster, 0)

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
        machines.init_rows(rows, cluster.offer_row, self._group(cluster.group), number)
        cluster.machines += rows
        self.machines_by_offer[cluster.offer_row].update(rows)
        self._resize(cluster, kind, len(rows))
        self._commit_rate(cluster.offer_row, cluster.overflow_source, len(rows) * kind.rate)
        return rows

    def new_machine_names(self, cluster: Cluster, kind: str, count: int) -> list[str]:
        """For machines that are not made yet."""
        numbered = (f"{cluster.name}/{kind}/{number}" for number in itertools.count(len(cluster.machines)))
        return list(itertools.islice((name for name in numbered if name not in self.machines.row_of), count))

    def _group(self, group: str) -> int:
        return self.group_ids.setdefault(group, len(self.group_ids))

    def _resize(self, cluster: Cluster, kind: MachineType, more: int) -> None:
        index = self.table.resource_index
        if not cluster.is_reserved:
            self.unreserved_nodes_used[cluster.offer_row] += more
        amounts = {name: kind.size.get(name, 0) for name in ("cpu", "memory")}
        for name, amount in amounts.items():
            cluster.size[name] += more * amount
        taken = [(index[name], more * amount) for name, amount in amounts.items() if amount < NO_LIMIT]
        self.table.allocate(cluster.offer_row, [(index["nodes"], more), *taken])

    def drop_machine(self, row: int) -> None:
        """Empty by now."""
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

    def assign(self, seat: Assignment) -> None:
        self._apply_usage(seat, 1)
        self._index_assignment(seat)
        self._journal.record_undo(self._undo_assign, seat)

    def _index_assignment(self, seat: Assignment) -> None:
        """Where the service has its replicas."""
        service, cluster = seat.service, self.machines.cluster[seat.machine]
        known = self.assignments.get(service)
        if known is None:
            (
                self.assignments[service],
                self._replicas_by_offer[service],
                self._replicas_by_cluster[service],
            ) = (
                [seat],
                Counter({cluster.offer_row: 1}),
                Counter({cluster.name: 1}),
            )
            return
        known.append(seat)
        self._replicas_by_offer[service][cluster.offer_row] += 1
        self._replicas_by_cluster[service][cluster.name] += 1

    def assign_all(self, seats: Sequence[Assignment]) -> None:
        """As `seat`, of many that were there before anybody began to change things, in offers that do not count GPUs."""
        machines = self.machines
        taken: dict[str, tuple[list[int], list[int]]] = {}  # by resource: machines and amounts
        for seat in seats:
            row = seat.machine
            used, holds = machines.cluster[row].used, machines.replica_counts[row]
            holds[seat.service] = holds.get(seat.service, 0) + 1
            for name, amount in seat.needs:
                if name in used:
                    used[name] += amount
                rows, amounts = taken.get(name) or taken.setdefault(name, ([], []))
                rows.append(row)
                amounts.append(amount)
            self._index_assignment(seat)
        for name, (rows, amounts) in taken.items():
            machines.allocate_many(machines.add_resource(name), rows, amounts)
        for row in dict.fromkeys(each.machine for each in seats):
            machines.touch(row)
            self.table.touch(machines.cluster[row].offer_row)

    def unassign(self, seat: Assignment) -> None:
        self._undo_assign(seat)
        self._journal.record_undo(self.assign, seat)

    def _undo_assign(self, seat: Assignment) -> None:
        seats = self.assignments[seat.service]
        if seats[-1] == seat:
            seats.pop()
        else:
            seats.reverse()
            seats.remove(seat)  # the latest of equal ones
            seats.reverse()
        cluster = self.machines.cluster[seat.machine]
        _decrement(self._replicas_by_offer[seat.service], cluster.offer_row)
        _decrement(self._replicas_by_cluster[seat.service], cluster.name)
        if not seats:
            del (
                self.assignments[seat.service],
                self._replicas_by_offer[seat.service],
                self._replicas_by_cluster[seat.service],
            )
        self._apply_usage(seat, -1)

    def _apply_usage(self, seat: Assignment, sign: int) -> None:
        machines, row = self.machines, seat.machine
        cluster, holds = machines.cluster[row], machines.replica_counts[row]
        machines.allocate(row, [(machines.add_resource(name), sign * amount) for name, amount in seat.needs])
        holds[seat.service] += sign
        if not holds[seat.service]:
            del holds[seat.service]
        for name, amount in seat.needs:
            if name in cluster.used:
                cluster.used[name] += sign * amount
        if seat.gpu_resource:
            self.table.allocate(
                cluster.offer_row,
                [(self.table.resource_index[seat.gpu_resource], sign * dict(seat.needs)["gpu"])],
            )
        self.table.touch(cluster.offer_row)

    @property
    def replica_count(self) -> int:
        return sum(map(len, self.assignments.values()))

    def offer_rows_of(self, service: str) -> list[int]:
        """The offers that its replicas are in, each once."""
        return list(self.replicas_by_offer(service))

    def replicas_by_offer(self, service: str) -> Counter[int]:
        """Its replicas by offer."""
        return self._replicas_by_offer.get(service, _NO_REPLICAS)

    def clusters_of(self, service: str) -> Iterable[str]:
        """The clusters that its replicas are in, each once."""
        return self._replicas_by_cluster.get(service, ())

    # --- undo ---

    def what_if(self) -> AbstractContextManager[None]:
        """Change things freely inside: on the way out everything is as it was."""
        return self._journal.what_if()

    def attempt(self) -> AbstractContextManager[Attempt]:
        """Keep what was done only if it was a success."""
        return self._journal.attempt()


def _decrement(counts: Counter[K], key: K) -> None:
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
