"""Delete the content of a deleted namespace, and report the content that remains."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.controllers.garbage.batch_committer import BatchCommitter, GarbageWrite
from lattice.controllers.garbage.ownership import deletion_write, replacement_write
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.stored_encoding import Object, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.protocol import Delete, Entry, Store, Write

CONTENT_CONDITION, FINALIZERS_CONDITION = "NamespaceContentRemaining", "NamespaceFinalizersRemaining"
PAGE_SIZE = 500


@dataclass
class RemainingContent:
    """Counts of the remaining objects by resource, and of the finalizers that hold objects."""

    resources: Counter[str] = field(default_factory=Counter)
    finalizers: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, finalizers: Sequence[str]) -> None:
        self.resources[entry.key.resource] += 1
        self.finalizers.update(finalizers)

    def __bool__(self) -> bool:
        return bool(self.resources)


def with_remaining_content(namespace: Object, remaining: RemainingContent, now: str) -> Object:
    """The namespace with conditions about the remaining content; a condition with status False is written
    only if the namespace already has a condition of that type."""
    status = namespace.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    content = "Remaining objects: " + _format_counts(remaining.resources)
    finalizers = "Waiting for finalizers: " + _format_counts(remaining.finalizers)
    desired = {
        CONTENT_CONDITION: _condition("SomeResourcesRemain", content)
        if remaining.resources
        else _condition("ContentRemoved"),
        FINALIZERS_CONDITION: _condition("SomeFinalizersRemain", finalizers)
        if remaining.finalizers
        else _condition("ContentHasNoFinalizers"),
    }
    for name, condition in desired.items():
        if condition["status"] == "True" or name in conditions:
            previous = conditions.get(name, {})
            since = previous["lastTransitionTime"] if previous.get("status") == condition["status"] else now
            conditions[name] = {"type": name, **condition, "lastTransitionTime": since}
    if not conditions:
        return namespace
    return {**namespace, "status": {**status, "conditions": list(conditions.values())}}


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _condition(reason: str, message: str = "") -> Object:
    return {
        "status": "True" if message else "False",
        "reason": reason,
        "message": message or "No content is left",
    }


@dataclass(frozen=True)
class NamespaceCleaner:
    """Empties namespaces; the content is listed from the store, not from a cache.

    The commit that creates an object checks that its namespace is not marked for deletion, so no object
    appears after the last list.
    """

    store: Store
    clock: Clock
    committer: BatchCommitter
    # Namespaced resources only.
    resources: Sequence[Resource]

    async def empty(self, namespace: Entry) -> Write | None:
        """Delete the content of the namespace. Return the write that deletes the namespace if it is empty;
        otherwise the write of a status with the remaining content, or None if the status is unchanged."""
        remaining = RemainingContent()
        for resource in self.resources:
            after, has_more = "", True
            while has_more:
                page = await self.store.list(resource.id, namespace.key.name, limit=PAGE_SIZE, after=after)
                writes = {entry.key: deletion_write(resource, entry, self._now()) for entry in page.entries}
                conflicts = await self.committer.commit_all(
                    GarbageWrite(write, "namespace") for write in writes.values() if write is not None
                )
                for entry in page.entries:
                    # An object remains if a finalizer holds it (the object is only marked), or if another
                    # writer has changed it (the write conflicts).
                    if entry.key in conflicts or not isinstance(writes[entry.key], Delete):
                        finalizers = unpack(entry.value, entry.revision)["metadata"].get("finalizers", ())
                        remaining.add(entry, finalizers)
                if has_more := page.has_more:
                    after = page.entries[-1].key.path
        obj = unpack(namespace.value, namespace.revision)
        # Finalizers of other controllers may still hold a namespace without content.
        if not remaining and not obj["metadata"].get("finalizers"):
            return Delete(namespace.key, namespace.revision)
        return replacement_write(
            Namespace.resource, namespace, obj, with_remaining_content(obj, remaining, self._now())
        )

    def _now(self) -> str:
        return format_timestamp(self.clock.now())
