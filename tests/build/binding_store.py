"""An in-memory store for binders, in which every step can fail, be delayed and be interleaved."""

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from build.small_clusters import ask, nodes
from lattice.errors import Unavailable
from lattice.scheduling.cycle.binder import Binder, BindEvent, BindingMode, BindRequest, StoredNodeState
from lattice.scheduling.cycle.reservations import Reservation, Reservations


class YieldOnce:
    """An awaitable that yields to the event loop once, so that tests can interleave two binders step by step."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass
class FakeBindingStore:
    """The durable state in memory: bindings and preparations by reservation."""

    free: dict[str, dict[str, int]]
    revisions: dict[str, int] = field(default_factory=dict)
    bound: dict[str, BindRequest] = field(default_factory=dict)
    prepared: dict[str, BindRequest] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)  # steps at which the store is unavailable
    breaks: dict[str, BaseException] = field(default_factory=dict)  # raised after the step took effect
    meanwhile: dict[str, Callable[[], object]] = field(default_factory=dict)  # called before the step returns
    tokens: int = 0

    async def _step(self, name: str) -> None:
        await YieldOnce()
        if name in self.fails:
            raise Unavailable(f"store is away at {name}")

    async def read(self, node: str) -> StoredNodeState | None:
        await self._step("read")
        return (
            StoredNodeState(self.revisions.get(node, 0), dict(self.free[node])) if node in self.free else None
        )

    def _after(self, name: str) -> None:
        if name in self.meanwhile:
            self.meanwhile.pop(name)()
        if name in self.breaks:
            raise self.breaks.pop(name)

    async def try_commit(self, request: BindRequest, expected: int) -> int | None:
        await self._step("try_commit")
        revision = self._write(self.bound, request, expected)
        self._after("try_commit")
        return revision

    async def lock(self, node: str, holder: str, until: float) -> str | None:
        await self._step("lock")
        if node in self.locks:
            return None
        self.tokens += 1
        self.locks[node] = f"{holder}-{self.tokens}"
        return self.locks[node]

    async def unlock(self, node: str, token: str) -> None:
        await self._step("unlock")
        if self.locks.get(node) == token:
            del self.locks[node]
        self._after("unlock")

    async def prepare(self, request: BindRequest, expected: int) -> int | None:
        await self._step("prepare")
        revision = self._write(self.prepared, request, expected)
        self._after("prepare")
        return revision

    async def commit_all(self, requests: Sequence[BindRequest]) -> frozenset[str]:
        await self._step("commit_all")
        missing = frozenset(
            request.reservation for request in requests if request.reservation not in self.prepared
        )
        if not missing:
            self.bound |= {
                request.reservation: self.prepared.pop(request.reservation) for request in requests
            }
        self._after("commit_all")
        if "after commit_all" in self.fails:
            raise Unavailable("store is away before it could answer")
        return missing

    async def abort_all(self, requests: Sequence[BindRequest]) -> list[str]:
        await self._step("abort_all")
        for request in requests:
            if self.prepared.pop(request.reservation, None):
                self._take(request, -1)
        self._after("abort_all")
        return [request.reservation for request in requests if request.reservation in self.bound]

    def _write(self, there: dict[str, BindRequest], request: BindRequest, expected: int) -> int | None:
        if self.revisions.get(request.node, 0) != expected:
            return None
        there[request.reservation] = request
        self._take(request, 1)
        return self.revisions[request.node]

    def _take(self, request: BindRequest, sign: int) -> None:
        self.revisions[request.node] = self.revisions.get(request.node, 0) + 1
        for resource, amount in request.needs:
            if resource in self.free[request.node]:
                self.free[request.node][resource] -= sign * amount


@dataclass
class SchedulerInstance:
    """One scheduler with its own table of the same nodes."""

    store: FakeBindingStore
    name: str
    cpus: tuple[int, ...]
    mode: BindingMode
    knows: bool = True
    time: float = 0.0

    def __post_init__(self) -> None:
        self.reservations = Reservations(nodes(*self.cpus), holder=self.name)
        self.events: list[BindEvent] = []
        seen = dict.fromkeys(self.store.free, 0) if self.knows else {}
        self.binder = Binder(
            self.store, self.reservations, lambda: self.time, self.mode, seen, self.events.append
        )

    def pass_time(self, seconds: float) -> None:
        self.time += seconds

    def reserve(self, name: str, cpu: int, row: int = 0) -> Reservation:
        made = self.reservations.reserve(ask(self.reservations.table, name, cpu), row, self.time)
        assert isinstance(made, Reservation)
        return made


def binding_store(*cpus: int) -> FakeBindingStore:
    return FakeBindingStore(
        {f"n{number}": {"cpu": cpu, "workloads": 1000} for number, cpu in enumerate(cpus)}
    )


def scheduler_instance(mode: BindingMode, *cpus: int) -> SchedulerInstance:
    return SchedulerInstance(binding_store(*cpus), "a", cpus, mode)


def interleave(steps: Mapping[str, Coroutine[Any, Any, Any]], turns: Callable[[], str]) -> dict[str, Any]:
    """Drive several coroutines by hand, one step at a time, in the order of `turns`."""
    open_steps, results = dict(steps), {}
    while open_steps:
        name = turns()
        if name not in open_steps:
            name = next(iter(open_steps))
        try:
            open_steps[name].send(None)
        except StopIteration as stop:
            results[name] = stop.value
            del open_steps[name]
    return results
