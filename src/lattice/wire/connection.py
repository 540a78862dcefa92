"""Connections between agents and servers: the protocol of both ends, and connections in memory for
simulations."""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from lattice.errors import Unavailable
from lattice.wire.agent_pb2 import FromAgent, ToAgent

# Agent and server compare versions in the handshake; the server rejects a different version.
PROTOCOL_VERSION = 1
# The reason of a rejection: the provider of the machine removes it, not its agent.
MAY_NOT_LEAVE = "MAY_NOT_LEAVE"

Out = TypeVar("Out", contravariant=True)
In = TypeVar("In", covariant=True)
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - outgoing messages
I = TypeVar("I")  # noqa: E741 - incoming messages


class Connection(Protocol[Out, In]):
    """One end of a connection. At most one task sends and one task receives at a time."""

    async def send(self, message: Out) -> None:
        """Send a message; wait while the peer reads too slowly. `Unavailable` if the connection is closed."""
        ...

    async def receive(self) -> In | None:
        """Return the next message, or None if the connection is closed and every earlier message was
        received."""
        ...

    def close(self) -> None:
        """Close the connection. Messages sent before still arrive."""
        ...


AgentConnection = Connection[FromAgent, ToAgent]
ServerConnection = Connection[ToAgent, FromAgent]


class MessagePipe(Generic[T]):
    """One direction of a connection in memory, for at most `capacity` messages. A subclass may delay
    delivery."""

    def __init__(self, capacity: int) -> None:
        self.items: deque[T] = deque()
        self.capacity = capacity
        self.is_closed = False
        self.changed = asyncio.Event()

    async def put(self, item: T) -> None:
        """Send a message; wait while the pipe is full. `Unavailable` after the pipe was closed."""
        while self.unreceived_count >= self.capacity and not self.is_closed:
            self.changed.clear()
            await self.changed.wait()
        if self.is_closed:
            raise Unavailable("the connection is closed")
        self.deliver(item)

    async def get(self) -> T | None:
        """Receive the next message; None after the pipe was closed and emptied."""
        while not self.items and not self.is_closed:
            self.changed.clear()
            await self.changed.wait()
        self.changed.set()
        return self.items.popleft() if self.items else None

    @property
    def unreceived_count(self) -> int:
        """Messages sent and not yet received."""
        return len(self.items)

    def deliver(self, item: T) -> None:
        """Make a message available to the receiver."""
        self.items.append(item)
        self.changed.set()

    def close_sender(self) -> None:
        """Close the sending side. A subclass may deliver messages in transit first."""
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.changed.set()


class MemoryConnection(Generic[O, I]):
    """One end of a connection inside this process."""

    def __init__(self, outbound: MessagePipe[O], inbound: MessagePipe[I]) -> None:
        self._outbound = outbound
        self._inbound = inbound

    async def send(self, message: O) -> None:
        await self._outbound.put(message)

    async def receive(self) -> I | None:
        return await self._inbound.get()

    def close(self) -> None:
        """Stop sending and receiving. The peer learns of the close after the messages in transit."""
        self._outbound.close_sender()
        self._inbound.close()


def connected_pair(
    capacity: int = 16,
) -> tuple[MemoryConnection[FromAgent, ToAgent], MemoryConnection[ToAgent, FromAgent]]:
    """The agent's end and the server's end of a new connection in memory."""
    up, down = MessagePipe[FromAgent](capacity), MessagePipe[ToAgent](capacity)
    return MemoryConnection(up, down), MemoryConnection(down, up)
