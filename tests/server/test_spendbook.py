"""What was paid is kept in the store: it outlives the server that saw it, and is written only when there is something new."""

import asyncio
import itertools
from typing import Any

import pytest

from lattice.kinds.core import ConfigMap
from lattice.kinds.meta.stored import pack
from lattice.server.live.spend_store import EVERY, KEPT_EVERY, KEY, MOST, OTHERS, SpendBook, noted, recalled
from lattice.server.live.spend_history import KEPT, Spending, Track
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Entry, Put
from tests.server.links import Leader
from tests.server.test_spending import a_cluster, a_service
from tests.store.virtual import VirtualClock


def play(story: Any) -> None:
    async def whole() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock)
        leader = Leader(store, clock)
        await leader.lead()
        try:
            await story(leader, clock)
        finally:
            await leader.close()

    asyncio.run(whole())


def a_book(leader: Leader) -> SpendBook:
    uids = itertools.count()
    return SpendBook(leader.clock, lambda: leader.office, lambda: f"uid-{next(uids)}")


def test_the_next_leader_goes_on_where_the_last_one_ended() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await leader.add(a_cluster("north", 1))
        await leader.add(a_service("web", 0.5, team="blue"))
        book = a_book(leader)
        running = asyncio.create_task(book.run())
        await clock.advance(KEPT_EVERY + 2 * EVERY)
        running.cancel()
        first = book.spending.answer("label:team")
        next_book = a_book(leader)
        running = asyncio.create_task(next_book.run())
        await clock.advance(EVERY)
        running.cancel()
        then = next_book.spending.answer("label:team")
        assert [each["name"] for each in first["series"]] == ["blue", "(empty nodes)"]
        assert (then["since"], then["series"]) == (first["since"], first["series"])

    play(story)


def test_it_is_written_only_when_something_changed() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await leader.add(a_cluster("north", 1))
        running = asyncio.create_task(a_book(leader).run())
        await clock.advance(KEPT_EVERY + 2 * EVERY)
        kept = await leader.store.get(KEY)
        await clock.advance(5 * KEPT_EVERY)
        assert kept is not None
        assert await leader.store.get(KEY) == kept
        await leader.add(a_cluster("south", 2))
        await clock.advance(KEPT_EVERY + 2 * EVERY)
        assert "south" in (await leader.store.get(KEY) or kept).value.decode()
        running.cancel()

    play(story)


def test_where_nothing_is_paid_and_after_a_hand_over_nothing_is_written() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        running = asyncio.create_task(a_book(leader).run())
        await clock.advance(3 * KEPT_EVERY)
        assert await leader.store.get(KEY) is None
        await leader.add(a_cluster("north", 1))
        await clock.advance(KEPT_EVERY + 2 * EVERY)
        kept = await leader.store.get(KEY)
        running.cancel()
        running = asyncio.create_task(a_book(leader).run())
        await clock.advance(3 * KEPT_EVERY)
        assert kept is not None
        assert await leader.store.get(KEY) == kept
        running.cancel()

    play(story)


@pytest.mark.parametrize(
    "data",
    [{}, {"spending": "nonsense"}, {"spending": '{"since": "yesterday"}'}],
    ids=["nothing", "no JSON", "other JSON"],
)
def test_what_cannot_be_read_begins_anew(data: dict[str, str]) -> None:
    value = pack(ConfigMap.resource, {"metadata": {"name": KEY.name}, "data": data})
    assert recalled(Entry(KEY, value, 1)) == recalled(None) == Spending()


def test_of_very_many_services_the_dearest_are_kept_and_the_rest_as_one() -> None:
    services = {f"shop/service-{number:05}": Track([(10, number)]) for number in range(1, 10_001)}
    note = noted(Spending(since=5, services=services))
    assert MOST / 2 < len(note) < MOST + 1000
    found = recalled(
        Entry(KEY, pack(ConfigMap.resource, {"metadata": {"name": KEY.name}, "data": {"spending": note}}), 1)
    )
    assert "shop/service-10000" in found.services
    assert sum(track.rate for track in found.services.values()) == sum(range(1, 10_001))
    assert found.services[OTHERS].points[0][0] == 10


def test_a_fleet_that_pays_by_the_hour_and_rests_writes_nothing_more_also_when_what_it_paid_before_is_forgotten() -> (
    None
):
    async def story(leader: Leader, clock: VirtualClock) -> None:
        first = int(clock.now().timestamp()) - KEPT
        paid = Spending(since=first)
        paid.pools["north"] = Track([(first, 1_000_000), (first + 10, 2_000_000)])
        paid.services["shop/gone"] = Track([(first, 500_000), (first + 10, 0)])
        value = pack(
            ConfigMap.resource,
            {"metadata": {"name": KEY.name, "namespace": KEY.namespace}, "data": {"spending": noted(paid)}},
        )
        await leader.store.commit([Put(KEY, value, ABSENT)])
        kept = await leader.store.get(KEY)
        await leader.add(a_cluster("north", 2))
        book = a_book(leader)
        for _ in range(3):
            await book.look(leader.office)
            await clock.advance(KEPT_EVERY)
        assert (list(book.spending.pools), list(book.spending.services)) == (["north"], [])
        assert book.spending.pools["north"].points == [(first + 10, 2_000_000)]
        assert await leader.store.get(KEY) == kept

    play(story)
