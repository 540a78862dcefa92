"""`python -m chaos.agent NOTES agent …`: a real agent on a fake machine that outlives the agent; NOTES is the
machine's log."""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from lattice.agent.host.runtime_protocol import Failure, InstanceId, RunSpec
from lattice.agent.runtimes import fake
from lattice.agent.runtimes.fake import FakeMachine, FakeProcess
from lattice.clock import Clock

End = tuple[int, str, Failure | None]


class Note(msgspec.Struct, omit_defaults=True):
    """A line of the machine's log. `at` is the host's monotonic time, which all processes share and no fault
    changes."""

    at: float
    what: Literal["start", "stop", "heard", "power"]
    which: InstanceId | None = None
    spec: RunSpec | None = None
    end: End | None = None


def read(path: Path) -> Iterator[Note]:
    """The notes of a log; an incomplete last line is skipped."""
    text = path.read_bytes() if path.exists() else b""
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=Note)


def append(path: Path, note: Note) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(note) + b"\n")


class NotedMachine(FakeMachine):
    """A fake machine that logs every start and stop and restores its state from the log: instances outlive a
    killed agent."""

    def __init__(self, clock: Clock, rng: random.Random, path: Path) -> None:
        super().__init__(clock, rng)
        self.path = path
        self.is_reading = True
        for note in read(path):
            self._recall(note)
        self.is_reading = False

    def _recall(self, note: Note) -> None:
        if note.what == "start" and note.spec is not None:
            self.processes[note.spec.id] = FakeProcess(note.spec, note.at, None)
        elif note.what == "stop" and note.which in self.processes:
            self.processes[note.which].outcome = note.end
        elif note.what == "heard":
            self.last_contact_at = note.at
        elif note.what == "power":
            self.processes.clear()
            self.last_contact_at = None
            self.boot_count += 1

    def begin(self, spec: RunSpec) -> Failure | None:
        failure = super().begin(spec)
        if failure is None:
            append(self.path, Note(self.processes[spec.id].started_at, "start", spec=spec))
        return failure

    def record_contact(self, since: float) -> None:
        previous = self.last_contact_at
        super().record_contact(since)
        if self.last_contact_at is not None and self.last_contact_at != previous:
            append(self.path, Note(self.last_contact_at, "heard"))

    def _end(self, process: FakeProcess, at: float, end: End) -> None:
        super()._end(process, at, end)
        if not self.is_reading:
            append(self.path, Note(at, "stop", which=process.spec.id, end=end))


def lose_power(path: Path) -> None:
    append(path, Note(time.monotonic(), "power"))


def main() -> None:
    from lattice.cli.main import run

    path = Path(sys.argv.pop(1))

    def machine(clock: Clock, rng: random.Random) -> FakeMachine:
        return NotedMachine(clock, rng, path)

    # The agent's command builds the machine by this name.
    fake.FakeMachine = machine  # type: ignore[assignment, misc]
    run()


if __name__ == "__main__":
    main()
