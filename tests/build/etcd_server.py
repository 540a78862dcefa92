"""A real etcd on this machine, for tests."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as rpc


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def etcd_program() -> str:
    """In CI a missing etcd is a failure; on a laptop the tests that need one are skipped, and say so."""
    program = shutil.which("etcd")
    if program is None and os.environ.get("CI"):
        pytest.fail("etcd is not installed: the contract suite must run on it in CI")
    if program is None:
        pytest.skip("etcd is not installed: `apt-get install etcd-server` runs this on it too")
    return program


class EtcdServer:
    """One member, which can be stopped and started again on its data. `cluster` names all members; alone it is the only one."""

    def __init__(self, folder: Path, *options: str, scheme: str = "http", name: str = "test") -> None:
        self._scheme = scheme
        self.name = name
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._peer = f"http://127.0.0.1:{free_port()}"
        self.cluster = self.as_peer
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def as_peer(self) -> str:
        return f"{self.name}={self._peer}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Without waiting: it answers once most of its cluster is there."""
        client = f"{self._scheme}://{self.endpoint}"
        command = [
            etcd_program(),
            "--data-dir",
            str(self._folder / "data"),
            "--name",
            self.name,
            "--logger",
            "zap",
            "--log-level",
            "error",
        ]
        command += [
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            self._peer,
        ]
        command += [
            "--initial-advertise-peer-urls",
            self._peer,
            "--initial-cluster",
            self.cluster,
            *self._options,
        ]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, prefix: str) -> str:
        return f"etcd://{self.endpoint}/{prefix}"

    def revoke_leases(self) -> None:
        """End every lease that still holds a key: its expiry would count as a revision of every store on this etcd."""
        with grpc.insecure_channel(
            self.endpoint, options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            found = rpc.KVStub(channel).Range(
                pb.RangeRequest(key=b"\0", range_end=b"\0", keys_only=True), timeout=10
            )
            for lease in {item.lease for item in found.kvs if item.lease}:
                rpc.LeaseStub(channel).LeaseRevoke(pb.LeaseRevokeRequest(ID=lease), timeout=10)

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"etcd did not start; see {self._folder / 'etcd.log'}")


@contextmanager
def running_etcd(folder: Path, *options: str) -> Iterator[EtcdServer]:
    server = EtcdServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_etcds(folder: Path, count: int) -> Iterator[list[EtcdServer]]:
    """The members of one cluster."""
    members = [EtcdServer(folder / f"etcd-{number}", name=f"etcd-{number}") for number in range(count)]
    try:
        for member in members:
            (folder / member.name).mkdir(parents=True)
            member.cluster = ",".join(member.as_peer for member in members)
            member.launch()
        for member in members:
            member.wait_until_it_answers()
        yield members
    finally:
        for member in members:
            member.stop()
