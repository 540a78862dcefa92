"""Opening the page starts the query process once, and not after close."""

import asyncio

import pytest
from build.fleet_query_server import a_server, is_alive

pytestmark = pytest.mark.timeout(90)


async def test_warm_up_starts_process_once() -> None:
    async with a_server() as server:
        server.fleet.warm_up()
        server.fleet.warm_up()
        while server.fleet.process.pid is None:
            await asyncio.sleep(0.01)
        pid = server.fleet.process.pid
        status, _ = await server.ask("cost")
        assert (status, server.fleet.process.pid) == (200, pid)
        server.fleet.warm_up()
    assert not is_alive(pid)


async def test_warm_up_after_close_starts_nothing() -> None:
    async with a_server() as server:
        server.fleet.warm_up()
        await server.fleet.close()
        server.fleet.warm_up()
        await asyncio.sleep(0)
        assert server.fleet.process.pid is None
