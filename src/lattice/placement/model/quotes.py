"""What would one more replica take in each offer: room on a machine that is there, or which new machines, for how much?"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Integers, Rowids
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.machine_catalog import UNPRICED_COST, MachineCatalog, MachineFit, is_type_allowed
from lattice.placement.model.offer import NO_LIMIT

TypeIds = NDArray[np.int16]
UNSET = -1
MAX_CACHED_SHAPES = 2048  # shapes whose quotes are kept
UNBOUNDED_COUNT = 1 << 20  # machines or clusters


@dataclass(slots=True)
class Quote:
    """One entry an offer. Where `has_room` nothing is bought; else `count` machines of `type`, for `rate` micro-dollars per hour in all."""

    version: int
    can_host: Flags  # some class of machines would do, were there any left
    has_free_capacity: Flags
    within_limits: Flags  # within the limits on machines, cores, memory and clusters
    affordable: Flags  # of those, within the budgets too
    type_id: TypeIds
    machine_count: Integers
    rate: Integers
    rate_per_replica: Integers  # micro-dollars per hour and replica, all replicas counted that might follow


class Quotes:
    """Quotes by shape, kept up to date offer by offer."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.catalog = MachineCatalog(fleet)
        self.unpriced_machines = _count_unpriced_machines(fleet)
        self.has_unknown_prices = bool(self.unpriced_machines) or bool(
            (self.catalog.is_offered & ~self.catalog.is_priced).any()
        )  # some price is not known
        self._quote_cache: dict[object, Quote] = {}
        self._fit_cache: dict[object, MachineFit] = {}
        self._growth_cache: dict[
            object, tuple[int, Integers]
        ] = {}  # as of which version, and machines that clusters of some groups may still have

    def machine_fit(self, demand: Demand) -> MachineFit:
        key = (demand.machine_shape,)
        found = self._fit_cache.get(key)
        if found is None:
            if len(self._fit_cache) >= MAX_CACHED_SHAPES:
                self._fit_cache.clear()
            found = self._fit_cache[key] = MachineFit(self.catalog, demand)
        return found

    def quote_for(self, ask: ReplicaAsk) -> Quote:
        table, key = self.fleet.table, (ask.demand.machine_shape, ask.overflow_source, ask.capacity_target)
        quote = self._quote_cache.get(key)
        if quote is not None and quote.version == table.version:
            return quote
        changed = table.changed_since(quote.version) if quote is not None else None
        if quote is None or changed is None or len(changed) * 4 > table.count:
            if len(self._quote_cache) >= MAX_CACHED_SHAPES:
                self._quote_cache.clear()
            quote = self._quote_cache[key] = self._compute_quote(ask, np.arange(table.count))
        elif changed:
            _patch(quote, np.array(changed, np.intp), self._compute_quote(ask, np.array(changed, np.intp)))
        quote.version = table.version
        return quote

    def _compute_quote(self, ask: ReplicaAsk, rows: Rowids) -> Quote:
        demand, fleet, catalogue = ask.demand, self.fleet, self.catalog
        serving = self.machine_fit(demand)
        serves, rate = serving.can_host[:, rows], catalogue.rate[:, rows]
        growth = self._growth(ask, rows)
        count, fits, paid = self._provisionable(ask, rows, growth)
        total = np.where(paid, np.maximum(serving.total_rate[:, rows], rate * count), NO_LIMIT)
        if ask.capacity_target:
            total = _only_largest_capacity(
                total, np.where(paid, self._replica_capacity(ask, rows, growth), 0)
            )
        kind = _cheapest(total, rate)
        at = np.arange(len(rows))
        affordable = any_type(paid)
        nothing: Integers = np.full(len(rows), NO_LIMIT, np.int64)
        best, bought = (total[kind, at], rate[kind, at] * count) if len(total) else (nothing, nothing)
        per_replica = best // max(1, demand.replicas)
        has_room = self._has_free_machine(ask, rows)
        return Quote(
            version=fleet.table.version,
            can_host=any_type(serves),
            has_free_capacity=has_room,
            within_limits=any_type(fits),
            affordable=affordable,
            type_id=np.where(affordable, kind, UNSET).astype(np.int16),
            machine_count=np.where(has_room, 0, count),
            rate=np.where(has_room, 0, bought),
            rate_per_replica=np.where(
                has_room, 0, np.where(affordable & (best < UNPRICED_COST), per_replica, NO_LIMIT)
            ),
        )

    def _provisionable(
        self, ask: ReplicaAsk, rows: Rowids, growth: Integers
    ) -> tuple[Integers, Flags, Flags]:
        """How many machines at once; which classes within the limits, and of those which within the budgets too."""
        demand = ask.demand
        grows = growth > 0
        count = np.where(
            grows, 1, np.maximum(1, np.minimum(self.fleet.nodes_per_cluster[rows], demand.rules.min_nodes))
        )
        fits = self.machine_fit(demand).can_host[:, rows].copy()
        if "capacity" not in demand.ignored_limits:
            fits &= self._within_limits(ask, rows, count, grows)
        paid = fits.copy()
        if "budget" not in demand.ignored_limits:
            paid &= self._within_budgets(ask, rows, count)
        return count, fits, paid

    def may_provision(self, ask: ReplicaAsk, row: int, kind: str) -> bool:
        """May machines of this class be made there for it?"""
        rows = np.array([row], np.intp)
        _, _, paid = self._provisionable(ask, rows, self._growth(ask, rows))
        return bool(paid[self.fleet.type_ids[kind], 0]) if kind in self.catalog.types[row] else False

    def limit_shortfalls(self, ask: ReplicaAsk, replicas: int) -> dict[str, Integers]:
        """By offer, what is missing of each limit for so many replicas on new machines of the class that is cheapest for them.

        `price`: what those cost, micro-dollars per hour. NO_LIMIT where no class would do.
        """
        fleet, catalogue, serving = self.fleet, self.catalog, self.machine_fit(ask.demand)
        rows = np.arange(fleet.table.count)
        if not len(catalogue.type_names):
            return {"price": np.full(len(rows), NO_LIMIT, np.int64)}
        machines = np.maximum(
            self._provisionable(ask, rows, self._growth(ask, rows))[0],
            -(-replicas // serving.replicas_per_machine),
        )
        prices = np.where(
            serving.can_host,
            np.where(catalogue.is_priced, catalogue.rate * machines, UNPRICED_COST),
            NO_LIMIT,
        )
        at = (prices.argmin(axis=0), rows)
        short = {
            "money": prices[at] - self._budget_headroom(ask, rows),
            "nodes": machines[at] - self._nodes_left(ask.demand, rows),
        }
        for name in ("cpu", "memory"):
            size = catalogue.size(name)[at]
            short[name] = np.where(size < NO_LIMIT, size, 0) * machines[at] - fleet.table.free(
                fleet.table.resource_index[name]
            )
        found = {name: np.maximum(0, each) for name, each in short.items()} | {"price": prices[at]}
        return {name: np.where(serving.can_host[at], each, NO_LIMIT) for name, each in found.items()}

    def _growth(self, ask: ReplicaAsk, rows: Rowids) -> Integers:
        """Machines that clusters of its group may still have."""
        fleet, demand, overflow = self.fleet, ask.demand, ask.overflow_source
        table, groups = fleet.table, fleet.accepting_groups(demand, overflow)
        if fleet.group_ids.keys().isdisjoint(groups):
            return np.zeros(len(rows), np.int64)
        key = (groups, "reservation" in demand.ignored_limits)
        version, found = self._growth_cache.get(key) or (UNSET, np.zeros(table.count, np.int64))
        if version != table.version:
            changed = table.changed_since(version) if version != UNSET else None
            for row in range(table.count) if changed is None else changed:
                found[row] = self._growth_in(row, fleet.growable_groups(demand, overflow, row))
            self._growth_cache[key] = (table.version, found)
        return found[rows]

    def _growth_in(self, row: int, groups: Collection[str]) -> int:
        clusters = self.fleet.clusters_by_offer[row].values()
        return sum(
            min(UNBOUNDED_COUNT, max(0, each.max_nodes - len(each.machines)))
            for each in clusters
            if each.group in groups
        )

    def _within_limits(self, ask: ReplicaAsk, rows: Rowids, count: Integers, grows: Flags) -> Flags:
        table, catalogue, demand = self.fleet.table, self.catalog, ask.demand
        nodes = self._nodes_left(demand, rows)
        clusters = grows | (table.free(table.resource_index["clusters"])[rows] >= 1)
        if self._overflow_clusters_left(ask.overflow_source) < 1:
            clusters &= grows
        fits: Flags = (nodes >= count) & clusters & self._has_gpus_left(demand, rows)
        within = np.broadcast_to(fits, (len(catalogue.type_names), len(rows))).copy()
        for resource in ("cpu", "memory"):
            left = table.free(table.resource_index[resource])[rows]
            size = catalogue.size(resource)[:, rows]
            within &= (size >= NO_LIMIT) | (size * np.minimum(count, UNBOUNDED_COUNT) <= left)
        return within

    def _replica_capacity(self, ask: ReplicaAsk, rows: Rowids, growth: Integers) -> Integers:
        """Replicas on all machines that may still be made of each class, if only of that; more than are asked for are not counted."""
        table, catalogue, demand = self.fleet.table, self.catalog, ask.demand
        machines: Integers = np.full((len(catalogue.type_names), len(rows)), ask.capacity_target, np.int64)
        if "capacity" not in demand.ignored_limits:
            np.minimum(
                machines,
                np.minimum(self._nodes_left(demand, rows), self._slots(ask, rows, growth)),
                out=machines,
            )
            for resource in ("cpu", "memory"):
                size, left = (
                    catalogue.size(resource)[:, rows],
                    table.free(table.resource_index[resource])[rows],
                )
                np.minimum(
                    machines,
                    np.where((size > 0) & (size < NO_LIMIT), left // np.maximum(1, size), UNBOUNDED_COUNT),
                    out=machines,
                )
        if "budget" not in demand.ignored_limits:
            rate, left = catalogue.rate[:, rows], self._budget_headroom(ask, rows)
            np.minimum(
                machines, np.where(rate > 0, left // np.maximum(1, rate), UNBOUNDED_COUNT), out=machines
            )
        held: Integers = np.minimum(
            machines * self.machine_fit(demand).replicas_per_machine[:, rows], ask.capacity_target
        )
        return held

    def _slots(self, ask: ReplicaAsk, rows: Rowids, growth: Integers) -> Integers:
        """Machines that clusters of its group may still have, and new clusters."""
        fleet, rules = self.fleet, ask.demand.rules
        more = np.minimum(
            fleet.table.free(fleet.table.resource_index["clusters"])[rows],
            self._overflow_clusters_left(ask.overflow_source),
        )
        slots: Integers = growth + np.clip(more, 0, UNBOUNDED_COUNT) * np.clip(
            fleet.nodes_per_cluster[rows], 1, rules.max_nodes
        )
        return slots

    def _nodes_left(self, demand: Demand, rows: Rowids) -> Integers:
        table = self.fleet.table
        nodes: Integers = table.free(table.resource_index["nodes"])[rows]
        return (
            np.minimum(nodes, self._unreserved_nodes_left(demand, rows))
            if self.fleet.offers_with_reserve
            else nodes
        )

    def _unreserved_nodes_left(self, demand: Demand, rows: Rowids) -> Integers:
        """Machines that it may still open where some are kept for others."""
        fleet = self.fleet
        left = [
            fleet.unreserved_nodes_left(row) if _is_reserved_for_others(fleet, demand, row) else NO_LIMIT
            for row in rows.tolist()
        ]
        return np.array(left, np.int64)

    def _overflow_clusters_left(self, static: str) -> int:
        """Clusters that a data center may still overflow into."""
        overflow = self.fleet.offers[self.fleet.row(static)].overflow if static else None
        most = overflow.limits.max_clusters if overflow else None
        return UNBOUNDED_COUNT if most is None else most - self.fleet.overflow_clusters[static]

    def _has_gpus_left(self, demand: Demand, rows: Rowids) -> Flags:
        """In places that count their GPUs as a whole."""
        need = demand.needs.get("gpu", 0)
        enough = np.ones(len(rows), np.bool_)
        if not need:
            return enough
        for position, row in enumerate(rows.tolist()):
            if self.fleet.offers[row].limits.gpus:
                enough[position] = gpu_resource_for(self.fleet, demand, row) != ""
        return enough

    def _within_budgets(self, ask: ReplicaAsk, rows: Rowids, count: Integers) -> Flags:
        fleet, catalogue = self.fleet, self.catalog
        left, needs_price = self._budget_headroom(ask, rows), fleet.is_budgeted[rows]
        if ask.overflow_source:
            needs_price = np.array(
                [fleet.has_budget_limit(row, ask.overflow_source) for row in rows.tolist()], np.bool_
            )
        rate, is_priced = catalogue.rate[:, rows], catalogue.is_priced[:, rows]
        affordable: Flags = rate * count <= left
        if "prices" not in ask.demand.ignored_limits:
            if self.unpriced_machines:
                affordable &= [not self.unpriced_ledger(row, ask.overflow_source) for row in rows.tolist()]
            affordable &= is_priced | ~needs_price
        affordable |= is_priced & (
            rate == 0
        )  # what costs nothing passes no budget, not even one that is passed already
        return affordable

    def _budget_headroom(self, ask: ReplicaAsk, rows: Rowids) -> Integers:
        if not ask.overflow_source:
            return self.fleet.headroom_by_offer[rows]
        return np.array([self.fleet.headroom(row, ask.overflow_source) for row in rows.tolist()], np.int64)

    def unpriced_ledger(self, row: int, overflow: str = "") -> str:
        """A hard budget, of those that it is paid from, that pays for machines of unknown price: how much is left of it nobody can say."""
        fleet = self.fleet
        return next(
            (
                each
                for each in fleet.ledgers(row, overflow)
                if self.unpriced_machines[each] and fleet.commit_cap(each) < NO_LIMIT
            ),
            "",
        )

    def _has_machine_constraints(self, demand: Demand) -> bool:
        """Is there more to a machine than its room?"""
        special = demand.max_per_node or demand.node_selector or demand.gpu_model or demand.needs.get("gpu")
        return bool(special or self.catalog.has_taints or self.fleet.offers_with_reserve)

    def _has_free_machine(self, ask: ReplicaAsk, rows: Rowids) -> Flags:
        """Is there a machine with room, in a cluster of the right group? Looks at all machines of all offers at once."""
        fleet, demand = self.fleet, ask.demand
        found = np.zeros(fleet.table.count, np.bool_)
        taking = fleet.accepting_machines(demand, ask.overflow_source)
        if taking is None:
            return found[rows]
        machines = fleet.machines
        if self._has_machine_constraints(demand) and len(rows) * 4 < fleet.table.count:
            some = [
                machine
                for row in rows.tolist()
                for machine in fleet.machines_by_offer[row]
                if taking[machine]
            ]
        else:
            mask = machines.column("alive") & taking & ~machines.column("closed")
            for resource, amount in demand.effective_needs.items():
                mask &= machines.free(machines.add_resource(resource)) >= amount
            if not self._has_machine_constraints(demand):
                found[machines.column("offer")[mask]] = True
                return found[rows]
            some = np.flatnonzero(mask).tolist()
        for machine in some:
            row = machines.cluster[machine].offer_row
            if not found[row] and fits_on_machine(fleet, demand, machine):
                found[row] = True
        return found[rows]


def _count_unpriced_machines(fleet: Fleet) -> Counter[str]:
    """Machines that are there and whose price nobody knows, by the ledgers that pay for them."""
    found: Counter[str] = Counter()
    for machine, kind in fleet.machines.machine_type.items():
        if not kind.is_priced:
            cluster = fleet.machines.cluster[machine]
            found.update(fleet.ledgers(cluster.offer_row, cluster.overflow_source))
    return found


def any_type(lines: Flags) -> Flags:
    """Where at least one class says yes."""
    found: Flags = np.logical_or.reduce(lines, axis=0)
    return found


def _cheapest(total: Integers, rate: Integers) -> Rowids:
    """Of classes that cost the same for all replicas, the one whose machine costs least, then the first by name."""
    if not len(total):
        return np.zeros(total.shape[1], np.intp)
    kind: Rowids = np.where(total == total.min(axis=0), rate, NO_LIMIT).argmin(axis=0)
    return kind


def _only_largest_capacity(total: Integers, holds: Integers) -> Integers:
    """Only what classes cost that hold the most."""
    most = holds.max(axis=0, initial=0)
    return np.where(holds == most, total, NO_LIMIT)


def growable_clusters(fleet: Fleet, row: int, groups: Collection[str]) -> list[str]:
    """Clusters of these groups that may have more machines, fullest first."""
    found = [
        each
        for each in fleet.clusters_by_offer[row].values()
        if each.group in groups and len(each.machines) < each.max_nodes
    ]
    return [each.name for each in sorted(found, key=lambda each: (-each.utilisation, each.name))]


def fits_on_machine(fleet: Fleet, demand: Demand, machine: int) -> bool:
    """Room and nothing else in the way on one machine."""
    machines = fleet.machines
    if machines.column("closed")[machine]:
        return False
    for resource, amount in demand.effective_needs.items():
        if int(machines.free(machines.add_resource(resource))[machine]) < amount:
            return False
    if demand.max_per_node and machines.replica_counts[machine][demand.name] >= demand.max_per_node:
        return False
    row = machines.cluster[machine].offer_row
    if not is_type_allowed(demand, machines.machine_type[machine]) or (
        _is_reserved_for_others(fleet, demand, row) and fleet.unreserved_nodes_left(row) < 0
    ):
        return False
    return (
        not (demand.needs.get("gpu") and fleet.offers[row].limits.gpus)
        or gpu_resource_for(fleet, demand, row) != ""
    )


def _is_reserved_for_others(fleet: Fleet, demand: Demand, row: int) -> bool:
    """Is something reserved there for others?"""
    offer = fleet.offers[row]
    return bool(offer.reserved_nodes) and not demand.may_use_reserve(offer.name)


def gpu_resource_for(fleet: Fleet, demand: Demand, row: int) -> str:
    """Which count of GPUs a replica is taken from: its model's, else that of which most are left; "" if none has enough."""
    need = demand.effective_needs["gpu"]
    models = [demand.gpu_model] if demand.gpu_model else sorted(fleet.offers[row].limits.gpus)
    left = {
        model: int(fleet.table.free(fleet.table.resource_index[f"gpu:{model}"])[row])
        for model in models
        if model in fleet.offers[row].limits.gpus
    }
    best = max(left, key=lambda model: left[model], default="")
    return f"gpu:{best}" if best and (left[best] >= need or "capacity" in demand.ignored_limits) else ""


def _patch(quote: Quote, rows: Rowids, fresh: Quote) -> None:
    names = (
        "can_host",
        "has_free_capacity",
        "within_limits",
        "affordable",
        "type_id",
        "machine_count",
        "rate",
        "rate_per_replica",
    )
    for name in names:
        getattr(quote, name)[rows] = getattr(fresh, name)
