"""Binding on every store: two binders interleaved at every step, one node with room for one workload; crashes
at every step."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import World, running_scheduler

from lattice.clock import SystemClock
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.scheduler.binding_store import PersistentBindingStore
from lattice.kinds.core import Lease
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Presence
from lattice.scheduling.cycle.binder import Binder, BindingMode, BindRequest
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.scheduling.cycle.reservations import Reservation, Reservations
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.node_table import NodeTable
from lattice.store.protocol import Check, Entry, Key, Page, Store, Term, Watch, Write
from tests.contract.conftest import OpenStore

MODES = list(BindingMode)
START = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = 31.0  # seconds: a reservation is over


@dataclass
class Calendar(SystemClock):
    """A clock whose sleeps are real and whose date the test sets."""

    date: datetime = START

    def now(self) -> datetime:
        return self.date


class Crashed(Exception):
    """The process crashed: no more requests reach the store."""


async def _nothing() -> None:
    return None


@dataclass
class Stepped:
    """A store in which each read and commit is a step; the rival acts before step `at`."""

    store: Store
    at: int = -1
    then: Callable[[], Awaitable[None]] = _nothing
    steps: int = 0
    commits: int = 0
    most_commits: int | None = None  # so many, and the process dies

    async def _step(self) -> None:
        if self.most_commits is not None and self.commits >= self.most_commits:
            raise Crashed
        self.steps += 1
        if self.steps == self.at:
            await self.then()

    async def get(self, key: Key) -> Entry | None:
        await self._step()
        return await self.store.get(key)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        await self._step()
        revision = await self.store.commit(writes, checks=checks, fence=fence, request_id=request_id)
        self.commits += 1
        return revision

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        return await self.store.list(resource, namespace, limit=limit, after=after, revision=revision)

    async def watch(self, resource: str, after: int) -> Watch:
        return await self.store.watch(resource, after)

    async def revision(self) -> int:
        return await self.store.revision()

    async def compact(self, revision: int) -> None:
        await self.store.compact(revision)

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        return await self.store.campaign(role, holder, ttl)

    async def renew(self, term: Term) -> bool:
        return await self.store.renew(term)

    async def resign(self, term: Term) -> None:
        await self.store.resign(term)

    async def close(self) -> None:
        await self.store.close()


@dataclass
class Side:
    """One binder with its own table, caches and role, so that rivals do not fence one another."""

    name: str
    store: Stepped
    office: ControllerContext
    book: Reservations
    binder: Binder
    ledger: PersistentBindingStore = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = PersistentBindingStore(self.office)
        self.binder.binding_store = self.ledger

    async def reserve(self, *names: str) -> list[Reservation]:
        made = []
        for name in names:
            workload = await World(self.store.store, self.office.clock).workload(name)
            held = self.book.reserve(self.book.table.ask_of(workload), 0, self.office.clock.monotonic())
            assert isinstance(held, Reservation), held
            made.append(held)
        return made


@asynccontextmanager
async def a_side(store: Store, name: str, mode: BindingMode, clock: Calendar) -> AsyncIterator[Side]:
    stepped = Stepped(store)
    term = await store.campaign(name, name, 60.0)
    assert term is not None
    office = ControllerContext(stepped, clock, term, random.Random(1), Presence(clock))
    copies = [office.cache(LatticeNode), office.cache(LatticeWorkload)]
    feeds = [asyncio.create_task(copy.run()) for copy in copies]
    for copy in copies:
        await copy.wait_for()
    table, seen = NodeTable(), {}
    for node in office.cache(LatticeNode).objects():
        entry = office.cache(LatticeNode).entry(f"/{node.metadata.name}")
        assert entry is not None
        table.put_node(node_info_of(node))
        seen[node.metadata.name] = entry.revision
    book = Reservations(table, name)
    yield Side(
        name, stepped, office, book, Binder(PersistentBindingStore(office), book, clock.monotonic, mode, seen)
    )
    for feed in feeds:
        feed.cancel()
    await asyncio.gather(*feeds, return_exceptions=True)


async def count(store: Store, kind: Any) -> int:
    return len((await store.list(kind.resource.id)).entries)


async def left_prepared(store: Store) -> list[str]:
    page = await store.list(LatticeWorkload.resource.id)
    found = [msgspec.json.decode(entry.value, type=LatticeWorkload) for entry in page.entries]
    return [each.metadata.name for each in found if reservation_record(each)]


@pytest.mark.parametrize("mode", MODES)
async def test_one_of_two_binders_wins_at_any_interleaving(open_store: OpenStore, mode: BindingMode) -> None:
    async def one_meeting(at: int) -> int:
        clock = Calendar()
        async with open_store() as store:
            world = World(store, clock)
            await world.add(a_node("n1", 1000), a_workload("a"), a_workload("b"))
            async with a_side(store, "one", mode, clock) as one, a_side(store, "two", mode, clock) as two:
                mine, theirs = (await one.reserve("a"))[0], (await two.reserve("b"))[0]
                events = []

                async def rival() -> None:
                    events.append(await two.binder.bind(theirs))

                one.store.at, one.store.then = at, rival
                events.append(await one.binder.bind(mine))
                if len(events) == 1:
                    await rival()
                assert sorted(event.outcome for event in events) == ["bound", "failed"], (mode, at, events)
                assert [event.is_retriable for event in events if event.outcome == "failed"] == [True]
                winner = next(event.workload for event in events if event.outcome == "bound")
                assert await world.bindings() == {winner.removeprefix("default/"): "n1"}
                assert (await world.node("n1")).status.workloads == 1
                assert await count(store, Lease) == 0
                assert await left_prepared(store) == []
                return one.store.steps

    at, steps = 1, 1
    while at <= steps:
        steps = await one_meeting(at)
        at += 1
    assert steps >= 3


@pytest.mark.parametrize("mode", MODES)
async def test_two_binders_of_the_same_workload_bind_it_once(
    open_store: OpenStore, mode: BindingMode
) -> None:
    clock = Calendar()
    async with open_store() as store:
        world = World(store, clock)
        await world.add(a_node("n1"), a_workload("a"))
        async with a_side(store, "one", mode, clock) as one, a_side(store, "two", mode, clock) as two:
            mine, theirs = (await one.reserve("a"))[0], (await two.reserve("a"))[0]
            events = await asyncio.gather(one.binder.bind(mine), two.binder.bind(theirs))
        assert sorted(event.outcome for event in events) == ["bound", "failed"]
        assert (await world.node("n1")).status.workloads == 1


async def test_prepared_binding_of_dead_binder_expires(
    open_store: OpenStore,
) -> None:
    clock = Calendar()
    async with open_store() as store:
        world = World(store, clock)
        await world.add(a_node("n1", 1000), a_workload("a"), a_workload("b"))
        mode = BindingMode.TWO_PHASE
        async with a_side(store, "dead", mode, clock) as dead:
            held = (await dead.reserve("a"))[0]
            request = BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)
            assert await dead.ledger.prepare(request, dead.binder.node_revisions["n1"])
        async with a_side(store, "next", mode, clock) as following:
            state = await following.ledger.read("n1")
            assert state is not None
            assert state.free["cpu"] == 0, "its room is taken as long as it is prepared"
            assert not await following.ledger.settle_reservation("default/a", clock.now())
            assert await left_prepared(store) == ["a"]
            clock.date += timedelta(seconds=LATER)
            assert await following.ledger.settle_reservation("default/a", clock.now())
            assert not await following.ledger.settle_reservation("default/a", clock.now())
            assert await left_prepared(store) == []
            assert (await world.node("n1")).status.workloads == 0
            following.binder.node_revisions.clear()
            event = await following.binder.bind((await following.reserve("b"))[0])
            assert event.outcome == "bound", event


async def test_lock_of_dead_holder_expires(open_store: OpenStore) -> None:
    clock = Calendar()
    async with open_store() as store:
        await World(store, clock).add(a_node("n1"))
        mode = BindingMode.PESSIMISTIC
        async with (
            a_side(store, "dead", mode, clock) as dead,
            a_side(store, "next", mode, clock) as following,
        ):
            until = clock.monotonic() + 10
            first = await dead.ledger.lock("n1", "dead", until)
            assert first
            assert await following.ledger.lock("n1", "next", until) is None
            clock.date += timedelta(seconds=11)
            second = await following.ledger.lock("n1", "next", until + 11)
            assert second
            await dead.ledger.unlock("n1", first)
            assert await count(store, Lease) == 1, "a late unlock of the dead holder changes nothing"
            await following.ledger.unlock("n1", second)
            assert await count(store, Lease) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_bound_workloads_are_reported_not_rolled_back(open_store: OpenStore, mode: BindingMode) -> None:
    clock = Calendar()
    async with open_store() as store:
        world = World(store, clock)
        await world.add(a_node("n1", 1000), a_workload("a"))
        async with a_side(store, "one", mode, clock) as one:
            held = (await one.reserve("a"))[0]
            assert (await one.binder.bind(held)).outcome == "bound"
            before = await store.revision()
            for _ in range(2):
                assert [*await one.ledger.abort_all([request_of(held)])] == [held.id]
            assert await store.revision() == before
        assert (await world.node("n1")).status.workloads == 1


async def test_prepared_binding_is_rolled_back_without_trace(open_store: OpenStore) -> None:
    clock = Calendar()
    async with open_store() as store:
        world = World(store, clock)
        await world.add(a_node("n1", 1000), a_workload("a"))
        async with a_side(store, "one", BindingMode.TWO_PHASE, clock) as one:
            held = (await one.reserve("a"))[0]
            assert await one.ledger.prepare(request_of(held), (await world.entry(LatticeNode, "n1")).revision)
            assert (await world.node("n1")).status.workloads == 1
            for _ in range(2):
                assert not await one.ledger.abort_all([request_of(held)])
        found = await world.workload("a")
        assert (
            reservation_record(found),
            found.status.binding,
            found.status.allocated_ports,
            found.status.last_action,
        ) == (None, None, {}, "")
        assert (await world.node("n1")).status.workloads == 0


def request_of(held: Reservation) -> BindRequest:
    return BindRequest(held.workload, held.node, held.id, held.needs, held.expires_at)


MEMBERS = 120  # more than fit into one commit


@pytest.mark.parametrize("commits", range(6))
async def test_crash_never_leaves_large_gang_half_bound(open_store: OpenStore, commits: int) -> None:
    clock = Calendar()
    async with open_store() as store:
        world = World(store, clock)
        names = [f"w{number}" for number in range(MEMBERS)]
        await world.add(a_node("n1", 1_000_000))
        await world.add(*(a_workload(name, 1) for name in names))
        async with a_side(store, "dead", BindingMode.OPTIMISTIC, clock) as dead:
            held = await dead.reserve(*names)
            requests = [
                BindRequest(
                    reservation.workload,
                    reservation.node,
                    reservation.id,
                    reservation.needs,
                    reservation.expires_at,
                )
                for reservation in held
            ]
            for request in requests:
                state = await store.get(Key(LatticeNode.resource.id, "", "n1"))
                assert state is not None
                assert await dead.ledger.prepare(request, state.revision)
            dead.store.commits, dead.store.most_commits = 0, commits
            survived = await _commit_all(dead, requests)
            assert survived == (commits >= 5)
        decided = commits >= 3  # two commits give all of them the attempt's name, the third binds the lead
        async with a_side(store, "next", BindingMode.OPTIMISTIC, clock) as following:
            await _settle_all(following, names, clock)
            assert len(await world.bindings()) == (MEMBERS if decided else 0)
            assert sorted(await left_prepared(store)) == ([] if decided else sorted(names))
            clock.date += timedelta(seconds=LATER)
            await _settle_all(following, names, clock)
        assert len(await world.bindings()) == (MEMBERS if decided else 0)
        assert await left_prepared(store) == []
        assert (await world.node("n1")).status.workloads == (MEMBERS if decided else 0)


async def _commit_all(side: Side, requests: Sequence[BindRequest]) -> bool:
    try:
        assert not await side.ledger.commit_all(requests)
    except Crashed:
        return False
    return True


async def _settle_all(side: Side, names: Sequence[str], clock: Calendar) -> None:
    for name in names:
        await side.ledger.settle_reservation(f"default/{name}", clock.now())


@dataclass
class Hurried(SystemClock):
    """A clock whose sleeps are real and that the test can move ahead by hours."""

    skipped: float = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped

    def now(self) -> datetime:
        return START + timedelta(seconds=self.skipped)


@pytest.mark.parametrize("mode", MODES)
async def test_two_schedulers_never_overcommit_nodes(open_store: OpenStore, mode: BindingMode) -> None:
    clock, profile = Hurried(), replace(PRESETS[DEFAULT_PROFILE], binding=mode.value)
    async with open_store() as store:
        world = World(store, clock)
        await world.add(*(a_node(f"n{number}", 3000, ports=(30000, 30002)) for number in range(4)))
        await world.add(*(a_workload(f"w{number}", ports=("http",)) for number in range(16)))
        async with (
            running_scheduler(store, clock, profile, "one") as one,
            running_scheduler(store, clock, profile, "two") as two,
        ):
            for _ in range(6):
                await asyncio.gather(one.caught_up(), two.caught_up())
                await asyncio.gather(one.controller.reconcile("nodes"), two.controller.reconcile("nodes"))
                clock.skipped += 70.0
        bound = await world.bindings()
        assert Counter(bound.values()) == {f"n{number}": 3 for number in range(4)}
        assert [(await world.node(f"n{number}")).status.workloads for number in range(4)] == [3] * 4
        ports = [(bound[name], (await world.workload(name)).status.allocated_ports["http"]) for name in bound]
        assert len(set(ports)) == 12
        assert await left_prepared(store) == []
        assert await count(store, Lease) == 0
