"""What a node does about its orders: looks at what runs, starts and stops what the plan says, asks the probes, and says how it is.

Each workload is worked on by itself: one that takes long to stop keeps no other waiting. Nothing is done before the control plane has
been heard: what was ordered long ago may run elsewhere by now, and what was written down may not be the last that was said.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from lattice import tracing as traces
from lattice.agent.plan import Action, Assignment, Remove, Start, Stop, plan
from lattice.agent.host.probes import Checkup, Health, attend
from lattice.agent.status_report import Seen, orphaned, reports
from lattice.agent.host.runtime_protocol import (
    Answer,
    Failure,
    Instance,
    InstanceId,
    Record,
    RunSpec,
    Runtime,
    Usage,
)
from lattice.agent.state_file import State
from lattice.agent.assignments import Taken, taken
from lattice.clock import Clock, within
from lattice.errors import Conflict, LatticeError
from lattice.kinds.container import Probe
from lattice.wire import agent_pb2 as pb

GRACE = 30.0  # seconds between asking something to end and ending it
LOOK_EVERY = 1.0
LOG_LINES, LOG_SIZE = 20, 2000  # of what failed
log = structlog.get_logger()


class Memory(Protocol):
    """What the agent still knows after a crash; StateFile is one."""

    @property
    def state(self) -> State: ...
    def write(self, record: Record) -> None: ...
    def strike(self, which: InstanceId) -> None: ...
    def told(self, wanted: tuple[Assignment, ...], term: int) -> None: ...


Life = tuple[InstanceId, int]  # an instance and its attempt: one that is started again is asked anew


@dataclass
class Work:
    runtime: Runtime
    memory: Memory
    clock: Clock
    grace: float = GRACE
    look_every: float = LOOK_EVERY
    spoken: dict[str, pb.Report] = field(default_factory=dict)  # by path, as of the last look
    reflects: int = 0  # number of the last order that the last look knew
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set when there is something new to say

    def __post_init__(self) -> None:
        self.told = Taken({each.workload: each for each in self.memory.state.wanted}, {})
        self.term = self.memory.state.term
        self.order = 0
        self.may_act = False  # only what was heard in this life of ours is acted upon
        self._is_saved = True
        self._wake = asyncio.Event()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._checkups: dict[Life, asyncio.Task[None]] = {}
        self._health: dict[Life, Health] = {}
        self._logs: dict[Life, str] = {}
        self._troubles: dict[str, str] = {}

    @property
    def orders(self) -> dict[str, Assignment]:
        return self.told.orders

    async def adopt(self) -> None:
        """What an earlier agent started is ours again."""
        self.runtime.wake = self._wake.set
        for record in self.memory.state.records:
            instance = await self.runtime.adopt(record)
            log.info("adopted", workload=instance.workload, instance=str(instance.id), state=instance.state)

    def connected(self) -> None:
        """Orders are numbered anew on each connection."""
        self.order = self.reflects = 0

    def take(self, orders: pb.Orders) -> None:
        """Obeyed from now on. The same ones again, or older ones, change nothing."""
        if orders.number <= self.order or (self.order == 0 and not orders.is_whole):
            return
        self.told = taken(self.told, orders)
        self.order, self.term, self._is_saved = orders.number, orders.term, False
        self.may_act = True
        self._save()
        self._wake.set()

    def _save(self) -> None:
        """A full disk must not keep us from stopping things: what cannot be written is written later."""
        try:
            self.memory.told(tuple(self.orders[path] for path in sorted(self.orders)), self.term)
            self._is_saved = True
        except LatticeError as error:
            self._complain("", error)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self.look()
                with suppress(TimeoutError):
                    await within(self.clock, self.look_every, self._wake.wait())
        finally:
            for task in (*self._checkups.values(), *self._busy.values()):
                task.cancel()
            await asyncio.gather(*self._checkups.values(), *self._busy.values(), return_exceptions=True)

    async def look(self) -> None:
        order = self.order
        if not self._is_saved:
            self._save()
        instances = await self.runtime.list()
        self._attend(instances)
        self._act(instances)
        await self._read_logs(instances)
        health = {which: health for (which, _), health in self._health.items()}
        seen = Seen(health, {which: text for (which, _), text in self._logs.items()})
        spoken = {**reports(self.orders, instances, seen), **self.told.unread}
        if spoken != self.spoken or order != self.reflects:
            self.spoken, self.reflects = spoken, order
            self.changed.set()

    def _act(self, instances: list[Instance]) -> None:
        if not self.may_act:
            return
        homes = {each.id: each.workload for each in instances}
        mine: dict[str, list[Action | tuple[InstanceId, Failure]]] = {}
        for action in plan(self.orders.values(), instances):
            workload = action.spec.workload if isinstance(action, Start) else homes[action.id]
            mine.setdefault(workload, []).append(action)
        for which, why in {**orphaned(self.orders, instances), **self._sick(instances)}.items():
            mine.setdefault(homes[which], []).append((which, why))
        for workload, actions in mine.items():
            if workload not in self._busy:
                task = self._busy[workload] = asyncio.create_task(self._carry_out(workload, actions))
                task.add_done_callback(lambda _, workload=workload: self._done(workload))  # type: ignore[misc]

    def _done(self, workload: str) -> None:
        self._busy.pop(workload, None)
        self._wake.set()

    async def _carry_out(self, workload: str, actions: Iterable[Action | tuple[InstanceId, Failure]]) -> None:
        try:
            for action in actions:
                await self._do(action)
            self._troubles.pop(workload, None)
        except (LatticeError, OSError) as error:
            self._complain(workload, error)
            await self.clock.sleep(self.look_every)

    async def _do(self, action: Action | tuple[InstanceId, Failure]) -> None:
        match action:
            case Start(spec):
                await self._refuse_held_ports(spec)
                where = {
                    "workload": spec.workload,
                    "revision": spec.id.revision,
                    "container": spec.id.container,
                }
                with traces.span("start", **where, attempt=spec.attempt, term=self.term) as span:
                    instance = await self.runtime.start(spec)
                    failure = instance.failure.message if instance.failure else None
                    span.tell(state=instance.state, failure=failure or "")
                log.info(
                    "started",
                    workload=spec.workload,
                    instance=str(spec.id),
                    state=instance.state,
                    failure=failure,
                )
            case Stop(which, why):
                log.info("stopping", instance=str(which), why=why)
                await self.runtime.stop(which, self.grace)
            case Remove(which):
                await self.runtime.remove(which)
            case (which, failure):
                log.info("stopping", instance=str(which), why=failure.message)
                await self.runtime.stop(which, self.grace, failure)

    async def _refuse_held_ports(self, spec: RunSpec) -> None:
        """What has to go may still have a port that was given to this one by now: no failure, only a moment too early."""
        ports, live = _host_ports(spec), {each.id for each in await self.runtime.list() if each.live}
        for each in self.memory.state.records:
            held = ports & _host_ports(each.spec)
            if (
                held
                and each.spec.id in live
                and each.spec.workload != spec.workload
                and not self._is_to_run(each.spec)
            ):
                number, _ = min(held)
                raise Conflict(
                    f"port {number} is held by workload {each.spec.workload}, which is being stopped",
                    where=spec.workload,
                )

    def _is_to_run(self, spec: RunSpec) -> bool:
        order = self.orders.get(spec.workload)
        return (
            order is not None
            and order.desired == "Running"
            and (order.uid, order.revision) == (spec.id.uid, spec.id.revision)
        )

    def _complain(self, workload: str, error: LatticeError | OSError) -> None:
        if self._troubles.get(workload) != str(error):
            self._troubles[workload] = str(error)
            log.warning("cannot do what was ordered", workload=workload, reason=str(error))

    def _attend(self, instances: list[Instance]) -> None:
        """Ask what runs and is to run; no longer what does not."""
        due: dict[Life, Checkup] = {}
        for each in instances:
            order = self.orders.get(each.workload)
            container = (
                order.containers.get(each.id.container) if order and order.uid == each.id.uid else None
            )
            if each.state == "Running" and container is not None and container.probes is not None:
                due[(each.id, each.attempt)] = Checkup.begin(container.probes, self.clock.monotonic())
        for life in self._checkups.keys() - due.keys():
            self._checkups.pop(life).cancel()
            self._health.pop(life, None)
        for life in due.keys() - self._checkups.keys():
            self._checkups[life] = asyncio.create_task(self._ask(life, due[life]))

    async def _ask(self, life: Life, checkup: Checkup) -> None:
        def told(health: Health) -> None:
            self._health[life] = health
            self._wake.set()

        async def asking(probe: Probe) -> Answer:
            return await self.runtime.ask(life[0], probe)

        await attend(checkup, self.clock, asking, told)

    def _sick(self, instances: list[Instance]) -> dict[InstanceId, Failure]:
        found = {}
        for each in instances:
            health = self._health.get((each.id, each.attempt))
            if each.live and health is not None and not health.alive:
                found[each.id] = Failure("UNHEALTHY", health.detail or "its probe failed")
        return found

    async def _read_logs(self, instances: list[Instance]) -> None:
        failed = {(each.id, each.attempt) for each in instances if each.failure is not None}
        self._logs = {life: text for life, text in self._logs.items() if life in failed}
        for life in failed - self._logs.keys():
            self._logs[life] = (await self.runtime.logs(life[0], LOG_LINES))[-LOG_SIZE:]

    async def usage(self) -> dict[str, Usage]:
        """By workload; those that do not run use nothing."""
        found: dict[str, Usage] = {}
        for each in await self.runtime.list():
            used = await self.runtime.usage(each.id) if each.live else None
            if used is not None:
                sofar = found.get(each.workload, Usage(0, 0, 0))
                found[each.workload] = Usage(
                    sofar.cpu + used.cpu, sofar.memory + used.memory, sofar.disk + used.disk
                )
        return found

    async def stop_all(self) -> None:
        """They may be started again by whoever comes after us."""
        self.may_act = False
        live = [each.id for each in await self.runtime.list() if each.live]
        await asyncio.gather(*(self.runtime.stop(which, self.grace) for which in live))

    async def leave(self) -> None:
        """Everything is asked to end, and nothing of it is left."""
        await self.stop_all()
        await self.clear()

    async def clear(self) -> None:
        """Nothing is left on this node."""
        self.may_act, self.told, self._is_saved = False, Taken({}, {}), False
        await asyncio.gather(*(self.runtime.remove(each.id) for each in await self.runtime.list()))
        self._save()


def _host_ports(spec: RunSpec) -> set[tuple[int, str]]:
    return {
        (spec.ports[port.name], port.protocol) for port in spec.container.ports if port.name in spec.ports
    }
