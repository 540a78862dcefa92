"""Bugs in money, and in the machines that it pays for."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from lattice.controllers.services import (
    clusters,
    ledger_commit as ledgers,
    placement_writer as placing,
    supply_status as supply,
)
from lattice.kinds.ledger import LatticeLedger
from lattice.placement.model import charges
from lattice.lifecycle import machines
from lattice.placement.inputs import ledger_math as money
from lattice.placement.model import supply as supplies
from lattice.placement.model.offer import NO_LIMIT
from lattice.sim.planted_bugs.patching import swap
from lattice.store.protocol import Put


def blind_ledger() -> None:
    """Reads, adds and writes, whatever others wrote meanwhile."""
    put = ledgers.Ledgers._put

    def blind(self: Any, before: Any, after: Any, expect: int) -> Put:
        return msgspec.structs.replace(put(self, before, after, expect), expect=None)

    async def commit(self: Any, payment: Any, settled: Any, read: Any) -> int:
        await asyncio.sleep(0.3)
        revision: int = await self.store.commit(
            [*payment.writes, *settled.puts], checks=payment.checks, fence=self.term
        )
        return revision

    swap(ledgers.Ledgers, "_put", blind)
    swap(ledgers.Ledgers, "_commit", commit)


def no_limit() -> None:
    settle = money.settle

    def generous(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        limit = ledger.spec.limit_micros
        open_ended = msgspec.structs.replace(
            ledger, spec=msgspec.structs.replace(ledger.spec, limit_micros=None)
        )
        after, answer = settle(open_ended, releases, charges, now)
        return msgspec.structs.replace(
            after, spec=msgspec.structs.replace(after.spec, limit_micros=limit)
        ), answer

    swap(ledgers, "settle", generous)


def float_money() -> None:
    accrue = money.accrue

    def rounded(ledger: Any, now: datetime) -> Any:
        after = accrue(ledger, now)
        return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, remainder=0))

    swap(money, "accrue", rounded)


def unpaid_machines() -> None:
    swap(placing, "charges", lambda fleet, cluster, counts, paid: [])


def paid_back_too_early() -> None:
    """The money is free again before the machine is confirmed to be gone."""
    remove = clusters.Clusters._remove

    async def early(self: Any, provider: Any, name: str, *, is_paid_back: bool) -> None:
        class Later:
            async def delete(self, node: str) -> None:
                asyncio.get_running_loop().call_later(
                    4.0, lambda: asyncio.ensure_future(provider.delete(node))
                )

        await remove(self, Later(), name, is_paid_back=is_paid_back)  # type: ignore[arg-type]

    swap(clusters.Clusters, "_remove", early)


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

    swap(money, "accrue", forgetful)


def half_price() -> None:
    """Machines are paid for at half their price."""
    real = charges.charges

    def cheap(*words: Any) -> Any:
        return [
            replace(each, lot=msgspec.structs.replace(each.lot, micros=each.lot.micros // 2))
            for each in real(*words)
        ]

    swap(placing, "charges", cheap)


def unheard_limit() -> None:
    """Whoever lowers a budget in the moment in which machines are taken is not heard."""
    commit = ledgers.Ledgers._commit

    async def deaf(self: Any, payment: Any, settled: Any, read: Any) -> int:
        others = {key for key in read if key.resource != LatticeLedger.resource.id} - payment.keys
        known = dict(zip(others, await asyncio.gather(*map(self.store.get, others)), strict=True))
        return await commit(self, payment, settled, {**read, **known})

    swap(ledgers.Ledgers, "_commit", deaf)


def no_most_machines() -> None:
    """Pools are as large as anybody likes."""
    offer = supplies._pool_offer

    def endless(pool: Any, classes: Any) -> Any:
        made = offer(pool, classes)
        return replace(made, limits=replace(made.limits, nodes=NO_LIMIT))

    swap(supplies, "_pool_offer", endless)


def trickling_status() -> None:
    swap(supply, "steadied", lambda before, after: after)


def removed_with_work() -> None:
    steps = machines.steps

    def hasty(cluster: str, found: Any) -> Any:
        return replace(
            steps(cluster, replace(found, nodes=[replace(each, workloads=0) for each in found.nodes]))
        )

    swap(clusters, "steps", hasty)
