"""At most how many more replicas could there be room for? Quickly, and never too few: where it says no, placing need not be tried."""

from collections import Counter

import numpy as np

from lattice.engine.table import Flags, Integers, Rowids
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.quotes import UNSET
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.pool_selector import PoolSelector
from lattice.placement.plugins.filters.residency import Residency

PERMANENT_FILTERS = (
    Available(),
    PoolSelector(),
    Compliance(),
    Capabilities(),
    Residency(),
)  # nothing that is placed makes these say yes
UNBOUNDED_COUNT = 1 << 40


def may_fit(demand: Demand, fleet: Fleet) -> bool:
    """False: there is no room for all replicas that it lacks, whatever goes where. Those that run take what the service asks now."""
    missing = demand.replicas - len(fleet.assignments.get(demand.name, ()))
    return missing <= 0 or max_additional_replicas(demand, fleet) >= missing


def max_additional_replicas(demand: Demand, fleet: Fleet) -> int:
    """Replicas beyond those that run."""
    rows = _eligible_offers(demand, fleet)
    return (
        _capacity_on_existing(demand, fleet, rows) + int(_capacity_on_new(demand, fleet)[rows].sum())
        if rows.any()
        else 0
    )


def max_additional_on_cheapest(demand: Demand, fleet: Fleet) -> int:
    """As `most_more`, with every machine of the class that costs least: known of offers that have one machine left to make."""
    rows, table, quotes = _eligible_offers(demand, fleet), fleet.table, fleet.table.quotes
    room = _capacity_on_new(demand, fleet)
    if rows.any() and len(quotes.catalog.type_names):
        kind = quotes.quote_for(ReplicaAsk(demand)).type_id
        holds = np.where(kind == UNSET, 0, _per_machine(demand, fleet)[kind, np.arange(table.count)])
        is_last = table.free(table.resource_index["nodes"]) == 1
        is_last[fleet.machines.column("offer")[_idle(fleet)]] = False
        np.minimum(room, np.where(is_last, holds, UNBOUNDED_COUNT), out=room)
    return _capacity_on_existing(demand, fleet, rows) + int(room[rows].sum())


def _eligible_offers(demand: Demand, fleet: Fleet) -> Flags:
    ask = ReplicaAsk(demand)
    rows: Flags = np.ones(fleet.table.count, np.bool_)
    for each in PERMANENT_FILTERS:
        if each.applies(ask):
            for mask in each.filter(ask, fleet.table).values():
                rows &= ~mask
    return rows


def _capacity_on_existing(demand: Demand, fleet: Fleet, rows: Flags) -> int:
    """On those that are there, whoever may use them."""
    machines = fleet.machines
    if not machines.count:
        return 0
    room: Integers = np.full(machines.count, demand.max_per_node or demand.replicas, np.int64)
    for resource, amount in demand.effective_needs.items():
        free = machines.free(machines.add_resource(resource)) + _released_by_update(
            demand, fleet, resource, amount
        )
        np.minimum(room, np.maximum(free, 0) // max(1, amount), out=room)
    is_there = machines.column("alive") & rows[machines.column("offer")]
    return int(room[is_there].sum())


def _released_by_update(demand: Demand, fleet: Fleet, resource: str, amount: int) -> Integers:
    """By replicas that run and took more of it than is asked now."""
    found: Integers = np.zeros(fleet.machines.count, np.int64)
    for seat in fleet.assignments.get(demand.name, ()):
        before = next((taken for name, taken in seat.needs if name == resource), 0)
        if before != amount:
            found[seat.machine] += before - amount
    return found


def _capacity_on_new(demand: Demand, fleet: Fleet) -> Integers:
    """By offer, of each limit alone: machines, cores, memory and money. Budgets that offers share count for each of them.

    Machines that hold nothing may go, and leave what they take.
    """
    quotes, table = fleet.table.quotes, fleet.table
    if {"capacity", "budget"} <= demand.ignored_limits:
        return np.full(table.count, UNBOUNDED_COUNT, np.int64)
    serving, catalogue = quotes.machine_fit(demand), quotes.catalog
    if not len(serving.can_host):
        return np.zeros(table.count, np.int64)
    per = np.where(serving.can_host, _per_machine(demand, fleet), 0)
    idle = _idle(fleet)
    if "capacity" in demand.ignored_limits:
        return np.minimum(
            _replicas_within_budget(
                per, catalogue.rate, np.maximum(fleet.headroom_by_offer + _refundable_rates(fleet, idle), 0)
            ),
            UNBOUNDED_COUNT,
        )
    nodes = np.maximum(table.free(table.resource_index["nodes"]), 0) + np.bincount(
        fleet.machines.column("offer")[idle], minlength=table.count
    )
    room = np.minimum(nodes, UNBOUNDED_COUNT) * per.max(axis=0)
    for resource in ("cpu", "memory"):
        amount, is_counted = (
            demand.effective_needs.get(resource, 0),
            (catalogue.size(resource) < NO_LIMIT)[serving.can_host].all(),
        )
        if amount and is_counted:
            left = np.maximum(table.free(table.resource_index[resource]), 0) + _reclaimable_resource(
                fleet, idle, resource
            )
            np.minimum(room, left // amount, out=room)
    if "budget" not in demand.ignored_limits:
        left = np.maximum(fleet.headroom_by_offer + _refundable_rates(fleet, idle), 0)
        np.minimum(room, _replicas_within_budget(per, catalogue.rate, left), out=room)
    found: Integers = np.minimum(room, UNBOUNDED_COUNT)
    return found


def _per_machine(demand: Demand, fleet: Fleet) -> Integers:
    catalogue = fleet.table.quotes.catalog
    per: Integers = np.full(
        catalogue.is_offered.shape, min(demand.max_per_node or demand.replicas, demand.replicas), np.int64
    )
    for resource, amount in demand.effective_needs.items():
        np.minimum(per, catalogue.size(resource) // max(1, amount), out=per)
    return per


def _idle(fleet: Fleet) -> Rowids:
    machines = fleet.machines
    return np.flatnonzero(
        machines.column("alive") & (machines.allocated(0) == 0) & (machines.allocated(1) == 0)
    )


def _reclaimable_resource(fleet: Fleet, idle: Rowids, resource: str) -> Integers:
    found: Integers = np.zeros(fleet.table.count, np.int64)
    size = np.minimum(fleet.machines.total(fleet.machines.resource_index[resource])[idle], UNBOUNDED_COUNT)
    np.add.at(found, fleet.machines.column("offer")[idle], size)
    return found


def _refundable_rates(fleet: Fleet, idle: Rowids) -> Integers:
    """Micro-dollars per hour; where several budgets pay, as if each had got what the one got that gets most."""
    refunds: Counter[str] = Counter()
    for machine in idle.tolist():
        cluster = fleet.machines.cluster[machine]
        refunds.update(
            dict.fromkeys(
                fleet.ledgers(cluster.offer_row, cluster.overflow_source),
                fleet.machines.machine_type[machine].rate,
            )
        )
    if not refunds:
        return np.zeros(fleet.table.count, np.int64)
    return np.array(
        [max((refunds[each] for each in offer.budgets), default=0) for offer in fleet.offers], np.int64
    )


def _replicas_within_budget(per: Integers, rate: Integers, left: Integers) -> Integers:
    """For all that is left of the budgets, on the class that holds most replicas for the money."""
    is_free = ((rate == 0) & (per > 0)).any(axis=0) | (left > UNBOUNDED_COUNT)
    worth: Integers = (np.minimum(left, UNBOUNDED_COUNT) * per // np.maximum(rate, 1)).max(axis=0)
    return np.where(is_free, UNBOUNDED_COUNT, worth)
