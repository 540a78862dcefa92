"""The parsers of untrusted input, each as a function of bytes that accepts them or raises a LatticeError."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from lattice.errors import LatticeError
from lattice.kinds import KINDS
from lattice.kinds.join_token import parse_token
from lattice.kinds.meta.json_body import parse_json
from lattice.kinds.meta.jsonpath import compile_path
from lattice.kinds.meta.quantity import (
    parse_bits,
    parse_bytes,
    parse_cores,
    parse_count,
    parse_millis,
    parse_seconds,
)
from lattice.kinds.meta.selector import parse_selector
from lattice.kinds.meta.yaml_manifest import load_documents
from lattice.placement.inputs.price_book import PriceBook
from lattice.server.access.node_certificates import parse_signing_request
from lattice.server.agents.codec import decode_heartbeat, heartbeat_problem
from lattice.server.agents.registration import apply_registration, registration_problem
from lattice.server.apply.patch import json_patch, merge_patch, strategic_merge_patch
from lattice.server.requests.catalog import Catalog
from lattice.server.requests.kube_protobuf import decode
from lattice.server.requests.options import parse_field_selector
from lattice.server.resources.admission import admit, apply_kind_defaults, validate_identity
from lattice.server.resources.lists import read_token
from lattice.wire import agent_pb2 as pb

POOL = b"""apiVersion: lattice.dev/v1alpha1
kind: LatticePool
metadata: {name: us-east, labels: {gdpr: "true"}}
spec:
  provider: {type: aws, region: us-east-1}
  capacity: {maxNodes: 100, maxCores: 5e2, maxMemoryGi: 0x10}
  budget: {maxMonthlyCost: 5000.50, alertThreshold: 0.8}
  nodeClasses: [medium, "large"]
---
{"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeService", "metadata": {"name": "web"}, "spec": {"containers": {"main": {"command": ["serve"]}}, "replicas": {"min": 2, "max": 3}}}
"""
SERVICE = (
    b'{"apiVersion":"lattice.dev/v1alpha1","kind":"LatticeService","metadata":{"name":"web","namespace":"default","labels":{"app":"web"}},'
    b'"spec":{"containers":{"main":{"command":["serve","--port","$(PORT)"],"ports":[{"name":"http"}],"resources":{"requests":{"cpu":"100m",'
    b'"memory":"1.5Gi"},"limits":{"cpu":1}}}},"placement":{"compliance":["gdpr"],"latency":{"db":{"maxMs":20}},"resources":{"cores":0.5}},'
    b'"replicas":{"min":2,"max":4}}}'
)
CATALOG, BLANK = Catalog(KINDS), PriceBook({})


@dataclass(frozen=True, slots=True)
class Parser:
    read: Callable[[bytes], Any]
    examples: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()  # tokens of its language, for the generation of inputs


def _manifest(data: bytes) -> None:
    for document in load_documents(data):
        _admitted(document.value)


def _admitted(value: Any) -> None:
    """As the API does it: identity, schema, defaults, rules."""
    if not isinstance(value, dict):
        return
    group, _, version = str(value.get("apiVersion", "")).rpartition("/")
    for served in CATALOG:
        resource = served.resource
        if (resource.group, resource.version, resource.kind) == (group, version, value.get("kind")):
            named = validate_identity(served, value, "default" if resource.namespaced else "", "")
            apply_kind_defaults(served, admit(served, named, "Strict").obj, None)


def _body(data: bytes) -> None:
    _admitted(parse_json(data).value)


def _patches(data: bytes) -> None:
    """The first part is the object, the second the patch."""
    first, _, second = data.partition(b"\x00")
    target, patch = parse_json(first).value, parse_json(second).value
    for apply in (merge_patch, json_patch, strategic_merge_patch):
        try:
            apply(target, patch)
        except LatticeError:
            continue


def _text(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def _quantities(text: str) -> None:
    for read in (parse_cores, parse_bytes, parse_count, parse_bits, parse_millis, parse_seconds):
        try:
            assert isinstance(read(text), int)
        except LatticeError:
            continue


def _spoken(data: bytes) -> None:
    """What an agent may send: words are checked before they are taken."""
    try:
        said = pb.FromAgent.FromString(data)
    except DecodeError:
        return
    if not heartbeat_problem(said.beat):
        decode_heartbeat(said.beat)
    if not registration_problem(said.hello.registration):
        apply_registration({"metadata": {"name": "a"}, "spec": {}, "status": {}}, said.hello)


def _prices(text: str) -> None:
    BLANK.with_csv(text, "prices.csv")


def _hello() -> bytes:
    registration = pb.Registration(
        capacity={"cpu": 4000, "memory": 1 << 34}, runtimes=["process"], labels={"zone": "a"}
    )
    return bytes(
        pb.FromAgent(
            hello=pb.Hello(protocol=1, version="0.1", term=3, registration=registration)
        ).SerializeToString()
    )


def _beat() -> bytes:
    report = pb.Report(workload="default/web-0", uid="u", revision="r", run=1, state="Running", ready=True)
    return bytes(
        pb.FromAgent(
            beat=pb.Beat(number=1, reports=[report], gone=["default/x"], is_whole=True)
        ).SerializeToString()
    )


PARSERS: dict[str, Parser] = {
    "manifest": Parser(
        _manifest,
        (POOL, SERVICE),
        (b"---\n", b": ", b"- ", b"&a ", b"*a", b"!!int ", b"<<: ", b"|\n ", b"0o17", b"1_0", b".nan"),
    ),
    "body": Parser(
        _body, (SERVICE,), (b'"spec":', b"1e999", b"NaN", b"-0", b"null", b'{"', b"[[", b"\\ud800")
    ),
    "patch": Parser(
        _patches,
        (
            SERVICE
            + b'\x00[{"op":"add","path":"/spec/x~1y/-","value":1},{"op":"test","path":"","value":{}}]',
            SERVICE + b'\x00{"spec":null}',
        ),
        (
            b'"op":"move"',
            b'"from":"/spec"',
            b'"$patch":"replace"',
            b'"$setElementOrder/containers"',
            b"~0",
            b"/-1",
        ),
    ),
    "selector": Parser(
        _text(parse_selector),
        (b"app=web,tier in (a, b),!gone,x notin (y),cpu > 3", b"a==b,lattice.dev/x"),
        (b" in ", b" notin ", b"!=", b"(", b")", b">", b","),
    ),
    "field selector": Parser(
        _text(parse_field_selector),
        (b"metadata.name=web,status.phase!=Running",),
        (b"==", b"!=", b"\\,", b"."),
    ),
    "quantity": Parser(
        _text(_quantities),
        (b"100m", b"1.5Gi", b"12e6", b"0.1", b"90s", b"1h30m", b"10Gbps"),
        (b"Ki", b"m", b"E", b"e-", b"u", b"n", b"+"),
    ),
    "protobuf": Parser(
        decode,
        (b"k8s\x00\n\x0c\n\x02v1\x12\x06Secret\x12\x10\n\x0e\n\x01a\x12\x00\x1a\x07default",),
        (b"\n\x02v1", b"\x12\x06Secret", b"\xff\xff\x01"),
    ),
    "agent's words": Parser(
        _spoken, (_hello(), _beat()), (b"\x08\x01", b"default/web-0", b"\xff\xff\xff\xff\x0f")
    ),
    "join token": Parser(
        _text(parse_token), (b"ljt-0123456789ab." + b"a" * 22 + b"." + b"0" * 64,), (b".", b"ljt-")
    ),
    "continue token": Parser(
        _text(read_token), (b"WyJsYXR0aWNlcG9vbHMubGF0dGljZS5kZXYvIiwxMiwiIl0=",), (b"=", b"_-", b"W10=")
    ),
    "signing request": Parser(
        parse_signing_request,
        (
            b"-----BEGIN CERTIFICATE REQUEST-----\nMIHOMHYCAQAwFDESMBAGA1UEAwwJbm9kZTpub2RlMFkw\n-----END CERTIFICATE REQUEST-----\n",
        ),
        (b"-----BEGIN ", b"-----END ", b"MII", b"\n"),
    ),
    "path": Parser(
        _text(compile_path),
        (b"{.items[*].metadata.name}", b".spec.containers[?(@.name=='a')].image"),
        (b"[?(@.", b"..", b"[1:2:-1]", b"'", b"}"),
    ),
    "prices": Parser(
        _text(_prices),
        (b"provider,region,instance_type,usd_per_hour\naws,us-east-1,m5.large,0.096\n",),
        (b",", b"\n", b'"', b"1e999"),
    ),
}


def refuses_or_takes(parser: Parser, data: bytes) -> bool:
    """Whether the parser accepted the input; any exception but a LatticeError propagates."""
    try:
        parser.read(data)
    except LatticeError:
        return False
    return True
