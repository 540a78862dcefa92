"""Protobuf bodies equal JSON bodies, and a bad body is a client error."""

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Malformed
from lattice.server.requests.kube_protobuf import DECODABLE_KINDS, MAGIC, MESSAGES, decode

Pair = tuple[int, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def pb(*fields: Pair) -> bytes:
    """A message: ints and bools as varints, text and bytes as they are."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(int(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def body(api_version: str, kind: str, raw: bytes, *more: Pair) -> bytes:
    return MAGIC + pb((1, pb((1, api_version), (2, kind))), (2, raw), *more)


def sent(kind: str, raw: bytes, api_version: str = "v1") -> dict[str, Any]:
    found = decode(body(api_version, kind, raw))
    assert (found.pop("apiVersion"), found.pop("kind")) == (api_version, kind)
    return found


# As kubectl 1.33 sent them.
KUBECTL = [
    pytest.param(
        "6b3873000a0f0a02763112094e616d657370616365121a0a120a026e3112001a0022002a0032003800420012001a020a001a002200",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n1"}, "spec": {}, "status": {}},
        id="kubectl create namespace n1",
    ),
    pytest.param(
        "6b3873000a0c0a0276311206536563726574121e0a120a02733112001a0022002a0032003800420012060a01611201621a001a002200",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s1"}, "data": {"a": "Yg=="}},
        id="kubectl create secret generic s1 --from-literal=a=b",
    ),
    pytest.param(
        "6b3873000a0f0a0276311209436f6e6669674d6170121c0a120a02633112001a0022002a0032003800420012060a01611201621a002200",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1"}, "data": {"a": "b"}},
        id="kubectl create configmap c1 --from-literal=a=b",
    ),
    pytest.param(
        "6b3873000a320a17617574686f72697a6174696f6e2e6b38732e696f2f7631121753656c665375626a656374416363657373526576696577124f0a100a0012001a"
        "0022002a0032003800420012310a2f0a0764656661756c7412036765741a0b6c6174746963652e64657622002a0c6c617474696365706f6f6c7332003a001a0808"
        "0012001a0020001a002200",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {
                "resourceAttributes": {
                    "namespace": "default",
                    "verb": "get",
                    "group": "lattice.dev",
                    "resource": "latticepools",
                }
            },
            "status": {"allowed": False},
        },
        id="kubectl auth can-i get latticepools",
    ),
    pytest.param(
        "6b3873000a310a17617574686f72697a6174696f6e2e6b38732e696f2f7631121653656c665375626a65637452756c657352657669657712230a100a0012001a00"
        "22002a0032003800420012090a0764656661756c741a04180022001a002200",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "metadata": {},
            "spec": {"namespace": "default"},
            "status": {"incomplete": False},
        },
        id="kubectl auth can-i --list",
    ),
    pytest.param(
        "6b3873000a2d0a1861757468656e7469636174696f6e2e6b38732e696f2f7631121153656c665375626a656374526576696577121a0a100a0012001a0022002a00"
        "32003800420012060a040a0012001a002200",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "SelfSubjectReview",
            "metadata": {},
            "status": {"userInfo": {}},
        },
        id="kubectl auth whoami",
    ),
]


@pytest.mark.parametrize(("hexadecimal", "expected"), KUBECTL)
def test_what_kubectl_sends(hexadecimal, expected):
    assert decode(bytes.fromhex(hexadecimal)) == expected


def test_metadata_in_full():
    time = pb((1, 1767322445), (2, 999))
    owner = pb(
        (1, "LatticeService"), (3, "api"), (4, "u1"), (5, "lattice.dev/v1alpha1"), (6, True), (7, False)
    )
    fields = {"f:data": {"f:a": {}}}
    managed = pb(
        (1, "me"),
        (2, "Apply"),
        (3, "v1"),
        (4, time),
        (6, "FieldsV1"),
        (7, pb((1, json.dumps(fields)))),
        (8, "status"),
    )
    meta = pb(
        (1, "c"), (3, "ns"), (5, "u"), (6, "12"), (7, 3), (8, time), (9, b""), (10, 0), (11, pb((1, "k"), (2, "v"))),
        (11, pb((1, "empty"))), (12, pb((2, "note"), (1, "a"))), (13, owner), (14, "x/y"), (14, "z"), (17, managed), (99, "unknown"),
    )  # fmt: skip
    assert sent("ConfigMap", pb((1, meta)))["metadata"] == {
        "name": "c",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "12",
        "generation": 3,
        "creationTimestamp": "2026-01-02T02:54:05Z",
        "deletionGracePeriodSeconds": 0,
        "labels": {"k": "v", "empty": ""},
        "annotations": {"a": "note"},
        "ownerReferences": [
            {
                "kind": "LatticeService",
                "name": "api",
                "uid": "u1",
                "apiVersion": "lattice.dev/v1alpha1",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
        "finalizers": ["x/y", "z"],
        "managedFields": [
            {
                "manager": "me",
                "operation": "Apply",
                "apiVersion": "v1",
                "time": "2026-01-02T02:54:05Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
                "subresource": "status",
            }
        ],
    }


def test_a_lease_keeps_microseconds_and_zeros():
    spec = pb((1, ""), (2, 15), (3, pb((1, 0), (2, 5000))), (4, pb((1, -1), (2, 999_999_999))), (5, 0))
    assert sent("Lease", pb((2, spec)), "coordination.k8s.io/v1")["spec"] == {
        "holderIdentity": "",
        "leaseDurationSeconds": 15,
        "acquireTime": "1970-01-01T00:00:00.000005Z",
        "renewTime": "1969-12-31T23:59:59.999999Z",
        "leaseTransitions": 0,
    }


def test_an_event():
    about = pb((1, "LatticeService"), (2, "ns"), (3, "api"), (5, "lattice.dev/v1alpha1"))
    raw = pb(
        (2, about),
        (3, "Placed"),
        (4, "on eu-west"),
        (5, pb((1, "lattice"))),
        (6, pb((1, 60))),
        (8, 2),
        (9, "Normal"),
        (10, b""),
        (14, "lattice"),
    )
    assert sent("Event", raw) == {
        "involvedObject": {
            "kind": "LatticeService",
            "namespace": "ns",
            "name": "api",
            "apiVersion": "lattice.dev/v1alpha1",
        },
        "reason": "Placed",
        "message": "on eu-west",
        "source": {"component": "lattice"},
        "firstTimestamp": "1970-01-01T00:01:00Z",
        "count": 2,
        "type": "Normal",
        "reportingComponent": "lattice",
    }


def test_reviews_of_others():
    extra = pb((1, "scopes"), (2, pb((1, "a"), (1, "b"))))
    raw = pb(
        (
            2,
            pb(
                (2, pb((1, "/metrics"), (2, "get"))), (3, "bob"), (4, "ops"), (4, "dev"), (5, extra), (6, "7")
            ),
        )
    )
    assert sent("SubjectAccessReview", raw, "authorization.k8s.io/v1")["spec"] == {
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        "user": "bob",
        "groups": ["ops", "dev"],
        "extra": {"scopes": ["a", "b"]},
        "uid": "7",
    }
    assert sent("TokenReview", pb((2, pb((1, "t"), (2, "here")))), "authentication.k8s.io/v1") == {
        "spec": {"token": "t", "audiences": ["here"]}
    }


@pytest.mark.parametrize(
    "api_version", ["v1", "meta.k8s.io/v1", "coordination.k8s.io/v1", "lattice.dev/v1alpha1"]
)
def test_delete_options_of_any_version(api_version):
    raw = pb((1, 0), (2, pb((1, "u"), (2, "5"))), (3, False), (4, "Foreground"), (5, "All"))
    assert sent("DeleteOptions", raw, api_version) == {
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "5"},
        "orphanDependents": False,
        "propagationPolicy": "Foreground",
        "dryRun": ["All"],
    }


def test_secret_bytes_are_base64_and_string_data_is_text():
    raw = pb((2, pb((1, "a"), (2, b"\x00\xff"))), (3, "Opaque"), (4, pb((1, "b"), (2, "é"))), (5, True))
    assert sent("Secret", raw) == {
        "data": {"a": "AP8="},
        "type": "Opaque",
        "stringData": {"b": "é"},
        "immutable": True,
    }


def test_the_last_value_wins_and_messages_merge():
    raw = pb((1, pb((1, "first"), (3, "ns"))), (1, pb((1, "last"))), (1, pb((3, ""))))
    assert sent("ConfigMap", raw) == {"metadata": {"name": "last"}}


def test_every_root_has_a_table_and_every_message_named_exists():
    assert {kind for _, kind in DECODABLE_KINDS} <= set(MESSAGES)
    plain = {"string", "int", "bool", "bytes", "time", "micro", "fields", "raw"}
    assert {
        how.rstrip("?*").removesuffix("{}") for table in MESSAGES.values() for _, how in table.values()
    } <= plain | set(MESSAGES)


text = st.text(st.characters(codec="utf-8"), max_size=12)


@given(
    data=st.dictionaries(text, text),
    blobs=st.dictionaries(text, st.binary(max_size=20)),
    labels=st.dictionaries(text, text),
)
def test_config_maps_come_back(data, blobs, labels):
    maps = [(2, pb((1, k), (2, v))) for k, v in data.items()] + [
        (3, pb((1, k), (2, v))) for k, v in blobs.items()
    ]
    meta = pb((1, "x"), *((11, pb((1, k), (2, v))) for k, v in labels.items()))
    expected = {
        "metadata": {"name": "x"} | ({"labels": labels} if labels else {}),
        "data": data,
        "binaryData": {k: base64.b64encode(v).decode() for k, v in blobs.items()},
    }
    assert sent("ConfigMap", pb((1, meta), *maps)) == {k: v for k, v in expected.items() if v}


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_every_timestamp_round_trips(seconds):
    found = sent("Event", pb((6, pb((1, seconds)))))
    assert len(found.get("firstTimestamp", "0001-01-01T00:00:00Z")) == 20


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "starts with b''", id="nothing"),
        pytest.param(b'{"kind":"Secret"}', "starts with", id="JSON under a protobuf label"),
        pytest.param(MAGIC, "nameless kind of no version", id="the magic alone"),
        pytest.param(
            body("v1", "Pod", b""), "Pod of v1, which the server reads only as JSON", id="an unknown kind"
        ),
        pytest.param(
            body("lattice.dev/v1alpha1", "LatticePool", b""), "LatticePool", id="our own kinds are JSON"
        ),
        pytest.param(body("v2", "Secret", b""), "Secret of v2", id="an unknown version"),
        pytest.param(
            body("v1", "Secret", b"", (3, "gzip")), "an additional encoding", id="compressed inside"
        ),
        pytest.param(
            body("v1", "Secret", b"", (4, "application/json")), "an additional encoding", id="JSON inside"
        ),
        pytest.param(
            body("v1", "Secret", b"\x12\x7fab"),
            "truncated: 127 bytes announced, 2 available",
            id="a field cut off",
        ),
        pytest.param(
            body("v1", "Secret", b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            "bytes announced",
            id="a length past all memory",
        ),
        pytest.param(body("v1", "Secret", b"\xff" * 11), "longer than ten bytes", id="a number without end"),
        pytest.param(body("v1", "Secret", b"\x80"), "truncated", id="a number cut off"),
        pytest.param(body("v1", "Secret", b"\x02\x00"), "field number 0", id="field zero"),
        pytest.param(body("v1", "Secret", b"\x0b\x0c"), "wire type 3", id="groups"),
        pytest.param(body("v1", "Secret", b"\x0f"), "wire type 7", id="a wire type that does not exist"),
        pytest.param(
            body("v1", "Secret", pb((1, 5))),
            "metadata has wire type 0, expected 2",
            id="a number for a message",
        ),
        pytest.param(
            body("v1", "Secret", pb((5, "yes"))), "immutable has wire type 2", id="text for a boolean"
        ),
        pytest.param(body("v1", "Secret", pb((3, b"\xff\xfe"))), "not UTF-8", id="bytes for text"),
        pytest.param(
            body("v1", "Secret", pb((2, pb((1, 3))))),
            "a number where a string is expected",
            id="a number for a key",
        ),
        pytest.param(
            body("v1", "Event", pb((6, pb((1, 1 << 62))))),
            "outside the years",
            id="a time after all calendars",
        ),
        pytest.param(
            body("v1", "Event", pb((10, pb((1, -(1 << 62)))))),
            "outside the years",
            id="a time before all calendars",
        ),
        pytest.param(
            body("v1", "Secret", pb((1, pb((17, pb((7, pb((1, "[1"))))))))),
            "do not contain a JSON object",
            id="managed fields that are no JSON",
        ),
        pytest.param(
            body("v1", "Secret", pb((1, pb((17, pb((7, pb((1, "[]"))))))))),
            "do not contain a JSON object",
            id="managed fields that are a list",
        ),
        pytest.param(
            body("v1", "Secret", pb((1, pb((17, pb((7, pb((1, '{"a":' * 100_000))))))))),
            "do not contain a JSON object",
            id="managed fields without a floor",
        ),
    ],
)
def test_bad_bodies_are_malformed(data, why):
    with pytest.raises(Malformed, match="the protobuf body cannot be read") as raised:
        decode(data)
    assert why in str(raised.value)
    assert "application/json" in raised.value.fix


def settle(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        json.dumps(decode(data))


@settings(max_examples=500)
@given(kind=st.sampled_from(sorted(DECODABLE_KINDS | {("v1", "DeleteOptions")})), raw=st.binary(max_size=200))
def test_random_messages_are_read_or_malformed(kind, raw):
    settle(body(*kind, raw))
    settle(MAGIC + raw)


@settings(max_examples=500)
@given(
    case=st.sampled_from(KUBECTL),
    changes=st.lists(st.tuples(st.integers(4, 200), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(4, 400),
)
def test_damaged_bodies_are_read_or_malformed(case, changes, cut):
    data = bytearray(bytes.fromhex(case.values[0]))
    for at, byte in changes:
        data[at % len(data)] = byte
    settle(bytes(data[:cut]))


skeleton = st.recursive(
    st.binary(max_size=6) | st.integers(0, 1 << 64),
    lambda below: st.lists(st.tuples(st.integers(1, 18), below), max_size=5),
    max_leaves=25,
)


def spell(node: Any) -> Any:
    return pb(*((number, spell(below)) for number, below in node)) if isinstance(node, list) else node


@settings(max_examples=500)
@given(
    kind=st.sampled_from(sorted(DECODABLE_KINDS)),
    node=st.lists(st.tuples(st.integers(1, 18), skeleton), max_size=6),
)
def test_well_formed_nonsense_is_read_or_malformed(kind, node):
    settle(body(*kind, spell(node)))
