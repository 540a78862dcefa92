"""The durable state of an agent: the assignments, the term of the leader that sent them, and the started
instances, in one file that is replaced atomically."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from lattice.agent.host.runtime_protocol import DISK_FULL_ERRNOS, InstanceId, InstanceRecord
from lattice.agent.plan import Assignment
from lattice.errors import Conflict, Full, Invalid, Unavailable

STATE_FORMAT = 1


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the state file."""

    format: int = STATE_FORMAT
    # The highest leadership term received; orders of a lower term are rejected.
    term: int = 0
    wanted: tuple[Assignment, ...] = ()  # the assignments of the node
    records: tuple[InstanceRecord, ...] = ()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file durably: after a crash or power loss the file has the old or the new content, never a
    mixture."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # The content must be on disk before the rename makes the file visible.
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    # Without a sync of the folder a power loss could undo the rename.
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateFile:
    """The state file of an agent, used as record store by the runtimes; a lock file keeps a second agent out
    of the folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / "state.json"
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The kernel releases the lock with the process, so a crash leaves no stale lock.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise Conflict(
                "another agent uses this folder",
                where=str(folder),
                fix="stop the other agent, or use a different --data-dir",
            ) from error
        try:
            self.state = _read(self.path)
        except BaseException:
            os.close(self._lock)
            raise

    def write_record(self, record: InstanceRecord) -> None:
        remaining = [existing for existing in self.state.records if existing.spec.id != record.spec.id]
        self._save(msgspec.structs.replace(self.state, records=(*remaining, record)))

    def delete_record(self, instance_id: InstanceId) -> None:
        remaining = tuple(record for record in self.state.records if record.spec.id != instance_id)
        if len(remaining) != len(self.state.records):
            self._save(msgspec.structs.replace(self.state, records=remaining))

    def save_assignments(self, assignments: tuple[Assignment, ...], term: int) -> None:
        """Save the assignments durably, before the executor acts on the assignments."""
        changed = msgspec.structs.replace(self.state, wanted=assignments, term=term)
        if changed != self.state:
            self._save(changed)

    def close(self) -> None:
        os.close(self._lock)

    def _save(self, state: AgentState) -> None:
        try:
            write_atomically(self.path, msgspec.json.encode(state))
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise Full(
                    "no disk space to write the agent's state",
                    where=str(self.path),
                    fix="free disk space on this node",
                ) from error
            raise Unavailable(
                f"the agent's state cannot be written: {error.strerror}", where=str(self.path)
            ) from error
        # Replaced only after the write, so that memory is never ahead of the disk.
        self.state = state


def _read(path: Path) -> AgentState:
    try:
        state = msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except msgspec.MsgspecError as error:
        fix = "stop the workloads that still run on this node, move the file away and start the agent again"
        raise Invalid(f"is not an agent state file: {error}", where=str(path), fix=fix) from error
    if state.format != STATE_FORMAT:
        fix = "start the version of lattice that wrote the file"
        raise Invalid(f"has format {state.format}, this agent reads {STATE_FORMAT}", where=str(path), fix=fix)
    return state
