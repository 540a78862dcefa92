"""A watch of all workloads: records the time and node of every binding, and workloads that were bound again."""

import asyncio
import time
from dataclasses import dataclass, field

import msgspec

from bench.control_site import WORKLOADS
from bench.load import Target, request
from bench.watchers import Chunks

PIECE = 1 << 18


class _Metadata(msgspec.Struct, gc=False):
    name: str


class _Binding(msgspec.Struct, gc=False):
    node: str


class _Status(msgspec.Struct, gc=False):
    binding: _Binding | None = None


class _Workload(msgspec.Struct, gc=False):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


class _WatchEvent(msgspec.Struct, gc=False):
    type: str
    object: _Workload


_decode_event = msgspec.json.Decoder(_WatchEvent).decode


@dataclass
class Bindings:
    """Use with `async with`: records every binding after `revision`, by the client's clock."""

    at: Target
    revision: int
    # By workload: time and node of the binding.
    seen: dict[str, tuple[float, str]] = field(default_factory=dict)
    # Workloads that were bound twice, or lost their node.
    moved: list[str] = field(default_factory=list)
    _expected: int = 0
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> "Bindings":
        reader, self._writer = await asyncio.open_connection(
            self.at.host, self.at.port, ssl=self.at.tls, server_hostname="localhost"
        )
        self._writer.write(request("GET", f"{WORKLOADS}?watch=1&resourceVersion={self.revision}"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._writer.close()

    async def wait_for(self, count: int, within: float) -> float:
        """The time of the last binding, once `count` workloads are bound."""
        self._expected = count
        if len(self.seen) < count:
            self._enough.clear()
            waiting = asyncio.ensure_future(self._enough.wait())
            await asyncio.wait({waiting, self._reading}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            self._reading.result()
        assert len(self.seen) >= count, f"{len(self.seen)} of {count} were bound within {within:g} s"
        return max(when for when, _ in self.seen.values())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        chunks, incomplete = Chunks(), b""
        while data := await reader.read(PIECE):
            *lines, incomplete = (incomplete + b"".join(chunks.feed(data))).split(b"\n")
            now = time.perf_counter()
            for line in lines:
                self.note(line, now)

    def note(self, line: bytes, now: float) -> None:
        event = _decode_event(line)
        name, binding = event.object.metadata.name, event.object.status.binding
        binding_seen = self.seen.get(name)
        if binding_seen is not None and (
            binding is None or binding.node != binding_seen[1] or event.type == "DELETED"
        ):
            self.moved.append(name)
        elif binding_seen is None and binding is not None:
            self.seen[name] = (now, binding.node)
            if len(self.seen) >= self._expected:
                self._enough.set()
