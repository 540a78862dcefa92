"""A small cluster as objects in a store, and a scheduling controller whose cycles the test runs."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from build.objects import a_workload
from build.virtual import VirtualClock, settle
from lattice.clock import Clock
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import put_new, with_spec, with_status
from lattice.controllers.scheduler.scheduler import SchedulingController
from lattice.controllers.scheduler.table_updater import NODE_TABLE_KEY
from lattice.kinds.core import Event
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, WorkloadStatus
from lattice.presence import Presence
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, ProfileSpec, parse_profile
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Entry, Key, Put, Store, Term

HEAD = {"apiVersion": "lattice.dev/v1alpha1"}
READY = Condition(type="Ready", status="True")


def a_scheduling_profile(**fields: Any) -> ProfileSpec:
    """The default profile with other fields, such as `binding`."""
    return parse_profile({"name": "mine", "scores": dict(PRESETS[DEFAULT_PROFILE].scores), **fields})


def key_of(kind: type[Kind], name: str) -> Key:
    return Key(kind.resource.id, "default" if kind.resource.namespaced else "", name)


_numbers = itertools.count(1)


@dataclass
class World:
    """The store as the test reads and writes it, without a term, like any other client."""

    store: Store
    clock: Clock

    async def add(self, *objects: Kind) -> None:
        for obj in objects:
            await self.store.commit(
                [put_new(obj, uid=f"uid-{next(_numbers)}", now=format_timestamp(self.clock.now()))]
            )

    async def entry(self, kind: type[Kind], name: str) -> Entry:
        result = await self.store.get(key_of(kind, name))
        assert result is not None
        return result

    async def workload(self, name: str) -> LatticeWorkload:
        return msgspec.json.decode((await self.entry(LatticeWorkload, name)).value, type=LatticeWorkload)

    async def node(self, name: str) -> LatticeNode:
        return msgspec.json.decode((await self.entry(LatticeNode, name)).value, type=LatticeNode)

    async def set_status(self, kind: type[Kind], name: str, **status: Any) -> None:
        entry = await self.entry(kind, name)
        before: WorkloadStatus | NodeStatus = msgspec.json.decode(entry.value, type=kind).status  # type: ignore[attr-defined]
        await self.store.commit([with_status(entry, msgspec.structs.replace(before, **status))])

    async def put(self, obj: Kind) -> None:
        """Replace the stored object; its uid stays."""
        entry = await self.entry(type(obj), obj.metadata.name)
        metadata = msgspec.json.decode(entry.value)["metadata"]
        body = msgspec.to_builtins(obj) | {"metadata": metadata}
        await self.store.commit([Put(entry.key, msgspec.json.encode(body), entry.revision)])

    async def resize(self, name: str, cpu: int) -> None:
        """The workload requests so many milli-cores from now on."""
        spec = (await self.workload(name)).spec
        resized = msgspec.structs.replace(spec, containers=a_workload(name, cpu).spec.containers)
        await self.store.commit([with_spec(await self.entry(LatticeWorkload, name), resized)])

    async def delete(self, kind: type[Kind], name: str) -> None:
        await self.store.commit([Delete(key_of(kind, name))])

    async def bindings(self) -> dict[str, str]:
        page = await self.store.list(LatticeWorkload.resource.id)
        results = [msgspec.json.decode(entry.value, type=LatticeWorkload) for entry in page.entries]
        return {item.metadata.name: item.status.binding.node for item in results if item.status.binding}

    async def events(self) -> list[tuple[str, str]]:
        page = await self.store.list(Event.resource.id)
        results = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        return sorted((item.reason, item.involved_object.name) for item in results)

    async def revision(self) -> int:
        return await self.store.revision()


@dataclass
class RunningScheduler:
    """A scheduling controller with caches that follow the store."""

    controller: SchedulingController
    context: ControllerContext
    feeds: list["asyncio.Task[None]"] = field(default_factory=list)
    deaf: list[Any] = field(default_factory=list)

    async def run_cycle(self) -> Any:
        """Run one cycle once the caches have caught up."""
        await self.caught_up()
        return await self.controller.reconcile(NODE_TABLE_KEY)

    async def caught_up(self) -> None:
        if isinstance(self.context.clock, VirtualClock):
            await settle()
        newest = await self.context.store.revision()
        for kind in (LatticeNode, LatticeWorkload):
            await self.context.cache(kind).wait_for(newest)


def a_context(store: Store, clock: Clock, term: Term) -> ControllerContext:
    numbers = itertools.count(next(_numbers) * 1_000_000)
    return ControllerContext(
        store, clock, term, random.Random(7), Presence(clock), lambda: f"{next(numbers):016d}"
    )


@asynccontextmanager
async def running_scheduler(
    store: Store,
    clock: Clock,
    profile: ProfileSpec = PRESETS[DEFAULT_PROFILE],
    role: str = "leader",
    plain: ProfileSpec | None = None,
) -> AsyncIterator[RunningScheduler]:
    """A scheduling controller of a new term; rivals have other roles, so that neither fences the other."""
    term = await store.campaign(role, f"server-{role}", 15.0)
    assert term is not None
    context = a_context(store, clock, term)
    scheduler = RunningScheduler(SchedulingController(context, profile, standalone_profile=plain), context)
    copies = [context.cache(kind) for kind in (LatticeNode, LatticeWorkload, LatticeService)]
    scheduler.feeds = [asyncio.create_task(copy.run()) for copy in copies]
    for copy in copies:
        await copy.wait_for()
    loop = scheduler.controller.loop()
    scheduler.deaf = [
        source.cache.on_change(lambda change, source=source: [*source.keys(change)] and None)
        for source in loop.sources
    ]
    loop.list_keys()
    try:
        yield scheduler
    finally:
        for feed in scheduler.feeds:
            feed.cancel()
        await asyncio.gather(*scheduler.feeds, return_exceptions=True)


@asynccontextmanager
async def a_virtual_world() -> AsyncIterator[tuple[World, VirtualClock]]:
    clock = VirtualClock()
    yield World(MemoryStore(clock), clock), clock
