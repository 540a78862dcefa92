"""Simulated network: messages between hosts arrive late or not at all, and ordered connections break during a
long cut. A cut is a network partition in one direction.

A lost request and a lost reply look the same to the caller, but if the reply is lost, the server has carried
out the request. A request that a cut holds back may arrive after the cut is healed, when the caller has timed
out.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lattice.errors import LatticeError, Unavailable
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.wire.connection import MemoryConnection, MessagePipe

T = TypeVar("T")

# A connection that cannot deliver for this time breaks.
KEEPALIVE_S = 8.0
# Time between messages that arrive together, because events at the same instant run in a random order.
MESSAGE_SPACING_S = 1e-7
# Limit of messages in flight on a connection; at the limit the sender waits.
MAX_MESSAGES_IN_FLIGHT = 32
AnswerCallback = Callable[[Any, BaseException | None], None]


async def answer_request(work: Callable[[], Coroutine[Any, Any, Any]], answer: AnswerCallback) -> None:
    """Carry out a request and answer with its result, or with the LatticeError that it raises."""
    try:
        answer(await work(), None)
    except LatticeError as error:
        answer(None, error)


@dataclass
class Network:
    """Message delivery between hosts with delay, loss, duplication and cuts."""

    loop: SimLoop
    rng: random.Random
    # Average latency in seconds; a latency is half to one and a half times the average.
    delay: float = 0.002
    # Share of requests and replies that never arrive.
    loss_rate: float = 0.0
    # Share of requests that arrive twice, among the requests that a server tolerates twice.
    duplicate_rate: float = 0.0
    # Share of cut messages that arrive after the cut is healed.
    late_delivery_rate: float = 0.3
    # By host: additional seconds in both directions.
    extra_delay_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.streams: list[Stream] = []
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}

    def latency(self, src: str, dst: str) -> float:
        return (
            self.delay * (0.5 + self.rng.random())
            + self.extra_delay_s.get(src, 0.0)
            + self.extra_delay_s.get(dst, 0.0)
        )

    def is_cut(self, src: str, dst: str) -> bool:
        return (src, dst) in self.cuts

    def cut(self, src: str, dst: str) -> None:
        self.cuts.add((src, dst))

    def heal(self, src: str, dst: str) -> None:
        self.cuts.discard((src, dst))
        # Late requests arrive although their callers have timed out.
        for deliver in self._waiting.pop((src, dst), ()):
            self.loop.schedule_external(self.loop.time() + self.latency(src, dst), deliver)
        for stream in self.streams:
            stream.on_healed(src, dst)

    def send(self, src: str, dst: str, deliver: Callable[[], None]) -> bool:
        """Deliver a message. The result says whether the message arrives in time; simulated components must
        not use the result."""
        if self.is_cut(src, dst):
            if self.rng.random() < self.late_delivery_rate:
                self._waiting.setdefault((src, dst), []).append(deliver)
            return False
        if self.loss_rate and self.rng.random() < self.loss_rate:
            return False
        self.loop.schedule_external(self.loop.time() + self.latency(src, dst), deliver)
        return True

    async def request(
        self, caller: Process, dst: str, serve: Callable[[AnswerCallback], None], timeout: float = 5.0
    ) -> Any:
        """Call `serve` on host `dst` with a callback for the reply.

        Raises Unavailable without a reply in time; the outcome is then unknown.
        """
        future: asyncio.Future[Any] = self.loop.create_future()

        def time_out() -> None:
            if not future.done():
                future.set_exception(Unavailable("no answer in time", where=dst))

        def settle(result: Any, error: BaseException | None) -> None:
            # A reply after the timeout is dropped, because the caller has given up.
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def answer(result: Any, error: BaseException | None) -> None:
            self.send(dst, caller.host, lambda: settle(result, error))

        # The timer runs in the caller's process, because the server may die meanwhile.
        timer = self.loop.call_at(self.loop.time() + timeout, time_out, context=caller.context)
        self.send(caller.host, dst, lambda: serve(answer))
        try:
            return await future
        finally:
            timer.cancel()

    def open_stream(self, near: Process, far: Process) -> "Stream":
        stream = Stream(self, near, far)
        self.streams.append(stream)
        return stream

    def process_died(self, process: Process, *, silently: bool = False) -> None:
        """Close the connections of a killed process, as its kernel would; with `silently`, the peers notice
        only by keepalive."""
        for stream in [stream for stream in self.streams if process in (stream.near, stream.far)]:
            stream.on_process_died(process, silently=silently)

    def remove_stream(self, stream: "Stream") -> None:
        if stream in self.streams:
            self.streams.remove(stream)


class _StreamDirection(MessagePipe[T]):
    """A direction of a connection over the network."""

    def __init__(self, stream: "Stream", src: str, dst: str) -> None:
        super().__init__(MAX_MESSAGES_IN_FLIGHT)
        self.stream = stream
        self.src, self.dst = src, dst
        self.in_flight = 0
        self.last_arrival = 0.0
        self.stalled: list[T | None] = []

    @property
    def unreceived_count(self) -> int:
        return self.in_flight + len(self.items)

    def deliver(self, item: T) -> None:
        self.in_flight += 1
        self._send(item)

    def close_sender(self) -> None:
        if not self.is_closed:
            self._send(None)
        self.changed.set()

    def _send(self, item: T | None) -> None:
        """Send an item; None closes the connection after the earlier items. Items always arrive in order."""
        net = self.stream.net
        # Items behind a stalled item wait too, to keep the order.
        if self.stalled or net.is_cut(self.src, self.dst):
            if not self.stalled:
                net.loop.schedule_external(net.loop.time() + KEEPALIVE_S, self._give_up)
            self.stalled.append(item)
            return
        self.last_arrival = max(
            self.last_arrival + MESSAGE_SPACING_S, net.loop.time() + net.latency(self.src, self.dst)
        )
        net.loop.schedule_external(self.last_arrival, self._arrive, item)

    def resume(self) -> None:
        stalled, self.stalled = self.stalled, []
        for item in stalled:
            self._send(item)

    def _arrive(self, item: T | None) -> None:
        if self.is_closed:
            return
        if item is None:
            self.stream.disconnect()
            return
        self.in_flight -= 1
        self.items.append(item)
        self.changed.set()

    def _give_up(self) -> None:
        if self.stalled and self.stream.net.is_cut(self.src, self.dst):
            self.stream.disconnect()


class Stream:
    """A connection between two processes."""

    def __init__(self, net: Network, near: Process, far: Process) -> None:
        self.net = net
        self.near, self.far = near, far
        self._out: _StreamDirection[Any] = _StreamDirection(self, near.host, far.host)
        self._back: _StreamDirection[Any] = _StreamDirection(self, far.host, near.host)
        self.near_end: MemoryConnection[Any, Any] = MemoryConnection(self._out, self._back)
        self.far_end: MemoryConnection[Any, Any] = MemoryConnection(self._back, self._out)

    def disconnect(self) -> None:
        """Close both ends; items that arrived before are still read."""
        self._out.close()
        self._back.close()
        self.net.remove_stream(self)

    def on_healed(self, src: str, dst: str) -> None:
        for direction in (self._out, self._back):
            if (direction.src, direction.dst) == (src, dst):
                direction.resume()

    def on_process_died(self, process: Process, *, silently: bool) -> None:
        direction = self._out if process is self.near else self._back
        if silently:
            self.net.loop.schedule_external(self.net.loop.time() + KEEPALIVE_S, self.disconnect)
        else:
            direction.close_sender()
