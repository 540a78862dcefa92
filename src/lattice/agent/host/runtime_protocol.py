"""The protocol of runtimes: start, stop, list, adopt and measure the containers of workloads, with at most
one copy of a container.

An instance is one started container of a workload on this node. Its attempt is the number of the run in which
the container was started (`run` in the wire protocol and on the server).
"""

import errno
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import msgspec

from lattice.errors import Conflict
from lattice.kinds.container import Container, Probe

# A full disk, an exhausted quota, or the file size limit of the process.
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

InstanceState = Literal["Starting", "Running", "Exited"]
FailureReason = Literal[
    "INVALID_SPEC",  # no retry can succeed
    "COMMAND_NOT_FOUND",
    "INVALID_IMAGE",
    "PORT_BIND_CONFLICT",  # a port that the container requests by number
    "PORT_TAKEN",  # an allocated port: a retry gets another port
    "IMAGE_NOT_FOUND",
    "IMAGE_PULL_FAILED",
    "INSUFFICIENT_RESOURCES",  # also: killed at the memory limit
    "NETWORK_ERROR",
    "STORAGE_ERROR",  # disk full or not writable
    "RUNTIME_ERROR",  # the container or the runtime ended with an error
    "RUNTIME_UNAVAILABLE",  # the runtime of this node fails: try another node
    "UNHEALTHY",  # the liveness or startup probe failed
    "DISCONNECTED",  # the node was disconnected for longer than the workload allows
]
NON_RETRYABLE_REASONS: frozenset[str] = frozenset(
    {"INVALID_SPEC", "COMMAND_NOT_FOUND", "INVALID_IMAGE", "PORT_BIND_CONFLICT"}
)


class InstanceId(msgspec.Struct, frozen=True, order=True):
    """The identity of one container of one revision of one workload."""

    uid: str
    revision: str
    container: str

    def __str__(self) -> str:
        return f"{self.uid}.{self.revision}.{self.container}"


class Failure(msgspec.Struct, frozen=True):
    """The failure of an instance: a reason for programs and a message for users."""

    reason: FailureReason
    message: str

    @property
    def is_retryable(self) -> bool:
        return self.reason not in NON_RETRYABLE_REASONS


class Limits(msgspec.Struct, frozen=True):
    """Upper limits of an instance, or its requests; None means unlimited, or no request."""

    cpu: int | None = None  # milli-cores
    memory: int | None = None  # bytes


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification that a runtime needs to start one instance."""

    id: InstanceId
    workload: str  # namespace/name
    container: Container
    attempt: int = 0  # a higher attempt restarts an instance that has ended
    env: dict[str, str] = {}  # from the control plane; the container's own variables take precedence
    ports: dict[str, int] = {}  # allocated numbers by name of the port
    limits: Limits = Limits()
    requests: Limits = Limits()
    qos: str = ""  # quality-of-service class; empty: not known, nothing is set for it
    # Seconds without contact after which the instance must be dead; None: no limit.
    stop_after: float | None = None
    # GPUs of the node by index from 0, and the thousandths of the one shared GPU; 0: whole GPUs.
    gpus: tuple[int, ...] = ()
    gpu_milli: int = 0


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an instance, including an instance that failed to start."""

    id: InstanceId
    workload: str
    attempt: int
    state: InstanceState
    started_at: str = ""
    exit_code: int | None = None
    signal: str = ""  # such as SIGKILL, if a signal ended the instance
    failure: Failure | None = None
    # A stop request ended the instance: the same attempt may be started again.
    was_stopped_on_request: bool = msgspec.field(name="asked", default=False)
    enforced: dict[str, str] = {}  # limit -> cgroup-v1, cgroup-v2, rlimit, container or none

    @property
    def is_live(self) -> bool:
        return self.state != "Exited"

    def covers_attempt(self, attempt: int) -> bool:
        """Whether a start in this attempt would change nothing: the instance is live, or has ended by itself
        in this attempt or a later attempt."""
        return self.is_live or (self.attempt >= attempt and not self.was_stopped_on_request)


class Handle(msgspec.Struct, frozen=True):
    """The data with which an agent finds a started instance again; start time and boot id guard against a
    reused pid."""

    pid: int = 0
    start: int = 0  # start of the process in clock ticks after boot, from /proc/<pid>/stat
    boot: str = ""
    cgroups: tuple[str, ...] = ()
    container: str = ""


class InstanceRecord(msgspec.Struct, frozen=True):
    """The durable record of an instance, from which a restarted agent adopts the instance."""

    spec: RunSpec
    instance: Instance
    handle: Handle = Handle()


class Usage(msgspec.Struct, frozen=True):
    """The measured usage of an instance or node."""

    cpu: int  # milli-cores, since the last measurement
    memory: int  # bytes
    disk: int  # bytes


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of one probe."""

    ok: bool
    detail: str = ""


class RecordStore(Protocol):
    """The durable store of instance records; a written record survives a crash at any moment."""

    def write_record(self, record: InstanceRecord) -> None:
        """Write a record durably; raises Full if the disk is full."""
        ...

    def delete_record(self, instance_id: InstanceId) -> None: ...


class Runtime(Protocol):
    """Starts and stops the instances of one kind of runtime."""

    name: str
    # Called when an instance has ended by itself; a runtime may also call it after a stop.
    on_exit: Callable[[], None]

    async def start(self, spec: RunSpec) -> Instance:
        """Start an instance; an instance that runs already, or has ended in this attempt, is returned
        unchanged. Errors are in the `failure` of the result.

        Raises Conflict while another revision of the same container of the workload is live.
        """
        ...

    async def stop(
        self, instance_id: InstanceId, grace: float, failure: Failure | None = None
    ) -> Instance | None:
        """Terminate the instance with all its processes, and kill the processes after `grace` seconds; None
        if the instance is unknown."""
        ...

    async def remove(self, instance_id: InstanceId) -> None:
        """Kill the instance and delete its record, files and logs."""
        ...

    async def list(self) -> list[Instance]:
        """The instances that were started and not removed, sorted by id."""
        ...

    async def adopt(self, record: InstanceRecord) -> Instance:
        """Adopt an instance of an earlier agent if the same process still runs; else record the exit."""
        ...

    async def usage(self, instance_id: InstanceId) -> Usage | None: ...

    async def logs(self, instance_id: InstanceId, tail: int) -> str:
        """The last lines of the instance's log; empty for an unknown instance."""
        ...

    async def logs_since(self, instance_id: InstanceId, position: int) -> tuple[str, int]:
        """The log text after a position that an earlier call returned, and the new position. Position -1
        returns no text, only the current position."""
        ...

    async def run_probe(self, instance_id: InstanceId, probe: Probe) -> ProbeResult: ...

    async def record_contact(self, since: float) -> None:
        """Record that the agent had contact with the control plane at `since`, in monotonic seconds of the
        clock; the time without contact counts from then."""
        ...

    async def close(self) -> None:
        """Release all resources of the runtime; instances keep running."""
        ...


def existing_instance(spec: RunSpec, instances: Iterable[Instance]) -> Instance | None:
    """The instance that makes this start unnecessary, or None; raises Conflict if a start would run a second
    copy."""
    existing = None
    for instance in instances:
        if (instance.id.container, instance.workload) != (spec.id.container, spec.workload):
            continue
        if instance.id == spec.id:
            # Continue the loop: another revision of the container may still be live.
            existing = instance if instance.covers_attempt(spec.attempt) else None
        elif instance.is_live:
            raise Conflict(
                f"{instance.id} is still running; {spec.id} must not start at the same time",
                where=f"workload/{spec.workload}",
                fix="stop the running instance first",
            )
    return existing


def new_instance(spec: RunSpec, state: InstanceState, failure: Failure | None = None) -> Instance:
    """The instance of a spec in the given state."""
    return Instance(id=spec.id, workload=spec.workload, attempt=spec.attempt, state=state, failure=failure)
