"""Manifests read from files, folders, standard input and URLs, as YAML documents with their lines."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from lattice.errors import Cause, LatticeError, Malformed, NotFound, TooLarge, Unavailable
from lattice.kinds.meta.yaml_manifest import Document, load_documents

Item = TypeVar("Item")

MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
MAX_FILE_BYTES = 16 << 20  # bytes; a file may hold many objects of up to 1 MiB
MAX_DOWNLOAD_BYTES = 1 << 20
_DOWNLOAD_TIMEOUT_S = 30.0


def load_manifests(places: Sequence[str], recursive: bool = False) -> list[Document]:
    """Every manifest there; every file that cannot be read is told."""
    found, problems = read_documents(places, recursive)
    return all_or_raise(found, problems)


def read_documents(places: Sequence[str], recursive: bool) -> tuple[list[Document], list[LatticeError]]:
    found: list[Document] = []
    problems: list[LatticeError] = []
    for place in places:
        try:
            sources = list(_sources(place, recursive))
        except LatticeError as e:
            problems.append(e)
            continue
        for name, read in sources:
            try:
                found += load_documents(read(), name)
            except LatticeError as e:
                problems.append(e)
    if not found and not problems:
        fix = "a manifest has apiVersion, kind and metadata.name"
        problems.append(Malformed("there is no manifest here", where=", ".join(places), fix=fix))
    return found, problems


def source_line(problem: LatticeError) -> tuple[str, int]:
    source, _, line = problem.where.rpartition(":")
    return (source, int(line)) if line.isdigit() else (problem.where, 0)


def _sources(place: str, recursive: bool) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of what is there, each with how to read it."""
    if place == "-":
        yield (
            "<stdin>",
            lambda: _check_size(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "<stdin>", MAX_FILE_BYTES),
        )
    elif place.startswith(("http://", "https://")):
        yield place, partial(_download, place)
    elif Path(place).is_dir():
        yield from ((str(path), partial(_read_file, path)) for path in _manifests_in(Path(place), recursive))
    else:
        yield place, partial(_read_file, Path(place))


def _manifests_in(folder: Path, recursive: bool) -> list[Path]:
    entries = folder.rglob("*") if recursive else folder.iterdir()
    found = sorted(path for path in entries if path.suffix in MANIFEST_SUFFIXES and path.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound(
            "no manifests in this folder",
            where=str(folder),
            fix=f"files must end in {', '.join(MANIFEST_SUFFIXES)}{deeper}",
        )
    return found


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _check_size(file.read(MAX_FILE_BYTES + 1), str(path), MAX_FILE_BYTES)
    except OSError as e:
        raise NotFound(
            f"cannot be read: {(e.strerror or str(e)).lower()}",
            where=str(path),
            fix="check the path and who may read it",
        ) from e


def _download(url: str) -> bytes:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as answer:  # noqa: S310 - only http and https come here
            return _check_size(answer.read(MAX_DOWNLOAD_BYTES + 1), url, MAX_DOWNLOAD_BYTES)
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise Unavailable(
            f"cannot be fetched: {reason}",
            where=url,
            fix="check the address, or download it and give the file",
        ) from e


def _check_size(text: bytes, where: str, limit: int) -> bytes:
    if len(text) > limit:
        raise TooLarge(f"is larger than {limit >> 20} MiB", where=where, fix="split it into several files")
    return text


def all_or_raise(found: list[Item], problems: list[LatticeError]) -> list[Item]:
    if not problems:
        return found
    if len(problems) == 1:
        raise problems[0]
    kind = type(problems[0]) if len({p.exit_code for p in problems}) == 1 else Malformed
    causes = [
        Cause(p.where, f"{p.message}; {p.fix}" if p.fix else p.message)
        for p in sorted(problems, key=source_line)
    ]
    raise kind(f"{len(problems)} manifests cannot be used; nothing was sent", causes=causes)
