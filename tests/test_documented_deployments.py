"""Servers on etcd, and agents that join them, start by the lines that the pages show."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from build.doc_samples import samples
from build.etcd_server import EtcdServer, free_port
from build.servers import LATTICE
from build.waiting import wait_until
from build.wire import Wire

from tests.contract.test_store_etcd import issue
from tests.test_docs import ROOT

BIN = Path(sys.executable).parent
NODES = "/apis/lattice.dev/v1alpha1/latticenodes"
NAMES = {"ca": "ca.crt", "cert": "me.crt", "key": "me.key"}  # as the pages call them
EXAMPLES = ("10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", "10.0.0.1:2379,10.0.0.2:2379")


def shown_line(page: str, begins: str) -> str:
    """One command of a page, on one line."""
    for sample in samples(ROOT / page):
        lines = sample.text.replace("\\\n", " ").splitlines()
        if found := [line for line in lines if line.startswith(begins)]:
            return found[0]
    raise AssertionError(f"{page} does not show {begins}")


@contextmanager
def running(command: str, folder: Path, **more: str) -> Iterator[None]:
    environment = {**os.environ, **more, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (folder / "log").read_text()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    files = issue(tmp_path)
    for file, name in NAMES.items():
        shutil.copy(files[file], tmp_path / name)
    options = [
        "--cert-file",
        files["cert"],
        "--key-file",
        files["key"],
        "--trusted-ca-file",
        files["ca"],
        "--client-cert-auth",
    ]
    server = EtcdServer(tmp_path, *options, scheme="https")
    server.start()
    yield server
    server.stop()


@pytest.mark.prove
@pytest.mark.parametrize(
    ("server", "agent"), [("README.md", "README.md"), ("docs/guides/ha.md", "docs/guides/nodes.md")]
)
def test_servers_and_agents_start_as_documented(
    server: str, agent: str, etcd: EtcdServer, tmp_path: Path
) -> None:
    """But for addresses: etcd and the server are here, on ports that are free."""
    port = free_port()
    start = shown_line(server, "lattice server --store")
    for addresses in EXAMPLES:
        start = start.replace(addresses, etcd.endpoint)
    start = start.replace("lattice.example", "localhost")
    join = shown_line(agent, "lattice agent --server https://lattice").replace(
        "lattice.example:7443", f"localhost:{port}"
    )
    kubeconfig = tmp_path / ".lattice" / "kubeconfig"
    log = tmp_path / "log"
    with running(f"{start} --port {port} --lease-ttl 5", tmp_path):
        wait_until(kubeconfig.exists, log.read_text)
        wire = Wire(kubeconfig)
        wait_until(lambda: ready(wire, "/readyz"), log.read_text)
        words = [*LATTICE, "tokens", "create", "--kubeconfig", str(kubeconfig)]
        token = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        with running(join, tmp_path, TOKEN=token):
            wait_until(
                lambda: '"phase":"Ready"' in wire.get(NODES).raw.decode().replace(" ", ""), log.read_text
            )


def ready(wire: Wire, path: str) -> bool:
    try:
        return wire.get(path).status == 200
    except OSError:
        return False
