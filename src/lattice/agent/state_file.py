"""What an agent must still know after a crash: what it was told, by which leader, and what it started. One file, replaced whole."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from lattice.agent.host.runtime_protocol import DISK_FULL_ERRNOS, InstanceId, InstanceRecord
from lattice.agent.plan import Assignment
from lattice.errors import Conflict, Full, Invalid, Unavailable

FORMAT = 1


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in the file."""

    format: int = FORMAT
    term: int = 0  # highest leadership term heard: orders of a lower one are refused
    wanted: tuple[Assignment, ...] = ()
    records: tuple[InstanceRecord, ...] = ()


def write_atomically(path: Path, content: bytes) -> None:
    """The file is the old one or the new one, never a mixture, also after a power cut."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateFile:
    """The notebook of the runtimes and the memory of the loop; the lock keeps a second agent out of the folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / "state.json"
        self._lock = _acquire_lock(folder / "lock")
        try:
            self.state = _read(self.path)
        except BaseException:
            os.close(self._lock)
            raise

    def write_record(self, record: InstanceRecord) -> None:
        others = [each for each in self.state.records if each.spec.id != record.spec.id]
        self._save(msgspec.structs.replace(self.state, records=(*others, record)))

    def delete_record(self, which: InstanceId) -> None:
        kept = tuple(each for each in self.state.records if each.spec.id != which)
        if len(kept) != len(self.state.records):
            self._save(msgspec.structs.replace(self.state, records=kept))

    def save_assignments(self, wanted: tuple[Assignment, ...], term: int) -> None:
        """What the control plane said last; durable before anything is done about it."""
        changed = msgspec.structs.replace(self.state, wanted=wanted, term=term)
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
                    "no room to write the agent's state",
                    where=str(self.path),
                    fix="free some disk space on this node",
                ) from error
            raise Unavailable(
                f"the agent's state cannot be written: {error.strerror}", where=str(self.path)
            ) from error
        self.state = state


def _read(path: Path) -> AgentState:
    try:
        state = msgspec.json.decode(path.read_bytes(), type=AgentState)
    except FileNotFoundError:
        return AgentState()
    except msgspec.MsgspecError as error:
        fix = "stop what still runs on this node, move the file away and start the agent again"
        raise Invalid(f"is not the state of an agent: {error}", where=str(path), fix=fix) from error
    if state.format != FORMAT:
        fix = "start the version of lattice that wrote it"
        raise Invalid(f"has format {state.format}, this agent reads {FORMAT}", where=str(path), fix=fix)
    return state


def _acquire_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise Conflict(
            "another agent uses this folder",
            where=str(path.parent),
            fix="stop it, or give this one a --data-dir of its own",
        ) from error
    return descriptor
