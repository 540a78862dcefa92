"""An installation of real processes: etcd members, servers, and agents that only simulate their workloads."""

import contextlib
import json
import re
import secrets
import signal
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import msgspec

from build.etcd_history import History
from build.etcd_relay import Fences, relayed
from build.etcd_server import EtcdServer, free_port, running_etcds
from build.process_site import end
from build.servers import LATTICE
from build.waiting import wait_until
from build.wire import Wire
from lattice.agent.state_file import AgentState
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.store.etcd import etcd_pb2 as pb
from lattice.store.etcd import etcd_pb2_grpc as rpc

SECRETS = "/api/v1/namespaces/lattice-system/secrets"
NODES = "/apis/lattice.dev/v1alpha1/latticenodes"
PREFIX = "ha"
LEASE_TTL = 3.0
FLAGS = (
    "--lease-ttl", str(LEASE_TTL), "--heartbeat", "1", "--node-lost-after", "30", "--history", "7200",
    "--reconcile-interval", "1", "--providers", "hand=manual",
)  # fmt: skip
SLOTS = 10  # workloads that go on one node
PATIENCE = 120.0
LOOK = 0.5


@dataclass
class Program:
    """A process that can be started again, and what it has written to its log."""

    name: str
    command: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self.process is not None
        end(self.process, number)
        return self.process.returncode

    def said(self, event: str) -> list[dict[str, Any]]:
        """The lines of its log that tell of such an event, oldest first."""
        text = self.log.read_text() if self.log.exists() else ""
        lines = [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line.startswith("{") and line.endswith("\n")
        ]
        return [line for line in lines if line["event"] == event]


@dataclass
class Server(Program):
    folder: Path = Path()
    port: int = 0

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        before = len(self.said("serving"))
        super().start()
        wait_until(
            lambda: len(self.said("serving")) > before or self._ended(),
            f"server {self.name} serves",
            PATIENCE,
        )

    def _ended(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    @property
    def leads(self) -> bool:
        return bool(Wire(self.kubeconfig).get("/health").value["isLeader"])

    def metric(self, name: str, *labels: str) -> float:
        """The sum over all series with these labels, as in `result="fenced"`."""
        text = Wire(self.kubeconfig).get("/metrics", accept="text/plain").raw.decode()
        result = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for marks, value in result if all(label in marks for label in labels))


class CopyObserver(threading.Thread):
    """Looks into the agents' own notes, over and over: on which nodes each workload has ever been seen alive, and how often started."""

    def __init__(self, agents: Sequence[Path]) -> None:
        super().__init__(daemon=True)
        self._agents = agents
        self._over = threading.Event()
        self.places: dict[str, set[str]] = {}  # by uid
        self.starts: dict[str, int] = {}
        self.looks = 0

    def run(self) -> None:
        while not self._over.wait(LOOK):
            self.look()

    def look(self) -> None:
        for folder in self._agents:
            for record in _notes(folder).records:
                if record.instance.is_live:
                    self.places.setdefault(record.spec.id.uid, set()).add(folder.name)
                    self.starts[record.spec.id.uid] = record.spec.attempt
        self.looks += 1

    def stop(self) -> None:
        self._over.set()
        self.join(10)


def _notes(folder: Path) -> AgentState:
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=AgentState)
    except FileNotFoundError:
        return AgentState()


@dataclass
class Fleet:
    folder: Path
    etcds: list[EtcdServer]
    history: History
    fences: Fences  # of the first server
    servers: list[Server] = field(default_factory=list)
    agents: list[Program] = field(default_factory=list)

    def add_server(self, name: str, endpoints: Sequence[str]) -> None:
        folder, port = self.folder / name, free_port()
        folder.mkdir()
        store = f"etcd://{','.join(endpoints)}/{PREFIX}"
        command = [*LATTICE, "server", "--data-dir", str(folder), "--store", store, "--instance-id", name]
        command += ["--port", str(port), "--agents-port", str(free_port()), *FLAGS]
        server = Server(name, command, folder / "log", folder=folder, port=port)
        self.servers.append(server)
        server.start()

    def add_agents(self, count: int) -> None:
        wire = Wire(self.servers[0].kubeconfig)
        authority = fingerprint(b64decode(wire.get(f"{SECRETS}/lattice-ca").value["data"]["tls.crt"]))
        urls = [server.url for server in self.servers]
        for number in range(count):
            name = f"node-{number:02d}"
            token = JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), authority)
            grant = Grant(expires=format_timestamp(datetime.now(UTC) + timedelta(hours=1)), node=name)
            assert wire.post(SECRETS, token_secret(token, grant)).status == 201
            turned = (
                urls[number % len(urls) :] + urls[: number % len(urls)]
            )  # they begin at different servers
            command = [
                *LATTICE, "agent", "--server", ",".join(turned), "--join", str(token), "--data-dir", str(self.folder / name), "--runtime", "fake",
                "--cpu", str(SLOTS / 5), "--memory", "4Gi", "--disk", "4Gi", "--ports", "20000-20199", "--address", "127.0.0.1",
            ]  # fmt: skip
            agent = Program(name, command, self.folder / f"{name}.log")
            self.agents.append(agent)
            agent.start()

    # The leader

    @property
    def leader(self) -> Server:
        return next(server for server in self.servers if server.name == self.history.leader)

    def wait_for_leader(self, after: int, within: float = PATIENCE) -> Server:
        """Of a later term, by the store and by its own word."""
        wait_until(lambda: self.history.term > after and self.history.leader, f"a term after {after}", within)
        leader = self.leader
        wait_until(lambda: leader.leads, f"{leader.name} says that it leads", PATIENCE)
        return leader

    def arrivals(self, term: int) -> dict[str, datetime]:
        """By agent: when it was first with the leader of that term."""
        results = {}
        for agent in self.agents:
            lines = [line for line in agent.said("connected") if line["term"] == term]
            if lines:
                results[agent.name] = datetime.fromisoformat(lines[0]["timestamp"])
        return results

    def wait_for_agents(self, term: int) -> datetime:
        """When the last of them came to the leader of that term."""
        wait_until(
            lambda: len(self.arrivals(term)) == len(self.agents),
            f"all agents are with the leader of term {term}",
            PATIENCE,
        )
        return max(self.arrivals(term).values())

    def wait_until_ready(self) -> None:
        """Every node, in the eyes of the control plane."""
        wait_until(lambda: self._ready() == len(self.agents), "all nodes are ready", PATIENCE)

    def _ready(self) -> int:
        result = Wire(self.servers[0].kubeconfig).get(NODES).value["items"]
        conditions = [item for node in result for item in node.get("status", {}).get("conditions", ())]
        return sum(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def etcd_leader(self) -> EtcdServer:
        return next(member for member in self.etcds if member.is_running and _leads(member))

    def end(self) -> None:
        for program in (*self.agents, *self.servers):
            if program.process is not None and program.process.poll() is None:
                program.send(signal.SIGCONT)
                program.send(signal.SIGTERM)
        for program in (*self.agents, *self.servers):
            if program.process is not None:
                program.end(signal.SIGKILL if program in self.agents else signal.SIGTERM)


def _leads(member: EtcdServer) -> bool:
    with grpc.insecure_channel(member.endpoint) as channel:
        try:
            status = rpc.MaintenanceStub(channel).Status(pb.StatusRequest(), timeout=3)
        except grpc.RpcError:
            return False
        return bool(status.leader == status.header.member_id)


@contextlib.contextmanager
def running_fleet(folder: Path, etcds: int, servers: int, agents: int) -> Iterator[Fleet]:
    """Everything up and every node ready. The first server leads, and talks with etcd through relays."""
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(running_etcds(folder, etcds))
        endpoints = [member.endpoint for member in members]
        fences = Fences()
        relays = stack.enter_context(relayed(endpoints, fences))
        history = History(endpoints, PREFIX)
        history.start()
        stack.callback(history.stop)
        fleet = Fleet(folder, members, history, fences)
        stack.callback(fleet.end)
        fleet.add_server("a", relays)
        fleet.wait_for_leader(0)
        for name in "bcdefg"[: servers - 1]:
            fleet.add_server(name, endpoints)
        fleet.add_agents(agents)
        fleet.wait_until_ready()
        yield fleet
