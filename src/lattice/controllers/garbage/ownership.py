"""Who owns whom, and what follows for an object when its owners go: pure, decided on values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.object_rules import FOREGROUND, ORPHAN, doomed, is_gone, same
from lattice.kinds.meta.stored import Object, pack, unpack
from lattice.store.protocol import Delete, Entry, Key, Put, Write

NAMESPACES = "namespaces"


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
KNOWN = 1024  # lists of owners that are read once for all that have the same: replicas of one service, machines of one cluster


class Owner(NamedTuple):
    """One owner reference; key None: of a kind that is not ours to judge."""

    key: Key | None
    uid: str
    blocks: bool


class Item(msgspec.Struct, frozen=True, gc=False):
    """As much of an object as deciding needs."""

    key: Key
    uid: str
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    is_dying: bool

    @property
    def is_orphaning(self) -> bool:
        """To be removed, its dependents to be kept."""
        return self.is_dying and ORPHAN in self.finalizers

    @property
    def is_leaving(self) -> bool:
        """To be removed once its dependents are."""
        return self.is_dying and FOREGROUND in self.finalizers and ORPHAN not in self.finalizers


class Addresses:
    """Where the owners that references name are kept."""

    def __init__(self, kinds: Iterable[type[Kind]]) -> None:
        self.resources = {kind.resource.id: kind.resource for kind in kinds}
        self._by_kind = {(each.group, each.kind): each for each in self.resources.values()}
        self._known: dict[tuple[str, bytes], tuple[Owner, ...]] = {}

    def item(self, entry: Entry) -> Item:
        metadata = _decode(entry.value).metadata
        raw = bytes(metadata.owner_references)
        owners = self._owners(entry.key.namespace, raw) if raw else ()
        return Item(
            entry.key,
            metadata.uid,
            owners,
            metadata.finalizers or (),
            metadata.deletion_timestamp is not None,
        )

    def _owners(self, namespace: str, raw: bytes) -> tuple[Owner, ...]:
        owners = self._known.get((namespace, raw))
        if owners is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            owners = self._known[namespace, raw] = tuple(
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


class Verdict(NamedTuple):
    """remove: nobody owns it any more; is_awaited: an owner waits for that. shed: uids of owners to name no longer."""

    remove: bool = False
    is_awaited: bool = False
    shed: frozenset[str] = frozenset()


Find = Callable[[Key], Item | None]
KEEP = Verdict()


def judge(item: Item, find: Find) -> Verdict:
    """What its owners' fate means for an object. An owner that waits for its dependents counts as gone for them."""
    if item.is_dying or not item.owners:
        return KEEP
    holding, leaving, lost = _sorted_owners(item, find)
    if holding:
        return Verdict(shed=frozenset((leaving | lost) - holding))
    return Verdict(remove=True, is_awaited=bool(leaving))


def _sorted_owners(item: Item, find: Find) -> tuple[set[str], set[str], set[str]]:
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
            (leaving if found.is_leaving else holding).add(owner.uid)
    return holding, leaving, lost


def is_blocked(item: Item, dependents: Callable[[str], Sequence[Item]]) -> bool:
    """Does a dependent hold up its removal? Those that wait for each other in a circle, or for themselves, do not."""
    return any(_blocks(each, item) and not _waits(each, item, dependents) for each in dependents(item.uid))


def _blocks(dependent: Item, owner: Item) -> bool:
    return any(each.uid == owner.uid and each.blocks for each in dependent.owners)


def _waits(first: Item, last: Item, dependents: Callable[[str], Sequence[Item]]) -> bool:
    """Is `first` held up by `last`, directly or through others that wait as well?"""
    seen, stack = {first.key}, [first]
    while stack:
        item = stack.pop()
        held_by = [each for each in dependents(item.uid) if item.is_leaving and _blocks(each, item)]
        if any(each.key == last.key for each in held_by):
            return True
        stack += [each for each in held_by if each.key not in seen]
        seen.update(each.key for each in held_by)
    return False


def removal(resource: Resource, entry: Entry, now: str, finalizers: tuple[str, ...] = ()) -> Write | None:
    """Remove it, or mark it where finalizers hold it; None if that is done already. A namespace is only marked: it has content."""
    old = unpack(entry.value, entry.revision)
    new = doomed(old, now=now, finalizers=finalizers)
    if resource.id == NAMESPACES:
        new["status"] = {**old.get("status", {}), "phase": "Terminating"}
    return replacement(resource, entry, old, new)


def without_finalizer(resource: Resource, entry: Entry, finalizer: str) -> Write | None:
    old = unpack(entry.value, entry.revision)
    kept = [each for each in old["metadata"].get("finalizers", ()) if each != finalizer]
    return replacement(resource, entry, old, {**old, "metadata": _with(old["metadata"], "finalizers", kept)})


def without_owners(resource: Resource, entry: Entry, uids: frozenset[str]) -> Write | None:
    old = unpack(entry.value, entry.revision)
    kept = [each for each in old["metadata"].get("ownerReferences", ()) if each["uid"] not in uids]
    return replacement(
        resource, entry, old, {**old, "metadata": _with(old["metadata"], "ownerReferences", kept)}
    )


def replacement(resource: Resource, entry: Entry, old: Object, new: Object) -> Write | None:
    if resource.id != NAMESPACES and is_gone(new):
        return Delete(entry.key, entry.revision)
    if same(old, new):
        return None
    return Put(entry.key, pack(resource, new), entry.revision)


def _with(metadata: Mapping[str, object], name: str, values: list[object]) -> dict[str, object]:
    rest = {key: value for key, value in metadata.items() if key != name}
    return rest | ({name: values} if values else {})
