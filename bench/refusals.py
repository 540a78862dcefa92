"""Measures how long the server takes to refuse invalid requests; the slowest of several attempts counts, TLS
and client included."""

import time
from pathlib import Path

from build.servers import running_server

from bench import objects
from bench.load import target
from bench.report import Report
from bench.scale import Scale
from bench.wire import Line

POOLS = "/apis/lattice.dev/v1alpha1/latticepools"
POOL = b'{"apiVersion":"lattice.dev/v1alpha1","kind":"LatticePool","metadata":{"name":"%b"},"spec":{"provider":{"type":"aws"}%b}}'
APPLY = "application/apply-patch+yaml"
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%b]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8)
)
MAX_REFUSAL_MS = 100.0

CASES = {
    "an unknown field": (
        POOLS + "?fieldValidation=Strict",
        POOL % (b"x", b',"colour":"red"'),
        "application/json",
    ),
    "a wrong type": (POOLS, POOL % (b"x", b',"capacity":{"maxNodes":"many"}'), "application/json"),
    "several errors at once": (
        POOLS,
        POOL % (b"X_", b',"capacity":{"maxNodes":-1,"maxCores":"a"},"nodeClasses":5'),
        "application/json",
    ),
    "a duplicate key": (
        POOLS + "?fieldValidation=Strict",
        POOL % (b"x", b',"capacity":{},"capacity":{}'),
        "application/json",
    ),
    "a number that is none": (POOLS, POOL % (b"x", b',"capacity":{"maxNodes":NaN}'), "application/json"),
    "a number without end": (POOLS, POOL % (b"x", b',"budget":{"maxMonthlyCost":1e999}'), "application/json"),
    "nesting 100,000 deep": (POOLS, b"[" * 100_000, "application/json"),
    "a body over 1 MiB": (POOLS, b'{"a":"' + b"x" * (1 << 20) + b'"}', "application/json"),
    "a bad name": (POOLS, POOL % (b"Not_A_Name", b""), "application/json"),
    "another kind": (POOLS, b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}', "application/json"),
    "a missing namespace": (
        objects.SERVICES.replace("/default/", "/nowhere/"),
        objects.service("x"),
        "application/json",
    ),
    "an alias bomb": (f"{POOLS}/x?fieldManager=bench", BOMB, APPLY),
}


def measure(report: Report, scale: Scale, folder: Path) -> None:
    with running_server(folder / "data") as server:
        line = Line(target(server.kubeconfig))
        pools = line.ask(POOLS)
        slowest = 0.0
        for name, (path, body, content) in CASES.items():
            wait_ms = max(_refused(line, path, body, content) for _ in range(max(3, scale.lists)))
            slowest = max(slowest, wait_ms)
            report.add(f"refusing {name}", wait_ms, "ms", at_most=MAX_REFUSAL_MS)
        assert line.ask(POOLS) == pools, "something was written"


def _refused(line: Line, path: str, body: bytes, content: str) -> float:
    began = time.perf_counter()
    status = line.send("PATCH" if content == APPLY else "POST", path, body, content)
    assert 400 <= status < 500, (path, status)
    return 1000 * (time.perf_counter() - began)
