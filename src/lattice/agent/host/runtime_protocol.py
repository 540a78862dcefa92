"""What every runtime promises: start, stop, list, adopt and measure the containers of workloads, each at most once."""

import errno
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import msgspec

from lattice.errors import Conflict
from lattice.kinds.container import Container, Probe

DISK_FULL_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
)  # on the disk, or in what this process may write

InstanceState = Literal["Starting", "Running", "Exited"]
FailureReason = Literal[
    "INVALID_SPEC",  # cannot work however often it is tried
    "COMMAND_NOT_FOUND",
    "INVALID_IMAGE",
    "PORT_BIND_CONFLICT",  # of a port that it asks for by number
    "PORT_TAKEN",  # of one that was chosen for it: another may be chosen
    "IMAGE_NOT_FOUND",
    "IMAGE_PULL_FAILED",
    "INSUFFICIENT_RESOURCES",  # also: killed at its memory limit
    "NETWORK_ERROR",
    "STORAGE_ERROR",  # disk full or not writable
    "RUNTIME_ERROR",  # ended with an error, or the runtime did
    "RUNTIME_UNAVAILABLE",  # this node cannot run it, another may
    "UNHEALTHY",  # its liveness or startup probe failed
    "DISCONNECTED",  # the node was cut off for longer than the workload allows
]
NON_RETRYABLE_REASONS: frozenset[str] = frozenset(
    {"INVALID_SPEC", "COMMAND_NOT_FOUND", "INVALID_IMAGE", "PORT_BIND_CONFLICT"}
)


class InstanceId(msgspec.Struct, frozen=True, order=True):
    """One container of one revision of one workload."""

    uid: str
    revision: str
    container: str

    def __str__(self) -> str:
        return f"{self.uid}.{self.revision}.{self.container}"


class Failure(msgspec.Struct, frozen=True):
    """Why something does not run: one word for programs, a sentence for people."""

    reason: FailureReason
    message: str

    @property
    def is_retryable(self) -> bool:
        return self.reason not in NON_RETRYABLE_REASONS


class Limits(msgspec.Struct, frozen=True):
    """More than this it never gets; None does not limit."""

    cpu: int | None = None  # milli-cores
    memory: int | None = None  # bytes


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runtime needs to start one instance."""

    id: InstanceId
    workload: str  # namespace/name
    container: Container
    attempt: int = 0  # a higher one starts again what has ended
    env: dict[str, str] = {}  # handed in by the control plane, before the container's own
    ports: dict[str, int] = {}  # allocated numbers by name of the port
    limits: Limits = Limits()
    stop_after: float | None = None  # seconds without contact after which it must be dead; None: it runs on


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a start."""

    id: InstanceId
    workload: str
    attempt: int
    state: InstanceState
    started_at: str = ""
    exit_code: int | None = None
    signal: str = ""  # SIGKILL, if one ended it
    failure: Failure | None = None
    asked: bool = False  # ended because it was asked to: may be started again in the same attempt
    enforced: dict[str, str] = {}  # how each limit is held: cgroup-v1, cgroup-v2, rlimit, container, none

    @property
    def is_live(self) -> bool:
        return self.state != "Exited"

    def covers_attempt(self, attempt: int) -> bool:
        """Whether a start in this attempt has its answer already."""
        return self.is_live or (self.attempt >= attempt and not self.asked)


class Handle(msgspec.Struct, frozen=True):
    """How an instance is found again; a pid alone may be somebody else's by now."""

    pid: int = 0
    start: int = 0  # clock ticks after boot at which the process began, from /proc/<pid>/stat
    boot: str = ""
    cgroups: tuple[str, ...] = ()
    container: str = ""


class InstanceRecord(msgspec.Struct, frozen=True):
    """What is remembered of an instance, so that a restarted agent finds it."""

    spec: RunSpec
    instance: Instance
    handle: Handle = Handle()


class Usage(msgspec.Struct, frozen=True):
    """What is really in use."""

    cpu: int  # milli-cores, since it was asked last
    memory: int  # bytes
    disk: int  # bytes


class ProbeResult(msgspec.Struct, frozen=True):
    """What one probe heard."""

    ok: bool
    detail: str = ""


class RecordStore(Protocol):
    """Where records are kept; what was written is there after a crash at any moment."""

    def write_record(self, record: InstanceRecord) -> None:
        """Durable on return. Raises Full when there is no room."""
        ...

    def delete_record(self, which: InstanceId) -> None: ...


class Runtime(Protocol):
    name: str
    on_exit: Callable[
        [], None
    ]  # called when an instance ended by itself; whoever wants to know at once sets it

    async def start(self, spec: RunSpec) -> Instance:
        """Run it. What runs already, or has ended in this attempt, is left as it is. Trouble is in the answer's `failure`, not raised.

        Raises Conflict while another revision of the same container of the workload lives.
        """
        ...

    async def stop(self, which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
        """Ask it to end, after `grace` seconds make it; everything it started ends too. None: there is no such instance."""
        ...

    async def remove(self, which: InstanceId) -> None:
        """Nothing of it is left: not alive, no record, no files, no logs."""
        ...

    async def list(self) -> list[Instance]:
        """What was started and not removed, in order of id."""
        ...

    async def adopt(self, record: InstanceRecord) -> Instance:
        """Take over what an earlier agent started, if it is still the same process; else say that it ended."""
        ...

    async def usage(self, which: InstanceId) -> Usage | None: ...

    async def logs(self, which: InstanceId, tail: int) -> str:
        """The last lines it printed; empty when there is no such instance."""
        ...

    async def logs_since(self, which: InstanceId, after: int) -> tuple[str, int]:
        """What it printed after a position, and the position up to which that is; -1 asks for the present one only."""
        ...

    async def run_probe(self, which: InstanceId, probe: Probe) -> ProbeResult: ...

    async def record_contact(self, since: float) -> None:
        """The control plane was heard; silence counts from `since`, in the clock's monotonic seconds."""
        ...

    async def close(self) -> None:
        """Let go of everything; instances run on."""
        ...


def existing_instance(spec: RunSpec, known: Iterable[Instance]) -> Instance | None:
    """The instance that answers this start already. Raises Conflict rather than allow a second copy."""
    found = None
    for other in known:
        if (other.id.container, other.workload) != (spec.id.container, spec.workload):
            continue
        if other.id == spec.id:
            found = other if other.covers_attempt(spec.attempt) else None
        elif other.is_live:
            raise Conflict(
                f"{other.id} still runs, {spec.id} must not start beside it",
                where=f"workload/{spec.workload}",
                fix="stop it first",
            )
    return found


def new_instance(spec: RunSpec, state: InstanceState, failure: Failure | None = None) -> Instance:
    return Instance(id=spec.id, workload=spec.workload, attempt=spec.attempt, state=state, failure=failure)
