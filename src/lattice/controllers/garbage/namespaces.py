"""Emptying a namespace that is to go, and saying what holds that up."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock, format_timestamp
from lattice.controllers.garbage.ownership import deletion_write, replacement_write
from lattice.controllers.runtime.commit_batches import BatchCommitter, GarbageWrite
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.stored_encoding import Object, unpack
from lattice.store.protocol import Delete, Entry, Store, Write

CONTENT_CONDITION, FINALIZERS_CONDITION = "NamespaceContentRemaining", "NamespaceFinalizersRemaining"
PAGE_SIZE = 500


@dataclass
class RemainingContent:
    """What could not be removed yet: how many of each resource, and how many each finalizer holds."""

    resources: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, finalizers: Sequence[str]) -> None:
        self.resources[entry.key.resource] += 1
        self.finalizers.update(finalizers)

    def __bool__(self) -> bool:
        return bool(self.resources)


def with_remaining_content(namespace: Object, remains: RemainingContent, now: str) -> Object:
    """The namespace, its conditions saying what remains. A condition that would be False is only kept, never added."""
    status = namespace.get("status", {})
    known = {each["type"]: each for each in status.get("conditions", ())}
    content = "still there: " + _format_counts(remains.resources)
    held = "waiting for finalizers: " + _format_counts(remains.finalizers)
    wanted = {
        CONTENT_CONDITION: _condition("SomeResourcesRemain", content)
        if remains.resources
        else _condition("ContentRemoved"),
        FINALIZERS_CONDITION: _condition("SomeFinalizersRemain", held)
        if remains.finalizers
        else _condition("ContentHasNoFinalizers"),
    }
    for name, condition in wanted.items():
        if condition["status"] == "True" or name in known:
            known[name] = _with_transition_time({"type": name, **condition}, known.get(name, {}), now)
    return {**namespace, "status": {**status, "conditions": list(known.values())}} if known else namespace


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _condition(reason: str, message: str = "") -> Object:
    return {
        "status": "True" if message else "False",
        "reason": reason,
        "message": message or "nothing is left",
    }


def _with_transition_time(condition: Object, before: Object, now: str) -> Object:
    return {
        **condition,
        "lastTransitionTime": before["lastTransitionTime"]
        if before.get("status") == condition["status"]
        else now,
    }


@dataclass(frozen=True)
class NamespaceCleaner:
    """Reads the store itself, not a copy: what is created in a namespace is checked against its mark by the same commit."""

    store: Store
    clock: Clock
    committer: BatchCommitter
    resources: Sequence[Resource]  # those that live in namespaces

    async def empty(self, namespace: Entry) -> Write | None:
        """Remove what can be, then: the namespace's own removal if nothing is left, else word of what is."""
        remains = RemainingContent()
        for resource in self.resources:
            async for entries in self._pages(resource, namespace.key.name):
                await self._remove(resource, entries, remains)
        obj = unpack(namespace.value, namespace.revision)
        if not remains and not obj["metadata"].get("finalizers"):
            return Delete(namespace.key, namespace.revision)
        return replacement_write(
            Namespace.resource, namespace, obj, with_remaining_content(obj, remains, self._now())
        )

    async def _pages(self, resource: Resource, namespace: str) -> AsyncIterator[list[Entry]]:
        page = await self.store.list(resource.id, namespace, limit=PAGE_SIZE)
        while page.entries:
            yield page.entries
            if not page.has_more:
                return
            page = await self.store.list(
                resource.id, namespace, limit=PAGE_SIZE, after=page.entries[-1].key.path
            )

    async def _remove(self, resource: Resource, entries: Sequence[Entry], remains: RemainingContent) -> None:
        writes = {entry.key: deletion_write(resource, entry, self._now()) for entry in entries}
        clashed = await self.committer.commit_all(
            GarbageWrite(write, "namespace") for write in writes.values() if write is not None
        )
        for entry in entries:
            if entry.key in clashed or not isinstance(writes[entry.key], Delete):
                remains.add(entry, unpack(entry.value, entry.revision)["metadata"].get("finalizers", ()))

    def _now(self) -> str:
        return format_timestamp(self.clock.now())
