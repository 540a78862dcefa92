"""Who owns whom, and what follows for an object when its owners go: pure, decided on values."""

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
MAX_CACHED_OWNER_LISTS = 1024  # lists of owners that are read once for all that have the same: replicas of one service, machines of one cluster


class Owner(NamedTuple):
    """One owner reference; key None: of a kind that is not ours to judge."""

    key: Key | None
    uid: str
    blocks_deletion: bool


class GarbageObject(msgspec.Struct, frozen=True, gc=False):
    """As much of an object as deciding needs."""

    key: Key
    uid: str
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    is_terminating: bool

    @property
    def is_orphaning(self) -> bool:
        """To be removed, its dependents to be kept."""
        return self.is_terminating and ORPHAN_FINALIZER in self.finalizers

    @property
    def is_foreground_deleting(self) -> bool:
        """To be removed once its dependents are."""
        return (
            self.is_terminating
            and FOREGROUND_FINALIZER in self.finalizers
            and ORPHAN_FINALIZER not in self.finalizers
        )


class OwnerResolver:
    """Where the owners that references name are kept."""

    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.resources = {kind.resource.id: kind.resource for kind in kinds}
        self._by_kind = {(each.group, each.kind): each for each in self.resources.values()}
        self._owner_lists: dict[tuple[str, bytes], tuple[Owner, ...]] = {}

    def parse(self, entry: Entry) -> GarbageObject:
        metadata = _decode(entry.value).metadata
        raw = bytes(metadata.owner_references)
        owners = self._owners(entry.key.namespace, raw) if raw else ()
        return GarbageObject(
            entry.key,
            metadata.uid,
            owners,
            metadata.finalizers or (),
            metadata.deletion_timestamp is not None,
        )

    def _owners(self, namespace: str, raw: bytes) -> tuple[Owner, ...]:
        owners = self._owner_lists.get((namespace, raw))
        if owners is None:
            if len(self._owner_lists) >= MAX_CACHED_OWNER_LISTS:
                self._owner_lists.clear()
            owners = self._owner_lists[namespace, raw] = tuple(
                Owner(self._key(each, namespace), each.uid, each.block_owner_deletion is True)
                for each in _references(raw) or ()
            )
        return owners

    def _key(self, reference: _Reference, namespace: str) -> Key | None:
        resource = self._by_kind.get((reference.api_version.rpartition("/")[0], reference.kind))
        if resource is None or (
            resource.namespaced and not namespace
        ):  # nothing cluster-wide can belong to one namespace
            return None
        return Key(resource.id, namespace if resource.namespaced else "", reference.name)


class OwnershipVerdict(NamedTuple):
    """remove: nobody owns it any more; is_awaited: an owner waits for that. shed: uids of owners to name no longer."""

    remove: bool = False
    is_awaited: bool = False
    stale_owners: frozenset[str] = frozenset()


ObjectLookup = Callable[[Key], GarbageObject | None]
KEEP = OwnershipVerdict()


def judge_ownership(item: GarbageObject, find: ObjectLookup) -> OwnershipVerdict:
    """What its owners' fate means for an object. An owner that waits for its dependents counts as gone for them."""
    if item.is_terminating or not item.owners:
        return KEEP
    holding, leaving, lost = _classify_owners(item, find)
    if holding:
        return OwnershipVerdict(stale_owners=frozenset((leaving | lost) - holding))
    return OwnershipVerdict(remove=True, is_awaited=bool(leaving))


def _classify_owners(item: GarbageObject, find: ObjectLookup) -> tuple[set[str], set[str], set[str]]:
    holding: set[str] = set()
    leaving: set[str] = set()
    lost: set[str] = set()
    for owner in item.owners:
        found = None if owner.key is None else find(owner.key)
        if owner.key is None:
            holding.add(owner.uid)
        elif found is None or found.uid != owner.uid:
            lost.add(owner.uid)
        else:
            (leaving if found.is_foreground_deleting else holding).add(owner.uid)
    return holding, leaving, lost


def is_blocked(item: GarbageObject, dependents: Callable[[str], Sequence[GarbageObject]]) -> bool:
    """Does a dependent hold up its removal? Those that wait for each other in a circle, or for themselves, do not."""
    return any(
        _blocks(each, item) and not _is_waiting_for(each, item, dependents) for each in dependents(item.uid)
    )


def _blocks(dependent: GarbageObject, owner: GarbageObject) -> bool:
    return any(each.uid == owner.uid and each.blocks_deletion for each in dependent.owners)


def _is_waiting_for(
    first: GarbageObject, last: GarbageObject, dependents: Callable[[str], Sequence[GarbageObject]]
) -> bool:
    """Is `first` held up by `last`, directly or through others that wait as well?"""
    seen, stack = {first.key}, [first]
    while stack:
        item = stack.pop()
        held_by = [
            each for each in dependents(item.uid) if item.is_foreground_deleting and _blocks(each, item)
        ]
        if any(each.key == last.key for each in held_by):
            return True
        stack += [each for each in held_by if each.key not in seen]
        seen.update(each.key for each in held_by)
    return False


def deletion_write(
    resource: Resource, entry: Entry, now: str, finalizers: tuple[str, ...] = ()
) -> Write | None:
    """Remove it, or mark it where finalizers hold it; None if that is done already. A namespace is only marked: it has content."""
    old = unpack(entry.value, entry.revision)
    new = mark_for_deletion(old, now=now, finalizers=finalizers)
    if resource.id == NAMESPACE_RESOURCE:
        new["status"] = {**old.get("status", {}), "phase": "Terminating"}
    return replacement_write(resource, entry, old, new)


def without_finalizer(resource: Resource, entry: Entry, finalizer: str) -> Write | None:
    old = unpack(entry.value, entry.revision)
    kept = [each for each in old["metadata"].get("finalizers", ()) if each != finalizer]
    return replacement_write(
        resource, entry, old, {**old, "metadata": _with_values(old["metadata"], "finalizers", kept)}
    )


def without_owners(resource: Resource, entry: Entry, uids: frozenset[str]) -> Write | None:
    old = unpack(entry.value, entry.revision)
    kept = [each for each in old["metadata"].get("ownerReferences", ()) if each["uid"] not in uids]
    return replacement_write(
        resource, entry, old, {**old, "metadata": _with_values(old["metadata"], "ownerReferences", kept)}
    )


def replacement_write(resource: Resource, entry: Entry, old: Object, new: Object) -> Write | None:
    if resource.id != NAMESPACE_RESOURCE and is_finalized(new):
        return Delete(entry.key, entry.revision)
    if is_unchanged(old, new):
        return None
    return Put(entry.key, pack(resource, new), entry.revision)


def _with_values(metadata: Mapping[str, object], name: str, values: list[object]) -> dict[str, object]:
    rest = {key: value for key, value in metadata.items() if key != name}
    return rest | ({name: values} if values else {})
