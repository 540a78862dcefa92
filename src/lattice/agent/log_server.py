"""Answers to those who want to read what a workload prints, over the connection that is there already."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lattice.agent.executor import Executor
from lattice.agent.host.runtime_protocol import Instance
from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.wire import agent_pb2 as pb

MAX_MESSAGE_CHARS = 32 * 1024  # characters of one message
MAX_TAIL_LINES = 10_000
MAX_LOG_STREAMS = 64
FOLLOW_POLL_INTERVAL_S = 0.5  # seconds between looks at a log that is followed


class LogServer:
    def __init__(self, work: Executor, clock: Clock, send: Callable[[pb.FromAgent], Awaitable[None]]) -> None:
        self._executor = work
        self._clock = clock
        self._send = send
        self._streams: dict[int, asyncio.Task[None]] = {}

    def handle_request(self, asked: pb.LogAsk) -> None:
        former = self._streams.pop(asked.id, None)
        if former is not None:
            former.cancel()
        if asked.end:
            return
        answer = self._answer(asked) if len(self._streams) < MAX_LOG_STREAMS else self._decline(asked.id)
        task = self._streams[asked.id] = asyncio.create_task(answer)
        task.add_done_callback(lambda done: self._forget(asked.id, done))

    def close(self) -> None:
        for task in self._streams.values():
            task.cancel()

    def _forget(self, number: int, done: asyncio.Task[None]) -> None:
        if self._streams.get(number) is done:
            del self._streams[number]

    async def _decline(self, number: int) -> None:
        with suppress(LatticeError):
            await self._send_piece(
                pb.LogPiece(
                    id=number, problem=f"{MAX_LOG_STREAMS} logs of this node are being read", end=True
                )
            )

    async def _answer(self, asked: pb.LogAsk) -> None:
        with suppress(LatticeError):  # the connection is gone, and who asked is told so by the server
            found = await self._find(asked)
            if isinstance(found, str):
                await self._send_piece(pb.LogPiece(id=asked.id, problem=found, end=True))
                return
            text = await self._executor.runtime.logs(found.id, min(asked.tail, MAX_TAIL_LINES))
            _, position = await self._executor.runtime.logs_since(
                found.id, -1
            )  # at once: nothing may be printed in between
            await self._send_text(asked.id, text)
            if asked.follow:
                await self._follow(asked.id, found, position)
            await self._send_piece(pb.LogPiece(id=asked.id, end=True))

    async def _find(self, asked: pb.LogAsk) -> Instance | str:
        """The latest instance of the container, or why there is none."""
        own = [
            each
            for each in await self._executor.runtime.list()
            if (each.workload, each.id.uid) == (asked.workload, asked.uid)
        ]
        if not own:
            return "the node does not have it"
        names = sorted({each.id.container for each in own})
        if not asked.container and len(names) > 1:
            return f"it has more than one container: {', '.join(names)}; name one"
        chosen = [each for each in own if each.id.container == (asked.container or names[0])]
        if not chosen:
            return f"it has no container {asked.container}; there are {', '.join(names)}"
        return max(chosen, key=lambda each: (each.is_live, each.attempt, each.started_at))

    async def _follow(self, number: int, instance: Instance, position: int) -> None:
        """Until it ended and everything was read."""
        is_live = True
        while is_live:
            await self._clock.sleep(FOLLOW_POLL_INTERVAL_S)
            is_live = any(
                each.is_live for each in await self._executor.runtime.list() if each.id == instance.id
            )
            text, position = await self._executor.runtime.logs_since(instance.id, position)
            await self._send_text(number, text)

    async def _send_text(self, number: int, text: str) -> None:
        for start in range(0, len(text), MAX_MESSAGE_CHARS):
            await self._send_piece(pb.LogPiece(id=number, text=text[start : start + MAX_MESSAGE_CHARS]))

    async def _send_piece(self, piece: pb.LogPiece) -> None:
        await self._send(pb.FromAgent(log=piece))
