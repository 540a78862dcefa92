"""At most how many more replicas could there be room for? Quickly, and never too few: where it says no, placing need not be tried."""

from collections import Counter

import numpy as np

from lattice.engine.table import Flags, Integers, Rowids
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.plugins.filters.available import Available
from lattice.placement.plugins.filters.capabilities import Capabilities
from lattice.placement.plugins.filters.compliance import Compliance
from lattice.placement.plugins.filters.pool_selector import Labels
from lattice.placement.plugins.filters.residency import Residency
from lattice.placement.model.quotes import NONE

LASTING = (
    Available(),
    Labels(),
    Compliance(),
    Capabilities(),
    Residency(),
)  # nothing that is placed makes these say yes
PLENTY = 1 << 40


def may_fit(demand: Demand, fleet: Fleet) -> bool:
    """False: there is no room for all replicas that it lacks, whatever goes where. Those that run take what the service asks now."""
    missing = demand.replicas - len(fleet.seats.get(demand.name, ()))
    return missing <= 0 or most_more(demand, fleet) >= missing


def most_more(demand: Demand, fleet: Fleet) -> int:
    """Replicas beyond those that run."""
    rows = _open(demand, fleet)
    return (
        _on_machines(demand, fleet, rows) + int(_on_new_ones(demand, fleet)[rows].sum()) if rows.any() else 0
    )


def most_cheaply(demand: Demand, fleet: Fleet) -> int:
    """As `most_more`, with every machine of the class that costs least: known of offers that have one machine left to make."""
    rows, table, quotes = _open(demand, fleet), fleet.table, fleet.table.quotes
    room = _on_new_ones(demand, fleet)
    if rows.any() and len(quotes.catalogue.names):
        kind = quotes.of(ReplicaAsk(demand)).type
        holds = np.where(kind == NONE, 0, _per_machine(demand, fleet)[kind, np.arange(table.count)])
        is_last = table.free(table.index["nodes"]) == 1
        is_last[fleet.machines.column("offer")[_idle(fleet)]] = False
        np.minimum(room, np.where(is_last, holds, PLENTY), out=room)
    return _on_machines(demand, fleet, rows) + int(room[rows].sum())


def _open(demand: Demand, fleet: Fleet) -> Flags:
    ask = ReplicaAsk(demand)
    rows: Flags = np.ones(fleet.table.count, np.bool_)
    for each in LASTING:
        if each.applies(ask):
            for mask in each.filter(ask, fleet.table).values():
                rows &= ~mask
    return rows


def _on_machines(demand: Demand, fleet: Fleet, rows: Flags) -> int:
    """On those that are there, whoever may use them."""
    machines = fleet.machines
    if not machines.count:
        return 0
    room: Integers = np.full(machines.count, demand.per_node or demand.replicas, np.int64)
    for resource, amount in demand.effective_needs.items():
        free = machines.free(machines.add_resource(resource)) + _given_back(demand, fleet, resource, amount)
        np.minimum(room, np.maximum(free, 0) // max(1, amount), out=room)
    is_there = machines.column("alive") & rows[machines.column("offer")]
    return int(room[is_there].sum())


def _given_back(demand: Demand, fleet: Fleet, resource: str, amount: int) -> Integers:
    """By replicas that run and took more of it than is asked now."""
    found: Integers = np.zeros(fleet.machines.count, np.int64)
    for seat in fleet.seats.get(demand.name, ()):
        before = next((taken for name, taken in seat.needs if name == resource), 0)
        if before != amount:
            found[seat.machine] += before - amount
    return found


def _on_new_ones(demand: Demand, fleet: Fleet) -> Integers:
    """By offer, of each limit alone: machines, cores, memory and money. Budgets that offers share count for each of them.

    Machines that hold nothing may go, and leave what they take.
    """
    quotes, table = fleet.table.quotes, fleet.table
    if {"capacity", "budget"} <= demand.ignoring:
        return np.full(table.count, PLENTY, np.int64)
    serving, catalogue = quotes.serving(demand), quotes.catalogue
    if not len(serving.serves):
        return np.zeros(table.count, np.int64)
    per = np.where(serving.serves, _per_machine(demand, fleet), 0)
    idle = _idle(fleet)
    if "capacity" in demand.ignoring:
        return np.minimum(
            _paid(per, catalogue.rate, np.maximum(fleet.left + _refunded(fleet, idle), 0)), PLENTY
        )
    nodes = np.maximum(table.free(table.index["nodes"]), 0) + np.bincount(
        fleet.machines.column("offer")[idle], minlength=table.count
    )
    room = np.minimum(nodes, PLENTY) * per.max(axis=0)
    for resource in ("cpu", "memory"):
        amount, is_counted = (
            demand.effective_needs.get(resource, 0),
            (catalogue.size(resource) < NO_LIMIT)[serving.serves].all(),
        )
        if amount and is_counted:
            left = np.maximum(table.free(table.index[resource]), 0) + _left_behind(fleet, idle, resource)
            np.minimum(room, left // amount, out=room)
    if "budget" not in demand.ignoring:
        left = np.maximum(fleet.left + _refunded(fleet, idle), 0)
        np.minimum(room, _paid(per, catalogue.rate, left), out=room)
    found: Integers = np.minimum(room, PLENTY)
    return found


def _per_machine(demand: Demand, fleet: Fleet) -> Integers:
    catalogue = fleet.table.quotes.catalogue
    per: Integers = np.full(
        catalogue.is_there.shape, min(demand.per_node or demand.replicas, demand.replicas), np.int64
    )
    for resource, amount in demand.effective_needs.items():
        np.minimum(per, catalogue.size(resource) // max(1, amount), out=per)
    return per


def _idle(fleet: Fleet) -> Rowids:
    machines = fleet.machines
    return np.flatnonzero(machines.column("alive") & (machines.taken(0) == 0) & (machines.taken(1) == 0))


def _left_behind(fleet: Fleet, idle: Rowids, resource: str) -> Integers:
    found: Integers = np.zeros(fleet.table.count, np.int64)
    size = np.minimum(fleet.machines.total(fleet.machines.index[resource])[idle], PLENTY)
    np.add.at(found, fleet.machines.column("offer")[idle], size)
    return found


def _refunded(fleet: Fleet, idle: Rowids) -> Integers:
    """Micro-dollars per hour; where several budgets pay, as if each had got what the one got that gets most."""
    refunds: Counter[str] = Counter()
    for machine in idle.tolist():
        cluster = fleet.machines.cluster[machine]
        refunds.update(
            dict.fromkeys(fleet.ledgers(cluster.row, cluster.overflow), fleet.machines.kind[machine].rate)
        )
    if not refunds:
        return np.zeros(fleet.table.count, np.int64)
    return np.array(
        [max((refunds[each] for each in offer.budgets), default=0) for offer in fleet.offers], np.int64
    )


def _paid(per: Integers, rate: Integers, left: Integers) -> Integers:
    """For all that is left of the budgets, on the class that holds most replicas for the money."""
    is_free = ((rate == 0) & (per > 0)).any(axis=0) | (left > PLENTY)
    worth: Integers = (np.minimum(left, PLENTY) * per // np.maximum(rate, 1)).max(axis=0)
    return np.where(is_free, PLENTY, worth)
