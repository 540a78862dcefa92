"""Machines and their payment in one commit: races at the budget limit, changed limits, lost responses and
restarts."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from build.etcd_server import EtcdServer, running_etcd

from lattice.clock import SystemClock
from lattice.controllers.services.ledger_commit import CommittedPayment, LedgerCommitter, OverBudget, Payment
from lattice.errors import Conflict, Fenced, Invalid, Malformed, NotFound, Unavailable
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.ledger_math import Charge, accrue
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Check, Delete, Entry, Key, Put, RevisionConflict, Store, Term
from lattice.store.sqlite.store import SqliteStore

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEDGERS = LatticeLedger.resource.id
POOL = Account(kind="LatticePool", name="us-east")
CLOUD = Account(kind="CloudInfrastructure", name="aws")
REGION = Account(kind="CloudInfrastructure", name="aws", region="us-east-1")
OVERFLOW = Account(kind="StaticInfrastructure", name="dc-east")

Stores = Callable[[], AbstractAsyncContextManager[list[Store]]]
_numbers = itertools.count(1)


@dataclass
class Calendar(SystemClock):
    """A clock whose sleeps are real and whose date the test sets."""

    date: datetime = START

    def now(self) -> datetime:
        return self.date


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["sqlite", "etcd"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """One store as its processes see it: SQLite has one owner, etcd four clients."""
    server: EtcdServer | None = request.getfixturevalue("etcd") if request.param == "etcd" else None

    async def one(number: int) -> Store:
        if server is None:
            return await SqliteStore.open(tmp_path / "state.db", SystemClock())
        from lattice.store.etcd.store import EtcdStore

        return await EtcdStore.open(server.url(f"ledgers-{number}"), SystemClock())

    @asynccontextmanager
    async def opened() -> AsyncIterator[list[Store]]:
        number = next(_numbers)
        found = [await one(number) for _ in range(1 if server is None else 4)]
        try:
            yield found
        finally:
            await asyncio.gather(*(store.close() for store in found))

    return opened


def packed_object(kind: type[Kind], name: str, spec: dict[str, Any]) -> bytes:
    return pack(kind.resource, {"metadata": {"name": name}, "spec": spec})


def key(kind: type[Kind], name: str) -> Key:
    return Key(kind.resource.id, "", name)


def put_pool(limit: float | None, name: str = "us-east") -> Put:
    budget = {} if limit is None else {"budget": {"maxMonthlyCost": limit}}
    return Put(
        key(LatticePool, name), packed_object(LatticePool, name, {"provider": {"type": "aws"}, **budget})
    )


def put_cloud(limit: float, *, hard: bool = True, region: float | None = None) -> Put:
    regions = {"us-east-1": {} if region is None else {"budget": {"monthly": region}}}
    spec = {"provider": "aws", "budget": {"monthly": limit, "hardLimit": hard}, "regions": regions}
    return Put(key(CloudInfrastructure, "aws"), packed_object(CloudInfrastructure, "aws", spec))


def put_static(limit: float) -> Put:
    overflow = {"enabled": True, "target": "aws", "limits": {"maxMonthlySpend": limit}}
    spec = {"location": {"name": "dc"}, "capacity": {"nodes": 1}, "overflow": overflow}
    return Put(key(StaticInfrastructure, "dc-east"), packed_object(StaticInfrastructure, "dc-east", spec))


def put_cluster(name: str, count: int = 1, expect: int | None = ABSENT) -> Put:
    return Put(
        key(LatticeCluster, name),
        packed_object(LatticeCluster, name, {"pool": "us-east", "nodes": {"medium": count}}),
        expect,
    )


def a_charge(cluster: str, dollars: float = 1, count: int = 1, *, to: Sequence[Account] = (POOL,)) -> Charge:
    return Charge(
        tuple(to), cluster, Lot(node_class="medium", count=count, micros=round(dollars * 1_000_000))
    )


def a_payment(
    cluster: str, dollars: float = 1, count: int = 1, *, to: Sequence[Account] = (POOL,)
) -> Payment:
    return Payment([put_cluster(cluster, count)], [a_charge(cluster, dollars, count, to=to)])


def read(entry: Entry | None) -> LatticeLedger:
    assert entry is not None
    return msgspec.json.decode(entry.value, type=LatticeLedger)


async def ledger(store: Store, account: Account = POOL) -> LatticeLedger:
    return read(await store.get(Key(LEDGERS, "", account.ledger_name)))


def memory_ledger() -> tuple[MemoryStore, LedgerCommitter, Calendar]:
    """A store in memory whose clock stands still, and its ledger committer."""
    clock = Calendar()
    store = MemoryStore(clock)
    return store, LedgerCommitter(store, clock), clock


async def history(store: Store, since: int, ledgers: int) -> list[tuple[int, LatticeLedger]]:
    """Every state of every ledger with its revision, at least `ledgers` of them."""
    watch = await store.watch(LEDGERS, since)
    found: list[tuple[int, LatticeLedger]] = []
    while len(found) < ledgers:
        batches = await watch.next(5)
        assert batches, f"only {len(found)} of {ledgers} states came"
        found += [
            (change.revision, msgspec.json.decode(change.value, type=LatticeLedger))
            for batch in batches
            for change in batch.changes
            if change.value
        ]
    assert not await watch.next(0.2)
    watch.close()
    return found


async def cluster_cost_at(store: Store, revision: int, dollars: dict[str, int]) -> int:
    """The cost of all clusters written by that revision, in micro-dollars per hour."""
    page = await store.list(LatticeCluster.resource.id, revision=revision)
    clusters = [msgspec.json.decode(entry.value, type=LatticeCluster) for entry in page.entries]
    return sum(cluster.spec.desired_nodes * dollars[cluster.metadata.name] for cluster in clusters)


async def compete(there: list[Store], payments: Sequence[Payment]) -> list[CommittedPayment | OverBudget]:
    """Commit every payment at once, each by its own committer."""
    rivals = [LedgerCommitter(there[number % len(there)], Calendar()) for number in range(len(payments))]
    return await asyncio.gather(
        *(rival.commit_with_charges(payment) for rival, payment in zip(rivals, payments, strict=True))
    )


@pytest.mark.parametrize(
    "limit",
    [720 * 40, 720 * 40 + 719, 720 * 64, 719],
    ids=["forty fit", "forty fit, almost one more", "all fit", "none fits"],
)
async def test_of_64_equal_payments_exactly_the_affordable_win(stores: Stores, limit: int) -> None:
    fitting = min(64, limit // 720)

    async with stores() as there:
        begin = await there[0].commit([put_pool(limit)])
        answers = await compete(there, [a_payment(f"c{number:02}") for number in range(64)])
        won = [number for number, answer in enumerate(answers) if isinstance(answer, CommittedPayment)]
        assert len(won) == fitting
        if not fitting:
            assert await there[0].get(Key(LEDGERS, "", POOL.ledger_name)) is None
            return
        states = await history(there[0], begin, fitting)
        assert [revision for revision, _ in states] == sorted(
            answer.revision for answer in answers if isinstance(answer, CommittedPayment)
        )
        for revision, state in states:
            assert list(state.problems()) == []
            assert state.status.committed_micros * 720 <= limit * 1_000_000
            assert state.status.committed_micros == await cluster_cost_at(
                there[0], revision, {f"c{number:02}": 1_000_000 for number in range(64)}
            )
        assert set(states[-1][1].status.machines) == {f"c{number:02}" for number in won}


async def test_nested_budgets_refuse_no_affordable_payment(
    stores: Stores,
) -> None:
    """Every payment is charged to the cloud, half of them to the region too, a quarter to the overflow."""
    prices = {f"c{number:02}": 100_000 * (1 + number * 7 % 13) for number in range(64)}
    accounts = [(CLOUD,), (CLOUD, REGION), (CLOUD,), (CLOUD, REGION, OVERFLOW)]
    limits = {CLOUD: 720 * 25, REGION: 720 * 9, OVERFLOW: 720 * 4}

    async with stores() as there:
        begin = await there[0].commit(
            [put_cloud(limits[CLOUD], region=limits[REGION]), put_static(limits[OVERFLOW])]
        )
        payments = [
            a_payment(name, price / 1_000_000, to=accounts[number % 4])
            for number, (name, price) in enumerate(prices.items())
        ]
        answers = await compete(there, payments)
        won = [
            payment
            for payment, answer in zip(payments, answers, strict=True)
            if isinstance(answer, CommittedPayment)
        ]
        states = await history(there[0], begin, sum(len(payment.charges[0].accounts) for payment in won))
        last = {state.spec.budget: state for _, state in states}
        for _, state in states:
            assert list(state.problems()) == []
            assert state.status.committed_micros * 720 <= limits[state.spec.budget] * 1_000_000
        for account in limits:
            mine = [payment.charges[0].lot.rate for payment in won if account in payment.charges[0].accounts]
            assert last[account].status.committed_micros == sum(mine)
        for revision, state in states:
            if state.spec.budget == CLOUD:  # the ledger that pays for every cluster
                assert state.status.committed_micros == await cluster_cost_at(there[0], revision, prices)
        for payment, answer in zip(payments, answers, strict=True):
            if isinstance(answer, OverBudget):
                full = [
                    a
                    for a in payment.charges[0].accounts
                    if last[a].status.committed_micros + payment.charges[0].lot.rate
                    > limits[a] * 1_000_000 // 720
                ]
                assert full
                assert {refusal.ledger for refusal in answer.rejections} <= {
                    account.ledger_name for account in full
                }
                assert all(refusal.missing > 0 for refusal in answer.rejections)
        assert 0 < len(won) < 64


async def test_spending_survives_restart_and_end_of_month(tmp_path: Path) -> None:
    async def spend(date: datetime, payment: Payment) -> LatticeLedger:
        store = await SqliteStore.open(tmp_path / "state.db", SystemClock())
        try:
            assert isinstance(
                await LedgerCommitter(store, Calendar(date)).commit_with_charges(payment), CommittedPayment
            )
            return await ledger(store)
        finally:
            await store.close()

    store = await SqliteStore.open(tmp_path / "state.db", SystemClock())
    await store.commit([put_pool(7200)])
    await store.close()
    last = datetime(2026, 11, 30, 20, tzinfo=UTC)
    first = await spend(last, a_payment("a"))
    assert (first.status.month, first.status.spent_micros) == ("2026-11", 0)
    second = await spend(last + 2 * HOUR, a_payment("b"))
    assert (second.status.month, second.status.spent_micros, second.status.past) == (
        "2026-11",
        2_000_000,
        {},
    )
    third = await spend(last + 9 * HOUR, a_payment("c"))  # one machine for two hours, then two
    assert (third.status.month, third.status.spent_micros, third.status.past) == (
        "2026-12",
        10_000_000,
        {"2026-11": 6_000_000},
    )
    assert third.metadata.uid == first.metadata.uid
    assert third.metadata.generation == 1


async def test_first_machine_creates_ledger() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(10_000)])
    paid = await ledgers.commit_with_charges(a_payment("a", 0.192, 3))
    assert isinstance(paid, CommittedPayment)
    assert paid.warnings == ()
    entry = await store.get(Key(LEDGERS, "", "pool.us-east"))
    found = read(entry)
    assert entry is not None
    assert entry.revision == paid.revision
    assert found.metadata.uid
    assert (found.metadata.creation_timestamp, found.metadata.generation) == ("2026-11-15T12:00:00Z", 1)
    assert (found.spec.limit_micros, found.spec.hard) == (10_000_000_000, True)
    assert (found.status.phase, found.status.message) == (
        "Ok",
        (
            "$0.576/h; $0.00 spent until 2026-11-15 12:00 UTC, $214.27 projected in 2026-11; $10,000.00/30d, "
            "4.1 % used by the 30-day run rate"
        ),
    )


async def test_refusal_writes_nothing_and_names_every_budget() -> None:
    store, ledgers, _ = memory_ledger()
    before = await store.commit([put_cloud(720, region=360), put_static(72_000)])
    answer = await ledgers.commit_with_charges(a_payment("a", 2, to=[CLOUD, REGION, OVERFLOW]))
    assert isinstance(answer, OverBudget)
    assert str(answer) == (
        "over budget: cloudinfrastructure/aws: needs $2.00/h, has $1.00/h left of $720.00/30d, missing $1.00/h; raise the budget by $720.00/30d; "
        "cloudinfrastructure/aws region us-east-1: needs $2.00/h, has $0.50/h left of $360.00/30d, missing $1.50/h; raise the budget by $1,080.00/30d"
    )
    assert await store.revision() == before


async def test_soft_limit_warns_and_allows() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_cloud(720, hard=False)])
    first = await ledgers.commit_with_charges(a_payment("a", 1, to=[CLOUD]))
    second = await ledgers.commit_with_charges(a_payment("b", 1, to=[CLOUD]))
    assert isinstance(first, CommittedPayment)
    assert isinstance(second, CommittedPayment)
    assert (first.warnings, [warning.ledger for warning in second.warnings]) == ((), ["cloud.aws"])


async def test_ledger_outlives_its_pool() -> None:
    store, ledgers, clock = memory_ledger()
    await store.commit([put_pool(7200)])
    await ledgers.commit_with_charges(a_payment("a", 2))
    await store.commit([Delete(key(LatticePool, "us-east"))])
    clock.date += HOUR
    assert accrue(await ledger(store), clock.now()).status.spent_micros == 2_000_000
    with pytest.raises(NotFound, match="latticepool/us-east: has no budget that can pay for machines"):
        await ledgers.commit_with_charges(a_payment("b", 1))
    gone = Payment([Delete(key(LatticeCluster, "a"))], releases=[a_charge("a", 2)])
    assert isinstance(await ledgers.commit_with_charges(gone), CommittedPayment)
    await store.commit([put_pool(7200)])
    clock.date += HOUR
    assert isinstance(await ledgers.commit_with_charges(a_payment("b", 1)), CommittedPayment)
    assert (await ledger(store)).status.spent_micros == 2_000_000


async def test_limit_holds_from_the_commit_that_changes_it() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(7200)])
    await ledgers.commit_with_charges(a_payment("a", 2))
    await store.commit([put_pool(720)])
    assert isinstance(await ledgers.commit_with_charges(a_payment("b", 1)), OverBudget)
    assert isinstance(
        await ledgers.commit_with_charges(Payment([put_cluster("free")], [a_charge("free", 0)])),
        CommittedPayment,
    )  # costs nothing
    after = await ledger(store)
    assert (after.spec.limit_micros, after.status.phase, after.metadata.generation) == (
        720_000_000,
        "Exceeded",
        2,
    )


async def test_limit_lowered_between_read_and_write_is_applied() -> None:
    class Busy(MemoryStore):
        """Another writer lowers the budget just before the first paying commit."""

        lowered = False

        async def commit(
            self, writes: Any, *, checks: Any = (), fence: Any = None, request_id: Any = None
        ) -> int:
            if checks and not self.lowered:
                self.lowered = True
                await super().commit([put_pool(719)])
            return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)

    store = Busy(SystemClock())
    await store.commit([put_pool(720)])
    assert isinstance(
        await LedgerCommitter(store, Calendar()).commit_with_charges(a_payment("a", 1)), OverBudget
    )
    assert store.lowered
    assert await store.get(key(LatticeCluster, "a")) is None


async def test_payment_losing_every_race_raises_conflict() -> None:
    class Crowded(MemoryStore):
        """A rival pays before every payment of the committer under test."""

        rivals = 0

        async def commit(
            self, writes: Any, *, checks: Any = (), fence: Any = None, request_id: Any = None
        ) -> int:
            if request_id == "ours":
                self.rivals += 1
                await LedgerCommitter(self, Calendar()).commit_with_charges(a_payment(f"c{self.rivals}"))
            return await super().commit(writes, checks=checks, fence=fence, request_id=request_id)

    class Hurried(Calendar):
        async def sleep(self, seconds: float) -> None:
            assert 0 < seconds <= 0.2

    store = Crowded(SystemClock())
    await store.commit([put_pool(720_000)])
    with pytest.raises(
        Conflict, match="latticeledger/pool.us-east: 64 attempts in a row conflicted with other writes"
    ):
        await LedgerCommitter(store, Hurried()).commit_with_charges(
            replace(a_payment("a"), request_id="ours")
        )
    assert (await ledger(store)).status.committed_micros == store.rivals * 1_000_000 == 64_000_000


async def test_release_requires_paid_machines() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(7200)])
    await ledgers.commit_with_charges(a_payment("a", 1))
    revision_before = await store.revision()
    with pytest.raises(
        Invalid,
        match=r"latticeledger/pool.us-east: pays for 1 medium in cluster a, cannot release 2",
    ):
        await ledgers.commit_with_charges(
            Payment([put_cluster("a", expect=None)], releases=[a_charge("a", 1, 2)])
        )
    assert await store.revision() == revision_before


async def test_conflict_of_callers_writes_is_raised() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(7200)])
    await ledgers.commit_with_charges(a_payment("a", 1))
    revision_before = await store.revision()
    with pytest.raises(RevisionConflict, match="latticeclusters.lattice.dev/a"):
        await ledgers.commit_with_charges(a_payment("a", 1))
    with pytest.raises(RevisionConflict, match="latticeclusters.lattice.dev/z"):
        await ledgers.commit_with_charges(
            replace(a_payment("b", 1), checks=[Check(key(LatticeCluster, "z"), 1)])
        )
    assert await store.revision() == revision_before


async def test_pool_may_be_written_with_payment() -> None:
    """As when the pool gives the next number to a cluster; a stale revision of it is a conflict."""
    store, ledgers, _ = memory_ledger()
    revision = await store.commit([put_pool(7200)])
    payment = replace(a_payment("a"), writes=[put_cluster("a"), replace_expect(put_pool(7200), revision)])
    assert isinstance(await ledgers.commit_with_charges(payment), CommittedPayment)
    with pytest.raises(RevisionConflict, match="latticepools.lattice.dev/us-east"):
        await ledgers.commit_with_charges(
            replace(payment, writes=[put_cluster("b"), replace_expect(put_pool(7200), revision)])
        )
    with pytest.raises(Malformed, match="pass the revision that was read as the expected revision"):
        await ledgers.commit_with_charges(replace(payment, writes=[put_cluster("b"), put_pool(7200)]))


def replace_expect(write: Put, expect: int) -> Put:
    return msgspec.structs.replace(write, expect=expect)


async def test_former_leader_cannot_spend() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(7200)])
    old = await store.campaign("controllers", "a", 15)
    assert isinstance(old, Term)
    await store.resign(old)
    new = await store.campaign("controllers", "b", 15)
    assert isinstance(await replace(ledgers, term=new).commit_with_charges(a_payment("a")), CommittedPayment)
    with pytest.raises(Fenced):
        await replace(ledgers, term=old).commit_with_charges(a_payment("b"))
    assert set((await ledger(store)).status.machines) == {"a"}


@pytest.mark.parametrize("stage", ["charge", "release"])
async def test_request_with_lost_response_is_paid_once(stage: str) -> None:
    class Mute(MemoryStore):
        """Commits with a request id succeed, and the response is lost."""

        async def commit(
            self, writes: Any, *, checks: Any = (), fence: Any = None, request_id: Any = None
        ) -> int:
            revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
            if request_id and not self.told:
                self.told = True
                raise Unavailable("no answer")
            return revision

        told = False

    store = Mute(SystemClock())
    ledgers = LedgerCommitter(store, Calendar())
    await store.commit([put_pool(720)])
    if stage == "release":
        await ledgers.commit_with_charges(a_payment("a", 1))
        asked = Payment([], releases=[a_charge("a", 1)], request_id="r1")
    else:
        asked = replace(
            a_payment("a", 1), request_id="r1"
        )  # the whole budget: a second time it would be refused
    with pytest.raises(Unavailable):
        await ledgers.commit_with_charges(asked)
    revision = await store.revision()
    assert await ledgers.commit_with_charges(asked) == CommittedPayment(revision)
    assert await store.revision() == revision
    assert (await ledger(store)).status.committed_micros == (1_000_000 if stage == "charge" else 0)
    refused = await ledgers.commit_with_charges(replace(a_payment("b", 2), request_id="r2"))
    assert isinstance(refused, OverBudget)  # a new request is refused


async def test_inconsistent_ledger_pays_nothing() -> None:
    store, ledgers, _ = memory_ledger()
    await store.commit([put_pool(7200)])
    await ledgers.commit_with_charges(a_payment("a", 2))
    entry = await store.get(Key(LEDGERS, "", POOL.ledger_name))
    assert entry is not None
    await store.commit(
        [Put(entry.key, entry.value.replace(b'"committedMicros":2000000', b'"committedMicros":0'))]
    )
    with pytest.raises(Invalid, match="the amounts of the ledger do not add up"):
        await ledgers.commit_with_charges(a_payment("b", 1))


async def test_free_commit_needs_no_ledger() -> None:
    """Replicas on machines that are already paid."""
    store, ledgers, _ = memory_ledger()
    assert isinstance(await ledgers.commit_with_charges(Payment([put_cluster("a")])), CommittedPayment)
    assert (await store.list(LEDGERS)).entries == []
