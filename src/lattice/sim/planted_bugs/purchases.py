"""Planted bugs of purchases, of prices and of the book."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from lattice.controllers.services import (
    clusters,
    ledger_commit,
    ledger_upkeep,
    observed_machines,
    placement_writer,
)
from lattice.errors import Invalid
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.node_class import NodeClassSpec
from lattice.placement.greedy.remediation import JointRemediation
from lattice.placement.inputs import ledger_math
from lattice.placement.inputs import observed_machines as machine_records
from lattice.placement.model import costs, supply, world
from lattice.placement.status import budget_conditions, fleet_status, supply_status
from lattice.sim.planted_bugs.patching import patch_attribute


def buys_while_one_is_coming() -> None:
    """Remediation does not count the machines that were bought and have not joined."""
    patch_attribute(JointRemediation, "_is_coming", lambda self, row: False)
    patch_attribute(JointRemediation, "_is_backing_off", lambda self, name, cluster, node_class: False)


def machine_per_replica() -> None:
    """Replicas do not share a machine that is coming."""
    find = JointRemediation._machine_with_capacity

    def find_unshared(self: Any, demand: Any, node_group: Any, *, is_coming: bool) -> int | None:
        return None if is_coming else find(self, demand, node_group, is_coming=False)

    patch_attribute(JointRemediation, "_machine_with_capacity", find_unshared)
    patch_attribute(JointRemediation, "_is_backing_off", lambda self, name, cluster, node_class: False)


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
    rate_cap, lowest = ledger_math.rate_cap, dict[str, int]()

    def cap_with_lowest_price(ledger: LatticeLedger, now: datetime) -> int:
        excess = 0
        for lots in ledger.status.machines.values():
            for lot in lots:
                lowest[lot.node_class] = min(lot.micros, lowest.get(lot.node_class, lot.micros))
                excess += lot.count * (lot.micros - lowest[lot.node_class])
        return rate_cap(ledger, now) + excess

    patch_attribute(ledger_math, "rate_cap", cap_with_lowest_price)
    patch_attribute(world, "rate_cap", cap_with_lowest_price)


def unknown_price_is_free() -> None:
    """A class without a price costs nothing."""
    price_on = NodeClassSpec.price_on
    patch_attribute(NodeClassSpec, "price_on", lambda self, provider: price_on(self, provider) or 0)


def budget_never_exceeded() -> None:
    """The condition BudgetExceeded is never True."""
    judge_budget = ledger_math.judge_budget

    def judge_within_budget(ledger: LatticeLedger, now: datetime, previous: str = "") -> Any:
        return replace(judge_budget(ledger, now, previous), is_exceeded=False, reason="WithinBudget")

    patch_attribute(budget_conditions, "judge_budget", judge_within_budget)


def first_cost_shown() -> None:
    """The status of a cluster shows the first cost that the cluster had."""
    cluster_status = fleet_status.cluster_status

    def show_first_cost(cluster: Any, fleet: Any, previous: Any, bill: Any) -> Any:
        status = cluster_status(cluster, fleet, previous, bill)
        return status if previous.cost is None else msgspec.structs.replace(status, cost=previous.cost)

    patch_attribute(supply_status, "cluster_status", show_first_cost)


def promise_believed() -> None:
    """Placement counts on the class as stated, whatever its machines offer."""
    patch_attribute(supply, "as_observed", lambda kind, record: kind)


def report_forgotten() -> None:
    """What machines offered is forgotten as soon as they are released."""
    update = machine_records.update_record

    def forget(previous: Any, promised: Any, nodes: Any, generation: int, at: str) -> Any:
        return update(None, promised, nodes, generation, at) if nodes else None

    patch_attribute(observed_machines, "update_record", forget)


def repriced_without_accruing() -> None:
    """A re-priced ledger counts the time until then at the new price."""
    settle, reprice = ledger_math.settle_charges, ledger_math.reprice

    def settle_without_accruing(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        if releases or charges:
            return settle(ledger, releases, charges, now)
        return ledger, ledger_math.may_commit(ledger, 0, now)

    def reprice_only(ledger: LatticeLedger, prices: Any, now: datetime) -> LatticeLedger:
        repriced = reprice(ledger, prices, now).status
        status = msgspec.structs.replace(
            ledger.status, machines=repriced.machines, committed_micros=repriced.committed_micros
        )
        return msgspec.structs.replace(ledger, status=status)

    patch_attribute(ledger_commit, "settle_charges", settle_without_accruing)
    patch_attribute(ledger_commit, "reprice", reprice_only)


def price_rise_refused() -> None:
    """A ledger ignores prices that rise, as if a rise were a purchase above the limit."""
    reprice = ledger_math.reprice

    def reprice_down(ledger: Any, prices: Any, now: datetime) -> Any:
        repriced = reprice(ledger, prices, now)
        return repriced if repriced.status.committed_micros <= ledger.status.committed_micros else ledger

    patch_attribute(ledger_commit, "reprice", reprice_down)
    patch_attribute(ledger_upkeep, "reprice", reprice_down)
