"""Commit a placement together with its charges: one commit holds the writes and every ledger that pays, or
nothing is written.

The limits come from the objects that state the budgets, and the commit checks that those objects are
unchanged. A lowered limit therefore binds every later commit (I-20).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

import msgspec

from lattice.clock import Clock
from lattice.errors import Conflict, Invalid, Malformed, NotFound
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import Account, LatticeLedger, Refusal, ledger_spec
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.pool import LatticePool
from lattice.lifecycle.replica_observation import OVER_BUDGET
from lattice.placement.inputs.ledger_math import (
    BudgetApproval,
    BudgetRejection,
    Charge,
    NodeGroup,
    open_ledger,
    refuse,
    reprice,
    settle_charges,
    with_status_message,
)
from lattice.store.protocol import ABSENT, Check, Entry, Key, Put, RevisionConflict, Store, Term, Write

# Every failed attempt means that another writer has committed, so 64 rivals with one payment each never
# exhaust the attempts.
MAX_ATTEMPTS = 64
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.002, 0.2
BUDGET_OWNER_KINDS: dict[str, type[Kind]] = {
    kind.resource.kind: kind for kind in (LatticePool, CloudInfrastructure, StaticInfrastructure)
}
# A write that always conflicts: no account has a ledger of this name, and no object has this revision.
REQUEST_PROBE = Put(Key(LatticeLedger.resource.id, "", "none"), b"", expect=1 << 60)

_owner_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in BUDGET_OWNER_KINDS.items()
}
_ledger_decoder = msgspec.json.Decoder(LatticeLedger)


@dataclass(frozen=True, slots=True)
class LedgerUpdate:
    """A change of one ledger besides charges: the current prices of its machines, and the purchases that its
    limit refuses. Every update also brings the terms of the budget up to date."""

    account: Account
    prices: Mapping[NodeGroup, int | None] = field(default_factory=dict)
    # None: the refusals stay.
    refusals: Sequence[Refusal] | None = None

    def apply_to(self, ledger: LatticeLedger, now: datetime) -> LatticeLedger:
        """The ledger, accrued at the previous prices, after the update."""
        if self.prices:
            ledger = reprice(ledger, self.prices, now)
        return ledger if self.refusals is None else refuse(ledger, self.refusals)


@dataclass(frozen=True, slots=True)
class Payment:
    """The writes of one decision and their charges; `releases` are the charges of machines that are confirmed
    to be gone or were never created."""

    writes: Sequence[Write]
    charges: Sequence[Charge] = ()
    releases: Sequence[Charge] = ()
    checks: Sequence[Check] = ()
    request_id: str | None = None
    updates: Sequence[LedgerUpdate] = ()

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The accounts of all charges, releases and updates, sorted by ledger."""
        accounts = {update.account for update in self.updates}
        for charge in (*self.charges, *self.releases):
            accounts.update(charge.accounts)
        return tuple(sorted(accounts, key=lambda account: account.ledger_name))

    @property
    def keys(self) -> set[Key]:
        return {operation.key for operation in (*self.writes, *self.checks)}


@dataclass(frozen=True, slots=True)
class CommittedPayment:
    """A payment that was committed at this revision.

    `results` holds the balance and soft limit of every ledger; it is empty if an earlier attempt of the same
    request made the commit.
    """

    revision: int
    results: tuple[BudgetApproval, ...] = ()

    @property
    def warnings(self) -> tuple[BudgetApproval, ...]:
        return tuple(result for result in self.results if result.is_over_soft_limit)


@dataclass(frozen=True, slots=True)
class OverBudget:
    """A payment that was not committed, with the rejections of every ledger whose limit the payment
    exceeds."""

    rejections: tuple[BudgetRejection, ...]

    def __str__(self) -> str:
        return f"{OVER_BUDGET}: " + "; ".join(map(str, self.rejections))


class _LedgerUpdates(msgspec.Struct, frozen=True):
    """The writes and results of all ledgers of a payment."""

    puts: list[Put]
    results: list[BudgetApproval | BudgetRejection]


@dataclass(frozen=True)
class LedgerCommitter:
    """Commit payments, with optimistic concurrency on the ledgers."""

    store: Store
    clock: Clock
    term: Term | None = None
    new_uid: Callable[[], str] = lambda: str(uuid4())

    async def commit_with_charges(self, payment: Payment) -> CommittedPayment | OverBudget:
        """Commit a payment, or return the rejections of the ledgers.

        Raises RevisionConflict if a write or check of the payment itself conflicts: the caller must decide
        again. A conflict on a ledger is retried after a back-off with fresh limits; Conflict is raised after
        MAX_ATTEMPTS.
        """
        for attempt in range(MAX_ATTEMPTS):
            unique: set[Key] = set()
            for account in payment.accounts:
                unique |= {_ledger_key(account), _owner_key(account)}
            # Sorted, because the order of a set differs between processes, and a simulation must run the same
            # way for the same seed (I-36).
            keys = sorted(unique)
            stored = await asyncio.gather(*map(self.store.get, keys))
            entries = dict(zip(keys, stored, strict=True))
            try:
                updates = self._settle(payment, entries, self.clock.now())
            # An earlier attempt of this request may have succeeded although its reply was lost.
            except (Invalid, NotFound):
                if (committed := await self._committed_earlier(payment)) is not None:
                    return committed
                raise
            rejections = tuple(result for result in updates.results if isinstance(result, BudgetRejection))
            if rejections:
                # The request may have been committed before, and its own charges may be what exceeds the
                # limit now.
                return await self._committed_earlier(payment) or OverBudget(rejections)
            try:
                revision = await self._commit(payment, updates, entries)
            except RevisionConflict as conflict:
                if conflict.key in payment.keys:
                    raise
                # A rival changed a ledger or a limit: read both again and settle the payment again.
                # The delay grows exponentially. Its jitter is a checksum of the attempt and the keys: rivals
                # get different delays, but a repeated simulation gets the same delays.
                seed = f"{attempt} {payment.request_id} {[str(write.key) for write in payment.writes[:3]]}"
                jitter = crc32(seed.encode()) / 0xFFFFFFFF
                backoff_s = min(MIN_BACKOFF_S * 2.0**attempt, MAX_BACKOFF_S) * (1 + jitter) / 2
                await self.clock.sleep(backoff_s)
                continue
            return CommittedPayment(
                revision, tuple(result for result in updates.results if isinstance(result, BudgetApproval))
            )
        names = ", ".join(account.ledger_name for account in payment.accounts)
        raise Conflict(
            f"{MAX_ATTEMPTS} attempts in a row conflicted with other writes",
            where=f"latticeledger/{names}",
            fix="retry later",
        )

    def _settle(self, payment: Payment, entries: Mapping[Key, Entry | None], now: datetime) -> _LedgerUpdates:
        """Settle the payment with every ledger; raise Invalid if the amounts of a stored ledger do not add
        up."""
        updates = _LedgerUpdates([], [])
        for account in payment.accounts:
            entry = entries[_ledger_key(account)]
            previous: LatticeLedger | None = None
            if entry is not None:
                previous = _ledger_decoder.decode(entry.value)
                # A ledger whose amounts do not add up could admit charges beyond its limit (I-22).
                if causes := tuple(previous.problems()):
                    fix = "restore the ledger from a backup"
                    raise Invalid(
                        "the amounts of the ledger do not add up",
                        where=str(entry.key),
                        fix=fix,
                        causes=causes,
                    )
            charges = [charge for charge in payment.charges if account in charge.accounts]
            releases = [charge for charge in payment.releases if account in charge.accounts]
            ledger = _with_current_terms(account, entries[_owner_key(account)], previous, bool(charges), now)
            settled, result = settle_charges(ledger, releases, charges, now)
            for update in payment.updates:
                if update.account == account:
                    settled = update.apply_to(settled, now)
            updates.results.append(result)
            # The expected revision makes concurrent payments conflict, so that no charge is lost and no limit
            # is exceeded (I-20, I-22).
            updates.puts.append(
                self._put(previous, with_status_message(settled), ABSENT if entry is None else entry.revision)
            )
        return updates

    def _put(self, previous: LatticeLedger | None, ledger: LatticeLedger, expect: int) -> Put:
        obj = msgspec.to_builtins(ledger)
        if previous is None:
            obj = new_object(obj, uid=self.new_uid(), now=format_timestamp(self.clock.now()))
        elif previous.spec != ledger.spec:
            obj["metadata"]["generation"] = previous.metadata.generation + 1
        return Put(
            Key(LatticeLedger.resource.id, "", ledger.metadata.name),
            pack(LatticeLedger.resource, obj),
            expect,
        )

    async def _commit(
        self, payment: Payment, updates: _LedgerUpdates, entries: Mapping[Key, Entry | None]
    ) -> int:
        """Commit writes and ledgers, provided that the budget owners are unchanged since the read (I-20)."""
        owners = {_owner_key(account) for account in payment.accounts}
        for write in payment.writes:
            # A write without expected revision would let a concurrent change of the limit pass unnoticed.
            if write.key in owners and write.expect is None:
                raise Malformed(
                    "is written without an expected revision",
                    where=str(write.key),
                    fix="pass the revision that was read as the expected revision",
                )
        owner_checks = []
        for key in sorted(owners - payment.keys):
            entry = entries[key]
            owner_checks.append(Check(key, ABSENT if entry is None else entry.revision))
        return await self.store.commit(
            [*payment.writes, *updates.puts],
            checks=[*payment.checks, *owner_checks],
            fence=self.term,
            request_id=payment.request_id,
        )

    async def _committed_earlier(self, payment: Payment) -> CommittedPayment | None:
        """The result of the same request if an earlier commit succeeded although its reply was lost; charges
        that the request itself has made must not lead to its rejection.

        The store looks up the request id before any check, so a commit that always conflicts reveals whether
        the request is known.
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
    account: Account, owner: Entry | None, ledger: LatticeLedger | None, has_charges: bool, now: datetime
) -> LatticeLedger:
    """The ledger under the current budget of its owner.

    A deleted owner, or an owner without this budget, pays for no new machine; existing charges can still be
    released.
    """
    spec = ledger_spec(account, None if owner is None else _owner_decoders[account.kind].decode(owner.value))
    if spec is not None:
        return open_ledger(spec, ledger, now)
    if has_charges or ledger is None:
        raise NotFound(
            "has no budget that can pay for machines",
            where=str(account),
            fix="place the replicas elsewhere",
        )
    return ledger


def _ledger_key(account: Account) -> Key:
    return Key(LatticeLedger.resource.id, "", account.ledger_name)


def _owner_key(account: Account) -> Key:
    return Key(BUDGET_OWNER_KINDS[account.kind].resource.id, "", account.name)
