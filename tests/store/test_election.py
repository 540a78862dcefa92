"""Leader election: handover, expiry, outages and fencing."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from build.virtual import VirtualClock, settle

from lattice.errors import Fenced, Unavailable
from lattice.store.election import Election
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Key, Put, Term

POD = Key("pods", "a", "b")


class Candidate:
    """An election and its events."""

    def __init__(self, store: MemoryStore, clock: VirtualClock, name: str) -> None:
        self.events: list[str] = []
        rng = random.Random(name)
        self.election = Election(
            store,
            clock,
            "lead",
            name,
            rng,
            on_started_leading=self._record("won"),
            on_stopped_leading=self._record("lost"),
        )
        self.task = asyncio.ensure_future(self.election.run())

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    def _record(self, what: str) -> Callable[[Term], None]:
        return lambda term: self.events.append(f"{what} {term.number}")


class UnreliableStore(MemoryStore):
    """A store that can hang, refuse or fail."""

    mode = "well"

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        await self._fail()
        return await super().campaign(role, holder, ttl)

    async def renew(self, term: Term) -> bool:
        await self._fail()
        return await super().renew(term)

    async def _fail(self) -> None:
        if self.mode == "silent":
            await asyncio.Event().wait()
        if self.mode == "down":
            raise Unavailable("no answer")
        if self.mode == "broken":
            raise RuntimeError("nobody thought of this")


async def test_one_candidate_keeps_leading() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    one, two = Candidate(store, clock, "one"), Candidate(store, clock, "two")
    await clock.advance(600)
    assert (one.events, two.events) == (["won 1"], [])
    assert one.election.term is not None
    assert two.election.term is None
    await one.stop()
    await two.stop()


async def test_ended_term_is_given_up_and_campaigned_again() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    one = Candidate(store, clock, "one")
    await clock.advance(1)
    term = one.election.term
    assert term is not None
    one.election.end_term(Term(term.role, term.number - 1, term.holder))
    assert one.election.term == term, "an earlier term is ignored"
    one.election.end_term(term)
    assert one.election.term is None
    assert one.events == ["won 1", "lost 1"]
    await clock.advance(60)
    assert one.events == ["won 1", "lost 1", "won 2"]
    await one.stop()


async def test_stopped_leader_hands_over_within_a_second() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    one, two = Candidate(store, clock, "one"), Candidate(store, clock, "two")
    await clock.advance(20)
    await one.stop()
    assert one.events == ["won 1", "lost 1"]
    await clock.advance(1)
    assert two.events == ["won 2"]
    await two.stop()


async def test_dead_leader_is_replaced_after_lease() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    await store.campaign("lead", "dead", 15)
    two = Candidate(store, clock, "two")
    await clock.advance(14.9)
    assert two.events == []
    await clock.advance(2.1)
    assert two.events == ["won 2"]
    await two.stop()


@pytest.mark.parametrize("mode", ["silent", "down"])
async def test_leader_steps_down_when_lease_is_not_renewed(mode: str) -> None:
    clock = VirtualClock()
    store = UnreliableStore(clock)
    one = Candidate(store, clock, "one")
    await clock.advance(1)
    store.mode = mode
    await clock.advance(13.9)
    assert one.election.term is not None
    await clock.advance(0.1)
    assert one.election.term is None
    assert one.events == ["won 1", "lost 1"]
    await one.stop()


async def test_short_store_outage_does_not_end_term() -> None:
    clock = VirtualClock()
    store = UnreliableStore(clock)
    one = Candidate(store, clock, "one")
    await clock.advance(4)
    store.mode = "down"
    await clock.advance(8)
    store.mode = "well"
    await clock.advance(100)
    assert one.events == ["won 1"]
    await one.stop()


async def test_paused_leader_is_fenced_on_wake() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    one = Candidate(store, clock, "one")
    await clock.advance(1)
    kept = one.election.term
    assert kept is not None
    await store.commit([Put(POD, b"by one")], fence=kept)
    clock.jump(60)
    assert one.election.term is None
    successor = await store.campaign("lead", "two", 15)
    assert successor is not None
    revision = await store.revision()
    for _ in range(10):
        with pytest.raises(Fenced):
            await store.commit([Put(POD, b"late")], fence=kept)
    assert await store.revision() == revision
    await clock.advance(0.1)
    await settle()
    assert one.events == ["won 1", "lost 1"]
    await one.stop()


async def test_renewal_error_ends_term_and_recampaigns() -> None:
    clock = VirtualClock()
    store = UnreliableStore(clock)
    one = Candidate(store, clock, "one")
    await clock.advance(1)
    store.mode = "broken"
    await clock.advance(6)
    assert one.events == ["won 1", "lost 1"]
    assert one.election.term is None
    store.mode = "well"
    await clock.advance(20)
    assert one.events == ["won 1", "lost 1", "won 2"]
    await one.stop()
