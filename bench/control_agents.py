"""`python -m bench.control_agents FOLDER SERVER`: many agents in a process, each with its own key,
certificate and connection.

Names of nodes and their join tokens come on standard input, a pair per line. The agents are the product's
agents with the fake runtime; their folders are in memory, since a thousand machines share no disk.
"""

import asyncio
import contextlib
import json
import random
import secrets
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from bench.control_site import Site, cpu_seconds, until
from bench.load import drive, request
from bench.machine import resident_mib
from lattice.agent import join
from lattice.agent.certificate_renewal import CertificateRenewal
from lattice.agent.executor import Executor
from lattice.agent.host.machine_info import MachineInfo
from lattice.agent.host.usage import NodeMeter
from lattice.agent.identity import Identity
from lattice.agent.runtimes.fake import FakeMachine, FakeRuntime
from lattice.agent.session import Agent
from lattice.agent.state_file import StateFile
from lattice.agent.transport import GrpcTransport
from lattice.clock import SystemClock
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.timestamps import format_timestamp

CAPACITY = {"cpu": 4000, "memory": 32 << 30, "storage": 100 << 30, "workloads": 110}
AGENTS_PER_PROCESS = 250
# Parallel joins of a process.
PARALLEL_JOINS = 4
SECRETS = "/api/v1/namespaces/lattice-system/secrets"
TIMEOUT_S = 600.0


@dataclass
class Crowd:
    """Agents of a server, several hundred per process."""

    site: Site
    count: int
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, folder: Path) -> None:
        names = [f"agent-{number:05}" for number in range(self.count)]
        pairs = list(zip(names, self._tokens(names), strict=True))
        for start in range(0, self.count, AGENTS_PER_PROCESS):
            command = [sys.executable, "-m", "bench.control_agents", str(folder), self.site.url]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.processes.append(process)
            assert process.stdin is not None
            process.stdin.write(
                "".join(f"{name} {token}\n" for name, token in pairs[start : start + AGENTS_PER_PROCESS])
                + "\n"
            )
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n", "agents could not join"
        until(lambda: self.connected() == self.count, "all agents are connected", TIMEOUT_S)

    def _tokens(self, names: Sequence[str]) -> list[str]:
        """Join tokens of the nodes, created through the API as `lattice tokens create` does."""
        authority = fingerprint(b64decode(self.site.ask(f"{SECRETS}/lattice-ca")["data"]["tls.crt"]))
        tokens = [JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), authority) for _ in names]
        expires = format_timestamp(datetime.now(UTC) + timedelta(hours=1))
        bodies = (
            json.dumps(token_secret(token, Grant(expires=expires, node=name)))
            for token, name in zip(tokens, names, strict=True)
        )
        created = asyncio.run(
            drive(self.site.at, (request("POST", SECRETS, body.encode()) for body in bodies))
        )
        assert created.count == len(names), created.refused
        return [str(token) for token in tokens]

    def connected(self) -> int:
        """Connected agents by the server's metric."""
        return int(self.site.metric("lattice_agents_connected"))

    def streams(self) -> int:
        """TCP connections at the server's port for agents; a connection per agent unless agents share
        connections."""
        port = f"{self.site.ports[1]:04X}"
        count = 0
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                # State 01 is an established connection.
                count += fields[1].endswith(f":{port}") and fields[3] == "01"
        return count

    def cpu(self) -> float:
        return cpu_seconds([process.pid for process in self.processes])

    def resident_mib(self) -> float:
        return sum(resident_mib(process.pid) for process in self.processes)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def a_crowd(site: Site, count: int) -> Iterator[Crowd]:
    """Agents that are all connected."""
    crowd = Crowd(site, count)
    with tempfile.TemporaryDirectory(prefix="lattice-agents-", dir="/dev/shm") as folder:
        try:
            crowd.start(Path(folder))
            yield crowd
        finally:
            crowd.stop()


def _joined(folder: Path, server: str, name: str, token: str) -> Identity:
    identity = Identity.load(folder / name)
    join.join(identity, server, token, name)
    return identity


async def _live(identity: Identity, server: str) -> None:
    """Run an agent, wired as by `lattice agent --runtime fake`."""
    clock, rng, memory = SystemClock(), random.Random(), StateFile(identity.folder)
    executor = Executor(FakeRuntime(FakeMachine(clock, rng), memory), memory, clock)
    machine = MachineInfo(
        CAPACITY, ("process", "container"), (20_000, 29_999), addresses=[("InternalIP", "127.0.0.1")]
    )
    agent = Agent(
        executor,
        GrpcTransport(lambda: identity),
        clock,
        rng,
        machine.registration,
        list(identity.join_record.agents),
    )

    async def look_up() -> list[str]:
        return await asyncio.to_thread(join.discover_agent_addresses, identity, server)

    agent.node_usage, agent.discover_addresses, agent.shares_machine = (
        NodeMeter(clock, identity.folder).usage,
        look_up,
        True,
    )
    await asyncio.gather(agent.run(), CertificateRenewal(identity, agent, clock, rng).run())


async def _run(folder: Path, server: str, pairs: Sequence[tuple[str, str]]) -> None:
    with ThreadPoolExecutor(PARALLEL_JOINS) as pool:
        identities = list(pool.map(lambda pair: _joined(folder, server, *pair), pairs))
    print("joined", flush=True)
    await asyncio.gather(*(_live(identity, server) for identity in identities))


def main() -> None:
    import logging

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    pairs = []
    while line := sys.stdin.readline().strip():
        name, token = line.split()
        pairs.append((name, token))
    asyncio.run(_run(Path(sys.argv[1]), sys.argv[2], pairs))


if __name__ == "__main__":
    main()
