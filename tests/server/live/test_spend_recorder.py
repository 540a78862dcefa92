"""The spend history is kept in the store: it survives the leader and is written only on change."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from build.agent_world import Leader
from build.costs import a_paid_pool, a_running_service
from build.virtual import VirtualClock

from lattice.kinds.core import ConfigMap
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.live.spend_history import RETENTION_S, CostSeries, SpendHistory, SpendRates
from lattice.server.live.spend_recorder import (
    MAX_STORED_BYTES,
    OTHERS_SERIES,
    SAMPLE_INTERVAL_S,
    SPENDING_KEY,
    WRITE_INTERVAL_S,
    SpendRecorder,
    decode_history,
    encode_history,
)
from lattice.store.memory import MemoryStore
from lattice.store.protocol import ABSENT, Entry, Put


@asynccontextmanager
async def leading_server() -> AsyncIterator[tuple[Leader, VirtualClock]]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    leader = Leader(store, clock)
    await leader.lead()
    try:
        yield leader, clock
    finally:
        await leader.close()


def a_recorder(leader: Leader) -> SpendRecorder:
    uids = itertools.count()

    async def run_inline(compute: Callable[[], SpendRates]) -> SpendRates:
        return compute()

    return SpendRecorder(
        leader.clock, lambda: leader.context, lambda: f"uid-{next(uids)}", run_in_background=run_inline
    )


async def test_new_leader_continues_stored_history() -> None:
    async with leading_server() as (leader, clock):
        await leader.add(a_paid_pool("north", 0.5, 0.5))
        for item in a_running_service("web", "n1", "north-001", team="blue"):
            await leader.add(item)
        recorder = a_recorder(leader)
        running = asyncio.create_task(recorder.run())
        await clock.advance(WRITE_INTERVAL_S + 2 * SAMPLE_INTERVAL_S)
        running.cancel()
        first = recorder.history.document("label:team")
        next_recorder = a_recorder(leader)
        running = asyncio.create_task(next_recorder.run())
        await clock.advance(SAMPLE_INTERVAL_S)
        running.cancel()
        then = next_recorder.history.document("label:team")
        assert [each["name"] for each in first["series"]] == ["blue", "(empty nodes)"]
        assert (then["since"], then["series"]) == (first["since"], first["series"])


async def test_history_is_written_only_on_change() -> None:
    async with leading_server() as (leader, clock):
        await leader.add(a_paid_pool("north", 1))
        running = asyncio.create_task(a_recorder(leader).run())
        await clock.advance(WRITE_INTERVAL_S + 2 * SAMPLE_INTERVAL_S)
        kept = await leader.store.get(SPENDING_KEY)
        await clock.advance(5 * WRITE_INTERVAL_S)
        assert kept is not None
        assert await leader.store.get(SPENDING_KEY) == kept
        await leader.add(a_paid_pool("south", 2))
        await clock.advance(WRITE_INTERVAL_S + 2 * SAMPLE_INTERVAL_S)
        assert "south" in (await leader.store.get(SPENDING_KEY) or kept).value.decode()
        running.cancel()


async def test_no_write_without_cost_or_after_handover() -> None:
    async with leading_server() as (leader, clock):
        running = asyncio.create_task(a_recorder(leader).run())
        await clock.advance(3 * WRITE_INTERVAL_S)
        assert await leader.store.get(SPENDING_KEY) is None
        await leader.add(a_paid_pool("north", 1))
        await clock.advance(WRITE_INTERVAL_S + 2 * SAMPLE_INTERVAL_S)
        kept = await leader.store.get(SPENDING_KEY)
        running.cancel()
        running = asyncio.create_task(a_recorder(leader).run())
        await clock.advance(3 * WRITE_INTERVAL_S)
        assert kept is not None
        assert await leader.store.get(SPENDING_KEY) == kept
        running.cancel()


@pytest.mark.parametrize(
    "data",
    [{}, {"spending": "nonsense"}, {"spending": '{"since": "yesterday"}'}],
    ids=["nothing", "no JSON", "other JSON"],
)
def test_unreadable_history_starts_empty(data: dict[str, str]) -> None:
    value = pack(ConfigMap.resource, {"metadata": {"name": SPENDING_KEY.name}, "data": data})
    assert decode_history(Entry(SPENDING_KEY, value, 1)) == decode_history(None) == SpendHistory()


def test_stored_history_keeps_most_expensive_services() -> None:
    services = {f"shop/service-{number:05}": CostSeries([(10, number)]) for number in range(1, 10_001)}
    note = encode_history(SpendHistory(since=5, services=services))
    assert MAX_STORED_BYTES / 2 < len(note) < MAX_STORED_BYTES + 1000
    found = decode_history(
        Entry(
            SPENDING_KEY,
            pack(ConfigMap.resource, {"metadata": {"name": SPENDING_KEY.name}, "data": {"spending": note}}),
            1,
        )
    )
    assert "shop/service-10000" in found.services
    assert sum(track.rate for track in found.services.values()) == sum(range(1, 10_001))
    assert found.services[OTHERS_SERIES].points[0][0] == 10


async def test_idle_fleet_writes_nothing_when_history_expires() -> None:

    async with leading_server() as (leader, clock):
        first = int(clock.now().timestamp()) - RETENTION_S
        paid = SpendHistory(since=first)
        paid.pools["north"] = CostSeries([(first, 1_000_000), (first + 10, 2_000_000)])
        paid.services["shop/gone"] = CostSeries([(first, 500_000), (first + 10, 0)])
        value = pack(
            ConfigMap.resource,
            {
                "metadata": {"name": SPENDING_KEY.name, "namespace": SPENDING_KEY.namespace},
                "data": {"spending": encode_history(paid)},
            },
        )
        await leader.store.commit([Put(SPENDING_KEY, value, ABSENT)])
        kept = await leader.store.get(SPENDING_KEY)
        await leader.add(a_paid_pool("north", 2))
        recorder = a_recorder(leader)
        for _ in range(3):
            await recorder.sample(leader.context)
            await clock.advance(WRITE_INTERVAL_S)
        assert (list(recorder.history.pools), list(recorder.history.services)) == (["north"], [])
        assert recorder.history.pools["north"].points == [(first + 10, 2_000_000)]
        assert await leader.store.get(SPENDING_KEY) == kept
