"""Planted bugs of ledgers, prices and machines."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from lattice.controllers.services import clusters, ledger_commit, placement_writer, supply_status
from lattice.kinds.ledger import LatticeLedger
from lattice.lifecycle import machines
from lattice.placement.inputs import ledger_math
from lattice.placement.model import costs, supply
from lattice.placement.model.offer import NO_LIMIT
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store.protocol import Put


def blind_ledger() -> None:
    """The committer reads a ledger and writes the ledger without a revision check."""
    put = ledger_commit.LedgerCommitter._put

    def put_blind(self: Any, old: Any, new: Any, expect: int) -> Put:
        return msgspec.structs.replace(put(self, old, new, expect), expect=None)

    async def commit(self: Any, payment: Any, settled: Any, read: Any) -> int:
        await asyncio.sleep(0.3)
        revision: int = await self.store.commit(
            [*payment.writes, *settled.puts], checks=payment.checks, fence=self.term
        )
        return revision

    patch_attribute(ledger_commit.LedgerCommitter, "_put", put_blind)
    patch_attribute(ledger_commit.LedgerCommitter, "_commit", commit)


def no_limit() -> None:
    settle = ledger_math.settle_charges

    def settle_without_limit(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        limit = ledger.spec.limit_micros
        unlimited = msgspec.structs.replace(
            ledger, spec=msgspec.structs.replace(ledger.spec, limit_micros=None)
        )
        settled, answer = settle(unlimited, releases, charges, now)
        return msgspec.structs.replace(
            settled, spec=msgspec.structs.replace(settled.spec, limit_micros=limit)
        ), answer

    patch_attribute(ledger_commit, "settle_charges", settle_without_limit)


def float_money() -> None:
    accrue = ledger_math.accrue

    def accrue_rounded(ledger: Any, now: datetime) -> Any:
        accrued = accrue(ledger, now)
        return msgspec.structs.replace(accrued, status=msgspec.structs.replace(accrued.status, remainder=0))

    patch_attribute(ledger_math, "accrue", accrue_rounded)


def unpaid_machines() -> None:
    patch_attribute(placement_writer, "charges_due", lambda fleet, cluster, counts, paid: [])


def paid_back_too_early() -> None:
    """The ledger releases the money before the provider confirms the removal of the machine."""
    remove = clusters.ClusterController._remove_machine

    async def remove_early(self: Any, provider: Any, name: str, *, is_paid_back: bool) -> None:
        class DelayedProvider:
            async def delete(self, node: str) -> None:
                asyncio.get_running_loop().call_later(
                    4.0, lambda: asyncio.ensure_future(provider.delete(node))
                )

        await remove(self, DelayedProvider(), name, is_paid_back=is_paid_back)  # type: ignore[arg-type]

    patch_attribute(clusters.ClusterController, "_remove_machine", remove_early)


def forgotten_month() -> None:
    """The spending of an ended month is not recorded."""
    accrue = ledger_math.accrue

    def accrue_without_past(ledger: Any, now: datetime) -> Any:
        accrued = accrue(ledger, now)
        if accrued.status.month == ledger.status.month:
            return accrued
        return msgspec.structs.replace(
            accrued, status=msgspec.structs.replace(accrued.status, past=ledger.status.past)
        )

    patch_attribute(ledger_math, "accrue", accrue_without_past)


def half_price() -> None:
    """A ledger pays half of the machine price."""
    charges_due = costs.charges_due

    def half_charges(*arguments: Any) -> Any:
        return [
            replace(charge, lot=msgspec.structs.replace(charge.lot, micros=charge.lot.micros // 2))
            for charge in charges_due(*arguments)
        ]

    patch_attribute(placement_writer, "charges_due", half_charges)


def unheard_limit() -> None:
    """A commit of machines ignores a concurrent reduction of the budget."""
    commit = ledger_commit.LedgerCommitter._commit

    async def commit_unchecked(self: Any, payment: Any, settled: Any, read: Any) -> int:
        unchecked = {key for key in read if key.resource != LatticeLedger.resource.id} - payment.keys
        current = dict(zip(unchecked, await asyncio.gather(*map(self.store.get, unchecked)), strict=True))
        return await commit(self, payment, settled, {**read, **current})

    patch_attribute(ledger_commit.LedgerCommitter, "_commit", commit_unchecked)


def no_most_machines() -> None:
    """Pools have no limit of machines."""
    pool_offer = supply._pool_offer

    def unlimited_offer(pool: Any, classes: Any) -> Any:
        offer = pool_offer(pool, classes)
        return replace(offer, limits=replace(offer.limits, nodes=NO_LIMIT))

    patch_attribute(supply, "_pool_offer", unlimited_offer)


def trickling_status() -> None:
    patch_attribute(supply_status, "without_minor_spend", lambda old, new: new)


def removed_with_work() -> None:
    plan_machines = machines.plan_machines

    def plan_without_workloads(cluster: str, observed: Any) -> Any:
        return replace(
            plan_machines(
                cluster, replace(observed, nodes=[replace(node, workloads=0) for node in observed.nodes])
            )
        )

    patch_attribute(clusters, "plan_machines", plan_without_workloads)
