"""Compute an upper bound for the number of additional replicas of a service.

The bound is cheap and never too low: if the bound says that replicas do not fit, an attempt to place them is
unnecessary.
"""

from collections import Counter

import numpy as np

from lattice.engine.table import Flags, Integers, Rowids
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.replica_quotes import UNSET
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.pool_selector import PoolSelector
from lattice.placement.plugins.filters.residency import Residency

# Filters whose rejections no placement can change.
PERMANENT_FILTERS = (Available(), PoolSelector(), Compliance(), Capabilities(), Residency())
# Stands for "no limit", in replicas or in micro-dollars per hour.
UNBOUNDED_COUNT = 1 << 40


def may_fit(demand: Demand, fleet: Fleet) -> bool:
    """Return False if the missing replicas cannot fit, wherever they are placed. Running replicas are assumed
    to use the current requests."""
    missing = demand.replicas - fleet.replicas.count(demand.name)
    return missing <= 0 or max_additional_replicas(demand, fleet) >= missing


def max_additional_replicas(demand: Demand, fleet: Fleet) -> int:
    """Return the upper bound of replicas beyond the running replicas."""
    rows = _eligible_offers(demand, fleet)
    return (
        _capacity_on_existing(demand, fleet, rows) + int(_capacity_on_new(demand, fleet)[rows].sum())
        if rows.any()
        else 0
    )


def max_additional_on_cheapest(demand: Demand, fleet: Fleet) -> int:
    """Return the upper bound as `max_additional_replicas` does, but assume the cheapest machine type in
    offers that can add exactly one more machine."""
    rows, table, quotes = _eligible_offers(demand, fleet), fleet.table, fleet.quotes
    capacity = _capacity_on_new(demand, fleet)
    if rows.any() and len(quotes.catalog.type_names):
        type_ids = quotes.quote_for(ReplicaAsk(demand)).type_id
        replicas_on_type = np.where(
            type_ids == UNSET, 0, _per_machine(demand, fleet)[type_ids, np.arange(table.count)]
        )
        # The last machine that an offer can add has the cheapest type, so that type bounds the replicas.
        is_last = table.free(table.resource_index["nodes"]) == 1
        # An offer with an idle machine is excepted: once that machine is removed, the offer can add more than
        # one machine.
        is_last[fleet.machines.column("offer")[_idle(fleet)]] = False
        np.minimum(capacity, np.where(is_last, replicas_on_type, UNBOUNDED_COUNT), out=capacity)
    return _capacity_on_existing(demand, fleet, rows) + int(capacity[rows].sum())


def _eligible_offers(demand: Demand, fleet: Fleet) -> Flags:
    """Return the mask of offers that no permanent filter rejects."""
    ask = ReplicaAsk(demand)
    rows: Flags = np.ones(fleet.table.count, np.bool_)
    for plugin in PERMANENT_FILTERS:
        if plugin.applies(ask):
            for mask in plugin.filter(ask, fleet.table).values():
                rows &= ~mask
    return rows


def _capacity_on_existing(demand: Demand, fleet: Fleet, rows: Flags) -> int:
    """Return the replicas that fit on the existing machines of the offers, even in clusters that do not
    accept the service."""
    machines = fleet.machines
    if not machines.count:
        return 0
    capacity: Integers = np.full(machines.count, demand.max_per_node or demand.replicas, np.int64)
    for resource, amount in demand.effective_needs.items():
        free = machines.free(machines.add_resource(resource)).copy()
        for assignment in fleet.assignments.get(demand.name, ()):
            previous_amount = next((used for name, used in assignment.needs if name == resource), 0)
            # The running replica will change to the current request: the machine gains or loses the
            # difference.
            if previous_amount != amount:
                free[assignment.machine] += previous_amount - amount
        np.minimum(capacity, np.maximum(free, 0) // max(1, amount), out=capacity)
    is_counted = machines.column("alive") & rows[machines.column("offer")]
    return int(capacity[is_counted].sum())


def _capacity_on_new(demand: Demand, fleet: Fleet) -> Integers:
    """Return by offer the replicas that fit on new machines, as the minimum over the limits for machines,
    cpu, memory and budget.

    A budget shared by offers counts fully for all of them. Empty machines count as removable: their resources
    and rates count as free.
    """
    quotes, table = fleet.quotes, fleet.table
    if {"capacity", "budget"} <= demand.ignored_limits:
        return np.full(table.count, UNBOUNDED_COUNT, np.int64)
    fit, catalog = quotes.machine_fit(demand), quotes.catalog
    if not len(fit.can_host):
        return np.zeros(table.count, np.int64)
    replicas_per_machine = np.where(fit.can_host, _per_machine(demand, fleet), 0)
    idle = _idle(fleet)
    if "capacity" in demand.ignored_limits:
        return np.minimum(
            _replicas_within_budget(
                replicas_per_machine,
                catalog.rate,
                np.maximum(fleet.ledgers.headroom_by_offer + _refundable_rates(fleet, idle), 0),
            ),
            UNBOUNDED_COUNT,
        )
    # Empty machines can be removed, so their slots count as free.
    nodes = np.maximum(table.free(table.resource_index["nodes"]), 0) + np.bincount(
        fleet.machines.column("offer")[idle], minlength=table.count
    )
    capacity = np.minimum(nodes, UNBOUNDED_COUNT) * replicas_per_machine.max(axis=0)
    for resource in ("cpu", "memory"):
        amount = demand.effective_needs.get(resource, 0)
        is_counted = (catalog.size(resource) < NO_LIMIT)[fit.can_host].all()
        if amount and is_counted:
            free = np.maximum(table.free(table.resource_index[resource]), 0)
            sizes = fleet.machines.total(fleet.machines.resource_index[resource])[idle]
            np.add.at(free, fleet.machines.column("offer")[idle], np.minimum(sizes, UNBOUNDED_COUNT))
            np.minimum(capacity, free // amount, out=capacity)
    if "budget" not in demand.ignored_limits:
        headroom = np.maximum(fleet.ledgers.headroom_by_offer + _refundable_rates(fleet, idle), 0)
        np.minimum(
            capacity, _replicas_within_budget(replicas_per_machine, catalog.rate, headroom), out=capacity
        )
    bounded: Integers = np.minimum(capacity, UNBOUNDED_COUNT)
    return bounded


def _per_machine(demand: Demand, fleet: Fleet) -> Integers:
    """Return by machine type and offer the replicas that one machine can hold."""
    catalog = fleet.quotes.catalog
    replicas: Integers = np.full(
        catalog.is_offered.shape, min(demand.max_per_node or demand.replicas, demand.replicas), np.int64
    )
    for resource, amount in demand.effective_needs.items():
        np.minimum(replicas, catalog.size(resource) // max(1, amount), out=replicas)
    return replicas


def _idle(fleet: Fleet) -> Rowids:
    """Return the rows of machines without used cpu and memory."""
    machines = fleet.machines
    return np.flatnonzero(
        machines.column("alive") & (machines.allocated(0) == 0) & (machines.allocated(1) == 0)
    )


def _refundable_rates(fleet: Fleet, idle: Rowids) -> Integers:
    """Return by offer the rate in micro-dollars per hour that empty machines would refund.

    If several budgets pay for an offer, the largest refund counts for all of them.
    """
    refunds: Counter[str] = Counter()
    for machine in idle.tolist():
        cluster = fleet.machines.cluster[machine]
        refunds.update(
            dict.fromkeys(
                fleet.ledgers.paying_for(cluster.offer_row, cluster.overflow_source),
                fleet.machines.machine_type[machine].rate,
            )
        )
    if not refunds:
        return np.zeros(fleet.table.count, np.int64)
    return np.array(
        [max((refunds[ledger] for ledger in offer.budgets), default=0) for offer in fleet.offers], np.int64
    )


def _replicas_within_budget(replicas_per_machine: Integers, rate: Integers, headroom: Integers) -> Integers:
    """Return by offer the replicas that the headroom can pay for, on the machine type with the most replicas
    for the money."""
    # A free machine needs no headroom, and a headroom of this size is no limit.
    is_free = ((rate == 0) & (replicas_per_machine > 0)).any(axis=0) | (headroom > UNBOUNDED_COUNT)
    replicas: Integers = (
        np.minimum(headroom, UNBOUNDED_COUNT) * replicas_per_machine // np.maximum(rate, 1)
    ).max(axis=0)
    return np.where(is_free, UNBOUNDED_COUNT, replicas)
