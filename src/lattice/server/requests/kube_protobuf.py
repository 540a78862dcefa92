"""Decoder for request bodies in Kubernetes protobuf: the result equals the JSON body of the same object.

Go clients since 1.32 send built-in kinds as protobuf and do not fall back to JSON. The tables below hold the
field numbers of Kubernetes' published generated.proto files for the messages that reach this server.
"""

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lattice.errors import Malformed

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
# Every Kubernetes protobuf body starts with these bytes.
MAGIC: Final = b"k8s\x00"

# Wire types of the protobuf encoding.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Json = dict[str, Any]
# The JSON name and the encoding.
Field = tuple[str, str]
Table = dict[int, Field]

# Encodings: string int bool are scalars, bytes is base64 in JSON, time and micro are RFC 3339, fields is a
# JSON document, a capitalised word is a message. A trailing ? marks a pointer in Go, where zero and absent
# differ; Go writes zeros of non-pointer fields that Go's own JSON omits, so the decoder drops them. A
# trailing * marks a repeated field, {} a map.
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
    "events.k8s.io/v1 Event": {
        1: ("metadata", _META),
        2: ("eventTime", "micro"),
        3: ("series", "EventSeries"),
        4: ("reportingController", "string"),
        5: ("reportingInstance", "string"),
        6: ("action", "string"),
        7: ("reason", "string"),
        8: ("regarding", "ObjectReference"),
        9: ("related", "ObjectReference"),
        10: ("note", "string"),
        11: ("type", "string"),
        12: ("deprecatedSource", "EventSource"),
        13: ("deprecatedFirstTimestamp", "time"),
        14: ("deprecatedLastTimestamp", "time"),
        15: ("deprecatedCount", "int"),
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

# API version and kind of the objects that clients may send as protobuf.
DECODABLE_KINDS: Final = {
    ("v1", "Namespace"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "Event"),
    ("events.k8s.io/v1", "Event"),
    ("coordination.k8s.io/v1", "Lease"),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"),
    ("authorization.k8s.io/v1", "SubjectAccessReview"),
    ("authentication.k8s.io/v1", "SelfSubjectReview"),
    ("authentication.k8s.io/v1", "TokenReview"),
}


def decode(body: bytes) -> Json:
    """Decode the object in a protobuf body. `Malformed` rejects every unreadable body."""
    if not body.startswith(MAGIC):
        raise _malformed(f"the body starts with {body[:4]!r}, not with {MAGIC!r}")
    envelope = _message(memoryview(body)[len(MAGIC) :], "Unknown", {})
    if envelope.get("contentEncoding") or envelope.get("contentType", MEDIA_TYPE) != MEDIA_TYPE:
        raise _malformed("the content has an additional encoding")
    api_version, kind = (envelope.get("typeMeta", {}).get(name, "") for name in ("apiVersion", "kind"))
    # Clients set the version of DeleteOptions to the version of the deleted object.
    if kind != "DeleteOptions" and (api_version, kind) not in DECODABLE_KINDS:
        raise _malformed(
            f"the body holds a {kind or 'nameless kind'} of {api_version or 'no version'},"
            " which the server reads only as JSON"
        )
    # Two groups have an Event, with different fields.
    message = f"{api_version} {kind}" if f"{api_version} {kind}" in MESSAGES else kind
    return {
        "apiVersion": api_version,
        "kind": kind,
        **_message(envelope.get("raw", memoryview(b"")), message, {}),
    }


def _malformed(problem: str) -> Malformed:
    return Malformed(
        f"the protobuf body cannot be read: {problem}", fix="send the object as application/json"
    )


def _message(data: memoryview, name: str, target: Json) -> Json:
    """Decode the fields of a message into `target`; unknown field numbers are skipped."""
    table = MESSAGES[name]
    for number, wire, value in _fields(data):
        field = table.get(number)
        if field is None:
            continue
        expected = VARINT if field[1].rstrip("?") in ("int", "bool") else BYTES
        if wire != expected:
            raise _malformed(f"{field[0]} has wire type {wire}, expected {expected}")
        _set_field(target, field, value)
    return target


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield field number, wire type and value of every field in an encoded message."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise _malformed(f"field number {number} is not allowed")
        if wire == VARINT:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(wire, -1)
        if wire == BYTES:
            length, position = _varint(data, position)
        if length < 0:
            raise _malformed(f"field {number} has wire type {wire}, which Kubernetes does not use")
        if length > end - position:
            raise _malformed(
                f"field {number} is truncated: {length} bytes announced, {end - position} available"
            )
        yield number, wire, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Decode a variable-length integer of at most ten bytes; return the value and the next position."""
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            # The tenth byte may hold bits beyond 64.
            return value & (1 << 64) - 1, position + index + 1
    raise _malformed("a number is truncated or longer than ten bytes")


def _set_field(target: Json, field: Field, value: int | memoryview) -> None:
    name, encoding = field
    if isinstance(value, int):
        # A varint is unsigned: values from 2^63 on encode negative numbers.
        number = value - (1 << 64) if value >> 63 else value
        scalar = value != 0 if encoding.startswith("bool") else number
        _set_scalar(target, name, scalar, keep_zero=encoding.endswith("?"))
    elif encoding.endswith("{}"):
        key, item = _map_entry(value, encoding[:-2])
        target.setdefault(name, {})[key] = item
    elif encoding.endswith("*"):
        target.setdefault(name, []).append(_value(value, encoding[:-1]))
    elif encoding in MESSAGES:
        _message(value, encoding, target.setdefault(name, {}))
    else:
        _set_scalar(target, name, _value(value, encoding.rstrip("?")), keep_zero=encoding.endswith("?"))


def _set_scalar(target: Json, name: str, value: Any, *, keep_zero: bool) -> None:
    # The last of several values wins, also if the last value is a zero.
    target.pop(name, None)
    if value or keep_zero:
        target[name] = value


def _map_entry(data: memoryview, encoding: str) -> tuple[str, Any]:
    key, item = memoryview(b""), memoryview(b"")
    for number, _, value in _fields(data):
        if number in (1, 2) and not isinstance(value, memoryview):
            raise _malformed("a map has a number where a string is expected")
        if number == 1 and isinstance(value, memoryview):
            key = value
        elif number == 2 and isinstance(value, memoryview):
            item = value
    return _text(key), _value(item, encoding)


def _value(data: memoryview, encoding: str) -> Any:
    # In JSON, an ExtraValue is a plain list.
    if encoding == "ExtraValue":
        return _message(data, encoding, {}).get("items", [])
    if encoding in MESSAGES:
        return _message(data, encoding, {})
    return _SCALARS[encoding](data)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"a string is not UTF-8: {error.reason}") from error


def _time_text(data: memoryview, timespec: str) -> str:
    # Go encodes an unset time as an empty message.
    if not len(data):
        return ""
    parts = _message(data, "Time", {})
    try:
        time = EPOCH + timedelta(seconds=parts.get("seconds", 0), microseconds=parts.get("nanos", 0) // 1000)
    except OverflowError as error:
        raise _malformed(
            f"a time {parts.get('seconds', 0)} seconds from 1970 is outside the years 1 to 9999"
        ) from error
    return time.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def _document(data: memoryview) -> Json:
    raw = _message(data, "FieldsV1", {}).get("Raw", memoryview(b""))
    try:
        return msgspec.json.decode(raw, type=Json) if len(raw) else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(f"managedFields do not contain a JSON object: {error}") from error


_SCALARS: Final[dict[str, Callable[[memoryview], Any]]] = {
    "string": _text,
    "bytes": lambda data: base64.b64encode(data).decode(),
    "raw": lambda data: data,
    "time": lambda data: _time_text(data, "seconds"),
    "micro": lambda data: _time_text(data, "microseconds"),
    "fields": _document,
}
