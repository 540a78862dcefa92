"""Leftovers of killed runs: namespaces with processes, and the folder with logs and notes."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from chaos import network
from chaos.network import MARK

# Marks a folder that the user keeps: the run has ended.
KEPT_MARKER = "kept"


def make_folder(run: int) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{MARK}-{run}-"))


def close_folder(folder: Path, *, keep: bool) -> None:
    if keep:
        (folder / KEPT_MARKER).touch()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def clear() -> list[str]:
    """Remove the leftovers of dead runs and return a line per run. Live runs and files of further users stay."""
    lines = []
    for run in sorted({*network.runs(), *_folders()}):
        if not _is_chaos(run):
            folders = _folders().get(run, [])
            network.remove(run)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            names = "".join(f": {folder}" for folder in folders)
            lines.append(f"removed what run {run} had left behind{names}")
    return lines


def _folders() -> dict[int, list[Path]]:
    """Folders of the current user by run, without kept folders."""
    folders: dict[int, list[Path]] = {}
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{MARK}-*")):
        run = re.match(rf"{MARK}-(\d+)-", path.name)
        if (
            run
            and path.is_dir()
            and not path.is_symlink()
            and path.stat().st_uid == os.geteuid()
            and not (path / KEPT_MARKER).exists()
        ):
            folders.setdefault(int(run[1]), []).append(path)
    return folders


def _is_chaos(pid: int) -> bool:
    try:
        return b"chaos" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
