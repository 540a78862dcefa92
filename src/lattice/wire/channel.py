"""The two ends of a connection between a server and an agent, whatever carries it; and one inside this process, for simulations."""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from lattice.errors import Unavailable
from lattice.wire.agent_pb2 import FromAgent, ToAgent

PROTOCOL = 1  # both sides say it first; others are refused

Out = TypeVar("Out", contravariant=True)
In = TypeVar("In", covariant=True)
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - what goes out
I = TypeVar("I")  # noqa: E741 - what comes in


class End(Protocol[Out, In]):
    """One end. At most one sends and one receives at a time."""

    async def send(self, said: Out) -> None:
        """Waits while the other end does not keep up. Raises Unavailable when the connection is gone."""
        ...

    async def receive(self) -> In | None:
        """None: the connection is gone, and everything that came before was handed out."""
        ...

    def close(self) -> None:
        """Hang up. What was sent before still arrives."""
        ...


AgentEnd = End[FromAgent, ToAgent]
ServerEnd = End[ToAgent, FromAgent]


class Way(Generic[T]):
    """One direction, with room for so many messages. What carries them may take its time: see `carry`."""

    def __init__(self, room: int) -> None:
        self.items: deque[T] = deque()
        self.room = room
        self.is_closed = False
        self.moved = asyncio.Event()

    async def put(self, item: T) -> None:
        while self.load >= self.room and not self.is_closed:
            self.moved.clear()
            await self.moved.wait()
        if self.is_closed:
            raise Unavailable("the connection is gone")
        self.carry(item)

    async def get(self) -> T | None:
        while not self.items and not self.is_closed:
            self.moved.clear()
            await self.moved.wait()
        self.moved.set()
        return self.items.popleft() if self.items else None

    @property
    def load(self) -> int:
        """Messages that were sent and not received yet."""
        return len(self.items)

    def carry(self, item: T) -> None:
        self.items.append(item)
        self.moved.set()

    def hang_up(self) -> None:
        """Nothing more comes this way."""
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.moved.set()


class MemoryEnd(Generic[O, I]):
    """An end of a connection inside this process."""

    def __init__(self, out: Way[O], into: Way[I]) -> None:
        self._out = out
        self._into = into

    async def send(self, said: O) -> None:
        await self._out.put(said)

    async def receive(self) -> I | None:
        return await self._into.get()

    def close(self) -> None:
        """We neither say nor hear anything more; the other end is told in its turn."""
        self._out.hang_up()
        self._into.close()


def pair(room: int = 16) -> tuple[MemoryEnd[FromAgent, ToAgent], MemoryEnd[ToAgent, FromAgent]]:
    """The agent's end and the server's end of a new connection."""
    up, down = Way[FromAgent](room), Way[ToAgent](room)
    return MemoryEnd(up, down), MemoryEnd(down, up)
