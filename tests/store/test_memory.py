"""The store in memory: leases, request ids and watches before the window."""

from build.virtual import VirtualClock

from lattice.store.memory import MemoryStore
from lattice.store.protocol import REQUEST_ID_TTL_S, Key, Put

POD = Key("pods", "a", "b")


async def test_lease_expires_by_given_clock() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    first = await store.campaign("role", "one", 15)
    assert first is not None
    await clock.advance(14)
    assert await store.campaign("role", "two", 15) is None
    assert await store.renew(first)
    await clock.advance(14.9)
    assert await store.campaign("role", "two", 15) is None
    await clock.advance(0.1)
    assert not await store.renew(first)
    second = await store.campaign("role", "two", 15)
    assert second is not None
    assert second.number == 2


async def test_request_id_expires() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    first = await store.commit([Put(POD, b"")], request_id="r")
    await clock.advance(REQUEST_ID_TTL_S - 1)
    assert await store.commit([Put(POD, b"")], request_id="r") == first
    await clock.advance(1)
    assert await store.commit([Put(POD, b"")], request_id="r") > first


async def test_watch_before_window_reads_the_log() -> None:
    store = MemoryStore(VirtualClock(), window=5)
    for number in range(50):
        await store.commit([Put(POD, b"%d" % number)])
    watch = await store.watch("pods", 1)
    batches = await watch.next(1)
    assert [batch.changes[0].value for batch in batches] == [b"%d" % number for number in range(50)]
    last = await store.commit([Put(POD, b"last")])
    assert [batch.revision for batch in await watch.next(1)] == [last]
