"""`lattice agent` as its own process against a real server: joining, running workloads, being killed,
restarting and stopping."""

import asyncio
import contextlib
import os
import resource
import signal
import ssl
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, web
from build.agent_world import AUTHORITY, Leader, a_joining, a_sleeping_workload, a_token, applied, store_token
from build.servers import running_server
from build.waiting import eventually

from lattice.agent.identity import Identity, JoinRecord
from lattice.agent.join import join
from lattice.agent.state_file import StateFile
from lattice.clock import SystemClock
from lattice.errors import Denied, Invalid, LatticeError, UnknownUser
from lattice.kinds import KINDS
from lattice.kinds.container import Container, Disconnect
from lattice.kinds.core import CustomResourceDefinition
from lattice.kinds.join_token import parse_token
from lattice.kinds.node import LatticeNode
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.certificate_authority import ensure_server_certificate, new_authority
from lattice.server.access.node_certificates import parse_signing_request, sign_node_certificate
from lattice.server.agents.join import NodeJoinService
from lattice.server.agents.node_logs import LogRequest
from lattice.server.app import App
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Key

clock = SystemClock()
LATTICE = [sys.executable, "-m", "lattice.cli.main"]


@dataclass
class Site:
    leader: Leader
    joining: NodeJoinService
    url: str
    folder: Path

    async def token(self, number: int = 1, **grant: Any) -> str:
        token = a_token(number=number)
        await store_token(self.leader.store, clock, token, **grant)
        return str(token)

    @contextlib.asynccontextmanager
    async def agent(
        self, token: str = "", *flags: str, log: Any = asyncio.subprocess.PIPE
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        words = [
            "agent",
            "--server",
            self.url,
            "--data-dir",
            str(self.folder / "agent"),
            "--grace",
            "2s",
            *flags,
        ]
        process = await asyncio.create_subprocess_exec(
            *LATTICE, *words, env={**os.environ, "LATTICE_JOIN_TOKEN": token}, stderr=log
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def clear(self) -> int:
        if not (self.folder / "agent" / "state.json").exists():
            return 0
        process = await asyncio.create_subprocess_exec(
            *LATTICE, "agent", "--data-dir", str(self.folder / "agent"), "--clear"
        )
        return await process.wait()

    def said(self, node: str = "n1", path: str = "default/web") -> Any:
        assert self.leader.context is not None
        heard = self.leader.context.presence.get(node)
        return (
            heard and heard.is_connected and heard.applied_sequence and heard.workloads.get(path)
        )  # said on this connection

    async def running(self, run: int = 1) -> None:
        await eventually(lambda: (said := self.said()) and said.state == "Running" and said.run == run)


@contextlib.asynccontextmanager
async def a_site(folder: Path) -> AsyncIterator[Site]:
    leader = Leader(MemoryStore(clock), clock, heartbeat=0.5)
    await leader.lead()
    certificate, key = ensure_server_certificate(AUTHORITY, folder / "tls", ["127.0.0.1"])
    tls = Tls(certificate.read_bytes(), key.read_bytes(), AUTHORITY.pem)
    joining = a_joining(leader.store, clock)
    async with AgentListener(leader.links, joining, tls) as agents:
        joining.agents_address = lambda: f"127.0.0.1:{agents.port}"
        catalog = Catalog((*KINDS, CustomResourceDefinition))
        api = Api(leader.store, catalog, clock, lambda: "uid", lambda: "abcde")
        app = App(
            api,
            TokenAuthenticator(leader.store, clock),
            DiscoveryDocuments(catalog, lambda: ""),
            dict,
            join_service=joining,
        )
        runner = web.ServerRunner(web.Server(app.handle, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(cadata=AUTHORITY.pem.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        site = Site(leader, joining, f"https://127.0.0.1:{runner.addresses[0][1]}", folder)
        try:
            yield site
        finally:
            await site.clear()
            await runner.cleanup()
            await leader.close()


def alive(marker: str) -> list[int]:
    """The pids of `sleep` processes with this number of seconds, which identifies the workload."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            program, _, rest = Path(f"/proc/{name}/cmdline").read_bytes().partition(b"\0")
            if program.endswith(b"sleep") and rest == marker.encode() + b"\0":
                found.append(int(name))
    return found


def a_marker() -> str:
    """A number of seconds that no other process on this machine sleeps for."""
    return str(1_000_000 + uuid.uuid4().int % 1_000_000_000)


def sleeping(marker: str) -> Any:
    return a_sleeping_workload(containers={"main": Container(command=("sleep", marker))})


async def test_restarted_agent_adopts_running_workloads(tmp_path: Path) -> None:
    marker = a_marker()

    async with a_site(tmp_path) as site:
        await site.leader.add(sleeping(marker))
        async with site.agent(await site.token(node="n1")):
            await eventually(lambda: site.leader.links.sessions)
            await site.leader.bind("web", applied("n1"))
            await site.running()
        before = alive(marker)
        assert len(before) == 1
        await eventually(lambda: not site.leader.links.sessions, within=30)
        async with site.agent() as second:  # no token any more
            await eventually(lambda: site.leader.links.sessions)
            await site.running()
            assert alive(marker) == before
            second.send_signal(signal.SIGTERM)
            assert await second.wait() == 0
        assert alive(marker) == before, "stopped, an agent leaves what runs"
        assert await site.clear() == 0
        assert alive(marker) == []


async def test_agent_of_deleted_node_stops_workloads_and_can_rejoin(
    tmp_path: Path,
) -> None:
    marker = a_marker()

    async with a_site(tmp_path) as site:
        await site.leader.add(sleeping(marker))
        used = await site.token(node="n1")
        async with site.agent(used):
            await eventually(lambda: site.leader.links.sessions)
            await site.leader.bind("web", applied("n1"))
            await site.running()
        assert len(alive(marker)) == 1, "cut off, it is kept"
        await site.leader.store.commit([Delete(Key(LatticeNode.resource.id, "", "n1"))])
        async with site.agent(used) as process:
            _, said = await process.communicate()
            assert process.returncode == Denied.exit_code
        assert "there is no node n1" in said.decode()
        assert "then start the agent with --server and --join" in said.decode()
        assert alive(marker) == []
        assert not Identity.load(tmp_path / "agent").has_joined
        async with site.agent(await site.token(2, node="n1")):
            await eventually(lambda: site.leader.links.sessions)


async def test_joining_another_control_plane_resets_the_known_term(tmp_path: Path) -> None:
    """The former control plane may have reached a higher term than the new one ever will."""

    async with a_site(tmp_path) as site:
        identity, (other, _) = Identity.load(tmp_path / "agent"), new_authority()
        former = sign_node_certificate(
            other, parse_signing_request(identity.signing_request()), "n9", clock.now()
        )
        identity.save_credentials(
            former, other.pem, JoinRecord("n9", "https://127.0.0.1:1", ("127.0.0.1:1",))
        )
        memory = StateFile(tmp_path / "agent")
        memory.save_assignments((), 99)
        memory.close()
        async with site.agent(await site.token(node="n1")):
            await eventually(lambda: "n1" in site.leader.links.sessions)


async def test_disconnect_stop_holds_after_agent_is_killed(tmp_path: Path) -> None:
    strict, lasting = a_marker(), a_marker()

    async with a_site(tmp_path) as site:
        await site.leader.add(
            a_sleeping_workload(
                containers={"main": Container(command=("sleep", strict))},
                disconnect=Disconnect(policy="stop", stop_after="3s"),
            )
        )
        await site.leader.add(
            a_sleeping_workload("lasting", containers={"main": Container(command=("sleep", lasting))})
        )
        async with site.agent(await site.token(node="n1")):
            await eventually(lambda: site.leader.links.sessions)
            await site.leader.bind("web", applied("n1"))
            await site.leader.bind("lasting", applied("n1"))
            await site.running()
            await eventually(lambda: alive(lasting))
            heard = site.leader.context.presence.get("n1").received_at  # type: ignore[union-attr]
            await eventually(lambda: site.leader.context.presence.get("n1").received_at > heard + 4)  # type: ignore[union-attr]
            assert len(alive(strict)) == 1, "with contact it runs for as long as it likes"
        await eventually(lambda: not alive(strict), within=30)
        assert len(alive(lasting)) == 1
        async with site.agent():
            failed = await eventually(lambda: (said := site.said()) and said.state == "Failed" and said)
            assert failed.failure_reason == "DISCONNECTED"


async def test_agent_stops_workloads_on_exit_and_restarts_them(tmp_path: Path) -> None:
    marker = a_marker()

    async with a_site(tmp_path) as site:
        await site.leader.add(sleeping(marker))
        async with site.agent(await site.token(node="n1"), "--stop-workloads-on-exit") as process:
            await eventually(lambda: site.leader.links.sessions)
            await site.leader.bind("web", applied("n1"))
            await site.running()
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert alive(marker) == []
        async with site.agent("", "--stop-workloads-on-exit") as process:
            await site.running()
            assert len(alive(marker)) == 1
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_agent_on_full_disk_fails_starts_and_keeps_running(tmp_path: Path) -> None:
    """The agent can write neither its state nor its log: its file size limit is 0, as on a full disk."""
    marker = a_marker()

    async with a_site(tmp_path) as site:
        await site.leader.add(sleeping(marker))
        with (tmp_path / "log").open("wb") as log:
            async with site.agent(await site.token(node="n1"), log=log) as process:
                await eventually(lambda: site.leader.links.sessions)
                _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
                await site.leader.bind("web", applied("n1"))
                failed = await eventually(lambda: (said := site.said()) and said.state == "Failed" and said)
                assert failed.failure_reason == "STORAGE_ERROR"
                assert alive(marker) == []
                heard = site.leader.context.presence.get("n1").received_at  # type: ignore[union-attr]
                await eventually(lambda: site.leader.context.presence.get("n1").received_at > heard + 1)  # type: ignore[union-attr]
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
                await site.leader.bind("web", applied("n1", run=2))
                await site.running(run=2)
                assert len(alive(marker)) == 1
                assert process.returncode is None


async def test_logs_are_read_and_followed_over_the_session(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        script = "echo one; echo two; read line < go; echo three"
        await site.leader.add(
            a_sleeping_workload(containers={"main": Container(command=("sh", "-c", f"mkfifo go; {script}"))})
        )
        async with site.agent(await site.token(node="n1"), "--stop-workloads-on-exit") as process:
            await eventually(lambda: site.leader.links.sessions)
            await site.leader.bind("web", applied("n1"))
            await site.running()
            asked = LogRequest("n1", "default/web", "uid-web", tail_lines=1, follow=True)
            read: list[str] = []

            async def follow() -> None:
                async for text in site.leader.links.logs.read(asked):
                    read.append(text)  # noqa: PERF401 - looked at while it grows

            reading = asyncio.create_task(follow())
            await eventually(lambda: "".join(read) == "two\n")
            fifo = next((tmp_path / "agent" / "instances").glob("*/work/go"))
            await asyncio.to_thread(fifo.write_text, "go\n")
            await asyncio.wait_for(reading, 20)
            assert "".join(read) == "two\nthree\n"
            process.send_signal(signal.SIGTERM)
            await process.wait()


@pytest.mark.parametrize(
    ("token", "error", "words"),
    [
        pytest.param("ljt-000000000001.wrongwrongwrongwrongwrong.{authority}", UnknownUser, "the join token is unknown", id="a wrong secret"),
        pytest.param("ljt-000000000001." + "s" * 32 + "." + "0" * 64, Denied, "the join token belongs to a different server", id="another server's"),
        pytest.param("hello", Invalid, "this is not a join token", id="no token at all"),
    ],
)  # fmt: skip
async def test_bad_join_token_is_refused_with_a_reason(
    tmp_path: Path, token: str, error: type[LatticeError], words: str
) -> None:
    async with a_site(tmp_path) as site:
        good = await site.token()
        revision = await site.leader.store.revision()
        identity = Identity.load(tmp_path / "other")
        with pytest.raises(error, match=words):
            await asyncio.to_thread(join, identity, site.url, token.format(authority=good.rpartition(".")[2]))
        assert not identity.has_joined
        assert await site.leader.store.revision() == revision, "nothing was written"


async def test_agent_that_cannot_join_exits_with_the_reason(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        token = await site.token(ttl=-1)
        async with site.agent(token) as process:
            _, said = await process.communicate()
            assert "expired at" in said.decode()
            assert process.returncode == Denied.exit_code
            assert token.split(".")[1] not in said.decode()


async def test_node_certificate_is_forbidden_in_the_api(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        identity = Identity.load(tmp_path / "node")
        await asyncio.to_thread(join, identity, site.url, await site.token(node="n1"))
        context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
        context.load_cert_chain(tmp_path / "node" / "agent.crt", tmp_path / "node" / "agent.key")
        async with ClientSession(site.url, connector=TCPConnector(ssl=context)) as session:
            for path in (
                "lattice.dev/v1alpha1/latticenodes",
                "lattice.dev/v1alpha1/latticenodes/n1",
                "lattice.dev/v1alpha1/latticeservices",
            ):
                for verb in ("GET", "POST", "DELETE"):
                    async with session.request(verb, f"/apis/{path}", json={}) as answer:
                        assert answer.status in (403, 405), (verb, path)
            async with session.get("/api/v1/namespaces/lattice-system/secrets") as answer:
                assert answer.status == 403
            async with session.get("/apis/lattice.dev/v1alpha1/join") as answer:
                assert (await answer.json())["agents"] == site.joining.agents_address()
            async with session.put("/apis/lattice.dev/v1alpha1/join") as answer:
                assert answer.status == 405


def test_join_tokens_are_created_listed_and_deleted(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        made = server.lattice(
            "tokens", "create", "--node", "rack-1", "--ttl", "15m", "--label", "rack=a3", "--zone", "a"
        )
        token = parse_token(made.stdout)
        assert made.returncode == 0, made.stderr
        listed = server.lattice("tokens", "list").stdout.splitlines()
        assert [line.split()[:2] for line in listed] == [["ID", "NODE"], [token.id, "rack-1"]]
        assert listed[1].endswith("unused")
        assert (
            token.secret not in server.lattice("get", "secrets", "-n", "lattice-system", "-o", "yaml").stdout
        )
        identity = Identity.load(tmp_path / "node")
        join(identity, server.url, str(token))
        assert identity.name == "rack-1"
        node = server.lattice("get", "node", "rack-1", "-o", "yaml").stdout
        assert "rack: a3" in node
        assert "zone: a" in node
        assert server.lattice("tokens", "list").stdout.splitlines()[1].endswith("used by rack-1")
        assert server.lattice("tokens", "delete", token.id).stdout == f"token {token.id} deleted\n"
        assert len(server.lattice("tokens", "list").stdout.splitlines()) == 1
        wrong = server.lattice("tokens", "create", "--node", "Rack_1")
        assert (wrong.returncode, "is not a valid node name" in wrong.stderr) == (2, True)
