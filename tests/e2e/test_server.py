"""`lattice server` on a real etcd: several servers form one installation, and a known-bad etcd is refused."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from build.etcd_server import EtcdServer, free_port, running_etcd
from build.servers import LATTICE, Server
from build.waiting import wait_until
from build.wire import CONFIGMAPS, Wire, configmap

from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.xdist_group("server-on-etcd"), pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@contextlib.contextmanager
def member(folder: Path, store: str, *flags: str, **environment: str) -> Iterator[Server]:
    """One server of several; its log is in its folder."""
    folder.mkdir()
    named = ("--store", store) if store else ()
    command = [*LATTICE, "server", "--data-dir", str(folder), *named, "--port", "0", *flags]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, env={**os.environ, **environment}
        )
    try:
        yield Server(process, _url(process, folder / "log"), folder / "kubeconfig", folder)
    finally:
        process.kill()
        process.wait()


def _url(process: "subprocess.Popen[str]", log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["event"] == "serving":
                return str(json.loads(line)["url"])
        time.sleep(0.05)
    raise RuntimeError(log.read_text())


def _leads(server: Server) -> bool:
    return bool(Wire(server.kubeconfig).get("/health").value["isLeader"])


def _wait_for_leader(*servers: Server, seconds: float) -> Server:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if leading := [server for server in servers if _leads(server)]:
            assert len(leading) == 1
            return leading[0]
        time.sleep(0.05)
    raise AssertionError(f"nobody leads after {seconds} seconds")


def test_two_servers_on_one_etcd_share_state(etcd: EtcdServer, tmp_path: Path) -> None:
    store = etcd.url("together")
    with member(tmp_path / "a", store) as a, member(tmp_path / "b", store) as b:
        one, other = Wire(a.kubeconfig), Wire(b.kubeconfig)
        with other.watching(CONFIGMAPS) as events:
            created = one.post(CONFIGMAPS, configmap("shared", {"by": "a"}))
            assert created.status == 201
            assert next(events)["object"]["data"] == {"by": "a"}
        assert other.get(f"{CONFIGMAPS}/shared").revision == created.revision
        stale = configmap("shared", {"by": "b"}, resourceVersion=str(created.revision - 1))
        assert other.ask("PUT", f"{CONFIGMAPS}/shared", stale, content_type="application/json").status == 409
        moved = tmp_path / "moved.kubeconfig"
        moved.write_text(a.kubeconfig.read_text().replace(a.url, b.url))
        assert Wire(moved).get(f"{CONFIGMAPS}/shared").status == 200
        _wait_for_leader(a, b, seconds=10)
        assert sorted([_leads(a), _leads(b)]) == [False, True]


def test_server_is_configured_by_environment_and_file(etcd: EtcdServer, tmp_path: Path) -> None:
    host, _, port = etcd.endpoint.rpartition(":")
    (tmp_path / "lattice.yaml").write_text(
        "lease-ttl: 60\nreconcile-interval: 0.5\nstore: etcd://nowhere.invalid:1\ncontrollers: garbage\n"
    )
    environment = {
        "ETCD_HOST": host,
        "ETCD_PORT": port,
        "SCHEDULER_INSTANCE_ID": "seven",
        "LEADER_LEASE_TTL": "5",
    }
    with member(tmp_path / "a", "", "--config", str(tmp_path / "lattice.yaml"), **environment) as a:
        _wait_for_leader(a, seconds=10)
        wire = Wire(a.kubeconfig)
        assert wire.get("/health").value["instanceId"] == "seven"
        lease = wire.get("/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases/controllers")
        assert lease.value["spec"]["holderIdentity"] == "seven"
        with grpc.insecure_channel(etcd.endpoint) as channel:
            assert _lease_seconds(channel, b"seven") == [5]


def _lease_seconds(channel: grpc.Channel, holder: bytes) -> list[int]:
    """How long the role of that server lasts without a sign of life, as etcd has it."""
    every = pb_grpc.KVStub(channel).Range(pb.RangeRequest(key=b"\0", range_end=b"\0"))
    asks = (pb.LeaseKeepAliveRequest(ID=kv.lease) for kv in every.kvs if kv.value == holder)
    return [answer.TTL for answer in pb_grpc.LeaseStub(channel).LeaseKeepAlive(asks)]


YARD = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeNodeClass
metadata: {name: nano}
spec: {providers: {local: {}}, resources: {cores: 1, memoryGi: 1}, costPerHour: {local: 0.01}}
---
apiVersion: lattice.dev/v1alpha1
kind: LatticePool
metadata: {name: yard}
spec: {provider: {type: local, region: yard}, capacity: {maxNodes: 1}, nodeClasses: [nano]}
---
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {name: talk}
spec:
  containers: {main: {command: [sh, -c, "echo hello; exec sleep 600"]}}
  placement: {resources: {cores: 0.1, memoryGi: 0.1}}
"""


def test_every_server_forwards_leader_only_reads(etcd: EtcdServer, tmp_path: Path) -> None:
    store = etcd.url("passed-on")
    with member(tmp_path / "a", store) as a, member(tmp_path / "b", store) as b:
        leader = _wait_for_leader(a, b, seconds=10)
        try:
            _ask_the_other(b if leader is a else a)
        finally:
            leader.stop()  # and the machines that it made with it


def _ask_the_other(follower: Server) -> None:
    assert follower.lattice("apply", "-f", "-", stdin=YARD).returncode == 0
    deadline = time.monotonic() + 60
    while "hello" not in (said := follower.lattice("logs", "talk-0")).stdout:
        assert time.monotonic() < deadline, said.stderr
        time.sleep(0.2)
    # The output of a replica comes before the report that it is ready.
    ready = ["talk", "1/1"]
    wait_until(lambda: follower.lattice("top", "services").stdout.splitlines()[1].split()[:2] == ready)
    viewer = follower.mint("vic", "lattice:viewers")
    assert follower.lattice("logs", "talk-0", "--kubeconfig", str(viewer)).stdout == "hello\n"
    stranger = follower.mint("eve", "nobody")
    assert follower.lattice("logs", "talk-0", "--kubeconfig", str(stranger)).returncode == 4


def test_killed_leader_is_replaced_when_its_lease_expires(etcd: EtcdServer, tmp_path: Path) -> None:
    flags = (etcd.url("killed"), "--lease-ttl", "2")
    with member(tmp_path / "a", *flags) as a, member(tmp_path / "b", *flags) as b:
        leader = _wait_for_leader(a, b, seconds=10)
        leader.process.kill()
        assert _wait_for_leader(b if leader is a else a, seconds=2 + 2)


def test_leader_resigns_on_sigterm(etcd: EtcdServer, tmp_path: Path) -> None:
    flags = (
        etcd.url("stopped"),
        "--lease-ttl",
        "60",
    )  # so long that only a resignation explains a new leader
    with member(tmp_path / "a", *flags) as a, member(tmp_path / "b", *flags) as b:
        leader = _wait_for_leader(a, b, seconds=10)
        assert leader.stop(signal.SIGTERM) == 0
        assert _wait_for_leader(b if leader is a else a, seconds=5)


class _Liar(grpc.GenericRpcHandler):
    """Hands everything on to a real etcd, but says that it is another release."""

    def __init__(self, endpoint: str, version: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self._status = pb.StatusResponse(version=version).SerializeToString()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method.endswith("Maintenance/Status"):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: self._status)
        forward: Any = self._channel.stream_stream(details.method)
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: forward(requests))


@contextlib.contextmanager
def etcd_that_says(endpoint: str, version: str) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(32))
    server.add_generic_rpc_handlers((_Liar(endpoint, version),))
    port = server.add_insecure_port(f"127.0.0.1:{free_port()}")
    server.start()
    try:
        yield f"etcd://127.0.0.1:{port}/{version}"
    finally:
        server.stop(None).wait()


def test_data_losing_etcd_release_is_refused_unless_allowed(etcd: EtcdServer, tmp_path: Path) -> None:
    with etcd_that_says(etcd.endpoint, "3.5.3") as store:
        command = [
            *LATTICE,
            "server",
            "--data-dir",
            str(tmp_path / "refused"),
            "--store",
            store,
            "--port",
            "0",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 3, done.stderr
        assert "etcd 3.5.3 is not supported: this release can lose acknowledged writes" in done.stderr
        assert "upgrade etcd" in done.stderr
        assert "--allow-etcd-that-loses-writes" in done.stderr
        with member(tmp_path / "allowed", store, "--allow-etcd-that-loses-writes") as server:
            assert Wire(server.kubeconfig).post(CONFIGMAPS, configmap("there")).status == 201


def test_good_etcd_release_needs_no_flag(etcd: EtcdServer, tmp_path: Path) -> None:
    with etcd_that_says(etcd.endpoint, "3.5.6") as store, member(tmp_path / "good", store) as server:
        assert Wire(server.kubeconfig).get(CONFIGMAPS).status == 200
