"""Decide from owner references which objects are garbage; pure functions on values, and the writes that
follow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.object_lifecycle import (
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    is_finalized,
    is_unchanged,
    mark_for_deletion,
)
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.store.protocol import Delete, Entry, Key, Put, Write

NAMESPACE_RESOURCE = "namespaces"


class _Reference(msgspec.Struct, gc=False, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str
    block_owner_deletion: bool | None = None


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    uid: str = ""
    owner_references: msgspec.Raw = msgspec.Raw()
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] | None = None


class _Stored(msgspec.Struct, gc=False):
    metadata: _Metadata


_decode = msgspec.json.Decoder(_Stored).decode
_references = msgspec.json.Decoder(tuple[_Reference, ...] | None).decode
# Limit of cached owner lists. Objects with equal owner references share one parsed list: the replicas of a
# service, the nodes of a cluster.
MAX_CACHED_OWNER_LISTS = 1024


class Owner(NamedTuple):
    """An owner reference; `key` is None for a kind that the collector does not know."""

    key: Key | None
    uid: str
    blocks_deletion: bool


class GarbageObject(msgspec.Struct, frozen=True, gc=False):
    """The fields of an object that garbage collection needs."""

    key: Key
    uid: str
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    is_terminating: bool

    @property
    def is_orphaning(self) -> bool:
        """Whether the object is deleted and its dependents stay."""
        return self.is_terminating and ORPHAN_FINALIZER in self.finalizers

    @property
    def is_foreground_deleting(self) -> bool:
        """Whether the object is deleted after its dependents."""
        return (
            self.is_terminating
            and FOREGROUND_FINALIZER in self.finalizers
            and ORPHAN_FINALIZER not in self.finalizers
        )


class OwnerResolver:
    """Parses stored objects and resolves owner references to keys of the store."""

    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.resources = {kind.resource.id: kind.resource for kind in kinds}
        self._by_kind = {(resource.group, resource.kind): resource for resource in self.resources.values()}
        self._owner_lists: dict[tuple[str, bytes], tuple[Owner, ...]] = {}

    def parse(self, entry: Entry) -> GarbageObject:
        metadata = _decode(entry.value).metadata
        raw = bytes(metadata.owner_references)
        namespace = entry.key.namespace
        owners = self._owner_lists.get((namespace, raw)) if raw else ()
        if owners is None:
            # A full cache is dropped as a whole.
            if len(self._owner_lists) >= MAX_CACHED_OWNER_LISTS:
                self._owner_lists.clear()
            resolved: list[Owner] = []
            for reference in _references(raw) or ():
                resource = self._by_kind.get((reference.api_version.rpartition("/")[0], reference.kind))
                key = None
                # A cluster-scoped object cannot have an owner in a namespace.
                if resource is not None and (namespace or not resource.namespaced):
                    key = Key(resource.id, namespace if resource.namespaced else "", reference.name)
                resolved.append(Owner(key, reference.uid, reference.block_owner_deletion is True))
            owners = self._owner_lists[namespace, raw] = tuple(resolved)
        return GarbageObject(
            entry.key,
            metadata.uid,
            owners,
            metadata.finalizers or (),
            metadata.deletion_timestamp is not None,
        )


class OwnershipDecision(NamedTuple):
    """The decision about an object: `remove` if no owner keeps the object, `is_awaited` if an owner in
    foreground deletion waits for the removal.

    `stale_owners` are the uids of owner references to drop.
    """

    remove: bool = False
    is_awaited: bool = False
    stale_owners: frozenset[str] = frozenset()


ObjectLookup = Callable[[Key], GarbageObject | None]
KEEP = OwnershipDecision()


def judge_ownership(item: GarbageObject, find: ObjectLookup) -> OwnershipDecision:
    """Decide about an object from the state of its owners; an owner in foreground deletion does not keep its
    dependents alive."""
    if item.is_terminating or not item.owners:
        return KEEP
    holding: set[str] = set()
    leaving: set[str] = set()
    missing: set[str] = set()
    for owner in item.owners:
        current = None if owner.key is None else find(owner.key)
        # The collector cannot look up an owner of an unknown kind, so such an owner keeps the object.
        if owner.key is None:
            holding.add(owner.uid)
        # An object of the same name with another uid is a successor, not the owner.
        elif current is None or current.uid != owner.uid:
            missing.add(owner.uid)
        else:
            (leaving if current.is_foreground_deleting else holding).add(owner.uid)
    # One owner is enough to keep the object; references to other owners are dropped.
    if holding:
        return OwnershipDecision(stale_owners=frozenset((leaving | missing) - holding))
    return OwnershipDecision(remove=True, is_awaited=bool(leaving))


def is_blocked(item: GarbageObject, dependents: Callable[[str], Sequence[GarbageObject]]) -> bool:
    """Whether a dependent blocks the deletion of the owner. A dependent that itself waits for the owner, in a
    cycle, does not block."""
    return any(
        _blocks(dependent, item) and not _is_waiting_for(dependent, item, dependents)
        for dependent in dependents(item.uid)
    )


def _blocks(dependent: GarbageObject, owner: GarbageObject) -> bool:
    return any(reference.uid == owner.uid and reference.blocks_deletion for reference in dependent.owners)


def _is_waiting_for(
    first: GarbageObject, last: GarbageObject, dependents: Callable[[str], Sequence[GarbageObject]]
) -> bool:
    """Whether `first` waits for `last`: `last` blocks the deletion of `first`, directly or through a chain of
    objects in foreground deletion."""
    # Owner references may form a cycle: every object is visited once.
    visited, stack = {first.key}, [first]
    while stack:
        item = stack.pop()
        blockers = [
            dependent
            for dependent in dependents(item.uid)
            if item.is_foreground_deleting and _blocks(dependent, item)
        ]
        if any(dependent.key == last.key for dependent in blockers):
            return True
        stack += [dependent for dependent in blockers if dependent.key not in visited]
        visited.update(dependent.key for dependent in blockers)
    return False


def deletion_write(
    resource: Resource, entry: Entry, now: str, finalizers: tuple[str, ...] = ()
) -> Write | None:
    """Return the write that deletes the object, or marks it for deletion if finalizers hold it; None if the
    object is marked already.

    A namespace is only marked, because its content is deleted first.
    """
    old = unpack(entry.value, entry.revision)
    new = mark_for_deletion(old, now=now, finalizers=finalizers)
    if resource.id == NAMESPACE_RESOURCE:
        new["status"] = {**old.get("status", {}), "phase": "Terminating"}
    return replacement_write(resource, entry, old, new)


def without_finalizer(resource: Resource, entry: Entry, finalizer: str) -> Write | None:
    """Remove a finalizer; delete the object if no finalizer is left."""
    old = unpack(entry.value, entry.revision)
    remaining = [name for name in old["metadata"].get("finalizers", ()) if name != finalizer]
    return replacement_write(
        resource, entry, old, {**old, "metadata": _with_values(old["metadata"], "finalizers", remaining)}
    )


def without_owners(resource: Resource, entry: Entry, uids: frozenset[str]) -> Write | None:
    """Remove the owner references with these uids."""
    old = unpack(entry.value, entry.revision)
    remaining = [
        reference for reference in old["metadata"].get("ownerReferences", ()) if reference["uid"] not in uids
    ]
    return replacement_write(
        resource, entry, old, {**old, "metadata": _with_values(old["metadata"], "ownerReferences", remaining)}
    )


def replacement_write(resource: Resource, entry: Entry, old: Object, new: Object) -> Write | None:
    """Write the new object, or delete a marked object without finalizers; None if the object is unchanged."""
    # Only `NamespaceCleaner.empty` deletes a namespace, because the content is deleted first.
    if resource.id != NAMESPACE_RESOURCE and is_finalized(new):
        return Delete(entry.key, entry.revision)
    if is_unchanged(old, new):
        return None
    return Put(entry.key, pack(resource, new), entry.revision)


def _with_values(metadata: Mapping[str, object], name: str, values: list[object]) -> dict[str, object]:
    remaining = {key: value for key, value in metadata.items() if key != name}
    return remaining | ({name: values} if values else {})
