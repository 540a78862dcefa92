"""Programs of a chaos run: three members of etcd, three servers, and agents in groups; a restarted program
keeps its identity."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.agent import lose_power
from chaos.network import ADDRESSES, ETCDS, GROUPS, SERVERS, namespace
from lattice.sim.world.settings import LEASE_TTL_S, TIMEOUTS

ROOT = Path(__file__).parent.parent
# Ports of etcd.
CLIENTS, PEERS = 2379, 2380
# Ports of a server for the API and for agents.
API, LINK = 7443, 7444
PREFIX = "chaos"
FAKETIME = tuple(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
SMALL_ETCD = "etcd3"
SMALL_GROUP = GROUPS[0]
CPU = "4"
# Age of the installation when the faults begin: certificates are valid an hour ago, too.
INSTALLATION_AGE_S = 7200
FLAGS = {
    "lease-ttl": LEASE_TTL_S,
    "heartbeat": TIMEOUTS.nodes.heartbeat_interval,
    "node-lost-after": TIMEOUTS.nodes.not_ready_after,
    "replace-after": TIMEOUTS.nodes.replace_after,
    "evictions-per-second": TIMEOUTS.nodes.evictions_per_second,
    "reconcile-interval": 1,
    "retry-first": 1,
    "retry-longest": 8,
    "retry-service-longest": 8,
    "retry-reset": 16,
    "missing-grace": 6,
    "start-grace": 30,
    "stop-grace": 15,
    "history": 36000,
    "providers": "hand=fake",
}


@dataclass
class Program:
    """A process in a namespace. `folder` holds its data; `small`: the folder is a disk of its own that a
    fault can fill."""

    run: int
    name: str
    part: str
    command: list[str]
    folder: Path
    small: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    # A fault has killed the process.
    expected: bool = False

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def start(self) -> None:
        """Start the process, which dies with the parent thread; so only the main thread may call `start`."""
        self.expected = False
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "ip",
            "netns",
            "exec",
            namespace(self.run, self.part),
            *self.command,
        ]
        with self.log.open("ab") as file:
            environment = {**os.environ, **self.environment}
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        if self.process is not None and self.is_alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.expected = True
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def terminate(self) -> None:
        self.expected = True
        self.send(signal.SIGTERM)

    def start_again(self) -> None:
        """Restart the program in any state."""
        self.kill()
        self.start()

    def start_if_dead(self) -> None:
        """Start the program unless a fault killed the process on purpose."""
        if not self.is_alive and not self.expected:
            self.start()

    @property
    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""


@dataclass
class Agent(Program):
    notes: Path = Path()

    def lose_power(self) -> None:
        self.kill()
        lose_power(self.notes)


@dataclass
class Fleet:
    run: int
    folder: Path
    etcds: dict[str, Program] = field(default_factory=dict)
    servers: dict[str, Program] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)

    @property
    def programs(self) -> Iterator[Program]:
        yield from (*self.etcds.values(), *self.servers.values(), *self.agents.values())

    @property
    def endpoints(self) -> dict[str, str]:
        return {name: f"{ADDRESSES[name]}:{CLIENTS}" for name in ETCDS}

    def add_etcds(self) -> None:
        cluster = ",".join(f"{name}=http://{ADDRESSES[name]}:{PEERS}" for name in ETCDS)
        for name in ETCDS:
            folder = self.folder / name
            client, peer = (f"http://{ADDRESSES[name]}:{port}" for port in (CLIENTS, PEERS))
            command = [
                "etcd",
                "--data-dir",
                str(folder / "data"),
                "--name",
                name,
                "--logger",
                "zap",
                "--log-level",
                "warn",
            ]
            command += [
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
                "--listen-peer-urls",
                peer,
            ]
            command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]
            small = name == SMALL_ETCD
            _prepare(folder, "320m" if small else "")
            self.etcds[name] = Program(self.run, name, name, command, folder, small)
            self.etcds[name].start()

    def add_server(self, name: str, machines: bytes = b"") -> None:
        """Start a server. `machines` is the provider's file of an earlier server: all servers share the same
        machines."""
        store = f"etcd://{','.join(self.endpoints.values())}/{PREFIX}"
        flags: list[str] = []
        for flag, value in FLAGS.items():
            flags += [f"--{flag}", str(value)]
        folder = self.folder / name
        _prepare(folder)
        if machines:
            self.machines_of(name).parent.mkdir()
            self.machines_of(name).write_bytes(machines)
        command = [
            sys.executable,
            "-m",
            "lattice.cli.main",
            "server",
            "--data-dir",
            str(folder),
            "--store",
            store,
            "--instance-id",
            name,
        ]
        command += [
            "--listen",
            "0.0.0.0",
            "--advertise",
            ADDRESSES[name],
            "--port",
            str(API),
            "--agents-port",
            str(LINK),
            *flags,
        ]
        self.servers[name] = Program(
            self.run, name, name, command, folder, environment=self._clock_environment(name)
        )
        self.servers[name].start()

    def machines_of(self, server: str) -> Path:
        return self.folder / server / "machines" / "hand.json"

    def add_agent(self, name: str, group: str, token: str) -> None:
        folder, notes = self.folder / name, self.folder / f"{name}.notes"
        small = group == SMALL_GROUP
        _prepare(folder, "2m" if small else "")
        urls = [f"https://{ADDRESSES[server]}:{API}" for server in SERVERS]
        # Spread the first connections over the servers.
        first = len(self.agents) % len(urls)
        command = [
            sys.executable,
            "-m",
            "chaos.agent",
            str(notes),
            "agent",
            "--server",
            ",".join(urls[first:] + urls[:first]),
        ]
        command += [
            "--join",
            token,
            "--data-dir",
            str(folder),
            "--name",
            name,
            "--runtime",
            "fake",
            "--cpu",
            CPU,
            "--memory",
            "4Gi",
        ]
        command += ["--disk", "4Gi", "--ports", "20000-20199", "--address", ADDRESSES[group]]
        self.agents[name] = Agent(
            self.run, name, group, command, folder, small, self._clock_environment(name), notes=notes
        )
        self.agents[name].start()

    def _clock_environment(self, name: str) -> dict[str, str]:
        if not FAKETIME:
            return {}
        self.set_clock(name, -INSTALLATION_AGE_S)
        return {
            "LD_PRELOAD": str(FAKETIME[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock_file(name)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def _clock_file(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def set_clock(self, name: str, seconds: int) -> None:
        """Set the wall clock of a program wrong by `seconds`."""
        draft = self._clock_file(name).with_suffix(".draft")
        draft.write_text(f"{seconds:+d}\n")
        draft.rename(self._clock_file(name))

    def age(self) -> None:
        """Set all clocks right, so that the installation is INSTALLATION_AGE_S old."""
        for name in (*self.servers, *self.agents) if FAKETIME else ():
            self.set_clock(name, 0)

    def end(self) -> None:
        for program in self.programs:
            program.send(signal.SIGCONT)
            program.kill()


def _prepare(folder: Path, size: str = "") -> None:
    folder.mkdir()
    # The mount is in the harness's own mount namespace and disappears with the harness.
    if size:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            check=True,
            capture_output=True,
        )
