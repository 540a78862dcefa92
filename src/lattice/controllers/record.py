"""How controllers write objects: made new, or with another status, spec or metadata than was read, and only if it is still that one."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from lattice.kinds.base import Condition, Kind, OwnerReference, Part
from lattice.kinds.body import encode
from lattice.kinds.lifecycle import born
from lattice.kinds.stored import pack
from lattice.store.protocol import ABSENT, Entry, Key, Put


class _Stored(msgspec.Struct):
    """An object whose parts are left as they are written: what nobody changes need not be read."""

    api_version: msgspec.Raw = msgspec.field(name="apiVersion")
    kind: msgspec.Raw
    metadata: msgspec.Raw
    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Stored).decode
_encoder = msgspec.json.Encoder()


def key_of(obj: Kind) -> Key:
    return Key(obj.resource.id, obj.metadata.namespace, obj.metadata.name)


def path_of(obj: Kind) -> str:
    """As in copies and as keys of controllers: `namespace/name`, `/name` without a namespace."""
    return f"{obj.metadata.namespace}/{obj.metadata.name}"


def created(obj: Kind, *, uid: str, now: str) -> Put:
    """A new object, which must not be there yet."""
    plain = msgspec.to_builtins(obj, builtin_types=(Decimal,))  # a number stays one, which text would not be
    return Put(key_of(obj), pack(obj.resource, born(plain, uid=uid, now=now)), ABSENT)


def with_status(entry: Entry, status: Part) -> Put:
    stored = _decode(entry.value)
    stored.status = _raw(status)
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_spec(entry: Entry, spec: Part, status: Part | None = None) -> Put:
    """Another spec is another generation; `status`, if given, changes in the same write."""
    stored = _decode(entry.value)
    metadata = msgspec.json.decode(stored.metadata)
    stored.metadata = _raw(metadata | {"generation": metadata.get("generation", 1) + 1})
    stored.spec = _raw(spec)
    if status is not None:
        stored.status = _raw(status)
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def with_metadata(entry: Entry, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Put:
    stored = _decode(entry.value)
    stored.metadata = _raw(change(msgspec.json.decode(stored.metadata)))
    return Put(entry.key, _encoder.encode(stored), entry.revision)


def _raw(part: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(part))


def owned_by(owner: Kind) -> OwnerReference:
    """What it owns goes with it."""
    resource, metadata = owner.resource, owner.metadata
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=metadata.name,
        uid=metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def conditioned(before: Sequence[Condition], found: Iterable[Condition], now: str) -> tuple[Condition, ...]:
    """What is found now in the place of what was said of the same type before, sorted; the time is that of the last change of status."""
    known = {each.type: each for each in before}
    for each in found:
        old = known.get(each.type)
        since = old.last_transition_time if old is not None and old.status == each.status else now
        known[each.type] = msgspec.structs.replace(each, last_transition_time=since)
    return tuple(known[name] for name in sorted(known))
