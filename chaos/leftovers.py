"""What runs that were killed have left behind: namespaces, processes in them, and the folder with logs and notes."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from chaos import network
from chaos.network import MARK

KEPT = "kept"  # in a folder that somebody is to look at: its run has ended


def make_folder(run: int) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{MARK}-{run}-"))


def close_folder(folder: Path, *, keep: bool) -> None:
    if keep:
        (folder / KEPT).touch()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def clear() -> list[str]:
    """Removes it all, and says what. What belongs to runs that are alive, or to other users, stays."""
    said = []
    for run in sorted({*network.runs(), *_folders()}):
        if not _is_chaos(run):
            folders = _folders().get(run, [])
            network.remove(run)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            said.append(f"removed what run {run} had left behind{''.join(f': {each}' for each in folders)}")
    return said


def _folders() -> dict[int, list[Path]]:
    """Of this user, by run; not those that were kept."""
    found: dict[int, list[Path]] = {}
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{MARK}-*")):
        run = re.match(rf"{MARK}-(\d+)-", path.name)
        if (
            run
            and path.is_dir()
            and not path.is_symlink()
            and path.stat().st_uid == os.geteuid()
            and not (path / KEPT).exists()
        ):
            found.setdefault(int(run[1]), []).append(path)
    return found


def _is_chaos(pid: int) -> bool:
    try:
        return b"chaos" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
