"""The executor of an agent: reconcile the running instances with the assignments, run the probes, and build
the reports.

Workloads are handled in parallel: a workload that stops slowly delays no other workload. The executor acts
only after the control plane has sent assignments to this agent process (I-19): a workload of the saved state
may run on another node by now, and the saved state may be outdated.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from lattice import tracing
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

STOP_GRACE_S = 30.0  # between SIGTERM and SIGKILL
RECONCILE_INTERVAL_S = 1.0
# The part of a failed instance's log that a report carries.
FAILURE_LOG_LINES, FAILURE_LOG_CHARS = 20, 2000
log = structlog.get_logger()


class AgentStateStore(Protocol):
    """The state of the agent that survives a crash; implemented by StateFile."""

    @property
    def state(self) -> AgentState: ...
    def write_record(self, record: InstanceRecord) -> None: ...
    def delete_record(self, instance_id: InstanceId) -> None: ...
    def save_assignments(self, assignments: tuple[Assignment, ...], term: int) -> None: ...


# The key of probes and logs is an instance with its run number: after a restart by a later run, the probes
# begin anew.
InstanceAttempt = tuple[InstanceId, int]


@dataclass
class Executor:
    """Reconciles the instances of one node with its assignments."""

    runtime: Runtime
    state_store: AgentStateStore
    clock: Clock
    grace: float = STOP_GRACE_S
    reconcile_interval: float = RECONCILE_INTERVAL_S
    reports: dict[str, pb.Report] = field(default_factory=dict)  # by path, as of the last reconcile
    # The number of the last order that the reports reflect.
    reported_order: int = 0
    # Set when the reports differ from the reports of the previous reconcile.
    reports_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.assignment_set = AssignmentSet(
            {assignment.workload: assignment for assignment in self.state_store.state.wanted}, {}
        )
        self.term = self.state_store.state.term
        self.order_number = 0
        # True once the control plane has sent assignments to this agent process (I-19).
        self.may_act = False
        self._is_saved = True
        self._wake = asyncio.Event()
        self._workload_tasks: dict[str, asyncio.Task[None]] = {}
        self._probe_tasks: dict[InstanceAttempt, asyncio.Task[None]] = {}
        self._health: dict[InstanceAttempt, Health] = {}
        self._logs: dict[InstanceAttempt, str] = {}
        self._last_errors: dict[str, str] = {}

    @property
    def assignments(self) -> dict[str, Assignment]:
        """The assignments of the node by workload path."""
        return self.assignment_set.assignments

    async def adopt(self) -> None:
        """Adopt the instances that an earlier agent process started."""
        self.runtime.on_exit = self._wake.set
        for record in self.state_store.state.records:
            instance = await self.runtime.adopt(record)
            log.info("adopted", workload=instance.workload, instance=str(instance.id), state=instance.state)

    def reset_order_numbers(self) -> None:
        """Reset the order numbers: the server numbers orders per connection."""
        self.order_number = self.reported_order = 0

    def accept_orders(self, orders: pb.Orders) -> None:
        """Apply new orders and save the assignments; repeated or older orders change nothing."""
        # The first orders of a connection are the full list; a partial list before the full list is ignored.
        if orders.number <= self.order_number or (self.order_number == 0 and not orders.is_whole):
            return
        self.assignment_set = apply_orders(self.assignment_set, orders)
        self.order_number, self.term, self._is_saved = orders.number, orders.term, False
        self.may_act = True
        self._save()
        self._wake.set()

    def _save(self) -> None:
        """Save the assignments. An error, such as a full disk, is logged and not raised, so that the agent can
        still stop workloads; the next reconcile saves again."""
        try:
            self.state_store.save_assignments(
                tuple(self.assignments[path] for path in sorted(self.assignments)), self.term
            )
            self._is_saved = True
        except LatticeError as error:
            self._log_error_once("", error)

    async def run(self) -> None:
        """Reconcile at every change and at least once per interval, until cancelled."""
        try:
            while True:
                # Cleared before the reconcile: a change during the reconcile causes another reconcile.
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
        """Compare instances with assignments, start the actions of the plan, and update the reports."""
        # The number is read first: `reported_order` must not cover an order that arrives during the
        # reconcile.
        order = self.order_number
        if not self._is_saved:
            self._save()
        instances = await self.runtime.list()
        self._update_probes(instances)
        self._start_actions(instances)
        # The last log lines of an instance that failed or ended by itself are read once per attempt.
        ended = {
            (instance.id, instance.attempt)
            for instance in instances
            if instance.failure is not None or not (instance.is_live or instance.was_stopped_on_request)
        }
        self._logs = {attempt_key: text for attempt_key, text in self._logs.items() if attempt_key in ended}
        for attempt_key in ended - self._logs.keys():
            text = await self.runtime.logs(attempt_key[0], FAILURE_LOG_LINES)
            self._logs[attempt_key] = text[-FAILURE_LOG_CHARS:]
        health = {instance_id: health for (instance_id, _), health in self._health.items()}
        observations = Observations(
            health, {instance_id: text for (instance_id, _), text in self._logs.items()}
        )
        reports = {**build_reports(self.assignments, instances, observations), **self.assignment_set.invalid}
        if reports != self.reports or order != self.reported_order:
            self.reports, self.reported_order = reports, order
            self.reports_changed.set()

    def _start_actions(self, instances: list[Instance]) -> None:
        """Start one task per workload with pending actions, unless a task of the workload still runs."""
        if not self.may_act:
            return
        workload_by_instance = {instance.id: instance.workload for instance in instances}
        actions_by_workload: dict[str, list[Action | tuple[InstanceId, Failure]]] = {}
        for action in plan(self.assignments.values(), instances):
            workload = action.spec.workload if isinstance(action, Start) else workload_by_instance[action.id]
            actions_by_workload.setdefault(workload, []).append(action)
        failures = siblings_to_stop(self.assignments, instances)
        for instance in instances:
            # The startup or liveness probe of the instance has failed.
            health = self._health.get((instance.id, instance.attempt))
            if instance.is_live and health is not None and not health.alive:
                failures[instance.id] = Failure("UNHEALTHY", health.detail or "the liveness probe failed")
        for instance_id, failure in failures.items():
            actions_by_workload.setdefault(workload_by_instance[instance_id], []).append(
                (instance_id, failure)
            )
        for workload, actions in actions_by_workload.items():
            # One task per workload executes the actions in the order of the plan: stops before starts (I-19).
            if workload not in self._workload_tasks:
                task = self._workload_tasks[workload] = asyncio.create_task(
                    self._execute_actions(workload, actions)
                )
                # The default argument binds the workload of the current iteration.
                task.add_done_callback(lambda _, path=workload: self._done(path))  # type: ignore[misc]

    def _done(self, workload: str) -> None:
        self._workload_tasks.pop(workload, None)
        self._wake.set()

    async def _execute_actions(
        self, workload: str, actions: Iterable[Action | tuple[InstanceId, Failure]]
    ) -> None:
        try:
            for action in actions:
                match action:
                    case Start(spec):
                        await self._check_port_conflicts(spec)
                        attributes = {
                            "workload": spec.workload,
                            "revision": spec.id.revision,
                            "container": spec.id.container,
                        }
                        with tracing.span(
                            "start", **attributes, attempt=spec.attempt, term=self.term
                        ) as span:
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
                    case Stop(instance_id, reason):
                        log.info("stopping", instance=str(instance_id), why=reason)
                        await self.runtime.stop(instance_id, self.grace)
                    case Remove(instance_id):
                        await self.runtime.remove(instance_id)
                    case (instance_id, failure):
                        log.info("stopping", instance=str(instance_id), why=failure.message)
                        await self.runtime.stop(instance_id, self.grace, failure)
            self._last_errors.pop(workload, None)
        except (LatticeError, OSError) as error:
            self._log_error_once(workload, error)
            # Keep the task for one interval, so that the failed actions are not retried at once.
            await self.clock.sleep(self.reconcile_interval)

    async def _check_port_conflicts(self, spec: RunSpec) -> None:
        """Raise Conflict while another workload that must stop still holds a port of the spec. The agent then
        retries the start and reports no failure."""
        ports = _host_ports(spec)
        live = {instance.id for instance in await self.runtime.list() if instance.is_live}
        for record in self.state_store.state.records:
            holder = record.spec
            conflicting = ports & _host_ports(holder)
            if not conflicting or holder.id not in live or holder.workload == spec.workload:
                continue
            assignment = self.assignments.get(holder.workload)
            should_run = (
                assignment is not None
                and assignment.desired == "Running"
                and (assignment.uid, assignment.revision) == (holder.id.uid, holder.id.revision)
            )
            if not should_run:
                number, _ = min(conflicting)
                raise Conflict(
                    f"port {number} is held by workload {holder.workload}, which is being stopped",
                    where=spec.workload,
                )

    def _log_error_once(self, workload: str, error: LatticeError | OSError) -> None:
        """Log an error of a workload, unless the last error of the workload had the same text."""
        if self._last_errors.get(workload) != str(error):
            self._last_errors[workload] = str(error)
            log.warning("cannot carry out the assignment", workload=workload, reason=str(error))

    def _update_probes(self, instances: list[Instance]) -> None:
        """Start the probes of running, assigned instances; cancel the probes of other instances."""
        due: dict[InstanceAttempt, ProbeTracker] = {}
        for instance in instances:
            assignment = self.assignments.get(instance.workload)
            container = (
                assignment.containers.get(instance.id.container)
                if assignment and assignment.uid == instance.id.uid
                else None
            )
            if instance.state == "Running" and container is not None and container.probes is not None:
                due[(instance.id, instance.attempt)] = ProbeTracker.begin(
                    container.probes, self.clock.monotonic()
                )
        for attempt_key in self._probe_tasks.keys() - due.keys():
            self._probe_tasks.pop(attempt_key).cancel()
            self._health.pop(attempt_key, None)
        for attempt_key in due.keys() - self._probe_tasks.keys():
            self._probe_tasks[attempt_key] = asyncio.create_task(
                self._probe_instance(attempt_key, due[attempt_key])
            )

    async def _probe_instance(self, attempt_key: InstanceAttempt, tracker: ProbeTracker) -> None:
        def on_health(health: Health) -> None:
            self._health[attempt_key] = health
            self._wake.set()

        async def run_probe(probe: Probe) -> ProbeResult:
            return await self.runtime.run_probe(attempt_key[0], probe)

        await run_probes(tracker, self.clock, run_probe, on_health)

    async def usage(self) -> dict[str, Usage]:
        """The usage of every workload with live instances, by path."""
        usage_by_path: dict[str, Usage] = {}
        for instance in await self.runtime.list():
            usage = await self.runtime.usage(instance.id) if instance.is_live else None
            if usage is not None:
                subtotal = usage_by_path.get(instance.workload, Usage(0, 0, 0))
                usage_by_path[instance.workload] = Usage(
                    subtotal.cpu + usage.cpu, subtotal.memory + usage.memory, subtotal.disk + usage.disk
                )
        return usage_by_path

    async def stop_all(self) -> None:
        """Stop all live instances; a later agent process may start the instances again."""
        self.may_act = False
        # The flag is cleared first, so that no reconcile restarts a stopped instance.
        live = [instance.id for instance in await self.runtime.list() if instance.is_live]
        await asyncio.gather(*(self.runtime.stop(instance_id, self.grace) for instance_id in live))

    async def stop_and_remove_all(self) -> None:
        """Stop all instances gracefully, then remove every instance with its files."""
        await self.stop_all()
        await self.clear()

    async def clear(self) -> None:
        """Kill and remove all instances and drop the assignments."""
        self.may_act, self.assignment_set, self._is_saved = False, AssignmentSet({}, {}), False
        await asyncio.gather(*(self.runtime.remove(instance.id) for instance in await self.runtime.list()))
        self._save()


def _host_ports(spec: RunSpec) -> set[tuple[int, str]]:
    return {
        (spec.ports[port.name], port.protocol) for port in spec.container.ports if port.name in spec.ports
    }
