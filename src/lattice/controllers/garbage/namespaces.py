"""Emptying a namespace that is to go, and saying what holds that up."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock, stamp
from lattice.controllers.garbage.ownership import removal, replacement
from lattice.controllers.runtime.commit_batches import Step, Sweep
from lattice.kinds.meta.base import Resource
from lattice.kinds.core import Namespace
from lattice.kinds.meta.stored import Object, unpack
from lattice.store.protocol import Delete, Entry, Store, Write

CONTENT, FINALIZERS = "NamespaceContentRemaining", "NamespaceFinalizersRemaining"
PAGE = 500


@dataclass
class Remains:
    """What could not be removed yet: how many of each resource, and how many each finalizer holds."""

    resources: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, finalizers: Sequence[str]) -> None:
        self.resources[entry.key.resource] += 1
        self.finalizers.update(finalizers)

    def __bool__(self) -> bool:
        return bool(self.resources)


def with_remains(namespace: Object, remains: Remains, now: str) -> Object:
    """The namespace, its conditions saying what remains. A condition that would be False is only kept, never added."""
    status = namespace.get("status", {})
    known = {each["type"]: each for each in status.get("conditions", ())}
    content = "still there: " + _counted(remains.resources)
    held = "waiting for finalizers: " + _counted(remains.finalizers)
    wanted = {
        CONTENT: _condition("SomeResourcesRemain", content)
        if remains.resources
        else _condition("ContentRemoved"),
        FINALIZERS: _condition("SomeFinalizersRemain", held)
        if remains.finalizers
        else _condition("ContentHasNoFinalizers"),
    }
    for name, condition in wanted.items():
        if condition["status"] == "True" or name in known:
            known[name] = _since({"type": name, **condition}, known.get(name, {}), now)
    return {**namespace, "status": {**status, "conditions": list(known.values())}} if known else namespace


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _condition(reason: str, message: str = "") -> Object:
    return {
        "status": "True" if message else "False",
        "reason": reason,
        "message": message or "nothing is left",
    }


def _since(condition: Object, before: Object, now: str) -> Object:
    return {
        **condition,
        "lastTransitionTime": before["lastTransitionTime"]
        if before.get("status") == condition["status"]
        else now,
    }


@dataclass(frozen=True)
class Emptying:
    """Reads the store itself, not a copy: what is created in a namespace is checked against its mark by the same commit."""

    store: Store
    clock: Clock
    sweep: Sweep
    resources: Sequence[Resource]  # those that live in namespaces

    async def empty(self, namespace: Entry) -> Write | None:
        """Remove what can be, then: the namespace's own removal if nothing is left, else word of what is."""
        remains = Remains()
        for resource in self.resources:
            async for entries in self._pages(resource, namespace.key.name):
                await self._remove(resource, entries, remains)
        obj = unpack(namespace.value, namespace.revision)
        if not remains and not obj["metadata"].get("finalizers"):
            return Delete(namespace.key, namespace.revision)
        return replacement(Namespace.resource, namespace, obj, with_remains(obj, remains, self._now()))

    async def _pages(self, resource: Resource, namespace: str) -> AsyncIterator[list[Entry]]:
        page = await self.store.list(resource.id, namespace, limit=PAGE)
        while page.entries:
            yield page.entries
            if not page.more:
                return
            page = await self.store.list(resource.id, namespace, limit=PAGE, after=page.entries[-1].key.path)

    async def _remove(self, resource: Resource, entries: Sequence[Entry], remains: Remains) -> None:
        writes = {entry.key: removal(resource, entry, self._now()) for entry in entries}
        clashed = await self.sweep.take(
            Step(write, "namespace") for write in writes.values() if write is not None
        )
        for entry in entries:
            if entry.key in clashed or not isinstance(writes[entry.key], Delete):
                remains.add(entry, unpack(entry.value, entry.revision)["metadata"].get("finalizers", ()))

    def _now(self) -> str:
        return stamp(self.clock.now())
