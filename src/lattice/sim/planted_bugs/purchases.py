"""Planted bugs of purchases, of prices and of the book."""

from datetime import datetime
from typing import Any

import msgspec

from lattice.controllers.services import clusters, ledger_commit, placement_writer
from lattice.errors import Invalid
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.node_class import NodeClassSpec
from lattice.placement.greedy import unschedulable
from lattice.placement.inputs import ledger_math
from lattice.placement.model import costs
from lattice.placement.status import fleet_status, supply_conditions, supply_status
from lattice.sim.planted_bugs.patching import patch_attribute


def buys_while_one_is_coming() -> None:
    """Remediation does not count the machines that were bought and have not joined."""
    patch_attribute(unschedulable, "_awaits_machines", lambda fleet, observation, node_group: False)


def machine_per_replica() -> None:
    """Remediation buys a machine for every waiting replica, although one machine takes several."""
    grow = unschedulable._grow_cluster

    def grow_for_each(demand: Any, fleet: Any, cluster: Any, assignments: Any) -> tuple[int, list[Any]]:
        added, remaining = 0, []
        for assignment in assignments:
            machines, unassigned = grow(demand, fleet, cluster, [assignment])
            added += machines
            remaining += unassigned
        return added, remaining

    patch_attribute(unschedulable, "_grow_cluster", grow_for_each)


def surge_machine_kept() -> None:
    """A cluster keeps the machines that it needed for a moment, such as that of a surge replica."""

    async def keep_machines(self: Any, decided: Any) -> None:
        return None

    patch_attribute(placement_writer.PlacementWriter, "_shrink_clusters", keep_machines)


def wrong_lot_released() -> None:
    """The ledger releases a lot of another class, if the cluster has one."""
    release = ledger_math.release

    def release_other(ledger: LatticeLedger, cluster: str, lot: Lot, now: datetime) -> LatticeLedger:
        for paid in ledger.status.machines.get(cluster, ()):
            if paid.node_class != lot.node_class and paid.count >= lot.count:
                return release(ledger, cluster, msgspec.structs.replace(paid, count=lot.count), now)
        return release(ledger, cluster, lot, now)

    patch_attribute(ledger_math, "release", release_other)


def refunded_twice() -> None:
    """The ledger releases the charge of a removed machine twice, if it pays for another one."""
    settle = ledger_math.settle_charges

    def settle_twice(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        try:
            return settle(ledger, [*releases, *releases], charges, now)
        except Invalid:
            return settle(ledger, releases, charges, now)

    patch_attribute(ledger_commit, "settle_charges", settle_twice)


def never_refunded() -> None:
    """The ledger goes on to pay for machines that are gone."""

    async def keep_paying(self: Any, name: str) -> None:
        return None

    patch_attribute(clusters, "machines_to_refund", lambda remove, state: frozenset[str]())
    patch_attribute(placement_writer.PlacementWriter, "_refund_unmade_machines", keep_paying)


def first_price_for_ever() -> None:
    """New machines are charged at the first price that their class had."""
    charges_due, first = costs.charges_due, dict[str, int]()

    def charge_first_price(fleet: Any, cluster: Any, desired: Any, paid: Any) -> Any:
        charges = []
        for due in charges_due(fleet, cluster, desired, paid):
            micros = first.setdefault(due.lot.node_class, due.lot.micros)
            charges.append(
                type(due)(due.accounts, due.cluster, msgspec.structs.replace(due.lot, micros=micros))
            )
        return charges

    patch_attribute(placement_writer, "charges_due", charge_first_price)


def headroom_from_lowest_price() -> None:
    """The headroom of a budget counts every machine at the lowest price that its class had."""
    headroom_to_limit, lowest = ledger_math.headroom_to_limit, dict[str, int]()

    def headroom_with_lowest_price(ledger: LatticeLedger, now: datetime) -> int:
        excess = 0
        for lots in ledger.status.machines.values():
            for lot in lots:
                lowest[lot.node_class] = min(lot.micros, lowest.get(lot.node_class, lot.micros))
                excess += lot.count * (lot.micros - lowest[lot.node_class])
        return headroom_to_limit(ledger, now) + excess

    patch_attribute(ledger_math, "headroom_to_limit", headroom_with_lowest_price)


def unknown_price_is_free() -> None:
    """A class without a price costs nothing."""
    price_on = NodeClassSpec.price_on
    patch_attribute(NodeClassSpec, "price_on", lambda self, provider: price_on(self, provider) or 0)


def budget_never_exceeded() -> None:
    """The condition BudgetExceeded is never True."""
    budget_condition = supply_conditions.budget_condition
    patch_attribute(
        supply_conditions,
        "budget_condition",
        lambda projected, limit, *, is_hard: budget_condition(0, max(limit, 1), is_hard=is_hard),
    )


def first_cost_shown() -> None:
    """The status of a cluster shows the first cost that the cluster had."""
    cluster_status = fleet_status.cluster_status

    def show_first_cost(cluster: Any, fleet: Any, previous: Any) -> Any:
        status = cluster_status(cluster, fleet, previous)
        return status if previous.cost is None else msgspec.structs.replace(status, cost=previous.cost)

    patch_attribute(supply_status, "cluster_status", show_first_cost)
