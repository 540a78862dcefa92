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
from lattice.agent.host.probes import Health, ProbeTracker, run_probes
from lattice.agent.host.runtime_protocol import (
    Failure,
    Instance,
    InstanceId,
    InstanceRecord,
    ProbeResult,
    RunSpec,
    Runtime,
    Usage,
)
from lattice.agent.order_codec import AssignmentSet, apply_orders
from lattice.agent.plan import Action, Assignment, Remove, Start, Stop, plan
from lattice.agent.state_file import AgentState
from lattice.agent.status_report import Observations, build_reports, siblings_to_stop
from lattice.clock import Clock, with_timeout
from lattice.errors import Conflict, LatticeError
from lattice.kinds.container import Probe
from lattice.wire import agent_pb2 as pb

STOP_GRACE_S = 30.0  # seconds between asking something to end and ending it
RECONCILE_INTERVAL_S = 1.0
FAILURE_LOG_LINES, FAILURE_LOG_CHARS = 20, 2000  # of what failed
log = structlog.get_logger()


class AgentStateStore(Protocol):
    """What the agent still knows after a crash; StateFile is one."""

    @property
    def state(self) -> AgentState: ...
    def write_record(self, record: InstanceRecord) -> None: ...
    def delete_record(self, which: InstanceId) -> None: ...
    def save_assignments(self, wanted: tuple[Assignment, ...], term: int) -> None: ...


InstanceAttempt = tuple[
    InstanceId, int
]  # an instance and its attempt: one that is started again is asked anew


@dataclass
class Executor:
    runtime: Runtime
    state_store: AgentStateStore
    clock: Clock
    grace: float = STOP_GRACE_S
    reconcile_interval: float = RECONCILE_INTERVAL_S
    reports: dict[str, pb.Report] = field(default_factory=dict)  # by path, as of the last look
    reported_order: int = 0  # number of the last order that the last look knew
    reports_changed: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set when there is something new to say

    def __post_init__(self) -> None:
        self.assignment_set = AssignmentSet(
            {each.workload: each for each in self.state_store.state.wanted}, {}
        )
        self.term = self.state_store.state.term
        self.order_number = 0
        self.may_act = False  # only what was heard in this life of ours is acted upon
        self._is_saved = True
        self._wake = asyncio.Event()
        self._workload_tasks: dict[str, asyncio.Task[None]] = {}
        self._probe_tasks: dict[InstanceAttempt, asyncio.Task[None]] = {}
        self._health: dict[InstanceAttempt, Health] = {}
        self._logs: dict[InstanceAttempt, str] = {}
        self._last_errors: dict[str, str] = {}

    @property
    def assignments(self) -> dict[str, Assignment]:
        return self.assignment_set.assignments

    async def adopt(self) -> None:
        """What an earlier agent started is ours again."""
        self.runtime.on_exit = self._wake.set
        for record in self.state_store.state.records:
            instance = await self.runtime.adopt(record)
            log.info("adopted", workload=instance.workload, instance=str(instance.id), state=instance.state)

    def reset_order_numbers(self) -> None:
        """Orders are numbered anew on each connection."""
        self.order_number = self.reported_order = 0

    def accept_orders(self, orders: pb.Orders) -> None:
        """Obeyed from now on. The same ones again, or older ones, change nothing."""
        if orders.number <= self.order_number or (self.order_number == 0 and not orders.is_whole):
            return
        self.assignment_set = apply_orders(self.assignment_set, orders)
        self.order_number, self.term, self._is_saved = orders.number, orders.term, False
        self.may_act = True
        self._save()
        self._wake.set()

    def _save(self) -> None:
        """A full disk must not keep us from stopping things: what cannot be written is written later."""
        try:
            self.state_store.save_assignments(
                tuple(self.assignments[path] for path in sorted(self.assignments)), self.term
            )
            self._is_saved = True
        except LatticeError as error:
            self._log_error_once("", error)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self.reconcile()
                with suppress(TimeoutError):
                    await with_timeout(self.clock, self.reconcile_interval, self._wake.wait())
        finally:
            for task in (*self._probe_tasks.values(), *self._workload_tasks.values()):
                task.cancel()
            await asyncio.gather(
                *self._probe_tasks.values(), *self._workload_tasks.values(), return_exceptions=True
            )

    async def reconcile(self) -> None:
        order = self.order_number
        if not self._is_saved:
            self._save()
        instances = await self.runtime.list()
        self._update_probes(instances)
        self._start_actions(instances)
        await self._read_logs(instances)
        health = {which: health for (which, _), health in self._health.items()}
        seen = Observations(health, {which: text for (which, _), text in self._logs.items()})
        spoken = {**build_reports(self.assignments, instances, seen), **self.assignment_set.invalid}
        if spoken != self.reports or order != self.reported_order:
            self.reports, self.reported_order = spoken, order
            self.reports_changed.set()

    def _start_actions(self, instances: list[Instance]) -> None:
        if not self.may_act:
            return
        homes = {each.id: each.workload for each in instances}
        mine: dict[str, list[Action | tuple[InstanceId, Failure]]] = {}
        for action in plan(self.assignments.values(), instances):
            workload = action.spec.workload if isinstance(action, Start) else homes[action.id]
            mine.setdefault(workload, []).append(action)
        for which, why in {
            **siblings_to_stop(self.assignments, instances),
            **self._unhealthy(instances),
        }.items():
            mine.setdefault(homes[which], []).append((which, why))
        for workload, actions in mine.items():
            if workload not in self._workload_tasks:
                task = self._workload_tasks[workload] = asyncio.create_task(
                    self._execute_actions(workload, actions)
                )
                task.add_done_callback(lambda _, workload=workload: self._done(workload))  # type: ignore[misc]

    def _done(self, workload: str) -> None:
        self._workload_tasks.pop(workload, None)
        self._wake.set()

    async def _execute_actions(
        self, workload: str, actions: Iterable[Action | tuple[InstanceId, Failure]]
    ) -> None:
        try:
            for action in actions:
                await self._execute(action)
            self._last_errors.pop(workload, None)
        except (LatticeError, OSError) as error:
            self._log_error_once(workload, error)
            await self.clock.sleep(self.reconcile_interval)

    async def _execute(self, action: Action | tuple[InstanceId, Failure]) -> None:
        match action:
            case Start(spec):
                await self._check_port_conflicts(spec)
                where = {
                    "workload": spec.workload,
                    "revision": spec.id.revision,
                    "container": spec.id.container,
                }
                with traces.span("start", **where, attempt=spec.attempt, term=self.term) as span:
                    instance = await self.runtime.start(spec)
                    failure = instance.failure.message if instance.failure else None
                    span.set_attributes(state=instance.state, failure=failure or "")
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

    async def _check_port_conflicts(self, spec: RunSpec) -> None:
        """What has to go may still have a port that was given to this one by now: no failure, only a moment too early."""
        ports, live = _host_ports(spec), {each.id for each in await self.runtime.list() if each.is_live}
        for each in self.state_store.state.records:
            held = ports & _host_ports(each.spec)
            if (
                held
                and each.spec.id in live
                and each.spec.workload != spec.workload
                and not self._should_run(each.spec)
            ):
                number, _ = min(held)
                raise Conflict(
                    f"port {number} is held by workload {each.spec.workload}, which is being stopped",
                    where=spec.workload,
                )

    def _should_run(self, spec: RunSpec) -> bool:
        order = self.assignments.get(spec.workload)
        return (
            order is not None
            and order.desired == "Running"
            and (order.uid, order.revision) == (spec.id.uid, spec.id.revision)
        )

    def _log_error_once(self, workload: str, error: LatticeError | OSError) -> None:
        if self._last_errors.get(workload) != str(error):
            self._last_errors[workload] = str(error)
            log.warning("cannot do what was ordered", workload=workload, reason=str(error))

    def _update_probes(self, instances: list[Instance]) -> None:
        """Ask what runs and is to run; no longer what does not."""
        due: dict[InstanceAttempt, ProbeTracker] = {}
        for each in instances:
            order = self.assignments.get(each.workload)
            container = (
                order.containers.get(each.id.container) if order and order.uid == each.id.uid else None
            )
            if each.state == "Running" and container is not None and container.probes is not None:
                due[(each.id, each.attempt)] = ProbeTracker.begin(container.probes, self.clock.monotonic())
        for life in self._probe_tasks.keys() - due.keys():
            self._probe_tasks.pop(life).cancel()
            self._health.pop(life, None)
        for life in due.keys() - self._probe_tasks.keys():
            self._probe_tasks[life] = asyncio.create_task(self._probe_instance(life, due[life]))

    async def _probe_instance(self, life: InstanceAttempt, checkup: ProbeTracker) -> None:
        def told(health: Health) -> None:
            self._health[life] = health
            self._wake.set()

        async def asking(probe: Probe) -> ProbeResult:
            return await self.runtime.run_probe(life[0], probe)

        await run_probes(checkup, self.clock, asking, told)

    def _unhealthy(self, instances: list[Instance]) -> dict[InstanceId, Failure]:
        found = {}
        for each in instances:
            health = self._health.get((each.id, each.attempt))
            if each.is_live and health is not None and not health.alive:
                found[each.id] = Failure("UNHEALTHY", health.detail or "its probe failed")
        return found

    async def _read_logs(self, instances: list[Instance]) -> None:
        failed = {(each.id, each.attempt) for each in instances if each.failure is not None}
        self._logs = {life: text for life, text in self._logs.items() if life in failed}
        for life in failed - self._logs.keys():
            self._logs[life] = (await self.runtime.logs(life[0], FAILURE_LOG_LINES))[-FAILURE_LOG_CHARS:]

    async def usage(self) -> dict[str, Usage]:
        """By workload; those that do not run use nothing."""
        found: dict[str, Usage] = {}
        for each in await self.runtime.list():
            used = await self.runtime.usage(each.id) if each.is_live else None
            if used is not None:
                sofar = found.get(each.workload, Usage(0, 0, 0))
                found[each.workload] = Usage(
                    sofar.cpu + used.cpu, sofar.memory + used.memory, sofar.disk + used.disk
                )
        return found

    async def stop_all(self) -> None:
        """They may be started again by whoever comes after us."""
        self.may_act = False
        live = [each.id for each in await self.runtime.list() if each.is_live]
        await asyncio.gather(*(self.runtime.stop(which, self.grace) for which in live))

    async def stop_and_remove_all(self) -> None:
        """Everything is asked to end, and nothing of it is left."""
        await self.stop_all()
        await self.clear()

    async def clear(self) -> None:
        """Nothing is left on this node."""
        self.may_act, self.assignment_set, self._is_saved = False, AssignmentSet({}, {}), False
        await asyncio.gather(*(self.runtime.remove(each.id) for each in await self.runtime.list()))
        self._save()


def _host_ports(spec: RunSpec) -> set[tuple[int, str]]:
    return {
        (spec.ports[port.name], port.protocol) for port in spec.container.ports if port.name in spec.ports
    }
