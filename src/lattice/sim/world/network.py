"""Messages between hosts: late, lost, cut off one way or both; and connections, which keep order and break when nothing comes through.

A request that is lost and an answer that is lost look the same to who asked, and are not: the second was carried out. A request that was
cut off may still arrive once the cut is healed, when whoever sent it has long given up.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lattice.errors import Unavailable
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.wire.channel import MemoryEnd, Way

T = TypeVar("T")

KEEPALIVE = 8.0  # seconds without a way through, and a connection is broken
TICK = (
    1e-7  # seconds between two messages that arrive together: what is due at one moment happens in any order
)
ROOM = 32  # messages under way on a connection before who sends waits
Answer = Callable[[Any, BaseException | None], None]


@dataclass
class Network:
    loop: SimLoop
    rng: random.Random
    delay: float = 0.002  # seconds, half of it up to one and a half
    lost: float = 0.0  # share of requests and answers that never arrive
    twice: float = 0.0  # share of requests that arrive twice, where that can be
    late: float = 0.3  # share of what is cut off that arrives after all, once the cut is healed
    slow: dict[str, float] = field(default_factory=dict)  # host -> seconds more, each way

    def __post_init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.streams: list[Stream] = []
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}

    def latency(self, src: str, dst: str) -> float:
        return self.delay * (0.5 + self.rng.random()) + self.slow.get(src, 0.0) + self.slow.get(dst, 0.0)

    def is_cut(self, src: str, dst: str) -> bool:
        return (src, dst) in self.cuts

    def cut(self, src: str, dst: str) -> None:
        self.cuts.add((src, dst))

    def heal(self, src: str, dst: str) -> None:
        self.cuts.discard((src, dst))
        for deliver in self._waiting.pop((src, dst), ()):
            self.loop.post(self.loop.time() + self.latency(src, dst), deliver)
        for stream in self.streams:
            stream.healed(src, dst)

    def send(self, src: str, dst: str, deliver: Callable[[], None]) -> bool:
        """Whether it arrives in time; nobody in the simulation is told."""
        if self.is_cut(src, dst):
            if self.rng.random() < self.late:
                self._waiting.setdefault((src, dst), []).append(deliver)
            return False
        if self.lost and self.rng.random() < self.lost:
            return False
        self.loop.post(self.loop.time() + self.latency(src, dst), deliver)
        return True

    async def request(
        self, asker: Process, dst: str, serve: Callable[[Answer], None], timeout: float = 5.0
    ) -> Any:
        """`serve` is called at the other end with how to answer. Raises Unavailable when no answer comes: then the outcome is unknown."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def give_up() -> None:
            if not future.done():
                future.set_exception(Unavailable("no answer in time", where=dst))

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def answer(result: Any, error: BaseException | None) -> None:
            self.send(dst, asker.host, lambda: settle(result, error))

        giving_up = self.loop.call_at(
            self.loop.time() + timeout, give_up, context=asker.context
        )  # whoever serves may die over it
        self.send(asker.host, dst, lambda: serve(answer))
        try:
            return await future
        finally:
            giving_up.cancel()

    def connected(self, near: Process, far: Process) -> "Stream":
        stream = Stream(self, near, far)
        self.streams.append(stream)
        return stream

    def died(self, process: Process, *, silently: bool = False) -> None:
        """Its kernel says so to everybody it was connected to, unless the whole machine is gone."""
        for stream in [each for each in self.streams if process in (each.near, each.far)]:
            stream.lost_end(process, silently=silently)

    def forget(self, stream: "Stream") -> None:
        if stream in self.streams:
            self.streams.remove(stream)


class _Way(Way[T]):
    """One direction of a connection over the network."""

    def __init__(self, stream: "Stream", src: str, dst: str) -> None:
        super().__init__(ROOM)
        self.stream = stream
        self.src, self.dst = src, dst
        self.under_way = 0
        self.arrives = 0.0
        self.stalled: list[T | None] = []

    @property
    def load(self) -> int:
        return self.under_way + len(self.items)

    def carry(self, item: T) -> None:
        self.under_way += 1
        self._send(item)

    def hang_up(self) -> None:
        if not self.is_closed:
            self._send(None)
        self.moved.set()

    def _send(self, item: T | None) -> None:
        """None: hung up. In order, whatever happens."""
        net = self.stream.net
        if self.stalled or net.is_cut(self.src, self.dst):
            if not self.stalled:
                net.loop.post(net.loop.time() + KEEPALIVE, self._give_up)
            self.stalled.append(item)
            return
        self.arrives = max(self.arrives + TICK, net.loop.time() + net.latency(self.src, self.dst))
        net.loop.post(self.arrives, self._arrive, item)

    def flow(self) -> None:
        stalled, self.stalled = self.stalled, []
        for item in stalled:
            self._send(item)

    def _arrive(self, item: T | None) -> None:
        if self.is_closed:
            return
        if item is None:
            self.stream.broken()
            return
        self.under_way -= 1
        self.items.append(item)
        self.moved.set()

    def _give_up(self) -> None:
        if self.stalled and self.stream.net.is_cut(self.src, self.dst):
            self.stream.broken()


class Stream:
    """A connection from one process to another."""

    def __init__(self, net: Network, near: Process, far: Process) -> None:
        self.net = net
        self.near, self.far = near, far
        self._out: _Way[Any] = _Way(self, near.host, far.host)
        self._back: _Way[Any] = _Way(self, far.host, near.host)
        self.near_end: MemoryEnd[Any, Any] = MemoryEnd(self._out, self._back)
        self.far_end: MemoryEnd[Any, Any] = MemoryEnd(self._back, self._out)

    def broken(self) -> None:
        """Both ends see it; what came before is still read."""
        self._out.close()
        self._back.close()
        self.net.forget(self)

    def healed(self, src: str, dst: str) -> None:
        for way in (self._out, self._back):
            if (way.src, way.dst) == (src, dst):
                way.flow()

    def lost_end(self, process: Process, *, silently: bool) -> None:
        way = self._out if process is self.near else self._back
        if silently:
            self.net.loop.post(self.net.loop.time() + KEEPALIVE, self.broken)
        else:
            way.hang_up()
