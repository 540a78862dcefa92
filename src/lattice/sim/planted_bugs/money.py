"""Bugs in money, and in the machines that it pays for."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from lattice.controllers.services import clusters
from lattice.controllers.services import ledger_commit as ledgers
from lattice.controllers.services import placement_writer as placing
from lattice.controllers.services import supply_status as supply
from lattice.kinds.ledger import LatticeLedger
from lattice.lifecycle import machines
from lattice.placement.inputs import ledger_math as money
from lattice.placement.model import costs as charges
from lattice.placement.model import supply as supplies
from lattice.placement.model.offer import NO_LIMIT
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store.protocol import Put


def blind_ledger() -> None:
    """Reads, adds and writes, whatever others wrote meanwhile."""
    put = ledgers.LedgerCommitter._put

    def blind(self: Any, before: Any, after: Any, expect: int) -> Put:
        return msgspec.structs.replace(put(self, before, after, expect), expect=None)

    async def commit(self: Any, payment: Any, settled: Any, read: Any) -> int:
        await asyncio.sleep(0.3)
        revision: int = await self.store.commit(
            [*payment.writes, *settled.puts], checks=payment.checks, fence=self.term
        )
        return revision

    patch_attribute(ledgers.LedgerCommitter, "_put", blind)
    patch_attribute(ledgers.LedgerCommitter, "_commit", commit)


def no_limit() -> None:
    settle = money.settle_charges

    def generous(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        limit = ledger.spec.limit_micros
        open_ended = msgspec.structs.replace(
            ledger, spec=msgspec.structs.replace(ledger.spec, limit_micros=None)
        )
        after, answer = settle(open_ended, releases, charges, now)
        return msgspec.structs.replace(
            after, spec=msgspec.structs.replace(after.spec, limit_micros=limit)
        ), answer

    patch_attribute(ledgers, "settle_charges", generous)


def float_money() -> None:
    accrue = money.accrue

    def rounded(ledger: Any, now: datetime) -> Any:
        after = accrue(ledger, now)
        return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, remainder=0))

    patch_attribute(money, "accrue", rounded)


def unpaid_machines() -> None:
    patch_attribute(placing, "charges_due", lambda fleet, cluster, counts, paid: [])


def paid_back_too_early() -> None:
    """The money is free again before the machine is confirmed to be gone."""
    remove = clusters.ClusterController._remove_machine

    async def early(self: Any, provider: Any, name: str, *, is_paid_back: bool) -> None:
        class Later:
            async def delete(self, node: str) -> None:
                asyncio.get_running_loop().call_later(
                    4.0, lambda: asyncio.ensure_future(provider.delete(node))
                )

        await remove(self, Later(), name, is_paid_back=is_paid_back)  # type: ignore[arg-type]

    patch_attribute(clusters.ClusterController, "_remove_machine", early)


def forgotten_month() -> None:
    """When a month ends, what was spent in it is gone."""
    accrue = money.accrue

    def forgetful(ledger: Any, now: datetime) -> Any:
        after = accrue(ledger, now)
        if after.status.month == ledger.status.month:
            return after
        return msgspec.structs.replace(
            after, status=msgspec.structs.replace(after.status, past=ledger.status.past)
        )

    patch_attribute(money, "accrue", forgetful)


def half_price() -> None:
    """Machines are paid for at half their price."""
    real = charges.charges_due

    def cheap(*words: Any) -> Any:
        return [
            replace(each, lot=msgspec.structs.replace(each.lot, micros=each.lot.micros // 2))
            for each in real(*words)
        ]

    patch_attribute(placing, "charges_due", cheap)


def unheard_limit() -> None:
    """Whoever lowers a budget in the moment in which machines are taken is not heard."""
    commit = ledgers.LedgerCommitter._commit

    async def deaf(self: Any, payment: Any, settled: Any, read: Any) -> int:
        others = {key for key in read if key.resource != LatticeLedger.resource.id} - payment.keys
        known = dict(zip(others, await asyncio.gather(*map(self.store.get, others)), strict=True))
        return await commit(self, payment, settled, {**read, **known})

    patch_attribute(ledgers.LedgerCommitter, "_commit", deaf)


def no_most_machines() -> None:
    """Pools are as large as anybody likes."""
    offer = supplies._pool_offer

    def endless(pool: Any, classes: Any) -> Any:
        made = offer(pool, classes)
        return replace(made, limits=replace(made.limits, nodes=NO_LIMIT))

    patch_attribute(supplies, "_pool_offer", endless)


def trickling_status() -> None:
    patch_attribute(supply, "without_minor_spend", lambda before, after: after)


def removed_with_work() -> None:
    steps = machines.plan_machines

    def hasty(cluster: str, found: Any) -> Any:
        return replace(
            steps(cluster, replace(found, nodes=[replace(each, workloads=0) for each in found.nodes]))
        )

    patch_attribute(clusters, "plan_machines", hasty)
