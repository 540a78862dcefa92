"""A follower proxies log, usage and spending requests to the leader over TLS and checks access itself."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from build.agent_world import AUTHORITY, Leader, a_machine, a_node, a_workload, applied
from build.apis import ADMIN, SERVER, VIEWER, about, an_api, text
from build.virtual import VirtualClock

from lattice.agent.host.runtime_protocol import Usage
from lattice.agent.runtimes.fake import Behaviour
from lattice.errors import Denied, Malformed, Unavailable
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.certificate_authority import ensure_server_certificate, new_authority
from lattice.server.agents.leader_proxy import LeaderProxy, leader_proxy_tls
from lattice.server.app import App
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.server.live.logs import WorkloadLogs
from lattice.server.live.top_and_spending import SPENDING_PATH, UsageService
from lattice.server.requests.call import Call, Reply, User
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore

HOME = "leader:7444"


@dataclass
class LeaderAndFollower:
    """A leader that serves HTTPS, and a follower whose replies are read directly."""

    leader: Leader
    api: Api
    url: str
    follower: UsageService
    clock: VirtualClock

    async def read(self, user: User = VIEWER, **query: str) -> Reply:
        return await self.follower.workload_logs.read(self.api, Call("GET", about("web", "log"), user, query))

    async def top(self, user: User = VIEWER, **query: str) -> Any:
        return msgspec.json.decode(await text(await self.follower.read_top(user, query)))


def server_tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ensure_server_certificate(AUTHORITY, folder, ["127.0.0.1"]))
    context.load_verify_locations(cadata=AUTHORITY.pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextlib.asynccontextmanager
async def https_server(app: App, tls: ssl.SSLContext) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(app.handle, access_log=None), shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def usage_service(
    clock: VirtualClock, leader: Leader, leading: Callable[[], Any], proxy: LeaderProxy
) -> UsageService:
    return UsageService(clock, leading, proxy, WorkloadLogs(leading, leader.links.logs, proxy))


@contextlib.asynccontextmanager
async def leader_and_follower(
    folder: Path, tls: ssl.SSLContext | None = None
) -> AsyncIterator[LeaderAndFollower]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    leader = Leader(store, clock)
    await leader.lead()
    await leader.add(a_node("n1", "key-n1"))
    await leader.add(a_workload())
    await leader.bind("web", applied("n1", last_log="bye"))
    await clock.advance(0.1)
    node = a_machine(clock, {HOME: leader})
    node.machine.behaviours["default/web"] = Behaviour(
        prints="one\ntwo\n", exits_after=60, uses=Usage(250, 1 << 20, 0)
    )
    node.agent.node_usage = lambda: Usage(700, 1 << 30, 0)
    node.start()
    await clock.advance(25)
    api = await an_api(store, clock)
    own_proxy = LeaderProxy(
        lambda: "https://elsewhere", lambda: "https://elsewhere", leader_proxy_tls(AUTHORITY, folder)
    )
    app = App(
        api,
        TokenAuthenticator(store, clock),
        DiscoveryDocuments(api.catalog, lambda: ""),
        dict,
        usage=usage_service(clock, leader, lambda: leader.context, own_proxy),
    )
    async with https_server(app, server_tls(folder / "server")) as url:
        proxy = LeaderProxy(lambda: url, lambda: "https://me", tls or leader_proxy_tls(AUTHORITY, folder))
        yield LeaderAndFollower(leader, api, url, usage_service(clock, leader, lambda: None, proxy), clock)
        await proxy.close()
    await own_proxy.close()
    await node.kill()
    await leader.close()


async def test_follower_proxies_log(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        reply = await pair.read(tail="1")
        assert (reply.status, await text(reply)) == (200, "two\n")
        assert reply.content_type == "text/plain; charset=utf-8"


async def test_stale_log_carries_warning(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        pair.leader.links.sessions.clear()
        reply = await pair.read()
        assert await text(reply) == "bye\n"
        assert reply.warnings == ("node n1 is not connected: showing the last lines that the node reported",)


async def test_closed_log_stream_closes_at_leader(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        reply = await pair.read(follow="true")
        pieces: Any = reply.body
        assert await anext(pieces) == b"one\ntwo\n"
        assert len(pair.leader.links.logs._readers) == 1
        await pieces.aclose()
        while pair.leader.links.logs._readers:
            await asyncio.sleep(0.02)


async def test_follower_proxies_usage(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        found = await pair.top(of="nodes")
        assert set(found) == {"kind", "apiVersion", "at", "term", "nodes"}
        assert found["nodes"][0]["cpu"]["used"] == 700


async def test_follower_proxies_spending(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        reply = await pair.follower.read(SPENDING_PATH, VIEWER, {"by": "service"})
        told = msgspec.json.decode(await text(reply))
        assert (told["kind"], told["by"], told["series"]) == ("Spending", "service", [])
        with pytest.raises(Denied):
            await pair.follower.read(SPENDING_PATH, User("eve"), {})


@pytest.mark.parametrize(
    "user", [User("eve"), User("node:n1", frozenset({"lattice:nodes"}))], ids=["a stranger", "a node"]
)
async def test_unauthorized_user_is_denied(user: User, tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        with pytest.raises(Denied):
            await pair.top(user)


async def test_unknown_table_is_malformed(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        with pytest.raises(Malformed, match="no table 'cows'"):
            await pair.top(ADMIN, of="cows")


async def test_request_is_proxied_at_most_once(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        with pytest.raises(Unavailable, match="no server is leader at present"):
            await pair.top(SERVER)
        pair.leader.step_down()
        reply = await pair.follower.read_top(ADMIN, {})
        assert reply.status == 503
        assert "no server is leader at present" in await text(reply)


async def test_unreachable_leader_is_unavailable(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        pair.follower.leader_proxy.leader_url = lambda: "https://127.0.0.1:1"
        with pytest.raises(Unavailable, match="the leader at https://127.0.0.1:1 does not respond"):
            await pair.top()


async def test_leader_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    stranger, _ = new_authority()
    async with leader_and_follower(tmp_path, leader_proxy_tls(stranger, tmp_path)) as pair:
        with pytest.raises(Unavailable, match="does not respond"):
            await pair.top()


async def test_broken_log_stream_raises_unavailable(tmp_path: Path) -> None:
    async with leader_and_follower(tmp_path) as pair:
        reply = await pair.read(follow="true")
        pieces: Any = reply.body
        assert await anext(pieces) == b"one\ntwo\n"
        pair.leader.links.logs.session_closed(pair.leader.links.sessions["n1"])
        with pytest.raises(Unavailable, match="the connection to the leader was lost"):
            await anext(pieces)
