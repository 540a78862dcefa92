"""Many watchers in a process; every watcher must receive every change, and the time of the last change is
printed."""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.load import Target, request, target
from bench.objects import SERVICES


class Chunks:
    """Decodes the chunked encoding of a stream, however the stream is split."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        chunks, text = [], self._buffer + data
        while (end := text.find(b"\r\n")) >= 0:
            size = int(text[:end], 16)
            if len(text) < end + 2 + size + 2:
                break
            chunks.append(text[end + 2 : end + 2 + size])
            text = text[end + 2 + size + 2 :]
        self._buffer = text
        return chunks


@dataclass
class Watcher:
    """Counts the lines of a watch."""

    at: Target
    revision: str
    expected: int
    received: int = 0
    last: float = 0.0

    async def begin(self) -> None:
        self._reader, writer = await asyncio.open_connection(
            self.at.host, self.at.port, ssl=self.at.tls, server_hostname="localhost"
        )
        self._writer = writer
        writer.write(request("GET", f"{SERVICES}?watch=1&resourceVersion={self.revision}"))
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        assert b"chunked" in head.lower(), head

    async def follow(self) -> None:
        chunks = Chunks()
        while self.received < self.expected:
            data = await self._reader.read(1 << 16)
            assert data, f"the watch ended after {self.received} of {self.expected} events"
            for piece in chunks.feed(data):
                self.received += piece.count(b"\n")
        self.last = time.time()
        self._writer.close()


async def watch(kubeconfig: Path, revision: str, count: int, expected: int) -> None:
    at = target(kubeconfig)
    watchers = [Watcher(at, revision, expected) for _ in range(count)]
    for start in range(0, count, 20):
        await asyncio.gather(*(watcher.begin() for watcher in watchers[start : start + 20]))
    print("ready", flush=True)
    await asyncio.gather(*(watcher.follow() for watcher in watchers))
    print(
        json.dumps(
            {
                "received": [watcher.received for watcher in watchers],
                "last": max(watcher.last for watcher in watchers),
            }
        )
    )


if __name__ == "__main__":
    _, kubeconfig, revision, count, events = sys.argv
    asyncio.run(watch(Path(kubeconfig), revision, int(count), int(events)))
