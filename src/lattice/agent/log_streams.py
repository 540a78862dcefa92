"""The log streams of an agent, which send the logs of workloads to the server over the agent's session."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lattice.agent.executor import Executor
from lattice.agent.host.runtime_protocol import Instance
from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.wire import agent_pb2 as pb

MAX_MESSAGE_CHARS = 32 * 1024
MAX_TAIL_LINES = 10_000
MAX_LOG_STREAMS = 64
FOLLOW_POLL_INTERVAL_S = 0.5


class LogStreams:
    """Answers the log requests of one session."""

    def __init__(
        self, executor: Executor, clock: Clock, send: Callable[[pb.FromAgent], Awaitable[None]]
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._send = send
        self._streams: dict[int, asyncio.Task[None]] = {}

    def handle_request(self, request: pb.LogAsk) -> None:
        """Start a stream for the request. A request with the id of an open stream replaces that stream; a
        request with `end` only ends it."""
        previous = self._streams.pop(request.id, None)
        if previous is not None:
            previous.cancel()
        if request.end:
            return
        # A client must not exhaust the agent with open streams.
        answer = self._answer(request) if len(self._streams) < MAX_LOG_STREAMS else self._decline(request.id)
        task = self._streams[request.id] = asyncio.create_task(answer)

        def forget(done: asyncio.Task[None]) -> None:
            # A later request with the same id may have replaced the stream.
            if self._streams.get(request.id) is done:
                del self._streams[request.id]

        task.add_done_callback(forget)

    def close(self) -> None:
        """Cancel all streams."""
        for task in self._streams.values():
            task.cancel()

    async def _decline(self, number: int) -> None:
        with suppress(LatticeError):
            await self._send_piece(
                pb.LogPiece(
                    id=number, problem=f"{MAX_LOG_STREAMS} logs of this node are already being read", end=True
                )
            )

    async def _answer(self, request: pb.LogAsk) -> None:
        # An error here means that the session ended; the server reports the end to its client.
        with suppress(LatticeError):
            instance = await self._find(request)
            if isinstance(instance, str):
                await self._send_piece(pb.LogPiece(id=request.id, problem=instance, end=True))
                return
            text = await self._executor.runtime.logs(instance.id, min(request.tail, MAX_TAIL_LINES))
            # Read the position right after the text, because output between the two calls is never sent.
            _, position = await self._executor.runtime.logs_since(instance.id, -1)
            await self._send_text(request.id, text)
            # Follow until the instance has ended and the log is read to its end.
            is_live = request.follow
            while is_live:
                await self._clock.sleep(FOLLOW_POLL_INTERVAL_S)
                # The state is read before the log: text printed just before the exit is still sent.
                instances = await self._executor.runtime.list()
                is_live = any(current.is_live for current in instances if current.id == instance.id)
                text, position = await self._executor.runtime.logs_since(instance.id, position)
                await self._send_text(request.id, text)
            await self._send_piece(pb.LogPiece(id=request.id, end=True))

    async def _find(self, request: pb.LogAsk) -> Instance | str:
        """The latest instance of the requested container, or the problem as text."""
        instances = [
            instance
            for instance in await self._executor.runtime.list()
            if (instance.workload, instance.id.uid) == (request.workload, request.uid)
        ]
        if not instances:
            return "the node does not have the workload"
        names = sorted({instance.id.container for instance in instances})
        if not request.container and len(names) > 1:
            return f"the workload has more than one container: {', '.join(names)}; choose one"
        chosen = [
            instance for instance in instances if instance.id.container == (request.container or names[0])
        ]
        if not chosen:
            return f"the workload has no container {request.container}; its containers are {', '.join(names)}"
        return max(chosen, key=lambda instance: (instance.is_live, instance.attempt, instance.started_at))

    async def _send_text(self, number: int, text: str) -> None:
        for start in range(0, len(text), MAX_MESSAGE_CHARS):
            await self._send_piece(pb.LogPiece(id=number, text=text[start : start + MAX_MESSAGE_CHARS]))

    async def _send_piece(self, piece: pb.LogPiece) -> None:
        await self._send(pb.FromAgent(log=piece))
