"""A term of office in virtual time: a store, its copies, and one controller's loop or several."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
class Scene:
    """What a test looks at and changes by hand, as people and other controllers would."""

    store: Store = field(init=False)
    clock: VirtualClock = field(default_factory=VirtualClock)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)

    def uid(self) -> str:
        return f"{next(self.numbers):08x}-0000-4000-8000-000000000000"

    async def office(self, presence: Presence | None = None) -> ControllerContext:
        """A new term: whoever led before is fenced from now on."""
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
        """Made new, or as given in the place of what is there; whoever writes it is not one of the controllers."""
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
        found = [each for each in page.entries if each.key.name == name and each.key.namespace == namespace]
        return msgspec.json.decode(found[0].value, type=kind) if found else None

    async def all(self, kind: type[K]) -> list[K]:
        page = await self.store.list(kind.resource.id)
        return [msgspec.json.decode(each.value, type=kind) for each in page.entries]

    async def events(self) -> list[str]:
        """Reason and object of each, in the order in which they came."""
        page = await self.store.list(Event.resource.id)
        found = [(each.revision, msgspec.json.decode(each.value, type=Event)) for each in page.entries]
        return [
            f"{event.reason} {event.involved_object.name}"
            for _, event in sorted(found, key=lambda pair: pair[0])
        ]

    async def remove(self, obj: Kind) -> None:
        await self.store.commit([Delete(key_of(obj))])
        await settle()


@asynccontextmanager
async def acting(office: ControllerContext, *loops: Loop) -> AsyncIterator[None]:
    """The loops and their copies, until left."""
    running = asyncio.create_task(run_all(loops, office.caches))
    try:
        await settle()
        yield
    finally:
        for loop in loops:
            loop.stop(0)
        await settle()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def copied(office: ControllerContext) -> AsyncIterator[None]:
    """Only the copies: for tests that call `reconcile` themselves."""
    feeds = [asyncio.create_task(each.run()) for each in office.caches]
    try:
        for each in office.caches:
            await each.wait_for()
        yield
    finally:
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)


def a(
    kind: type[K], name: str, namespace: str = "", *, meta: dict[str, Any] | None = None, **parts: Any
) -> K:
    """An object from plain words, as in a manifest."""
    resource = kind.resource
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **(meta or {})}
    return msgspec.convert(
        {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **parts}, kind
    )


async def revision_after(scene: Scene, seconds: Iterable[float]) -> list[int]:
    """The store's revision after each of these times."""
    found = []
    for each in seconds:
        await scene.clock.advance(each)
        found.append(await scene.store.revision())
    return found
