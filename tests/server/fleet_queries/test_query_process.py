"""The query process: killed, crashed, slow, overloaded; it ends with its server."""

import asyncio
import os
import signal

import pytest
from build.fleet_query_server import VIEWER, a_server, is_alive, settle_queries
from structlog.testing import capture_logs

from lattice.errors import TooManyRequests, Unavailable
from lattice.server.fleet_queries.protocol import QueryResult, encode_frame
from lattice.server.fleet_queries.service import MAX_WAITING_QUERIES, await_while_connected

pytestmark = pytest.mark.timeout(90)


async def test_process_killed_during_query_restarts() -> None:
    async with a_server() as server:
        await server.ask("cost")
        pid = server.fleet.process.pid
        assert pid is not None
        task = await server.begun("cost")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            Unavailable,
            match="the fleet query process ended during the query: the process was killed by SIGKILL",
        ):
            await task
        status, told = await server.ask("cost")
        assert (status, told["ask"]) == (200, "cost")
        assert server.fleet.process.pid not in (None, pid)
        assert not is_alive(pid)


async def test_process_killed_while_idle_restarts_and_is_logged() -> None:
    with capture_logs() as logs:
        async with a_server() as server:
            await server.ask("cost")
            pid = server.fleet.process.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert await server.fleet.process.exit_reason() == "the process was killed by SIGKILL"
            assert (await server.ask("cost"))[0] == 200
    assert [
        (entry["log_level"], entry["why"]) for entry in logs if entry["event"] == "fleet process ended"
    ] == [("error", "the process was killed by SIGKILL")]


async def test_crash_reason_is_logged_and_answered() -> None:
    """The process gets a frame that no server sends before the query, and crashes on it."""
    with capture_logs() as logs:
        async with a_server() as server:
            await server.ask("cost")
            pid, process = server.fleet.process.pid, server.fleet.process._process
            assert pid is not None
            assert process is not None
            assert process.stdin is not None
            process.stdin.write(encode_frame(QueryResult(200, b"")))
            with pytest.raises(
                Unavailable,
                match=r"process ended during the query: the process exited with code 1: msgspec\.ValidationError: ",
            ) as refused:
                await server.ask("cost")
            assert refused.value.fix == "retry; the server's log has the output of the process"
            assert (await server.ask("cost"))[0] == 200
    (ended,) = [entry for entry in logs if entry["event"] == "fleet process ended"]
    assert "Traceback (most recent call last)" in ended["exception"]
    assert ended["why"] == "the process exited with code 1"


async def test_full_query_queue_is_too_many_requests() -> None:
    async with a_server() as server:
        await server.ask("cost")
        first = await server.begun("cost")
        waiting = [asyncio.create_task(server.ask("cost")) for _ in range(MAX_WAITING_QUERIES)]
        await settle_queries()
        with pytest.raises(
            TooManyRequests, match=f"^{MAX_WAITING_QUERIES + 1} fleet queries are running or waiting"
        ) as refused:
            await server.ask("cost")
        assert refused.value.fix == "retry in a few seconds"
        pid = server.fleet.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
        assert {status for status, _ in await asyncio.gather(first, *waiting)} == {200}
        assert (await server.ask("cost"))[0] == 200


async def test_queued_query_timeout_is_too_many_requests() -> None:
    async with a_server(limit=30) as server:
        await server.ask("cost")
        first = await server.begun("cost")
        server.fleet.time_limit_s = 0.1
        with pytest.raises(
            TooManyRequests, match=r"the query waited more than 0\.1 s in the queue"
        ) as refused:
            await server.ask("cost")
        assert refused.value.fix == "retry in a few seconds"
        first.cancel()


async def test_slow_query_is_killed() -> None:
    async with a_server() as server:
        await server.ask("cost")
        pid = server.fleet.process.pid
        server.fleet.time_limit_s = 0.2
        task = await server.begun("cost")
        with pytest.raises(Unavailable, match=r"the query exceeded its time limit of 0\.2 s"):
            await task
        assert not is_alive(pid)
        server.fleet.time_limit_s = 30
        assert (await server.ask("cost"))[0] == 200


async def test_disconnected_client_cancels_its_query() -> None:
    async with a_server() as server:
        await server.ask("cost")
        pid = server.fleet.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        is_there = True
        task = asyncio.create_task(server.fleet.answer(VIEWER, "cost", b"{}"))
        wanted = asyncio.create_task(await_while_connected(task, lambda: is_there))
        await settle_queries()
        is_there = False
        with pytest.raises(ConnectionResetError):
            await wanted
        assert task.cancelled()
        assert not is_alive(pid)
        assert (await server.ask("cost"))[0] == 200


async def test_process_ends_with_its_server() -> None:
    async with a_server() as server:
        await server.ask("cost")
        await server.begun("cost")
        pid = server.fleet.process.pid
    assert not is_alive(pid)


async def test_process_restarts_with_the_providers_of_now() -> None:
    """The runtimes of a provider may be known only after the process has started."""
    adapters: dict[str, frozenset[str] | None] = {}

    async def present() -> dict[str, frozenset[str] | None]:
        return dict(adapters)

    async with a_server() as server:
        server.fleet.process.adapters = present
        pids = []
        for runtimes in (frozenset({"process"}),) * 2 + (frozenset({"process", "container"}),) * 2:
            adapters["local"] = runtimes
            status, _ = await server.ask("cost")
            assert status == 200
            pids.append(server.fleet.process.pid)
        assert pids[0] == pids[1] != pids[2] == pids[3]
