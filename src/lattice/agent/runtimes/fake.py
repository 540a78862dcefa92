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
    Answer,
    Failure,
    Handle,
    Instance,
    InstanceId,
    Notebook,
    Record,
    RunSpec,
    Usage,
    earlier,
    fresh,
)
from lattice.clock import Clock, stamp
from lattice.kinds.container import Probe

NOTHING = Usage(0, 0, 0)


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
    sick_after: float | None = None  # liveness probes fail from then on
    prints: str = ""
    uses: Usage = NOTHING


@dataclass(slots=True)
class Copy:
    """One start of a command on the machine."""

    spec: RunSpec
    began: float
    leaves_at: float | None
    dies_at: float | None = None  # its node has begun to kill it
    end: tuple[int, str, Failure | None] | None = None  # exit code, signal, failure


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    what: Literal["start", "stop"]
    which: InstanceId


@dataclass(slots=True)
class FakeMachine:
    """What is really there, whether an agent looks or not."""

    clock: Clock
    rng: random.Random
    behaviours: dict[str, Behaviour] = field(default_factory=dict)  # by workload; "" for all others
    history: list[Happening] = field(default_factory=list)
    copies: dict[InstanceId, Copy] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    heard_at: float | None = None
    boot: int = 1
    killing_takes: float = 0.0  # seconds from when a copy must end, without contact, until it has

    def behaviour(self, workload: str) -> Behaviour:
        return self.behaviours.get(workload) or self.behaviours.get("") or Behaviour()

    def begin(self, spec: RunSpec) -> Failure | None:
        told = self.behaviour(spec.workload)
        count = self.starts[spec.workload] = self.starts.get(spec.workload, 0) + 1
        if told.start_fails and (told.failing_starts is None or count <= told.failing_starts):
            return told.start_fails
        now = self.clock.monotonic()
        lasts = None if told.exits_after is None else told.exits_after * (1 + told.jitter * self.rng.random())
        self.copies[spec.id] = Copy(spec, now, None if lasts is None else now + lasts)
        self.history.append(Happening(now, "start", spec.id))
        return None

    def refusal(self, spec: RunSpec) -> Failure | None:
        """What may not run without contact is not started without."""
        if spec.stop_after is None:
            return None
        if self.heard_at is None:
            return Failure("DISCONNECTED", "the control plane has not been heard since this node started")
        silence = self.clock.monotonic() - self.heard_at
        return (
            Failure("DISCONNECTED", f"no contact with the control plane for {silence:.0f} s")
            if silence >= spec.stop_after
            else None
        )

    def look(self, which: InstanceId) -> Copy | None:
        """The copy as it is now: whatever should have ended it by now has."""
        copy = self.copies.get(which)
        if copy is None or copy.end is not None:
            return copy
        now = self.clock.monotonic()
        told = self.behaviour(copy.spec.workload)
        deadline = None if copy.spec.stop_after is None else (self.heard_at or 0.0) + copy.spec.stop_after
        if copy.dies_at is None and deadline is not None and deadline <= now:
            copy.dies_at = deadline + self.killing_takes
        if copy.leaves_at is not None and copy.leaves_at <= min(
            now, now if copy.dies_at is None else copy.dies_at
        ):
            failure = (
                Failure("RUNTIME_ERROR", f"ended with code {told.exit_code}") if told.exit_code else None
            )
            self._end(copy, copy.leaves_at, (told.exit_code, "", failure))
        elif copy.dies_at is not None and copy.dies_at <= now:
            lonely = Failure(
                "DISCONNECTED",
                f"ended by this node: no contact with the control plane for {copy.spec.stop_after:g} s",
            )
            self._end(copy, copy.dies_at, (137, "SIGKILL", lonely))
        return copy

    def contact(self, since: float) -> None:
        for which in sorted(self.copies):
            self.look(which)
        self.heard_at = max(since, self.heard_at or since)

    def end(self, which: InstanceId, killed: bool) -> None:
        copy = self.look(which)
        if copy is not None and copy.end is None:
            self._end(copy, self.clock.monotonic(), (137, "SIGKILL", None) if killed else (0, "", None))

    def lose_power(self) -> None:
        """Everything ends at once; what an agent wrote down stays."""
        for which in sorted(self.copies):
            self.end(which, killed=True)
        self.copies.clear()
        self.heard_at = None
        self.boot += 1

    def live(self) -> list[InstanceId]:
        return [which for which in sorted(self.copies) if (copy := self.look(which)) and copy.end is None]

    def _end(self, copy: Copy, at: float, end: tuple[int, str, Failure | None]) -> None:
        copy.end = end
        self.history.append(Happening(at, "stop", copy.spec.id))


class FakeRuntime:
    name = "fake"

    def __init__(self, machine: FakeMachine, notebook: Notebook) -> None:
        self.machine = machine
        self.notebook = notebook
        self.clock = machine.clock
        self.wake: Callable[[], None] = lambda: (
            None
        )  # never called: nothing happens here unless somebody looks
        self._records: dict[InstanceId, Record] = {}

    async def start(self, spec: RunSpec) -> Instance:
        known = earlier(spec, await self.list())
        if known is not None:
            return known
        failure = self.machine.refusal(spec)
        instance = msgspec.structs.replace(fresh(spec, "Starting"), started_at=stamp(self.clock.now()))
        record = Record(spec, instance, Handle(boot=str(self.machine.boot)))
        self.notebook.write(record)
        failure = failure or self.machine.begin(spec)
        if failure is not None:
            record = Record(spec, fresh(spec, "Exited", failure))
            self.notebook.write(record)
        self._records[spec.id] = record
        return self._now(spec.id)

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        if which not in self._records:
            return None
        if self._now(which).live:
            takes = self.machine.behaviour(self._records[which].spec.workload).stop_takes
            if min(takes, grace) > 0:
                await self.clock.sleep(min(takes, grace))
            if self._now(which).live:
                self.machine.end(which, killed=takes > grace)
                self._keep(which, because, asked=because is None)
        return self._now(which)

    async def remove(self, which: InstanceId) -> None:
        self.machine.end(which, killed=True)
        self.machine.copies.pop(which, None)
        if self._records.pop(which, None):
            self.notebook.strike(which)

    async def list(self) -> list[Instance]:
        return [self._now(which) for which in sorted(self._records)]

    async def adopt(self, record: Record) -> Instance:
        which = record.spec.id
        self._records[which] = record
        if record.instance.live and (
            record.handle.boot != str(self.machine.boot) or self.machine.look(which) is None
        ):
            gone = Failure(
                "RUNTIME_ERROR", "ended while no agent ran on this node; its exit code is not known"
            )
            self._records[which] = Record(record.spec, fresh(record.spec, "Exited", gone), record.handle)
        return self._now(which)

    async def usage(self, which: InstanceId) -> Usage | None:
        live = which in self._records and self._now(which).live
        return self.machine.behaviour(self._records[which].spec.workload).uses if live else None

    async def logs(self, which: InstanceId, tail: int) -> str:
        if which not in self._records:
            return ""
        printed = self.machine.behaviour(self._records[which].spec.workload).prints
        return "".join(printed.splitlines(keepends=True)[-tail:]) if tail > 0 else ""

    async def printed(self, which: InstanceId, after: int) -> tuple[str, int]:
        """Everything was printed at the start."""
        text = (
            await self.logs(which, len(self.machine.behaviour(self._records[which].spec.workload).prints))
            if which in self._records
            else ""
        )
        return ("" if after < 0 else text[after:]), len(text)

    async def ask(self, which: InstanceId, probe: Probe) -> Answer:
        copy = self.machine.look(which) if which in self._records else None
        if copy is None or copy.end is not None:
            return Answer(False, "it does not run")
        told, age = self.machine.behaviour(copy.spec.workload), self.clock.monotonic() - copy.began
        if age < told.ready_after:
            return Answer(False, "not ready yet")
        return Answer(
            told.sick_after is None or age < told.sick_after, "" if told.sick_after is None else "sick"
        )

    async def contact(self, since: float) -> None:
        self.machine.contact(since)

    async def close(self) -> None:
        return None

    def _now(self, which: InstanceId) -> Instance:
        """What is known of it, brought up to the present."""
        record = self._records[which]
        copy = self.machine.look(which)
        if not record.instance.live or copy is None:
            return record.instance
        if copy.end is not None:
            return self._keep(which, copy.end[2])
        starting = (
            self.clock.monotonic() - copy.began < self.machine.behaviour(record.spec.workload).start_takes
        )
        return msgspec.structs.replace(record.instance, state="Starting" if starting else "Running")

    def _keep(self, which: InstanceId, failure: Failure | None, asked: bool = False) -> Instance:
        record, copy = self._records[which], self.machine.copies[which]
        code, signal, _ = copy.end or (0, "", None)
        instance = msgspec.structs.replace(
            record.instance, state="Exited", exit_code=code, signal=signal, failure=failure, asked=asked
        )
        self._records[which] = Record(record.spec, instance, record.handle)
        self.notebook.write(self._records[which])
        return instance
