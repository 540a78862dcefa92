"""Quotes: for every offer, whether one more replica uses free capacity or needs new machines, and at what
price."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lattice.engine.table import Flags, Integers, Rowids
from lattice.placement.model.cluster_groups import ClusterGroups
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.inventory import ClusterInventory
from lattice.placement.model.machine_catalog import (
    UNPRICED_COST,
    MachineCatalog,
    MachineFit,
    is_type_allowed,
)
from lattice.placement.model.offer import NO_LIMIT, OfferTable
from lattice.placement.model.offer_ledgers import OfferLedgers

TypeIds = NDArray[np.int16]
# The type id where no machine can be bought, and the version of a value that is not computed yet.
UNSET = -1


# Limit of demand shapes whose quotes are cached; a full cache is cleared.
MAX_CACHED_SHAPES = 2048
# Stands for an unlimited number of machines or clusters; small enough to multiply within 64 bits.
UNBOUNDED_COUNT = 1 << 20
# The columns of a quote that are recomputed when an offer changes.
_QUOTE_COLUMNS = (
    "can_host",
    "has_free_capacity",
    "within_limits",
    "affordable",
    "type_id",
    "machine_count",
    "rate",
    "rate_per_replica",
)


@dataclass(slots=True)
class Quote:
    """Columns with an entry per offer for one demand shape.

    Where `has_free_capacity`, no machine is bought; otherwise `machine_count` machines of `type_id` are
    bought, for `rate` micro-dollars per hour in total.
    """

    version: int
    # Some machine type would be feasible if there were no limits.
    can_host: Flags
    has_free_capacity: Flags
    # Within the limits on machines, cores, memory and clusters.
    within_limits: Flags
    # Within the limits and within the budgets.
    affordable: Flags
    type_id: TypeIds
    machine_count: Integers
    rate: Integers
    # Micro-dollars per hour and replica, averaged over all replicas of the demand.
    rate_per_replica: Integers


class Quotes:
    """Cached quotes by demand shape; only the offers that changed since the last quote are recomputed."""

    def __init__(
        self,
        table: OfferTable,
        ledgers: OfferLedgers,
        inventory: ClusterInventory,
        groups: ClusterGroups,
        catalog: MachineCatalog,
    ) -> None:
        self._table, self._ledgers, self._inventory, self._groups = table, ledgers, inventory, groups
        self.catalog = catalog
        self._offers_unpriced_types = bool((catalog.is_offered & ~catalog.is_priced).any())
        self._quote_cache: dict[object, Quote] = {}
        self._fit_cache: dict[object, MachineFit] = {}
        # By cluster groups: the table version, and the machines that clusters of the groups may still add.
        self._growth_cache: dict[object, tuple[int, Integers]] = {}

    def with_catalog(self, catalog: MachineCatalog) -> "Quotes":
        """New quotes of the same fleet for other machine types."""
        return Quotes(self._table, self._ledgers, self._inventory, self._groups, catalog)

    @property
    def has_unknown_prices(self) -> bool:
        """Whether an offered machine type or a running machine has no known price."""
        return self._offers_unpriced_types or bool(self._ledgers.unpriced_machines)

    def machine_fit(self, demand: Demand) -> MachineFit:
        """The machine fit of the demand, cached by machine shape."""
        key = (demand.machine_shape,)
        fit = self._fit_cache.get(key)
        if fit is None:
            if len(self._fit_cache) >= MAX_CACHED_SHAPES:
                self._fit_cache.clear()
            fit = self._fit_cache[key] = MachineFit(self.catalog, demand)
        return fit

    def hosts(self, demand: Demand) -> Flags:
        """Mask of the offers with a machine type or a joined machine that fits one replica when empty, and of
        the manual offers, which a machine of any size may join."""
        return any_type(self.machine_fit(demand).can_host) | self._joined_hosts(demand)

    def _joined_hosts(self, demand: Demand) -> Flags:
        machines = self._inventory.machines
        hosts = np.array([offer.is_manual for offer in self._table.offers], np.bool_)
        mask = machines.column("alive") & machines.column("joined") & ~machines.column("closed")
        if not mask.any():
            return hosts
        for resource, amount in demand.effective_needs.items():
            mask &= machines.total(machines.add_resource(resource)) >= amount
        for machine in np.flatnonzero(mask).tolist():
            if is_type_allowed(demand, machines.machine_type[machine]):
                hosts[machines.cluster[machine].offer_row] = True
        return hosts

    def quote_for(self, ask: ReplicaAsk) -> Quote:
        """The current quote of the ask. Later calls update the same quote in place."""
        table, key = self._table, (ask.demand.machine_shape, ask.overflow_source, ask.capacity_target)
        quote = self._quote_cache.get(key)
        if quote is not None and quote.version == table.version:
            return quote
        # The replicas in one offer may decide whether a replica fits in another: compute all offers anew.
        is_incremental = quote is not None and not ask.demand.local_terms
        changed = table.changed_since(quote.version) if quote is not None and is_incremental else None
        # When over a quarter of the offers changed, the whole quote is computed anew.
        if quote is None or changed is None or len(changed) * 4 > table.count:
            if len(self._quote_cache) >= MAX_CACHED_SHAPES:
                self._quote_cache.clear()
            quote = self._quote_cache[key] = self._compute_quote(ask, np.arange(table.count))
        elif changed:
            rows = np.array(changed, np.intp)
            fresh = self._compute_quote(ask, rows)
            for name in _QUOTE_COLUMNS:
                getattr(quote, name)[rows] = getattr(fresh, name)
        quote.version = table.version
        return quote

    def _compute_quote(self, ask: ReplicaAsk, rows: Rowids) -> Quote:
        demand, catalog = ask.demand, self.catalog
        fit = self.machine_fit(demand)
        can_host, rate = fit.can_host[:, rows], catalog.rate[:, rows]
        growth = self._growth(ask, rows)
        count, feasible_types, affordable_types = self._provisionable(ask, rows, growth)
        total = np.where(affordable_types, np.maximum(fit.total_rate[:, rows], rate * count), NO_LIMIT)
        if ask.capacity_target:
            # Only the types that host the most replicas keep their total; all other types get NO_LIMIT, which
            # is never the lowest total.
            capacity = np.where(affordable_types, self._replica_capacity(ask, rows, growth), 0)
            total = np.where(capacity == capacity.max(axis=0, initial=0), total, NO_LIMIT)
        affordable = any_type(affordable_types)
        best: Integers = np.full(len(rows), NO_LIMIT, np.int64)
        bought, type_id = best, np.zeros(len(rows), np.intp)
        if len(total):
            # The cheapest type: the lowest total, then the lowest rate of one machine, then the first in the
            # catalog.
            type_id = np.where(total == total.min(axis=0), rate, NO_LIMIT).argmin(axis=0)
            columns = np.arange(len(rows))
            best, bought = total[type_id, columns], rate[type_id, columns] * count
            if fit.has_choice and not ask.capacity_target:
                # A mix of two types counts where each of them is affordable, and one machine is bought at once.
                may_mix = (count == 1) & (affordable_types == can_host).all(axis=0)
                best = np.where(may_mix, np.minimum(best, fit.mixed_rates()[rows]), best)
        per_replica = best // max(1, demand.replicas)
        has_free_capacity = self._has_free_machine(ask, rows)
        return Quote(
            version=self._table.version,
            can_host=any_type(can_host) | self._joined_hosts(demand)[rows],
            has_free_capacity=has_free_capacity,
            within_limits=any_type(feasible_types),
            affordable=affordable,
            type_id=np.where(affordable, type_id, UNSET).astype(np.int16),
            machine_count=np.where(has_free_capacity, 0, count),
            rate=np.where(has_free_capacity, 0, bought),
            rate_per_replica=np.where(
                has_free_capacity, 0, np.where(affordable & (best < UNPRICED_COST), per_replica, NO_LIMIT)
            ),
        )

    def _provisionable(
        self, ask: ReplicaAsk, rows: Rowids, growth: Integers
    ) -> tuple[Integers, Flags, Flags]:
        """The number of machines that are bought at once, the types within the limits, and the types within
        limits and budgets."""
        demand = ask.demand
        grows = growth > 0
        # A cluster that grows takes one machine; a new cluster starts with its minimum.
        count = np.where(
            grows, 1, np.maximum(1, np.minimum(self._table.nodes_per_cluster[rows], demand.rules.min_nodes))
        )
        feasible = self.machine_fit(demand).can_host[:, rows].copy()
        if "capacity" not in demand.ignored_limits:
            feasible &= self._within_limits(ask, rows, count, grows)
        affordable = feasible.copy()
        if "budget" not in demand.ignored_limits:
            affordable &= self._within_budgets(ask, rows, count)
        return count, feasible, affordable

    def next_type(
        self, ask: ReplicaAsk, row: int, missing: int, present: Mapping[str, tuple[int, int]]
    ) -> str | None:
        """The machine type to buy next in the offer if so many replicas are missing there; None if the offer can
        add no machine. `present` has machines and replicas of the service in the offer by type."""
        quote, fit = self.quote_for(ask), self.machine_fit(ask.demand)
        if not quote.affordable[row] or not quote.within_limits[row]:
            return None
        best = int(quote.type_id[row])
        grows = ask.demand.rules.min_nodes <= 1 or self._growth(ask, np.array([row], np.intp))[0] > 0
        if fit.has_choice and not ask.capacity_target and grows:
            preferred = self._type_of_mix(fit, row, missing, present)
            if preferred not in (best, UNSET) and self.may_provision(
                ask, row, self.catalog.type_names[preferred]
            ):
                best = preferred
        return self.catalog.type_names[best]

    def _type_of_mix(
        self, fit: MachineFit, row: int, missing: int, present: Mapping[str, tuple[int, int]]
    ) -> int:
        """The next type of the cheapest mix. The mix is planned for the missing replicas and for the replicas on
        machines of its large type, so that it is the same before and after these machines are bought."""
        mix = fit.purchase(row, missing + sum(replicas for _, replicas in present.values()))
        machines, replicas = present.get(self.catalog.type_names[mix.type_id], (0, 0))
        continued = fit.purchase(row, missing + replicas)
        if continued.type_id != mix.type_id:
            return fit.purchase(row, missing).type_id
        return continued.rest_type_id if machines >= continued.machines else continued.type_id

    def may_provision(self, ask: ReplicaAsk, row: int, node_class: str) -> bool:
        """Whether machines of the class may be bought in the offer for the ask."""
        rows = np.array([row], np.intp)
        _, _, affordable = self._provisionable(ask, rows, self._growth(ask, rows))
        return (
            bool(affordable[self.catalog.type_ids[node_class], 0])
            if node_class in self.catalog.types[row]
            else False
        )

    def limit_shortfalls(self, ask: ReplicaAsk, replicas: int) -> dict[str, Integers]:
        """By offer, how far every limit falls short of `replicas` on new machines of the cheapest feasible
        type.

        `price` is the price of the new machines in micro-dollars per hour. NO_LIMIT marks offers without a
        feasible type.
        """
        catalog, fit = self.catalog, self.machine_fit(ask.demand)
        rows = np.arange(self._table.count)
        if not len(catalog.type_names):
            return {"price": np.full(len(rows), NO_LIMIT, np.int64)}
        machines = np.maximum(
            self._provisionable(ask, rows, self._growth(ask, rows))[0],
            -(-replicas // fit.replicas_per_machine),
        )
        prices = np.where(
            fit.can_host,
            np.where(catalog.is_priced, catalog.rate * machines, UNPRICED_COST),
            NO_LIMIT,
        )
        cheapest = (prices.argmin(axis=0), rows)
        shortfalls = {
            "money": prices[cheapest] - self._budget_headroom(ask, rows),
            "nodes": machines[cheapest] - self._nodes_left(ask.demand, rows),
        }
        for name in ("cpu", "memory"):
            size = catalog.size(name)[cheapest]
            shortfalls[name] = np.where(size < NO_LIMIT, size, 0) * machines[cheapest] - self._table.free(
                self._table.resource_index[name]
            )
        shortfalls = {name: np.maximum(0, shortfall) for name, shortfall in shortfalls.items()}
        shortfalls["price"] = prices[cheapest]
        can_host = fit.can_host[cheapest]
        return {name: np.where(can_host, shortfall, NO_LIMIT) for name, shortfall in shortfalls.items()}

    def _growth(self, ask: ReplicaAsk, rows: Rowids) -> Integers:
        """By row, the machines that existing clusters may still add for the ask; only clusters of the groups
        in `ClusterGroups.growable` may grow."""
        demand, overflow = ask.demand, ask.overflow_source
        table, groups = self._table, self._groups.accepting(demand, overflow)
        if self._inventory.machines.group_ids.keys().isdisjoint(groups):
            return np.zeros(len(rows), np.int64)
        if demand.local_terms:
            return np.array([self._growth_of(demand, overflow, row) for row in rows.tolist()], np.int64)
        # Two demands with the same accepting groups may grow different groups if only one ignores
        # reservations.
        key = (groups, "reservation" in demand.ignored_limits)
        version, growth = self._growth_cache.get(key) or (UNSET, np.zeros(table.count, np.int64))
        if version != table.version:
            changed = table.changed_since(version) if version != UNSET else None
            for row in range(table.count) if changed is None else changed:
                growth[row] = self._growth_of(demand, overflow, row)
            self._growth_cache[key] = (table.version, growth)
        return growth[rows]

    def _growth_of(self, demand: Demand, overflow: str, row: int) -> int:
        """The machines that clusters of the offer may still add for the demand."""
        growable = self._groups.growable(demand, overflow, row)
        return sum(
            min(UNBOUNDED_COUNT, max(0, cluster.max_nodes - len(cluster.machines)))
            for cluster in self._inventory.clusters_by_offer[row].values()
            if cluster.group in growable and self._groups.may_grow(demand, cluster)
        )

    def _within_limits(self, ask: ReplicaAsk, rows: Rowids, count: Integers, grows: Flags) -> Flags:
        """Mask of types and rows whose new machines stay within the limits of the offer."""
        table, catalog, demand = self._table, self.catalog, ask.demand
        nodes = self._nodes_left(demand, rows)
        clusters = grows | (table.free(table.resource_index["clusters"])[rows] >= 1)
        if self._overflow_clusters_left(ask.overflow_source) < 1 or not self._groups.may_create_cluster(
            demand
        ):
            clusters &= grows
        has_slots: Flags = (nodes >= count) & clusters
        # Only offers with limits on their total number of GPUs are checked.
        for position, row in enumerate(rows.tolist() if demand.needs.get("gpu", 0) else ()):
            if table.offers[row].limits.gpus:
                has_slots[position] &= table.gpu_resource_for(demand, row) != ""
        within = np.broadcast_to(has_slots, (len(catalog.type_names), len(rows))).copy()
        for resource in ("cpu", "memory"):
            free = table.free(table.resource_index[resource])[rows]
            size = catalog.size(resource)[:, rows]
            within &= (size >= NO_LIMIT) | (size * np.minimum(count, UNBOUNDED_COUNT) <= free)
        return within

    def _replica_capacity(self, ask: ReplicaAsk, rows: Rowids, growth: Integers) -> Integers:
        """The replicas that all machines of a single type could host within limits and budgets, at most the
        capacity target."""
        table, catalog, demand = self._table, self.catalog, ask.demand
        machines: Integers = np.full((len(catalog.type_names), len(rows)), ask.capacity_target, np.int64)
        if "capacity" not in demand.ignored_limits:
            # The machines that clusters of the group may still add, and the machines of new clusters.
            rules = ask.demand.rules
            new_clusters = np.minimum(
                self._table.free(self._table.resource_index["clusters"])[rows],
                self._overflow_clusters_left(ask.overflow_source),
            )
            slots: Integers = growth + np.clip(new_clusters, 0, UNBOUNDED_COUNT) * np.clip(
                self._table.nodes_per_cluster[rows], 1, rules.max_nodes
            )
            np.minimum(
                machines,
                np.minimum(self._nodes_left(demand, rows), slots),
                out=machines,
            )
            for resource in ("cpu", "memory"):
                size, free = (
                    catalog.size(resource)[:, rows],
                    table.free(table.resource_index[resource])[rows],
                )
                np.minimum(
                    machines,
                    np.where((size > 0) & (size < NO_LIMIT), free // np.maximum(1, size), UNBOUNDED_COUNT),
                    out=machines,
                )
        if "budget" not in demand.ignored_limits:
            rate, headroom = catalog.rate[:, rows], self._budget_headroom(ask, rows)
            np.minimum(
                machines, np.where(rate > 0, headroom // np.maximum(1, rate), UNBOUNDED_COUNT), out=machines
            )
        capacity: Integers = np.minimum(
            machines * self.machine_fit(demand).replicas_per_machine[:, rows], ask.capacity_target
        )
        return capacity

    def _nodes_left(self, demand: Demand, rows: Rowids) -> Integers:
        """The machines that the demand may still add in the rows, without the machines reserved for other
        services."""
        table = self._table
        nodes: Integers = table.free(table.resource_index["nodes"])[rows]
        if not self._table.offers_with_reserve:
            return nodes
        unreserved = [self._unreserved_nodes_left(demand, row) for row in rows.tolist()]
        return np.minimum(nodes, np.array(unreserved, np.int64))

    def _unreserved_nodes_left(self, demand: Demand, row: int) -> int:
        if not self._groups.is_reserved_for_others(demand, row):
            return NO_LIMIT
        # Without unreserved capacity a further machine would be of no use.
        if self._groups.unreserved_shortfall(demand, row):
            return 0
        return self._groups.unreserved_nodes_left(row)

    def _overflow_clusters_left(self, static: str) -> int:
        """Clusters that a data center may still overflow into."""
        overflow = self._table.offers[self._table.row_of[static]].overflow if static else None
        max_clusters = overflow.limits.max_clusters if overflow else None
        return (
            UNBOUNDED_COUNT
            if max_clusters is None
            else max_clusters - self._inventory.overflow_clusters[static]
        )

    def _within_budgets(self, ask: ReplicaAsk, rows: Rowids, count: Integers) -> Flags:
        catalog = self.catalog
        headroom, needs_price = self._budget_headroom(ask, rows), self._ledgers.is_budgeted[rows]
        if ask.overflow_source:
            needs_price = np.array(
                [self._ledgers.has_limit(row, ask.overflow_source) for row in rows.tolist()], np.bool_
            )
        rate, is_priced = catalog.rate[:, rows], catalog.is_priced[:, rows]
        affordable: Flags = rate * count <= headroom
        if "prices" not in ask.demand.ignored_limits:
            # With a machine of unknown price on a budget, the headroom of the budget is unknown too.
            if self._ledgers.unpriced_machines:
                affordable &= [
                    not self._ledgers.unpriced_ledger(row, ask.overflow_source) for row in rows.tolist()
                ]
            affordable &= is_priced | ~needs_price
        # A machine type with the known price 0 passes every budget, even a budget that is already exceeded.
        affordable |= is_priced & (rate == 0)
        return affordable

    def _budget_headroom(self, ask: ReplicaAsk, rows: Rowids) -> Integers:
        if not ask.overflow_source:
            return self._ledgers.headroom_by_offer[rows]
        return np.array([self._ledgers.headroom(row, ask.overflow_source) for row in rows.tolist()], np.int64)

    def _has_machine_constraints(self, demand: Demand) -> bool:
        """Whether more than free capacity decides which machines fit the demand."""
        special = (
            demand.max_per_node
            or demand.local_terms
            # The replicas that are there already need their headroom as well.
            or demand.headroom
            or demand.node_selector
            or demand.gpu_model
            or demand.needs.get("gpu")
        )
        rejects_types = demand.refusals or demand.runtimes & self._inventory.lacking_runtimes
        has_taints = self.catalog.has_taints or self._inventory.has_tainted_machines
        return bool(special or rejects_types or has_taints or self._table.offers_with_reserve)

    def _has_free_machine(self, ask: ReplicaAsk, rows: Rowids) -> Flags:
        """Mask of rows with a machine that fits the replica, in a cluster of an accepting group.

        The check runs over the machines of all offers at once, unless constraints apply and the caller asks
        for few rows.
        """
        demand = ask.demand
        has_free = np.zeros(self._table.count, np.bool_)
        accepting = self._groups.accepting_machines(demand, ask.overflow_source)
        if accepting is None:
            return has_free[rows]
        machines = self._inventory.machines
        if self._has_machine_constraints(demand) and len(rows) * 4 < self._table.count:
            candidates: list[int] = []
            for row in rows.tolist():
                candidates += [
                    machine for machine in self._inventory.machines_by_offer[row] if accepting[machine]
                ]
        else:
            mask = machines.column("alive") & accepting & ~machines.column("closed")
            for resource, amount in demand.hosting_needs.items():
                mask &= machines.free(machines.add_resource(resource)) >= amount
            if not self._has_machine_constraints(demand):
                has_free[machines.column("offer")[mask]] = True
                return has_free[rows]
            candidates = np.flatnonzero(mask).tolist()
        for machine in candidates:
            row = machines.cluster[machine].offer_row
            if not has_free[row] and self._groups.fits_on_machine(demand, machine):
                has_free[row] = True
        return has_free[rows]


def any_type(by_type: Flags) -> Flags:
    """Mask of the columns where at least one machine type is set."""
    columns: Flags = np.logical_or.reduce(by_type, axis=0)
    return columns
