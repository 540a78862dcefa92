"""Agents that send exactly the messages of a test to a leader in virtual time."""

import asyncio
from typing import Any

from build.agent_world import FOREVER, Leader, a_registration
from build.virtual import settle
from lattice.server.access.node_certificates import NodeIdentity
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION, MemoryConnection, connected_pair


class ScriptedAgent:
    """An agent that sends exactly the messages of the test."""

    def __init__(self, leader: Leader, peer: NodeIdentity, room: int = 16) -> None:
        self.end: MemoryConnection[pb.FromAgent, pb.ToAgent]
        self.end, theirs = connected_pair(room)
        self.serving = asyncio.create_task(leader.links.serve(peer, theirs))

    async def say(self, **said: Any) -> None:
        await self.end.send(pb.FromAgent(**said))
        await settle()

    async def hello(self, **rest: Any) -> None:
        given: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "version": "1",
            "registration": a_registration(),
        } | rest
        await self.say(hello=pb.Hello(**given))

    async def beat(self, number: int = 1, **rest: Any) -> None:
        await self.say(beat=pb.Beat(number=number, **rest))

    async def answers(self) -> list[pb.ToAgent]:
        """All messages received since the last call."""
        results: list[pb.ToAgent] = []
        while True:
            getting = asyncio.ensure_future(self.end.receive())
            await settle()
            if not getting.done():
                getting.cancel()
                return results
            if getting.result() is None:
                return results
            results.append(getting.result())  # type: ignore[arg-type]

    async def welcomed(self, **rest: Any) -> list[pb.ToAgent]:
        await self.hello(**rest)
        result = await self.answers()
        assert result[0].WhichOneof("said") == "welcome", result
        return result

    async def orders(self) -> list[pb.Orders]:
        return [message.orders for message in await self.answers() if message.WhichOneof("said") == "orders"]

    async def ended(self) -> None:
        await settle()
        assert self.serving.done()
        self.serving.result()


def peer(name: str = "n1", **rest: Any) -> NodeIdentity:
    return NodeIdentity(name, rest.get("key", f"key-{name}"), rest.get("until", FOREVER))
