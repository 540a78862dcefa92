"""Server discovery of agents: the servers given at the start, the servers that these name, and servers added
later."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from build.agent_world import AUTHORITY, Leader, Node, a_leader, an_agent_node
from build.virtual import VirtualClock

from lattice.agent.identity import Identity, JoinRecord
from lattice.agent.join import MAX_SERVERS_QUERIED, discover_agent_addresses
from lattice.agent.session import DISCOVERY_INTERVAL_S
from lattice.server.access.certificate_authority import CertificateAuthority, new_authority

HOME, OTHER = "leader:7444", "other:7444"


@asynccontextmanager
async def discovery_server(
    folder: Path, agents: str, authority: CertificateAuthority = AUTHORITY
) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that only answers where agents connect and which servers it knows."""
    named: list[str] = []

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.json_response({"authority": authority.pem.decode(), "agents": agents, "servers": named})

    pair = authority.issue_server(["127.0.0.1"])
    file = folder / f"{agents.partition(':')[0]}.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", named
    finally:
        await runner.cleanup()


async def test_discovery_asks_given_then_named_servers(tmp_path: Path) -> None:
    identity = Identity(tmp_path, authority=AUTHORITY.pem, join_record=JoinRecord("n1"))
    async with AsyncExitStack() as stack:
        (a, named_by_a), (b, named_by_b), (c, named_by_c) = [
            await stack.enter_async_context(discovery_server(tmp_path, f"{name}:7444")) for name in "abc"
        ]
        foreign, _ = await stack.enter_async_context(
            discovery_server(tmp_path, "foreign:7444", new_authority()[0])
        )
        named_by_a += [a, b, foreign, "https://127.0.0.1:1"]
        named_by_b += [c, a]
        named_by_c += [f"https://127.0.0.1:{number}" for number in range(1, MAX_SERVERS_QUERIED)]

        async def found(servers: str) -> list[str]:
            return await asyncio.to_thread(discover_agent_addresses, identity, servers)

        assert await found(a) == ["a:7444", "b:7444", "c:7444"]
        assert await found(f"{c}, {b}") == ["c:7444", "b:7444"], "the first of them names more than are asked"
        assert await found(f"https://127.0.0.1:1,{b}") == ["b:7444", "c:7444", "a:7444"], (
            "the first that it was given is down"
        )
        assert await found(foreign) == [], "its authority is not trusted"
        unreachable = [f"https://127.0.0.1:{number}" for number in range(1, MAX_SERVERS_QUERIED + 1)]
        assert await found(",".join([b, *unreachable])) == ["b:7444"], "the given servers exceed the limit"


@asynccontextmanager
async def two_servers(clock: VirtualClock) -> AsyncIterator[tuple[Leader, Leader]]:
    async with a_leader(clock, 10.0, "n1") as leader:
        other = Leader(leader.store, clock)
        try:
            yield leader, other
        finally:
            await other.close()


async def fails_over(clock: VirtualClock, leader: Leader, other: Leader, node: Node) -> bool:
    """Whether the agent connects to the other server after the leader is killed."""
    assert leader.context is not None
    term = leader.context.term
    del node.net.servers[HOME]
    node.net.cut()
    node.net.is_cut = False
    await leader.store.resign(term)
    leader.step_down()
    await other.lead("other")
    await clock.advance(60)
    return "n1" in other.links.sessions


@pytest.mark.parametrize(
    ("comes_after", "is_found"),
    [
        pytest.param(0.0, True, id="a server known at the start"),
        pytest.param(DISCOVERY_INTERVAL_S, True, id="a server added while connected"),
        pytest.param(2 * DISCOVERY_INTERVAL_S + 1, False, id="a server added after the last discovery"),
    ],
)
async def test_agent_fails_over_to_known_server(comes_after: float, is_found: bool) -> None:
    clock = VirtualClock()
    async with two_servers(clock) as (leader, other):
        node = an_agent_node(clock, {HOME: leader, OTHER: other}, addresses=[HOME])

        async def discover() -> list[str]:
            if HOME not in node.net.servers:
                return []
            return [HOME] if clock.monotonic() < comes_after else [HOME, OTHER]

        node.agent.discover_addresses = discover
        await node.agent.discover_servers()
        node.start()
        await clock.advance(2 * DISCOVERY_INTERVAL_S)
        assert "n1" in leader.links.sessions
        assert await fails_over(clock, leader, other, node) == is_found
        await node.kill()
