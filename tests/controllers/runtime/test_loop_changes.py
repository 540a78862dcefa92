"""Cache changes wake the affected keys; no key is reconciled before the caches are filled."""

import asyncio
import random
from collections.abc import Iterable

from build.scripted_controller import ScriptedController, a_loop, cancel_and_wait
from build.virtual import VirtualClock
from structlog.testing import capture_logs

from lattice.controllers.runtime.loop import Loop, Source, run_all
from lattice.store.cache import Cache
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Delete, Key, Put


def nodes_of(change: Change) -> Iterable[str]:
    """A workload wakes the node that it names."""
    return [text.decode() for text in (change.value, change.previous and change.previous.value) if text]


async def test_changes_wake_affected_keys() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    key = Key("workloads", "shop", "web-0")
    caches = [
        Cache(store, name, lambda entry: entry, clock, random.Random(1)) for name in ("nodes", "workloads")
    ]
    await store.commit([Put(Key("nodes", "", "n1"), b"")])
    controller = ScriptedController(clock)
    sources = (Source(caches[0]), Source(caches[1], nodes_of))
    loop = Loop(
        controller,
        clock,
        random.Random(1),
        lambda: [cache.key.path for cache in caches[0].objects()],
        sources,
    )
    task = asyncio.create_task(run_all([loop], caches))
    await clock.advance(1)
    await store.commit([Put(key, b"/n1")])
    await clock.advance(1)
    await store.commit([Put(key, b"/n2")])
    await clock.advance(1)
    await store.commit([Delete(key)])
    await clock.advance(1)
    assert [name for name, _ in controller.begun] == ["/n1", "/n1", "/n2", "/n1", "/n2"]
    await cancel_and_wait(task)


async def test_undecodable_change_is_logged_and_others_are_handled() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    cache = Cache(store, "workloads", lambda entry: entry, clock, random.Random(1))
    controller = ScriptedController(clock)
    await store.commit([Put(Key("workloads", "", "first"), b"")])
    task = asyncio.create_task(run_all([a_loop(controller, (), (Source(cache, nodes_of),))], [cache]))
    await clock.advance(1)
    with capture_logs() as logs:
        await store.commit(
            [Put(Key("workloads", "", "odd"), b"\xff"), Put(Key("workloads", "", "fine"), b"/n1")]
        )
        await clock.advance(1)
    assert [(line["event"], line["object"]) for line in logs] == [
        ("change of an object failed to wake its controller", "workloads/odd")
    ]
    assert [key for key, _ in controller.begun] == ["/n1"]
    await cancel_and_wait(task)


async def test_no_reconcile_before_caches_are_filled() -> None:
    clock = VirtualClock()
    cache = Cache(MemoryStore(clock), "nodes", lambda entry: entry, clock, random.Random(1))
    controller = ScriptedController(clock)
    loop = a_loop(controller, ["a"], (Source(cache),))
    task = asyncio.create_task(loop.run())
    await clock.advance(5)
    assert controller.begun == []
    loop.stop()
    await clock.advance(1)
    assert task.done()


async def test_no_reconcile_before_unwatched_caches_are_filled() -> None:
    """A machine must not count as unpaid only because the ledgers have not been read yet."""

    clock = VirtualClock()
    store = MemoryStore(clock)
    await store.commit([Put(Key("nodes", "", "n1"), b"")])
    nodes, ledgers = (
        Cache(store, name, lambda entry: entry, clock, random.Random(1)) for name in ("nodes", "ledgers")
    )
    read = ledgers.run

    async def late() -> None:
        await clock.sleep(3)
        await read()

    ledgers.run = late  # type: ignore[method-assign]
    controller = ScriptedController(clock)
    task = asyncio.create_task(run_all([a_loop(controller, ["a"], (Source(nodes),))], [nodes, ledgers]))
    await clock.advance(2)
    assert controller.begun == []
    await clock.advance(2)
    assert [key for key, _ in controller.begun] == ["a"]
    await cancel_and_wait(task)
