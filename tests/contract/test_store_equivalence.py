"""The same operations on every store give the same answers, errors and watches.

Revisions differ in number from store to store, so commits are numbered by the test and revisions compared by that number.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from build.etcd_server import EtcdServer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lattice.clock import SystemClock
from lattice.errors import Fenced, LatticeError
from lattice.store.etcd.store import EtcdStore
from lattice.store.memory import MemoryStore
from lattice.store.protocol import (
    ABSENT,
    Batch,
    Change,
    Check,
    Delete,
    Entry,
    Key,
    Page,
    Put,
    RevisionConflict,
    Store,
    Term,
    Watch,
    Write,
)
from lattice.store.sqlite.store import SqliteStore

RESOURCES = ["pods", "pods.more"]
PATHS = ["/one", "a/one", "a/two", "a-b/one", "b/one"]
ROLES = ["first", "second"]
HOLDERS = ["ann", "bob"]
NOWHERE = 10_000  # a commit number that never happens: the future
_prefixes = itertools.count(1)

keys = st.builds(lambda r, p: Key(r, *p.split("/")), st.sampled_from(RESOURCES), st.sampled_from(PATHS))
times = st.one_of(st.integers(0, 400), st.just(NOWHERE))
expects = st.sampled_from(["any", "absent", "right", "right", "wrong"])
numbers = st.integers(0, 400)


@dataclass(frozen=True)
class Commit:
    writes: tuple[tuple[Key, bytes | None, str], ...]  # value None: delete
    checks: tuple[tuple[Key, str], ...]
    term: int | None
    request: str | None


@dataclass(frozen=True)
class Get:
    key: Key


@dataclass(frozen=True)
class List:
    resource: str
    namespace: str | None
    limit: int
    after: str
    at: int | None


@dataclass(frozen=True)
class Open:
    resource: str
    after: int


@dataclass(frozen=True)
class Read:
    watch: int


@dataclass(frozen=True)
class Compact:
    at: int


@dataclass(frozen=True)
class Campaign:
    role: str
    holder: str


@dataclass(frozen=True)
class Keep:
    term: int
    resign: bool


@dataclass(frozen=True)
class Reopen:
    """Close and reopen the durable stores: everything durable must be there."""


Operation = Commit | Get | List | Open | Read | Compact | Campaign | Keep | Reopen

commits = st.builds(
    Commit,
    st.lists(
        st.tuples(keys, st.one_of(st.none(), st.binary(max_size=3), st.binary(max_size=3)), expects),
        min_size=1,
        max_size=4,
    ).map(tuple),
    st.lists(st.tuples(keys, st.sampled_from(["absent", "right", "right", "wrong"])), max_size=2).map(tuple),
    st.one_of(st.none(), st.none(), numbers),
    st.one_of(st.none(), st.none(), st.sampled_from(["r1", "r2", "r3"])),
)
lists = st.builds(
    List,
    st.sampled_from(RESOURCES),
    st.sampled_from([None, None, "", "a", "b", "none"]),
    st.integers(0, 3),
    st.sampled_from(["", "", *PATHS]),
    st.one_of(st.none(), times),
)
SHARES: list[tuple[int, st.SearchStrategy[Operation]]] = [
    (40, commits),
    (15, lists),
    (15, st.builds(Read, numbers)),
    (8, st.builds(Open, st.sampled_from(RESOURCES), times)),
    (6, st.builds(Get, keys)),
    (6, st.builds(Campaign, st.sampled_from(ROLES), st.sampled_from(HOLDERS))),
    (5, st.builds(Keep, numbers, st.booleans())),
    (3, st.builds(Compact, times)),
    (2, st.just(Reopen())),
]
operations = st.sampled_from([kind for share, kind in SHARES for _ in range(share)]).flatmap(
    lambda kind: kind
)


@dataclass
class OpenWatch:
    """A watch, and whether a compaction may have removed changes that the watch has not read yet."""

    watch: Watch
    read_until: int
    may_be_gone: bool = False


@dataclass
class Side:
    """One store, its revisions by commit number, and what the test holds of it."""

    name: str
    store: Store
    revisions: list[int]  # of commit 0 (the empty store), 1, 2, ...
    watches: list[OpenWatch] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)

    def number(self, revision: int) -> int:
        return -1 if revision == ABSENT else self.revisions.index(revision)

    async def revision(self, number: int) -> int:
        return self.revisions[number] if number < len(self.revisions) else await self.store.revision() + 5


def told(side: Side, entry: Entry | None) -> object:
    return None if entry is None else (str(entry.key), entry.value, side.number(entry.revision))


def told_change(side: Side, change: Change) -> object:
    return (side.number(change.revision), str(change.key), change.value, told(side, change.previous))


def told_page(side: Side, page: Page, exactly: bool) -> object:
    at = (
        side.number(page.revision) if exactly else None
    )  # other revisions may lie between the newest commit and now
    return ([told(side, entry) for entry in page.entries], at, page.has_more)


def told_error(side: Side, error: LatticeError) -> object:
    if isinstance(error, RevisionConflict):
        expected = error.expected
        known = (
            "none"
            if expected is None
            else side.number(expected)
            if expected in (ABSENT, *side.revisions)
            else "wrong"
        )
        return ("Clash", str(error.key), known, side.number(error.actual))
    return ("Fenced", error.message) if isinstance(error, Fenced) else (type(error).__name__,)


@dataclass
class Trial:
    """Plays operations on all sides; the first side answers first, the others must agree."""

    sides: list[Side]
    done: int = 0

    async def play(self, operation: Operation) -> None:
        answers = [await self._answer(side, operation) for side in self.sides]
        if isinstance(operation, Read) and ("Gone",) in answers:
            answers = self._close_gone_watch(operation, answers)
        for side, answer in zip(self.sides[1:], answers[1:], strict=True):
            assert answer == answers[0], f"{side.name} and {self.sides[0].name} differ on {operation}"
        self.done += 1

    def _close_gone_watch(self, operation: Read, answers: list[object]) -> list[object]:
        """Close the watch on every side. A compaction ahead of an open watch may end the watch: each store
        either answers Gone or returns all changes, so the stores that answer Gone are not compared."""
        assert answers[0] != ("Gone",), "the store in memory keeps what an open watch has not read"
        opened = [side.watches.pop(operation.watch % len(side.watches)) for side in self.sides]
        for watch in opened:
            watch.watch.close()
        return [
            answers[0] if answer == ("Gone",) and watch.may_be_gone else answer
            for watch, answer in zip(opened, answers, strict=True)
        ]

    async def _answer(self, side: Side, operation: Operation) -> object:
        try:
            return await self._do(side, operation)
        except LatticeError as error:
            return told_error(side, error)

    async def _do(self, side: Side, operation: Operation) -> object:
        match operation:
            case Commit():
                return await commit(side, operation)
            case Get(key):
                return told(side, await side.store.get(key))
            case List(resource, namespace, limit, after, at):
                revision = (
                    0
                    if at is None
                    else await side.revision(at % (len(side.revisions) + 1) if at != NOWHERE else at)
                )
                page = await side.store.list(resource, namespace, limit=limit, after=after, revision=revision)
                return told_page(side, page, at is not None)
            case Compact(at):
                revision = await side.revision(at % len(side.revisions) if at != NOWHERE else at)
                await side.store.compact(revision)
                for opened in side.watches:
                    opened.may_be_gone |= opened.read_until < revision
                return None
            case Open(resource, after):
                return await open_watch(side, resource, after)
            case Read(number):
                return await self._read(side, number)
            case Campaign(role, holder):
                term = await side.store.campaign(role, holder, 1000)
                side.terms += [term] if term is not None else []
                return term and (term.role, term.number, term.holder)
            case Keep(number, resign):
                return await keep(side, number, resign)
            case Reopen():
                return None

    async def _read(self, side: Side, number: int) -> object:
        if not side.watches:
            return "no watch"
        return await read_watch(side, side.watches[number % len(side.watches)])


async def commit(side: Side, operation: Commit) -> object:
    writes: list[Write] = []
    for key, value, expect in {write[0]: write for write in operation.writes}.values():
        wanted = await expected(side, key, expect)
        writes.append(Delete(key, wanted) if value is None else Put(key, value, wanted))
    written = {write.key for write in writes}
    checks = [
        Check(key, await expected(side, key, expect) or 0)
        for key, expect in dict(operation.checks).items()
        if key not in written
    ]
    fence = (
        side.terms[operation.term % len(side.terms)] if operation.term is not None and side.terms else None
    )
    revision = await side.store.commit(writes, checks=checks, fence=fence, request_id=operation.request)
    if revision not in side.revisions:
        assert revision > side.revisions[-1], f"{side.name} went back from {side.revisions[-1]} to {revision}"
        side.revisions.append(revision)
    return side.number(revision)


async def expected(side: Side, key: Key, expect: str) -> int | None:
    if expect == "right":
        entry = await side.store.get(key)
        return ABSENT if entry is None else entry.revision
    return {"any": None, "absent": ABSENT, "wrong": 10**12}[expect]


async def open_watch(side: Side, resource: str, after: int) -> object:
    revision = await side.revision(after % (len(side.revisions) + 1) if after != NOWHERE else after)
    watch = await side.store.watch(resource, revision)
    side.watches.append(OpenWatch(watch, revision))
    return await read_watch(side, side.watches[-1])


async def read_watch(side: Side, opened: OpenWatch) -> object:
    newest = side.revisions[-1]
    batches = await drain(opened.watch, newest)
    opened.read_until, opened.may_be_gone = newest, False
    return [told_change(side, change) for batch in batches for change in batch.changes]


async def keep(side: Side, number: int, resign: bool) -> object:
    if not side.terms:
        return "no term"
    term = side.terms[number % len(side.terms)]
    if not resign:
        return await side.store.renew(term)
    await side.store.resign(term)
    return None


async def drain(watch: Watch, until: int) -> Sequence[Batch]:
    """All batches up to a revision; none twice, none out of order."""
    batches: list[Batch] = []
    for _ in range(200):
        batches += await watch.next(0.1 if watch.progress < until else 0)
        if watch.progress >= until:
            break
    assert watch.progress >= until, "the watch does not get there"
    order = [batch.revision for batch in batches]
    assert order == sorted(set(order))
    return batches


class Stage:
    """Opens the three stores, and opens the durable ones again on the same state."""

    def __init__(self, folder: Path, server: EtcdServer) -> None:
        self._file = folder / "state.db"
        self._url = server.url(f"same-{next(_prefixes)}")

    async def open(self, name: str) -> Store:
        if name == "sqlite":
            return await SqliteStore.open(self._file, SystemClock())
        return await EtcdStore.open(self._url, SystemClock())

    async def trial(self, plan: Sequence[Operation]) -> int:
        memory = MemoryStore(SystemClock())
        sides = [Side("memory", memory, [await memory.revision()])]
        async with AsyncExitStack() as stack:
            for name in ("sqlite", "etcd"):
                store = await self.open(name)
                sides.append(Side(name, store, [await store.revision()]))
            stack.push_async_callback(self._close, sides)
            trial = Trial(sides)
            for operation in plan:
                if isinstance(operation, Reopen):
                    await self._reopen(sides)
                await trial.play(operation)
            return trial.done

    async def _reopen(self, sides: Sequence[Side]) -> None:
        for side in sides:
            for opened in side.watches:
                opened.watch.close()
            side.watches.clear()
        for side in sides[1:]:
            await side.store.close()
            side.store = await self.open(side.name)
        for side in sides:  # SQLite's leases end with its process: end those of the others too
            for term in side.terms:
                await side.store.resign(term)
            side.terms.clear()

    async def _close(self, sides: Sequence[Side]) -> None:
        for side in sides:
            await side.store.close()


def play(server: EtcdServer, plan: Sequence[Operation]) -> int:
    with TemporaryDirectory() as folder:
        return asyncio.run(asyncio.wait_for(Stage(Path(folder), server).trial(plan), 120))


RELAXED = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
    HealthCheck.large_base_example,
]


# Plans of real servers take too long to shrink: the first failure is shown as it is.
WITHOUT_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]


@settings(max_examples=30, deadline=None, phases=WITHOUT_SHRINKING, suppress_health_check=RELAXED)
@given(plan=st.lists(operations, min_size=40, max_size=60))
def test_three_stores_give_same_answers(etcd: EtcdServer, plan: list[Operation]) -> None:
    play(etcd, plan)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_three_stores_agree_on_20000_operations(etcd: EtcdServer) -> None:
    total = 0

    @settings(
        max_examples=150,
        deadline=None,
        phases=WITHOUT_SHRINKING,
        suppress_health_check=RELAXED,
        database=None,
    )
    @given(plan=st.lists(operations, min_size=150, max_size=250))
    def prove(plan: list[Operation]) -> None:
        nonlocal total
        total += play(etcd, plan)

    prove()
    print(f"{total} operations, the same answers from memory, SQLite and etcd")
    assert total >= 20_000
