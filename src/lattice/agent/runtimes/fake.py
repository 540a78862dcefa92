"""The fake runtime of the simulator: runs no process, follows configured behaviours in virtual time, and
gives the same results for the same seed.

A fake machine outlives its agent, so the next agent finds the running instances. Like the watchdog of a
real node, the machine kills processes that have been without contact to the control plane for too long. No
background task runs: a call computes the events up to the current time, and `history` records the exact start
and end of every process.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from lattice.agent.host.runtime_protocol import (
    Failure,
    Handle,
    Instance,
    InstanceId,
    InstanceRecord,
    ProbeResult,
    RecordStore,
    RunSpec,
    Usage,
    existing_instance,
    new_instance,
)
from lattice.clock import Clock
from lattice.kinds.container import Probe
from lattice.kinds.meta.timestamps import format_timestamp

NO_USAGE = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of a fake command; durations are in seconds."""

    start_takes: float = 0.0  # duration of the state Starting
    start_fails: Failure | None = None
    failing_starts: int | None = None  # number of starts that fail before a success; None: all
    exits_after: float | None = None  # None: runs until it is stopped
    jitter: float = 0.0  # exits_after grows by a random share of up to this much
    exit_code: int = 0
    stop_takes: float = 0.0  # if longer than the grace period, the process is killed
    ready_after: float = 0.0  # seconds after the start until which probes fail
    unhealthy_after: float | None = None  # seconds after the start from which probes fail
    prints: str = ""
    uses: Usage = NO_USAGE


@dataclass(slots=True)
class FakeProcess:
    """One started process on the fake machine."""

    spec: RunSpec
    started_at: float
    exits_at: float | None
    killed_at: float | None = None  # when a kill for lost contact takes effect
    outcome: tuple[int, str, Failure | None] | None = None  # exit code, signal, failure


@dataclass(frozen=True, slots=True)
class RuntimeEvent:
    """The start or stop of an instance, with its monotonic time stamp."""

    at: float
    action: Literal["start", "stop"]
    instance_id: InstanceId


@dataclass(slots=True)
class FakeMachine:
    """The processes of a machine, independent of any agent."""

    clock: Clock
    rng: random.Random
    behaviours: dict[str, Behaviour] = field(default_factory=dict)  # by workload; "" is the default
    history: list[RuntimeEvent] = field(default_factory=list)
    processes: dict[InstanceId, FakeProcess] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    last_contact_at: float | None = None
    boot_count: int = 1
    # Seconds from the deadline of a process, `stop_after` seconds after the last contact, until the kill.
    kill_delay_s: float = 0.0

    def behaviour(self, workload: str) -> Behaviour:
        """The behaviour of a workload, else the default behaviour."""
        return self.behaviours.get(workload) or self.behaviours.get("") or Behaviour()

    def begin(self, spec: RunSpec) -> Failure | None:
        """Start a process, or return the configured failure."""
        behaviour = self.behaviour(spec.workload)
        count = self.starts[spec.workload] = self.starts.get(spec.workload, 0) + 1
        if behaviour.start_fails and (behaviour.failing_starts is None or count <= behaviour.failing_starts):
            return behaviour.start_fails
        now = self.clock.monotonic()
        duration = (
            None
            if behaviour.exits_after is None
            else behaviour.exits_after * (1 + behaviour.jitter * self.rng.random())
        )
        self.processes[spec.id] = FakeProcess(spec, now, None if duration is None else now + duration)
        self.history.append(RuntimeEvent(now, "start", spec.id))
        return None

    def disconnected_failure(self, spec: RunSpec) -> Failure | None:
        """The failure with which a disconnected node rejects the start of a process; None: the process may
        start.

        The node rejects only processes with `stop_after`: the time that they may run without contact.
        """
        if spec.stop_after is None:
            return None
        if self.last_contact_at is None:
            return Failure("DISCONNECTED", "no contact with the control plane since this node started")
        silence = self.clock.monotonic() - self.last_contact_at
        return (
            Failure("DISCONNECTED", f"no contact with the control plane for {silence:.0f} s")
            if silence >= spec.stop_after
            else None
        )

    def refresh(self, instance_id: InstanceId) -> FakeProcess | None:
        """The process as of now, with all due exits and kills applied."""
        process = self.processes.get(instance_id)
        if process is None or process.outcome is not None:
            return process
        now = self.clock.monotonic()
        behaviour = self.behaviour(process.spec.workload)
        deadline = (
            None
            if process.spec.stop_after is None
            else (self.last_contact_at or 0.0) + process.spec.stop_after
        )
        if process.killed_at is None and deadline is not None and deadline <= now:
            process.killed_at = deadline + self.kill_delay_s
        last_exit = now if process.killed_at is None else min(now, process.killed_at)
        if process.exits_at is not None and process.exits_at <= last_exit:
            failure = (
                Failure("RUNTIME_ERROR", f"exited with code {behaviour.exit_code}")
                if behaviour.exit_code
                else None
            )
            self._end(process, process.exits_at, (behaviour.exit_code, "", failure))
        elif process.killed_at is not None and process.killed_at <= now:
            failure = Failure(
                "DISCONNECTED",
                "stopped by the node: no contact with the control plane; "
                f"the limit is {process.spec.stop_after:g} s",
            )
            self._end(process, process.killed_at, (137, "SIGKILL", failure))
        return process

    def record_contact(self, since: float) -> None:
        """Record contact as of `since`; processes whose deadline has passed are ended first."""
        for instance_id in sorted(self.processes):
            self.refresh(instance_id)
        self.last_contact_at = max(since, self.last_contact_at or since)

    def end(self, instance_id: InstanceId, killed: bool) -> None:
        process = self.refresh(instance_id)
        if process is not None and process.outcome is None:
            self._end(process, self.clock.monotonic(), (137, "SIGKILL", None) if killed else (0, "", None))

    def lose_power(self) -> None:
        """End all processes and reboot; the records of the agent stay."""
        for instance_id in sorted(self.processes):
            self.end(instance_id, killed=True)
        self.processes.clear()
        self.last_contact_at = None
        self.boot_count += 1

    def live_instances(self) -> list[InstanceId]:
        return [
            instance_id
            for instance_id in sorted(self.processes)
            if (process := self.refresh(instance_id)) and process.outcome is None
        ]

    def _end(self, process: FakeProcess, at: float, outcome: tuple[int, str, Failure | None]) -> None:
        process.outcome = outcome
        self.history.append(RuntimeEvent(at, "stop", process.spec.id))


class FakeRuntime:
    """The runtime protocol on a fake machine."""

    name = "fake"

    def __init__(self, machine: FakeMachine, record_store: RecordStore) -> None:
        self.machine = machine
        self.record_store = record_store
        self.clock = machine.clock
        # The executor sets this callback. The fake runtime never calls the callback: an instance changes its
        # state only inside a call of a method.
        self.on_exit: Callable[[], None] = lambda: None
        self._records: dict[InstanceId, InstanceRecord] = {}

    async def start(self, spec: RunSpec) -> Instance:
        existing = existing_instance(spec, await self.list())
        if existing is not None:
            return existing
        failure = self.machine.disconnected_failure(spec)
        instance = msgspec.structs.replace(
            new_instance(spec, "Starting"), started_at=format_timestamp(self.clock.now())
        )
        record = InstanceRecord(spec, instance, Handle(boot=str(self.machine.boot_count)))
        self.record_store.write_record(record)
        failure = failure or self.machine.begin(spec)
        if failure is not None:
            record = InstanceRecord(spec, new_instance(spec, "Exited", failure))
            self.record_store.write_record(record)
        self._records[spec.id] = record
        return self._current_instance(spec.id)

    async def stop(
        self, instance_id: InstanceId, grace: float, failure: Failure | None = None
    ) -> Instance | None:
        if instance_id not in self._records:
            return None
        if self._current_instance(instance_id).is_live:
            duration = self.machine.behaviour(self._records[instance_id].spec.workload).stop_takes
            if min(duration, grace) > 0:
                await self.clock.sleep(min(duration, grace))
            if self._current_instance(instance_id).is_live:
                self.machine.end(instance_id, killed=duration > grace)
                self._record_exit(instance_id, failure, is_requested=failure is None)
        return self._current_instance(instance_id)

    async def remove(self, instance_id: InstanceId) -> None:
        self.machine.end(instance_id, killed=True)
        self.machine.processes.pop(instance_id, None)
        if self._records.pop(instance_id, None):
            self.record_store.delete_record(instance_id)

    async def list(self) -> list[Instance]:
        return [self._current_instance(instance_id) for instance_id in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        instance_id = record.spec.id
        self._records[instance_id] = record
        if record.instance.is_live and (
            record.handle.boot != str(self.machine.boot_count) or self.machine.refresh(instance_id) is None
        ):
            failure = Failure(
                "RUNTIME_ERROR", "exited while no agent ran on this node; the exit code is unknown"
            )
            self._records[instance_id] = InstanceRecord(
                record.spec, new_instance(record.spec, "Exited", failure), record.handle
            )
        return self._current_instance(instance_id)

    async def usage(self, instance_id: InstanceId) -> Usage | None:
        is_live = instance_id in self._records and self._current_instance(instance_id).is_live
        return self.machine.behaviour(self._records[instance_id].spec.workload).uses if is_live else None

    async def logs(self, instance_id: InstanceId, tail: int) -> str:
        if instance_id not in self._records:
            return ""
        printed = self.machine.behaviour(self._records[instance_id].spec.workload).prints
        return "".join(printed.splitlines(keepends=True)[-tail:]) if tail > 0 else ""

    async def logs_since(self, instance_id: InstanceId, position: int) -> tuple[str, int]:
        """The log after a position; the process writes its log at the start."""
        text = (
            await self.logs(
                instance_id, len(self.machine.behaviour(self._records[instance_id].spec.workload).prints)
            )
            if instance_id in self._records
            else ""
        )
        return ("" if position < 0 else text[position:]), len(text)

    async def run_probe(self, instance_id: InstanceId, probe: Probe) -> ProbeResult:
        process = self.machine.refresh(instance_id) if instance_id in self._records else None
        if process is None or process.outcome is not None:
            return ProbeResult(False, "the instance is not running")
        behaviour, age = (
            self.machine.behaviour(process.spec.workload),
            self.clock.monotonic() - process.started_at,
        )
        if age < behaviour.ready_after:
            return ProbeResult(False, "not ready yet")
        return ProbeResult(
            behaviour.unhealthy_after is None or age < behaviour.unhealthy_after,
            "" if behaviour.unhealthy_after is None else "sick",
        )

    async def record_contact(self, since: float) -> None:
        self.machine.record_contact(since)

    async def close(self) -> None:
        return None

    def _current_instance(self, instance_id: InstanceId) -> Instance:
        """The instance as of now, with all due exits recorded."""
        record = self._records[instance_id]
        process = self.machine.refresh(instance_id)
        if not record.instance.is_live or process is None:
            return record.instance
        if process.outcome is not None:
            return self._record_exit(instance_id, process.outcome[2])
        is_starting = (
            self.clock.monotonic() - process.started_at
            < self.machine.behaviour(record.spec.workload).start_takes
        )
        return msgspec.structs.replace(record.instance, state="Starting" if is_starting else "Running")

    def _record_exit(
        self, instance_id: InstanceId, failure: Failure | None, is_requested: bool = False
    ) -> Instance:
        record, process = self._records[instance_id], self.machine.processes[instance_id]
        code, signal, _ = process.outcome or (0, "", None)
        instance = msgspec.structs.replace(
            record.instance,
            state="Exited",
            exit_code=code,
            signal=signal,
            failure=failure,
            was_stopped_on_request=is_requested,
        )
        self._records[instance_id] = InstanceRecord(record.spec, instance, record.handle)
        self.record_store.write_record(self._records[instance_id])
        return instance
