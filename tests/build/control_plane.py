"""A store in virtual time, and the loops of one or more controllers with their caches."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from build.virtual import VirtualClock, settle
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop, run_all
from lattice.controllers.runtime.object_writes import key_of, put_new
from lattice.kinds.core import Event
from lattice.kinds.meta.base import Kind
from lattice.presence import Presence
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Store, Term

K = TypeVar("K", bound=Kind)


@dataclass
class ControlPlane:
    """The store and clock of a test, changed by hand as users and other controllers would."""

    store: Store = field(init=False)
    clock: VirtualClock = field(default_factory=VirtualClock)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)

    def uid(self) -> str:
        return f"{next(self.numbers):08x}-0000-4000-8000-000000000000"

    async def new_term(self, presence: Presence | None = None) -> ControllerContext:
        """Begin a new term; the former leader is fenced from now on."""
        term = await self.store.campaign("controllers", f"server-{next(self.numbers)}", 0.001)
        while term is None:
            await self.clock.advance(1)
            term = await self.store.campaign("controllers", f"server-{next(self.numbers)}", 0.001)
        assert isinstance(term, Term)
        rng = random.Random(1)
        return ControllerContext(
            self.store, self.clock, term, rng, presence or Presence(self.clock), self.uid
        )

    async def put(self, *objects: Kind) -> None:
        """Create or replace objects, as a writer other than the controllers does; the uid stays."""
        for obj in objects:
            entry = await self.store.get(key_of(obj))
            write = put_new(obj, uid=self.uid(), now="2026-01-01T00:00:00Z")
            if entry is not None:
                known = msgspec.json.decode(entry.value)["metadata"]
                kept = {
                    **msgspec.json.decode(write.value),
                    "metadata": {**known, **msgspec.to_builtins(obj.metadata), "uid": known["uid"]},
                }
                write = msgspec.structs.replace(write, value=msgspec.json.encode(kept), expect=entry.revision)
            await self.store.commit([write])
        await settle()

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K | None:
        page = await self.store.list(kind.resource.id)
        results = [
            entry for entry in page.entries if entry.key.name == name and entry.key.namespace == namespace
        ]
        return msgspec.json.decode(results[0].value, type=kind) if results else None

    async def all(self, kind: type[K]) -> list[K]:
        page = await self.store.list(kind.resource.id)
        return [msgspec.json.decode(entry.value, type=kind) for entry in page.entries]

    async def events(self) -> list[str]:
        """Reason and object of every event, oldest first."""
        page = await self.store.list(Event.resource.id)
        results = [(entry.revision, msgspec.json.decode(entry.value, type=Event)) for entry in page.entries]
        return [
            f"{event.reason} {event.involved_object.name}"
            for _, event in sorted(results, key=lambda pair: pair[0])
        ]

    async def remove(self, obj: Kind) -> None:
        await self.store.commit([Delete(key_of(obj))])
        await settle()


@asynccontextmanager
async def running_loops(context: ControllerContext, *loops: Loop) -> AsyncIterator[None]:
    """Run the loops and their caches until the block ends."""
    running = asyncio.create_task(run_all(loops, context.caches))
    try:
        await settle()
        yield
    finally:
        for loop in loops:
            loop.stop(0)
        await settle()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def revision_after(plane: ControlPlane, seconds: Iterable[float]) -> list[int]:
    """The store's revision after each of these waits."""
    results = []
    for wait in seconds:
        await plane.clock.advance(wait)
        results.append(await plane.store.revision())
    return results
