"""Read manifests from files, folders, standard input and URLs, as YAML documents with their line numbers."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from lattice.errors import Cause, LatticeError, Malformed, NotFound, TooLarge, Unavailable
from lattice.kinds.meta.yaml_manifest import Document, load_documents

Item = TypeVar("Item")

MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
# A manifest file may hold many objects of up to 1 MiB.
MAX_FILE_BYTES = 16 << 20
MAX_DOWNLOAD_BYTES = 1 << 20
_DOWNLOAD_TIMEOUT_S = 30.0


def load_manifests(locations: Sequence[str], recursive: bool = False) -> list[Document]:
    """Read every manifest at the locations; raise an error that lists every unreadable file."""
    documents, problems = read_documents(locations, recursive)
    return all_or_raise(documents, problems)


def read_documents(locations: Sequence[str], recursive: bool) -> tuple[list[Document], list[LatticeError]]:
    """Read the documents at the locations; return the documents and the errors of unreadable sources."""
    documents: list[Document] = []
    problems: list[LatticeError] = []
    for location in locations:
        try:
            sources = list(_sources(location, recursive))
        except LatticeError as e:
            problems.append(e)
            continue
        for name, read in sources:
            try:
                documents += load_documents(read(), name)
            except LatticeError as e:
                problems.append(e)
    if not documents and not problems:
        fix = "a manifest has apiVersion, kind and metadata.name"
        problems.append(Malformed("the file contains no manifest", where=", ".join(locations), fix=fix))
    return documents, problems


def source_line(problem: LatticeError) -> tuple[str, int]:
    """The file name and line number in the `where` text of an error, to sort errors; line 0 if absent."""
    source, _, line = problem.where.rpartition(":")
    return (source, int(line)) if line.isdigit() else (problem.where, 0)


def _sources(location: str, recursive: bool) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The names of the manifest sources at a location, each with a function that reads the source."""
    if location == "-":
        yield (
            "<stdin>",
            lambda: _check_size(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "<stdin>", MAX_FILE_BYTES),
        )
    elif location.startswith(("http://", "https://")):
        yield location, partial(_download, location)
    elif (folder := Path(location)).is_dir():
        entries = folder.rglob("*") if recursive else folder.iterdir()
        manifests = sorted(path for path in entries if path.suffix in MANIFEST_SUFFIXES and path.is_file())
        if not manifests:
            deeper = "" if recursive else "; -R includes subfolders"
            raise NotFound(
                "no manifests in this folder",
                where=str(folder),
                fix=f"files must end in {', '.join(MANIFEST_SUFFIXES)}{deeper}",
            )
        for path in manifests:
            yield str(path), partial(_read_file, path)
    else:
        yield location, partial(_read_file, Path(location))


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _check_size(file.read(MAX_FILE_BYTES + 1), str(path), MAX_FILE_BYTES)
    except OSError as e:
        raise NotFound(
            f"cannot be read: {(e.strerror or str(e)).lower()}",
            where=str(path),
            fix="check the path and its permissions",
        ) from e


def _download(url: str) -> bytes:
    import urllib.request

    try:
        # S310 does not apply: the caller passes only http and https addresses.
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as response:  # noqa: S310
            return _check_size(response.read(MAX_DOWNLOAD_BYTES + 1), url, MAX_DOWNLOAD_BYTES)
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise Unavailable(
            f"cannot be downloaded: {reason}",
            where=url,
            fix="check the address, or download the file and use its path",
        ) from e


def _check_size(text: bytes, where: str, limit: int) -> bytes:
    if len(text) > limit:
        raise TooLarge(f"is larger than {limit >> 20} MiB", where=where, fix="split it into several files")
    return text


def all_or_raise(items: list[Item], problems: list[LatticeError]) -> list[Item]:
    """Return the items if no problem occurred; else raise the only problem, or an error with every problem as
    a cause."""
    if not problems:
        return items
    if len(problems) == 1:
        raise problems[0]
    kind = type(problems[0]) if len({problem.exit_code for problem in problems}) == 1 else Malformed
    causes = [
        Cause(problem.where, f"{problem.message}; {problem.fix}" if problem.fix else problem.message)
        for problem in sorted(problems, key=source_line)
    ]
    raise kind(f"{len(problems)} manifests are invalid; nothing was sent", causes=causes)
