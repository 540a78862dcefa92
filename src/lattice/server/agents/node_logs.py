"""Log requests: the leader reads the log of a workload from the node over the agent's existing session."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from lattice.errors import NotFound, TooManyRequests, Unavailable
from lattice.wire import agent_pb2 as pb

MAX_READERS_PER_NODE = 64
# Log pieces that wait for a slow reader; beyond this count the server ends the reader.
MAX_BUFFERED_PIECES = 256


class LogSession(Protocol):
    """The session with one agent, over which log requests are sent."""

    def send_log_request(self, request: pb.LogAsk) -> None:
        """Queue a log request for the agent and wake the send loop."""
        ...


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A request for the log of one workload on one node."""

    node: str
    # namespace/name
    workload: str
    uid: str
    # Empty selects the only container.
    container: str = ""
    tail_lines: int = 100
    follow: bool = False


@dataclass(eq=False)
class _Reader:
    session: LogSession
    pieces: asyncio.Queue[pb.LogPiece] = field(default_factory=asyncio.Queue)


class NodeLogReader:
    """Reads workload logs from agents; distributes the pieces that arrive on agent sessions to their
    readers."""

    def __init__(self, sessions: Mapping[str, LogSession]) -> None:
        self._sessions = sessions
        self._readers: dict[int, _Reader] = {}
        self._request_ids = count(1)

    async def read(self, request: LogRequest) -> AsyncIterator[str]:
        """Yield the log piece by piece; with `follow` until the reader stops or the workload is gone.

        `Unavailable` without a session or when the session is lost, `TooManyRequests` beyond the limit of
        readers, `NotFound` if the agent has no such log.
        """
        session = self._sessions.get(request.node)
        if session is None:
            raise Unavailable(
                f"node {request.node} is not connected",
                where=f"workload/{request.workload}",
                fix="retry when the node is connected",
            )
        if sum(reader.session is session for reader in self._readers.values()) >= MAX_READERS_PER_NODE:
            raise TooManyRequests(
                f"{MAX_READERS_PER_NODE} logs of node {request.node} are already being read",
                fix="retry in a few seconds",
            )
        request_id = next(self._request_ids)
        reader = self._readers[request_id] = _Reader(session)
        session.send_log_request(
            pb.LogAsk(
                id=request_id,
                workload=request.workload,
                uid=request.uid,
                container=request.container,
                tail=max(0, request.tail_lines),
                follow=request.follow,
            )
        )
        is_over = False
        try:
            while not is_over:
                piece = await reader.pieces.get()
                is_over = piece.end
                if piece.problem:
                    # A piece without an id was made by this server: the session was lost, or the reader was
                    # too slow.
                    raise (Unavailable if not piece.id else NotFound)(
                        piece.problem, where=f"workload/{request.workload}"
                    )
                if piece.text:
                    yield piece.text
        finally:
            if self._readers.pop(request_id, None) is not None and not is_over:
                # The reader stopped early: the agent must not go on sending pieces.
                session.send_log_request(pb.LogAsk(id=request_id, end=True))

    def deliver(self, session: LogSession, piece: pb.LogPiece) -> None:
        """Hand a log piece to its reader. A reader that is too slow is ended, so that the session stays free
        for heartbeats."""
        reader = self._readers.get(piece.id)
        # An agent must not write into a log that was requested from another node.
        if reader is None or reader.session is not session:
            return
        if reader.pieces.qsize() >= MAX_BUFFERED_PIECES:
            del self._readers[piece.id]
            session.send_log_request(pb.LogAsk(id=piece.id, end=True))
            piece = pb.LogPiece(
                end=True, problem="the client reads the log more slowly than the node sends it"
            )
        reader.pieces.put_nowait(piece)

    def session_closed(self, session: LogSession) -> None:
        """End the readers of a lost session with an error."""
        for reader in self._readers.values():
            if reader.session is session:
                reader.pieces.put_nowait(pb.LogPiece(end=True, problem="the connection to the node was lost"))
