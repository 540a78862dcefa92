"""What a workload printed, asked of its node over the connection that is there already."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from lattice.errors import NotFound, TooMany, Unavailable
from lattice.wire import agent_pb2 as pb

if TYPE_CHECKING:
    from lattice.server.agents.sessions import Line

MOST_READERS = 64  # of one node, at a time
MOST_WAITING = 256  # pieces that a reader has not taken yet


@dataclass(frozen=True, slots=True)
class LogQuestion:
    node: str
    workload: str  # namespace/name
    uid: str
    container: str = ""  # empty: the only one
    tail: int = 100
    follow: bool = False


@dataclass(eq=False)
class _Reader:
    line: "Line"
    pieces: asyncio.Queue[pb.LogPiece] = field(default_factory=asyncio.Queue)


class NodeLogs:
    def __init__(self, lines: Mapping[str, "Line"]) -> None:
        self._lines = lines
        self._readers: dict[int, _Reader] = {}
        self._numbers = count(1)

    async def read(self, asked: LogQuestion) -> AsyncIterator[str]:
        """Piece by piece; with `follow` until the reader stops or the workload is gone."""
        line = self._lines.get(asked.node)
        if line is None:
            raise Unavailable(
                f"node {asked.node} is not connected",
                where=f"workload/{asked.workload}",
                fix="try again when it is back",
            )
        if sum(reader.line is line for reader in self._readers.values()) >= MOST_READERS:
            raise TooMany(
                f"{MOST_READERS} logs of node {asked.node} are being read", fix="try again in a moment"
            )
        number = next(self._numbers)
        reader = self._readers[number] = _Reader(line)
        line.ask(
            pb.LogAsk(
                id=number,
                workload=asked.workload,
                uid=asked.uid,
                container=asked.container,
                tail=max(0, asked.tail),
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
                line.ask(pb.LogAsk(id=number, end=True))

    def heard(self, line: "Line", piece: pb.LogPiece) -> None:
        """A reader that does not keep up is let go: the connection is needed for other things."""
        reader = self._readers.get(piece.id)
        if reader is None or reader.line is not line:
            return
        if reader.pieces.qsize() >= MOST_WAITING:
            del self._readers[piece.id]
            line.ask(pb.LogAsk(id=piece.id, end=True))
            piece = pb.LogPiece(end=True, problem="the log came faster than it was read")
        reader.pieces.put_nowait(piece)

    def lost(self, line: "Line") -> None:
        for reader in self._readers.values():
            if reader.line is line:
                reader.pieces.put_nowait(
                    pb.LogPiece(end=True, problem="the connection with the node was lost")
                )
