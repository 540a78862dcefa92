"""An unmodified kopf operator works on the server, also after a restart of the server."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from build.servers import start
from build.wire import SERVICES, Wire, service

pytestmark = [pytest.mark.xdist_group("kopf"), pytest.mark.timeout(120)]

HOLD = "kopf.example.com/hold"
EVENTS = "/api/v1/namespaces/default/events"


@contextlib.contextmanager
def operating(kubeconfig: Path, log: Path) -> Iterator[None]:
    """`kopf run` as its own process."""
    command = [
        sys.executable,
        "-m",
        "kopf",
        "run",
        "--standalone",
        "--namespace=default",
        "--verbose",
        str(Path(__file__).with_name("operator_kopf.py")),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
            assert process.poll() is None, "the operator ended by itself"
        finally:
            process.terminate()
            process.wait(20)


def eventually(look: Callable[[], Any], seconds: float = 20) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} seconds")


def annotated(wire: Wire, name: str, key: str) -> str:
    metadata = wire.get(f"{SERVICES}/{name}").value["metadata"]
    return metadata.get("annotations", {}).get(f"example.com/{key}", "")


def reasons(wire: Wire, name: str) -> set[str]:
    listed = wire.get(EVENTS, fieldSelector=f"involvedObject.name={name}").value
    return {event["reason"] for event in listed["items"]}


def test_kopf_operator_works_across_a_server_restart(tmp_path: Path) -> None:
    print(f"kopf {version('kopf')}")
    server = start(tmp_path / "data")
    log = tmp_path / "kopf.log"
    try:
        wire = Wire(server.kubeconfig)
        with operating(server.mint("robot", "lattice:system"), log):
            _lives_and_dies(wire, "first")
            wire.post(SERVICES, service("held"))
            eventually(lambda: annotated(wire, "held", "created"))
            server.stop()
            server = start(tmp_path / "data", "--port", server.url.rpartition(":")[2])
            assert server.url == wire.server.url
            assert wire.patch(f"{SERVICES}/held", {"spec": {"replicas": {"min": 4}}}).status == 200
            assert eventually(lambda: annotated(wire, "held", "scaled")) == "1->4"
            _lives_and_dies(wire, "second")
            assert wire.delete(f"{SERVICES}/held").status == 200
            eventually(lambda: wire.get(f"{SERVICES}/held").status == 404)
    except BaseException:
        print(log.read_text()[-8000:])
        raise
    finally:
        server.stop()


def _lives_and_dies(wire: Wire, name: str) -> None:
    """A service from its creation to its end, as the operator leaves its marks on it."""
    assert wire.post(SERVICES, service(name)).status == 201
    assert eventually(lambda: annotated(wire, name, "created")) == name
    kept = wire.get(f"{SERVICES}/{name}").value
    assert HOLD in kept["metadata"]["finalizers"]
    ready = eventually(lambda: wire.get(f"{SERVICES}/{name}").value["status"].get("conditions"))
    assert "Adopted" in {condition["reason"] for condition in ready}
    assert kept["metadata"]["generation"] == 1, "marks and status are no new intent"
    assert (
        wire.patch(f"{SERVICES}/{name}", {"spec": {"replicas": {"min": 3}}}).value["metadata"]["generation"]
        == 2
    )
    assert eventually(lambda: annotated(wire, name, "scaled")) == "1->3"
    assert eventually(lambda: wire.get(f"{SERVICES}/{name}").value["status"].get("observedGeneration")) == 2
    marked = wire.delete(f"{SERVICES}/{name}").value
    assert marked["metadata"]["deletionTimestamp"]
    eventually(lambda: wire.get(f"{SERVICES}/{name}").status == 404)
    eventually(lambda: reasons(wire, name) >= {"Adopted", "Scaled", "Released"})
