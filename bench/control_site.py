"""A server in a separate process on SQLite or etcd: start, stop, requests, CPU and memory."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from build.etcd_server import EtcdServer, free_port, running_etcd
from build.servers import LATTICE

from bench.load import Target, target
from bench.machine import resident_mib
from bench.wire import Line
from lattice.clock import SystemClock
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Put, Store
from lattice.store.sqlite.store import SqliteStore

API = "/apis/lattice.dev/v1alpha1"
NODES = f"{API}/latticenodes"
WORKLOADS = f"{API}/namespaces/default/latticeworkloads"
SERVICES = f"{API}/namespaces/default/latticeservices"
MERGE = "application/merge-patch+json"
TICKS = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")
Object = dict[str, Any]


def until(attempt: Callable[[], T | None], goal: str, within: float, interval_s: float = 0.1) -> T:
    """The first true result of `attempt`, which is repeated every `interval_s` seconds. Fails after `within`
    seconds."""
    deadline = time.monotonic() + within
    while not (result := attempt()):
        assert time.monotonic() < deadline, f"waited {within:g} s in vain: {goal}"
        time.sleep(interval_s)
    return result


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


@dataclass
class Site:
    """A server; `etcd` is its store, unless the store is a SQLite file."""

    folder: Path
    flags: tuple[str, ...] = ()
    etcd: EtcdServer | None = None
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        store = ("--store", self.etcd.url("bench")) if self.etcd else ()
        command = [
            *LATTICE,
            "server",
            "--data-dir",
            str(self.data_dir),
            "--port",
            str(self.ports[0]),
            "--agents-port",
            str(self.ports[1]),
        ]
        log = self.folder / "server.log"
        offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*command, *store, *self.flags], stdout=file, stderr=file, stdin=subprocess.DEVNULL
            )
        until(lambda: self._serves(log, offset), "the server serves", 60, 0.02)

    def _serves(self, log: Path, offset: int) -> bool:
        text = log.read_bytes()[offset:]
        assert self.process is not None
        assert self.process.poll() is None, text.decode()[-3000:]
        return b'"event": "serving"' in text

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports[0]}"

    @cached_property
    def at(self) -> Target:
        return target(self.data_dir / "kubeconfig")

    @contextlib.contextmanager
    def line(self) -> Iterator[Line]:
        line = Line(self.at)
        try:
            yield line
        finally:
            line.close()

    def ask(self, path: str) -> Object:
        with self.line() as line:
            answer: Object = json.loads(line.ask(path))
            return answer

    def everything(self, path: str) -> list[Object]:
        """All objects of a kind, read in pages."""
        items: list[Object] = []
        continuation = ""
        with self.line() as line:
            while True:
                page = json.loads(line.ask(f"{path}?limit=500{continuation}"))
                items += page["items"]
                token = page["metadata"].get("continue", "")
                if not token:
                    return items
                continuation = f"&continue={token}"

    def send(self, method: str, path: str, body: Object, content: str = "application/json") -> None:
        with self.line() as line:
            status = line.send(method, path, json.dumps(body).encode(), content)
        assert status < 300, f"{method} {path}: {status}"

    def revision(self) -> int:
        return int(self.ask(f"{NODES}?limit=1")["metadata"]["resourceVersion"])

    def metric(self, name: str) -> float:
        """The sum of a metric over all labels."""
        with self.line() as line:
            text = line.ask("/metrics", "text/plain").decode()
        return sum(
            float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        )

    @property
    def pids(self) -> list[int]:
        """The server and its child processes."""
        assert self.process is not None
        pids = [self.process.pid]
        # The loop also visits the children that are appended during the loop.
        for pid in pids:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            pids += [int(word) for word in children.read_text().split()] if children.exists() else []
        return pids

    def cpu(self) -> float:
        return cpu_seconds(self.pids)

    def resident_mib(self) -> float:
        return sum(resident_mib(pid) for pid in self.pids)

    def store_cpu(self) -> float:
        return cpu_seconds([self.etcd.pid]) if self.etcd else 0.0


@contextlib.contextmanager
def a_site(folder: Path, store: str, flags: tuple[str, ...] = (), puts: Sequence[Put] = ()) -> Iterator[Site]:
    """A started server on a store that contains `puts`; stopped at the end."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(folder)) if store == "etcd" else None
        site = Site(folder, flags, etcd)
        if puts:
            asyncio.run(_fill(site, puts))
        stack.callback(site.stop)
        site.start()
        yield site


async def _fill(site: Site, puts: Sequence[Put]) -> None:
    async with opened(site) as store:
        for start in range(0, len(puts), MAX_COMMIT_OPERATIONS):
            await store.commit(puts[start : start + MAX_COMMIT_OPERATIONS])


@contextlib.asynccontextmanager
async def opened(site: Site) -> AsyncIterator[Store]:
    """The store of a stopped server."""
    clock = SystemClock()
    store: Store
    if site.etcd:
        from lattice.store.etcd.store import EtcdStore

        store = await EtcdStore.open(site.etcd.url("bench"), clock)
    else:
        site.data_dir.mkdir(mode=0o700, exist_ok=True)
        store = await SqliteStore.open(site.data_dir / "state.db", clock)
    yield store
    await store.close()
