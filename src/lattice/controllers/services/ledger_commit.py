"""How machines are taken and paid for at once: one commit holds the placement and every ledger that pays for it, or nothing is written.

The limits are read from the objects that state them, and the commit holds only while those are still as they were read: whoever
lowers a budget is heard by everything that is committed after.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

import msgspec

from lattice.clock import Clock, format_timestamp
from lattice.errors import Conflict, Invalid, Malformed, NotFound
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import Account, LatticeLedger, ledger_spec
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.ledger_math import (
    BudgetApproval,
    BudgetRejection,
    Charge,
    open_ledger,
    settle_charges,
    with_status_message,
)
from lattice.store.protocol import ABSENT, Check, Entry, Key, Put, RevisionConflict, Store, Term, Write

MAX_ATTEMPTS = 64  # each one lost is one that a rival won, so among 64 rivals with one payment each nobody runs out of them
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.002, 0.2  # seconds
BUDGET_OWNER_KINDS: dict[str, type[Kind]] = {
    kind.resource.kind: kind for kind in (LatticePool, CloudInfrastructure, StaticInfrastructure)
}
REQUEST_PROBE = Put(
    Key(LatticeLedger.resource.id, "", "none"), b"", expect=1 << 60
)  # no account has this ledger, and nothing that revision

_owner_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in BUDGET_OWNER_KINDS.items()
}
_ledger_decoder = msgspec.json.Decoder(LatticeLedger)


@dataclass(frozen=True, slots=True)
class Payment:
    """What one decision writes and what it costs. `releases`: machines that are confirmed to be gone."""

    writes: Sequence[Write]
    charges: Sequence[Charge] = ()
    releases: Sequence[Charge] = ()
    checks: Sequence[Check] = ()
    request_id: str | None = None

    @property
    def accounts(self) -> tuple[Account, ...]:
        found = {account for each in (*self.charges, *self.releases) for account in each.accounts}
        return tuple(sorted(found, key=lambda account: account.ledger_name))

    @property
    def keys(self) -> set[Key]:
        return {operation.key for operation in (*self.writes, *self.checks)}


@dataclass(frozen=True, slots=True)
class CommittedPayment:
    """Committed at this revision; `answers`, one per ledger, tell where each stands now and whether a soft limit warns."""

    revision: int
    results: tuple[BudgetApproval, ...] = ()

    @property
    def warnings(self) -> tuple[BudgetApproval, ...]:
        return tuple(each for each in self.results if each.is_over_soft_limit)


@dataclass(frozen=True, slots=True)
class OverBudget:
    """Nothing was written: these ledgers, all that refuse, have too little left."""

    rejections: tuple[BudgetRejection, ...]

    def __str__(self) -> str:
        return "over budget: " + "; ".join(map(str, self.rejections))


class _LedgerUpdates(msgspec.Struct, frozen=True):
    """All ledgers of a payment, as they would be after it."""

    puts: list[Put]
    results: list[BudgetApproval | BudgetRejection]


@dataclass(frozen=True)
class LedgerCommitter:
    store: Store
    clock: Clock
    term: Term | None = None
    new_uid: Callable[[], str] = lambda: str(uuid4())

    async def commit_with_charges(self, payment: Payment) -> CommittedPayment | OverBudget:
        """Raises Clash when one of the payment's own writes or checks finds something else: decide again. Rivals for a ledger
        are no reason to: it is read again, and the limits are checked again."""
        for attempt in range(MAX_ATTEMPTS):
            read = await self._read(payment)
            try:
                settled = self._settle(payment, read, self.clock.now())
            except (Invalid, NotFound):
                if (done := await self._committed_earlier(payment)) is not None:
                    return done
                raise
            if refusals := tuple(each for each in settled.results if isinstance(each, BudgetRejection)):
                return await self._committed_earlier(payment) or OverBudget(refusals)
            try:
                revision = await self._commit(payment, settled, read)
            except RevisionConflict as clash:
                if clash.key in payment.keys:
                    raise
                await self.clock.sleep(_backoff_s(payment, attempt))
                continue
            return CommittedPayment(
                revision, tuple(each for each in settled.results if isinstance(each, BudgetApproval))
            )
        raise _contended(payment)

    async def _read(self, payment: Payment) -> dict[Key, Entry | None]:
        """Every ledger and every object that states a budget, each once."""
        keys = sorted(
            {key for account in payment.accounts for key in (_ledger_key(account), _owner_key(account))}
        )
        entries = await asyncio.gather(*map(self.store.get, keys))
        return dict(zip(keys, entries, strict=True))

    def _settle(self, payment: Payment, read: Mapping[Key, Entry | None], now: datetime) -> _LedgerUpdates:
        settled = _LedgerUpdates([], [])
        for account in payment.accounts:
            entry = read[_ledger_key(account)]
            before = None if entry is None else _ledger(entry)
            charges = [each for each in payment.charges if account in each.accounts]
            releases = [each for each in payment.releases if account in each.accounts]
            ledger = _with_current_terms(account, read[_owner_key(account)], before, bool(charges), now)
            after, answer = settle_charges(ledger, releases, charges, now)
            settled.results.append(answer)
            settled.puts.append(
                self._put(before, with_status_message(after), ABSENT if entry is None else entry.revision)
            )
        return settled

    def _put(self, before: LatticeLedger | None, after: LatticeLedger, expect: int) -> Put:
        obj = msgspec.to_builtins(after)
        if before is None:
            obj = new_object(obj, uid=self.new_uid(), now=format_timestamp(self.clock.now()))
        elif before.spec != after.spec:
            obj["metadata"]["generation"] = before.metadata.generation + 1
        return Put(
            Key(LatticeLedger.resource.id, "", after.metadata.name), pack(LatticeLedger.resource, obj), expect
        )

    async def _commit(
        self, payment: Payment, settled: _LedgerUpdates, read: Mapping[Key, Entry | None]
    ) -> int:
        owners = {_owner_key(account) for account in payment.accounts}
        _reject_blind_writes(payment, owners)
        stated = [
            Check(key, ABSENT if (found := read[key]) is None else found.revision)
            for key in sorted(owners - payment.keys)
        ]
        return await self.store.commit(
            [*payment.writes, *settled.puts],
            checks=[*payment.checks, *stated],
            fence=self.term,
            request_id=payment.request_id,
        )

    async def _committed_earlier(self, payment: Payment) -> CommittedPayment | None:
        """A request whose answer was lost must not be refused for the money that it took itself.

        The store looks for a request id before anything else: a commit that cannot succeed tells whether it is known.
        """
        if payment.request_id is None:
            return None
        try:
            return CommittedPayment(
                await self.store.commit([REQUEST_PROBE], fence=self.term, request_id=payment.request_id)
            )
        except RevisionConflict:
            return None


def _with_current_terms(
    account: Account, owner: Entry | None, found: LatticeLedger | None, pays: bool, now: datetime
) -> LatticeLedger:
    """An object that is gone, or states this budget no more, pays for nothing new; what it pays for can still be released."""
    stated = ledger_spec(
        account, None if owner is None else _owner_decoders[account.kind].decode(owner.value)
    )
    if stated is not None:
        return open_ledger(stated, found, now)
    if pays or found is None:
        raise NotFound(
            "states no budget that machines could be paid from",
            where=str(account),
            fix="place them elsewhere",
        )
    return found


def _ledger(entry: Entry) -> LatticeLedger:
    """Money is never counted on with a book that does not add up."""
    ledger = _ledger_decoder.decode(entry.value)
    if causes := tuple(ledger.problems()):
        raise Invalid("does not add up", where=str(entry.key), fix="restore it from a backup", causes=causes)
    return ledger


def _reject_blind_writes(payment: Payment, owners: set[Key]) -> None:
    for write in payment.writes:
        if write.key in owners and write.expect is None:
            raise Malformed(
                "is written whatever it states", where=str(write.key), fix="expect the revision that was read"
            )


def _ledger_key(account: Account) -> Key:
    return Key(LatticeLedger.resource.id, "", account.ledger_name)


def _owner_key(account: Account) -> Key:
    return Key(BUDGET_OWNER_KINDS[account.kind].resource.id, "", account.name)


def _backoff_s(payment: Payment, attempt: int) -> float:
    """Longer each time, and different for each rival: half of it up to all of it, by what is written."""
    spread = (
        crc32(f"{attempt} {payment.request_id} {[str(write.key) for write in payment.writes[:3]]}".encode())
        / 0xFFFFFFFF
    )
    return min(MIN_BACKOFF_S * 2.0**attempt, MAX_BACKOFF_S) * (1 + spread) / 2


def _contended(payment: Payment) -> Conflict:
    names = ", ".join(account.ledger_name for account in payment.accounts)
    return Conflict(
        f"others were first {MAX_ATTEMPTS} times in a row",
        where=f"latticeledger/{names}",
        fix="decide again a little later",
    )
