"""Runs nothing and behaves as told: the runtime of the simulator, in virtual time, the same answers for the same seed.

A machine outlives its agent, so that a killed agent's successor finds what still runs; it also keeps the watchdog's promise. Nothing waits
in the background: what happened up to now is worked out when somebody looks, and `history` says when each copy really began and ended.
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
from lattice.clock import Clock, format_timestamp
from lattice.kinds.container import Probe

NO_USAGE = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a command would do; seconds after its start where it says so."""

    start_takes: float = 0.0  # so long it is Starting
    start_fails: Failure | None = None
    failing_starts: int | None = None  # so many starts fail, then they succeed; None: all of them
    exits_after: float | None = None  # None: runs until it is stopped
    jitter: float = 0.0  # share of exits_after that chance may add
    exit_code: int = 0
    stop_takes: float = 0.0  # more than the grace: it is killed
    ready_after: float = 0.0
    unhealthy_after: float | None = None  # liveness probes fail from then on
    prints: str = ""
    uses: Usage = NO_USAGE


@dataclass(slots=True)
class FakeProcess:
    """One start of a command on the machine."""

    spec: RunSpec
    started_at: float
    exits_at: float | None
    killed_at: float | None = None  # its node has begun to kill it
    outcome: tuple[int, str, Failure | None] | None = None  # exit code, signal, failure


@dataclass(frozen=True, slots=True)
class RuntimeEvent:
    at: float
    action: Literal["start", "stop"]
    instance_id: InstanceId


@dataclass(slots=True)
class FakeMachine:
    """What is really there, whether an agent looks or not."""

    clock: Clock
    rng: random.Random
    behaviours: dict[str, Behaviour] = field(default_factory=dict)  # by workload; "" for all others
    history: list[RuntimeEvent] = field(default_factory=list)
    processes: dict[InstanceId, FakeProcess] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    last_contact_at: float | None = None
    boot_count: int = 1
    kill_delay_s: float = 0.0  # seconds from when a copy must end, without contact, until it has

    def behaviour(self, workload: str) -> Behaviour:
        return self.behaviours.get(workload) or self.behaviours.get("") or Behaviour()

    def begin(self, spec: RunSpec) -> Failure | None:
        told = self.behaviour(spec.workload)
        count = self.starts[spec.workload] = self.starts.get(spec.workload, 0) + 1
        if told.start_fails and (told.failing_starts is None or count <= told.failing_starts):
            return told.start_fails
        now = self.clock.monotonic()
        lasts = None if told.exits_after is None else told.exits_after * (1 + told.jitter * self.rng.random())
        self.processes[spec.id] = FakeProcess(spec, now, None if lasts is None else now + lasts)
        self.history.append(RuntimeEvent(now, "start", spec.id))
        return None

    def disconnected_failure(self, spec: RunSpec) -> Failure | None:
        """What may not run without contact is not started without."""
        if spec.stop_after is None:
            return None
        if self.last_contact_at is None:
            return Failure("DISCONNECTED", "the control plane has not been heard since this node started")
        silence = self.clock.monotonic() - self.last_contact_at
        return (
            Failure("DISCONNECTED", f"no contact with the control plane for {silence:.0f} s")
            if silence >= spec.stop_after
            else None
        )

    def refresh(self, which: InstanceId) -> FakeProcess | None:
        """The copy as it is now: whatever should have ended it by now has."""
        copy = self.processes.get(which)
        if copy is None or copy.outcome is not None:
            return copy
        now = self.clock.monotonic()
        told = self.behaviour(copy.spec.workload)
        deadline = (
            None if copy.spec.stop_after is None else (self.last_contact_at or 0.0) + copy.spec.stop_after
        )
        if copy.killed_at is None and deadline is not None and deadline <= now:
            copy.killed_at = deadline + self.kill_delay_s
        if copy.exits_at is not None and copy.exits_at <= min(
            now, now if copy.killed_at is None else copy.killed_at
        ):
            failure = (
                Failure("RUNTIME_ERROR", f"ended with code {told.exit_code}") if told.exit_code else None
            )
            self._end(copy, copy.exits_at, (told.exit_code, "", failure))
        elif copy.killed_at is not None and copy.killed_at <= now:
            lonely = Failure(
                "DISCONNECTED",
                f"ended by this node: no contact with the control plane for {copy.spec.stop_after:g} s",
            )
            self._end(copy, copy.killed_at, (137, "SIGKILL", lonely))
        return copy

    def record_contact(self, since: float) -> None:
        for which in sorted(self.processes):
            self.refresh(which)
        self.last_contact_at = max(since, self.last_contact_at or since)

    def end(self, which: InstanceId, killed: bool) -> None:
        copy = self.refresh(which)
        if copy is not None and copy.outcome is None:
            self._end(copy, self.clock.monotonic(), (137, "SIGKILL", None) if killed else (0, "", None))

    def lose_power(self) -> None:
        """Everything ends at once; what an agent wrote down stays."""
        for which in sorted(self.processes):
            self.end(which, killed=True)
        self.processes.clear()
        self.last_contact_at = None
        self.boot_count += 1

    def live_instances(self) -> list[InstanceId]:
        return [
            which
            for which in sorted(self.processes)
            if (copy := self.refresh(which)) and copy.outcome is None
        ]

    def _end(self, copy: FakeProcess, at: float, end: tuple[int, str, Failure | None]) -> None:
        copy.outcome = end
        self.history.append(RuntimeEvent(at, "stop", copy.spec.id))


class FakeRuntime:
    name = "fake"

    def __init__(self, machine: FakeMachine, notebook: RecordStore) -> None:
        self.machine = machine
        self.record_store = notebook
        self.clock = machine.clock
        self.on_exit: Callable[[], None] = lambda: (
            None
        )  # never called: nothing happens here unless somebody looks
        self._records: dict[InstanceId, InstanceRecord] = {}

    async def start(self, spec: RunSpec) -> Instance:
        known = existing_instance(spec, await self.list())
        if known is not None:
            return known
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
        return self._now(spec.id)

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        if which not in self._records:
            return None
        if self._now(which).is_live:
            takes = self.machine.behaviour(self._records[which].spec.workload).stop_takes
            if min(takes, grace) > 0:
                await self.clock.sleep(min(takes, grace))
            if self._now(which).is_live:
                self.machine.end(which, killed=takes > grace)
                self._record_exit(which, because, asked=because is None)
        return self._now(which)

    async def remove(self, which: InstanceId) -> None:
        self.machine.end(which, killed=True)
        self.machine.processes.pop(which, None)
        if self._records.pop(which, None):
            self.record_store.delete_record(which)

    async def list(self) -> list[Instance]:
        return [self._now(which) for which in sorted(self._records)]

    async def adopt(self, record: InstanceRecord) -> Instance:
        which = record.spec.id
        self._records[which] = record
        if record.instance.is_live and (
            record.handle.boot != str(self.machine.boot_count) or self.machine.refresh(which) is None
        ):
            gone = Failure(
                "RUNTIME_ERROR", "ended while no agent ran on this node; its exit code is not known"
            )
            self._records[which] = InstanceRecord(
                record.spec, new_instance(record.spec, "Exited", gone), record.handle
            )
        return self._now(which)

    async def usage(self, which: InstanceId) -> Usage | None:
        live = which in self._records and self._now(which).is_live
        return self.machine.behaviour(self._records[which].spec.workload).uses if live else None

    async def logs(self, which: InstanceId, tail: int) -> str:
        if which not in self._records:
            return ""
        printed = self.machine.behaviour(self._records[which].spec.workload).prints
        return "".join(printed.splitlines(keepends=True)[-tail:]) if tail > 0 else ""

    async def logs_since(self, which: InstanceId, after: int) -> tuple[str, int]:
        """Everything was printed at the start."""
        text = (
            await self.logs(which, len(self.machine.behaviour(self._records[which].spec.workload).prints))
            if which in self._records
            else ""
        )
        return ("" if after < 0 else text[after:]), len(text)

    async def run_probe(self, which: InstanceId, probe: Probe) -> ProbeResult:
        copy = self.machine.refresh(which) if which in self._records else None
        if copy is None or copy.outcome is not None:
            return ProbeResult(False, "it does not run")
        told, age = self.machine.behaviour(copy.spec.workload), self.clock.monotonic() - copy.started_at
        if age < told.ready_after:
            return ProbeResult(False, "not ready yet")
        return ProbeResult(
            told.unhealthy_after is None or age < told.unhealthy_after,
            "" if told.unhealthy_after is None else "sick",
        )

    async def record_contact(self, since: float) -> None:
        self.machine.record_contact(since)

    async def close(self) -> None:
        return None

    def _now(self, which: InstanceId) -> Instance:
        """What is known of it, brought up to the present."""
        record = self._records[which]
        copy = self.machine.refresh(which)
        if not record.instance.is_live or copy is None:
            return record.instance
        if copy.outcome is not None:
            return self._record_exit(which, copy.outcome[2])
        starting = (
            self.clock.monotonic() - copy.started_at
            < self.machine.behaviour(record.spec.workload).start_takes
        )
        return msgspec.structs.replace(record.instance, state="Starting" if starting else "Running")

    def _record_exit(self, which: InstanceId, failure: Failure | None, asked: bool = False) -> Instance:
        record, copy = self._records[which], self.machine.processes[which]
        code, signal, _ = copy.outcome or (0, "", None)
        instance = msgspec.structs.replace(
            record.instance, state="Exited", exit_code=code, signal=signal, failure=failure, asked=asked
        )
        self._records[which] = InstanceRecord(record.spec, instance, record.handle)
        self.record_store.write_record(self._records[which])
        return instance
