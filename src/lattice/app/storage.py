"""Lock the data folder of a server, and open the store that the settings name."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lattice.clock import Clock
from lattice.errors import Conflict, Full, Unavailable
from lattice.settings import Settings
from lattice.store.protocol import Store


@contextlib.contextmanager
def locked_data_dir(folder: Path) -> Iterator[Callable[[str], None]]:
    """Lock the data folder for one server and yield a function that writes the lock file. The lock ends on
    exit of the context, or with the process."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        process, _, address = os.pread(file, 200, 0).decode(errors="replace").partition(" ")
        os.close(file)
        suffix = f" at {address.strip()}" if address.strip() else ""
        raise Conflict(
            f"a server is already running on this data folder (process {process or 'unknown'}){suffix}",
            where=str(folder),
            fix="use the running server, stop it first, or choose another --data-dir",
        ) from error

    def write(text: str) -> None:
        os.ftruncate(file, 0)
        os.pwrite(file, text.encode(), 0)

    write(str(os.getpid()))
    try:
        yield write
    finally:
        os.close(file)


async def open_store(settings: Settings, folder: Path, clock: Clock) -> Store:
    """Open the SQLite file in the data folder, or the etcd cluster that `--store` names.

    Raises Full or Unavailable if the file cannot be used, and Unavailable for an unknown URL scheme.
    """
    if settings.store.startswith("etcd://"):
        from lattice.store.etcd.store import EtcdStore

        return await EtcdStore.open(settings.store, clock, settings.allow_etcd_that_loses_writes)
    if settings.store:
        raise Unavailable(
            f"unknown store: {settings.store}",
            where="--store",
            fix="omit --store for SQLite, or use etcd://HOST:PORT",
        )
    import apsw

    from lattice.store.sqlite.store import SqliteStore

    path = folder / "state.db"
    try:
        return await SqliteStore.open(path, clock)
    except apsw.FullError as error:
        raise Full("the disk is full", where=str(path), fix="free disk space") from error
    except apsw.Error as error:
        fix = "check the disk; restore a backup of the file, or choose another --data-dir"
        raise Unavailable(f"SQLite cannot use this file: {error}", where=str(path), fix=fix) from error
