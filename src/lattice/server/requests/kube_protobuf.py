"""What a Kubernetes protobuf request body says, as the JSON object its sender could have sent instead.

Go clients since 1.32 send built-in kinds this way and do not fall back. The tables below hold the field
numbers of Kubernetes' published generated.proto files for the few messages that can reach this server.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lattice.errors import Malformed

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\x00"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Json = dict[str, Any]
Field = tuple[str, str]  # JSON name, how it is written
Table = dict[int, Field]

# How a field is written. A trailing ? marks what is a pointer in Go, where zero and absent differ; elsewhere
# Go writes zeros that its own JSON omits, so they are dropped. A trailing * is a repeated field, {} a map.
#   string int bool: scalars. bytes: base64 in JSON. time micro: RFC 3339. fields: a JSON document. Capitalised: a message.
_META = "ObjectMeta"
MESSAGES: Final[dict[str, Table]] = {
    "Namespace": {1: ("metadata", _META), 2: ("spec", "NamespaceSpec"), 3: ("status", "NamespaceStatus")},
    "NamespaceSpec": {1: ("finalizers", "string*")},
    "NamespaceStatus": {1: ("phase", "string"), 2: ("conditions", "NamespaceCondition*")},
    "NamespaceCondition": {
        1: ("type", "string"),
        2: ("status", "string"),
        4: ("lastTransitionTime", "time"),
        5: ("reason", "string"),
        6: ("message", "string"),
    },
    "Secret": {
        1: ("metadata", _META),
        2: ("data", "bytes{}"),
        3: ("type", "string"),
        4: ("stringData", "string{}"),
        5: ("immutable", "bool?"),
    },
    "ConfigMap": {
        1: ("metadata", _META),
        2: ("data", "string{}"),
        3: ("binaryData", "bytes{}"),
        4: ("immutable", "bool?"),
    },
    "Event": {
        1: ("metadata", _META),
        2: ("involvedObject", "ObjectReference"),
        3: ("reason", "string"),
        4: ("message", "string"),
        5: ("source", "EventSource"),
        6: ("firstTimestamp", "time"),
        7: ("lastTimestamp", "time"),
        8: ("count", "int"),
        9: ("type", "string"),
        10: ("eventTime", "micro"),
        11: ("series", "EventSeries"),
        12: ("action", "string"),
        13: ("related", "ObjectReference"),
        14: ("reportingComponent", "string"),
        15: ("reportingInstance", "string"),
    },
    "EventSource": {1: ("component", "string"), 2: ("host", "string")},
    "EventSeries": {1: ("count", "int"), 2: ("lastObservedTime", "micro")},
    "ObjectReference": {
        1: ("kind", "string"),
        2: ("namespace", "string"),
        3: ("name", "string"),
        4: ("uid", "string"),
        5: ("apiVersion", "string"),
        6: ("resourceVersion", "string"),
        7: ("fieldPath", "string"),
    },
    "Lease": {1: ("metadata", _META), 2: ("spec", "LeaseSpec")},
    "LeaseSpec": {
        1: ("holderIdentity", "string?"),
        2: ("leaseDurationSeconds", "int?"),
        3: ("acquireTime", "micro"),
        4: ("renewTime", "micro"),
        5: ("leaseTransitions", "int?"),
        6: ("strategy", "string?"),
        7: ("preferredHolder", "string?"),
    },
    "SelfSubjectAccessReview": {
        1: ("metadata", _META),
        2: ("spec", "AccessReviewSpec"),
        3: ("status", "AccessReviewStatus"),
    },
    "SubjectAccessReview": {
        1: ("metadata", _META),
        2: ("spec", "AccessReviewSpec"),
        3: ("status", "AccessReviewStatus"),
    },
    "AccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
        3: ("user", "string"),
        4: ("groups", "string*"),
        5: ("extra", "ExtraValue{}"),
        6: ("uid", "string"),
    },
    "ResourceAttributes": {
        1: ("namespace", "string"),
        2: ("verb", "string"),
        3: ("group", "string"),
        4: ("version", "string"),
        5: ("resource", "string"),
        6: ("subresource", "string"),
        7: ("name", "string"),
        8: ("fieldSelector", "SelectorAttributes"),
        9: ("labelSelector", "SelectorAttributes"),
    },
    "SelectorAttributes": {1: ("rawSelector", "string"), 2: ("requirements", "SelectorRequirement*")},
    "SelectorRequirement": {1: ("key", "string"), 2: ("operator", "string"), 3: ("values", "string*")},
    "NonResourceAttributes": {1: ("path", "string"), 2: ("verb", "string")},
    "AccessReviewStatus": {
        1: ("allowed", "bool?"),
        2: ("reason", "string"),
        3: ("evaluationError", "string"),
        4: ("denied", "bool"),
    },
    "SelfSubjectRulesReview": {
        1: ("metadata", _META),
        2: ("spec", "RulesReviewSpec"),
        3: ("status", "RulesReviewStatus"),
    },
    "RulesReviewSpec": {1: ("namespace", "string")},
    "RulesReviewStatus": {
        1: ("resourceRules", "ResourceRule*"),
        2: ("nonResourceRules", "NonResourceRule*"),
        3: ("incomplete", "bool?"),
        4: ("evaluationError", "string"),
    },
    "ResourceRule": {
        1: ("verbs", "string*"),
        2: ("apiGroups", "string*"),
        3: ("resources", "string*"),
        4: ("resourceNames", "string*"),
    },
    "NonResourceRule": {1: ("verbs", "string*"), 2: ("nonResourceURLs", "string*")},
    "SelfSubjectReview": {1: ("metadata", _META), 2: ("status", "SelfReviewStatus")},
    "SelfReviewStatus": {1: ("userInfo", "UserInfo")},
    "TokenReview": {
        1: ("metadata", _META),
        2: ("spec", "TokenReviewSpec"),
        3: ("status", "TokenReviewStatus"),
    },
    "TokenReviewSpec": {1: ("token", "string"), 2: ("audiences", "string*")},
    "TokenReviewStatus": {
        1: ("authenticated", "bool"),
        2: ("user", "UserInfo"),
        3: ("error", "string"),
        4: ("audiences", "string*"),
    },
    "UserInfo": {
        1: ("username", "string"),
        2: ("uid", "string"),
        3: ("groups", "string*"),
        4: ("extra", "ExtraValue{}"),
    },
    "ExtraValue": {1: ("items", "string*")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int?"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "bool?"),
        4: ("propagationPolicy", "string?"),
        5: ("dryRun", "string*"),
        6: ("ignoreStoreReadErrorWithClusterBreakingPotential", "bool?"),
    },
    "Preconditions": {1: ("uid", "string?"), 2: ("resourceVersion", "string?")},
    _META: {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        4: ("selfLink", "string"),
        5: ("uid", "string"),
        6: ("resourceVersion", "string"),
        7: ("generation", "int"),
        8: ("creationTimestamp", "time"),
        9: ("deletionTimestamp", "time"),
        10: ("deletionGracePeriodSeconds", "int?"),
        11: ("labels", "string{}"),
        12: ("annotations", "string{}"),
        13: ("ownerReferences", "OwnerReference*"),
        14: ("finalizers", "string*"),
        17: ("managedFields", "ManagedFieldsEntry*"),
    },
    "OwnerReference": {
        1: ("kind", "string"),
        3: ("name", "string"),
        4: ("uid", "string"),
        5: ("apiVersion", "string"),
        6: ("controller", "bool?"),
        7: ("blockOwnerDeletion", "bool?"),
    },
    "ManagedFieldsEntry": {
        1: ("manager", "string"),
        2: ("operation", "string"),
        3: ("apiVersion", "string"),
        4: ("time", "time"),
        6: ("fieldsType", "string"),
        7: ("fieldsV1", "fields"),
        8: ("subresource", "string"),
    },
    "Time": {1: ("seconds", "int"), 2: ("nanos", "int")},
    "FieldsV1": {1: ("Raw", "raw")},
    "Unknown": {
        1: ("typeMeta", "TypeMeta"),
        2: ("raw", "raw"),
        3: ("contentEncoding", "string"),
        4: ("contentType", "string"),
    },
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
}

DECODABLE_KINDS: Final = {
    ("v1", "Namespace"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "Event"),
    ("coordination.k8s.io/v1", "Lease"),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"),
    ("authorization.k8s.io/v1", "SubjectAccessReview"),
    ("authentication.k8s.io/v1", "SelfSubjectReview"),
    ("authentication.k8s.io/v1", "TokenReview"),
}


def decode(body: bytes) -> Json:
    """The object in a protobuf body; whatever is wrong with the body is Malformed."""
    if not body.startswith(MAGIC):
        raise _malformed(f"it starts with {body[:4]!r}, not with {MAGIC!r}")
    envelope = _message(memoryview(body)[len(MAGIC) :], "Unknown", {})
    if envelope.get("contentEncoding") or envelope.get("contentType", MEDIA_TYPE) != MEDIA_TYPE:
        raise _malformed("its content is wrapped in another encoding")
    api_version, kind = (envelope.get("typeMeta", {}).get(name, "") for name in ("apiVersion", "kind"))
    # Clients stamp DeleteOptions with the version of whatever they delete.
    if kind != "DeleteOptions" and (api_version, kind) not in DECODABLE_KINDS:
        raise _malformed(
            f"it holds a {kind or 'nameless kind'} of {api_version or 'no version'}, which is read as JSON only"
        )
    return {
        "apiVersion": api_version,
        "kind": kind,
        **_message(envelope.get("raw", memoryview(b"")), kind, {}),
    }


def _malformed(why: str) -> Malformed:
    return Malformed(f"the protobuf body cannot be read: {why}", fix="send the object as application/json")


def _message(data: memoryview, name: str, into: Json) -> Json:
    table = MESSAGES[name]
    for number, wire, value in _fields(data):
        field = table.get(number)
        if field is not None:
            _put(into, field, _checked(wire, value, field))
    return into


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _malformed(f"field number {number} does not exist")
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(wire, -1)
        if wire == BYTES:
            length, at = _varint(data, at)
        if length < 0:
            raise _malformed(f"field {number} has wire type {wire}, which Kubernetes does not use")
        if length > end - at:
            raise _malformed(f"field {number} is cut off: {length} bytes announced, {end - at} left")
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (1 << 64) - 1, at + index + 1
    raise _malformed("a number is cut off or longer than ten bytes")


def _checked(wire: int, value: int | memoryview, field: Field) -> int | memoryview:
    wanted = VARINT if field[1].rstrip("?") in ("int", "bool") else BYTES
    if wire != wanted:
        raise _malformed(f"{field[0]} has wire type {wire} where {wanted} belongs")
    return value


def _put(into: Json, field: Field, value: int | memoryview) -> None:
    name, how = field
    if isinstance(value, int):
        number = value != 0 if how.startswith("bool") else value - (1 << 64) if value >> 63 else value
        _set(into, name, number, keep=how.endswith("?"))
    elif how.endswith("{}"):
        key, item = _pair(value, how[:-2])
        into.setdefault(name, {})[key] = item
    elif how.endswith("*"):
        into.setdefault(name, []).append(_value(value, how[:-1]))
    elif how in MESSAGES:
        _message(value, how, into.setdefault(name, {}))
    else:
        _set(into, name, _value(value, how.rstrip("?")), keep=how.endswith("?"))


def _set(into: Json, name: str, value: Any, *, keep: bool) -> None:
    into.pop(name, None)  # the last of several wins, also when it is a zero
    if value or keep:
        into[name] = value


def _pair(data: memoryview, how: str) -> tuple[str, Any]:
    key, item = memoryview(b""), memoryview(b"")
    for number, _, value in _fields(data):
        if number in (1, 2) and not isinstance(value, memoryview):
            raise _malformed("a map holds a number where text belongs")
        if number == 1 and isinstance(value, memoryview):
            key = value
        elif number == 2 and isinstance(value, memoryview):
            item = value
    return _text(key), _value(item, how)


def _value(data: memoryview, how: str) -> Any:
    if how == "ExtraValue":
        return _message(data, how, {}).get("items", [])
    if how in MESSAGES:
        return _message(data, how, {})
    return _SCALARS[how](data)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as wrong:
        raise _malformed(f"text that is not UTF-8: {wrong.reason}") from wrong


def _moment(data: memoryview) -> datetime | None:
    if not len(data):
        return None  # how Go writes a time that was never set
    parts = _message(data, "Time", {})
    try:
        return EPOCH + timedelta(seconds=parts.get("seconds", 0), microseconds=parts.get("nanos", 0) // 1000)
    except OverflowError as wrong:
        raise _malformed(
            f"a time {parts.get('seconds', 0)} seconds from 1970 is outside the years 1 to 9999"
        ) from wrong


def _time(data: memoryview) -> str:
    moment = _moment(data)
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z" if moment else ""


def _micro(data: memoryview) -> str:
    moment = _moment(data)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z" if moment else ""


def _document(data: memoryview) -> Json:
    raw = _message(data, "FieldsV1", {}).get("Raw", memoryview(b""))
    try:
        return msgspec.json.decode(raw, type=Json) if len(raw) else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise _malformed(f"managedFields hold no JSON object: {wrong}") from wrong


_SCALARS: Final[dict[str, Callable[[memoryview], Any]]] = {
    "string": _text,
    "bytes": lambda data: base64.b64encode(data).decode(),
    "raw": lambda data: data,
    "time": _time,
    "micro": _micro,
    "fields": _document,
}
