"""What a workload printed, asked of its node over the connection that is there already."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from lattice.errors import NotFound, TooManyRequests, Unavailable
from lattice.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from lattice.server.agents.sessions import AgentSession

MAX_READERS_PER_NODE = 64  # of one node, at a time
MAX_BUFFERED_PIECES = 256  # pieces that a reader has not taken yet


@dataclass(frozen=True, slots=True)
class LogRequest:
    node: str
    workload: str  # namespace/name
    uid: str
    container: str = ""  # empty: the only one
    tail_lines: int = 100
    follow: bool = False


@dataclass(eq=False)
class _Reader:
    session: "AgentSession"
    pieces: asyncio.Queue[pb.LogPiece] = field(default_factory=asyncio.Queue)


class NodeLogReader:
    def __init__(self, lines: Mapping[str, "AgentSession"]) -> None:
        self._sessions = lines
        self._readers: dict[int, _Reader] = {}
        self._request_ids = count(1)

    async def read(self, asked: LogRequest) -> AsyncIterator[str]:
        """Piece by piece; with `follow` until the reader stops or the workload is gone."""
        line = self._sessions.get(asked.node)
        if line is None:
            raise Unavailable(
                f"node {asked.node} is not connected",
                where=f"workload/{asked.workload}",
                fix="try again when it is back",
            )
        if sum(reader.session is line for reader in self._readers.values()) >= MAX_READERS_PER_NODE:
            raise TooManyRequests(
                f"{MAX_READERS_PER_NODE} logs of node {asked.node} are being read",
                fix="try again in a moment",
            )
        number = next(self._request_ids)
        reader = self._readers[number] = _Reader(line)
        line.send_log_request(
            pb.LogAsk(
                id=number,
                workload=asked.workload,
                uid=asked.uid,
                container=asked.container,
                tail=max(0, asked.tail_lines),
                follow=asked.follow,
            )
        )
        is_over = False
        try:
            while not is_over:
                piece = await reader.pieces.get()
                is_over = piece.end
                if piece.problem:
                    raise (Unavailable if not piece.id else NotFound)(
                        piece.problem, where=f"workload/{asked.workload}"
                    )
                if piece.text:
                    yield piece.text
        finally:
            if self._readers.pop(number, None) is not None and not is_over:
                line.send_log_request(pb.LogAsk(id=number, end=True))

    def deliver(self, line: "AgentSession", piece: pb.LogPiece) -> None:
        """A reader that does not keep up is let go: the connection is needed for other things."""
        reader = self._readers.get(piece.id)
        if reader is None or reader.session is not line:
            return
        if reader.pieces.qsize() >= MAX_BUFFERED_PIECES:
            del self._readers[piece.id]
            line.send_log_request(pb.LogAsk(id=piece.id, end=True))
            piece = pb.LogPiece(end=True, problem="the log came faster than it was read")
        reader.pieces.put_nowait(piece)

    def session_closed(self, line: "AgentSession") -> None:
        for reader in self._readers.values():
            if reader.session is line:
                reader.pieces.put_nowait(
                    pb.LogPiece(end=True, problem="the connection with the node was lost")
                )
