"""The two ends of a connection between a server and an agent, whatever carries it; and one inside this process, for simulations."""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from lattice.errors import Unavailable
from lattice.wire.agent_pb2 import FromAgent, ToAgent

PROTOCOL_VERSION = 1  # both sides say it first; others are refused

Out = TypeVar("Out", contravariant=True)
In = TypeVar("In", covariant=True)
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - what goes out
I = TypeVar("I")  # noqa: E741 - what comes in


class Connection(Protocol[Out, In]):
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


AgentConnection = Connection[FromAgent, ToAgent]
ServerConnection = Connection[ToAgent, FromAgent]


class MessagePipe(Generic[T]):
    """One direction, with room for so many messages. What carries them may take its time: see `carry`."""

    def __init__(self, room: int) -> None:
        self.items: deque[T] = deque()
        self.capacity = room
        self.is_closed = False
        self.changed = asyncio.Event()

    async def put(self, item: T) -> None:
        while self.unreceived_count >= self.capacity and not self.is_closed:
            self.changed.clear()
            await self.changed.wait()
        if self.is_closed:
            raise Unavailable("the connection is gone")
        self.deliver(item)

    async def get(self) -> T | None:
        while not self.items and not self.is_closed:
            self.changed.clear()
            await self.changed.wait()
        self.changed.set()
        return self.items.popleft() if self.items else None

    @property
    def unreceived_count(self) -> int:
        """Messages that were sent and not received yet."""
        return len(self.items)

    def deliver(self, item: T) -> None:
        self.items.append(item)
        self.changed.set()

    def close_sender(self) -> None:
        """Nothing more comes this way."""
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()


class MemoryConnection(Generic[O, I]):
    """An end of a connection inside this process."""

    def __init__(self, out: MessagePipe[O], into: MessagePipe[I]) -> None:
        self._outbound = out
        self._inbound = into

    async def send(self, said: O) -> None:
        await self._outbound.put(said)

    async def receive(self) -> I | None:
        return await self._inbound.get()

    def close(self) -> None:
        """We neither say nor hear anything more; the other end is told in its turn."""
        self._outbound.close_sender()
        self._inbound.close()


def connected_pair(
    room: int = 16,
) -> tuple[MemoryConnection[FromAgent, ToAgent], MemoryConnection[ToAgent, FromAgent]]:
    """The agent's end and the server's end of a new connection."""
    up, down = MessagePipe[FromAgent](room), MessagePipe[ToAgent](room)
    return MemoryConnection(up, down), MemoryConnection(down, up)
