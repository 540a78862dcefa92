"""The manifests that `-f` names: files, folders, addresses, standard input; all read before anything is sent."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from lattice.cli.client.kind_names import Names, Target, names
from lattice.errors import Cause, LatticeError, Malformed, NotFound, TooLarge, Unavailable
from lattice.kinds.meta.yaml_manifest import Document, load

ENDINGS = (".yaml", ".yml", ".json")
MAX_FILE = 16 << 20  # bytes; a file may hold many objects of up to 1 MiB
MAX_DOWNLOAD = 1 << 20
_DOWNLOAD_SECONDS = 30.0
Found = TypeVar("Found")


def documents(places: Sequence[str], recursive: bool = False) -> list[Document]:
    """Every manifest there; every file that cannot be read is told."""
    found, problems = _gathered(places, recursive)
    return _all_or_nothing(found, problems)


def manifests(
    places: Sequence[str],
    recursive: bool = False,
    check: Callable[[Document, Target], None] = lambda document, target: None,
) -> list[tuple[Document, Target]]:
    """Every manifest there with what it is about; every one that cannot be used is told."""
    found, problems = _gathered(places, recursive)
    pairs = []
    for document in found:
        try:
            target = target_of(document, names())
            check(document, target)
            pairs.append((document, target))
        except LatticeError as e:
            problems.append(e)
    return _all_or_nothing(pairs, problems)


def _gathered(places: Sequence[str], recursive: bool) -> tuple[list[Document], list[LatticeError]]:
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
                found += load(read(), name)
            except LatticeError as e:
                problems.append(e)
    if not found and not problems:
        fix = "a manifest has apiVersion, kind and metadata.name"
        problems.append(Malformed("there is no manifest here", where=", ".join(places), fix=fix))
    return found, problems


def _all_or_nothing(found: list[Found], problems: list[LatticeError]) -> list[Found]:
    if not problems:
        return found
    if len(problems) == 1:
        raise problems[0]
    kind = type(problems[0]) if len({p.exit_code for p in problems}) == 1 else Malformed
    causes = [Cause(p.where, f"{p.what}; {p.fix}" if p.fix else p.what) for p in sorted(problems, key=_place)]
    raise kind(f"{len(problems)} manifests cannot be used; nothing was sent", causes=causes)


def _place(problem: LatticeError) -> tuple[str, int]:
    source, _, line = problem.where.rpartition(":")
    return (source, int(line)) if line.isdigit() else (problem.where, 0)


def target_of(document: Document, known: Names) -> Target:
    """Which object a manifest is about."""
    value = document.value
    metadata = value.get("metadata")
    for field, given in (("apiVersion", value.get("apiVersion")), ("kind", value.get("kind"))):
        if not isinstance(given, str) or not given:
            raise Malformed(
                f"{field} is missing", where=document.at(field), fix=f"say what this is with `{field}:`"
            )
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed(
            "metadata.name is missing",
            where=document.at("metadata.name"),
            fix="name the object; quote the name if it looks like a number",
        )
    if "/" in name or name in {".", ".."}:
        fix = "use lower-case letters, digits, '-' and '.'"
        raise Malformed(f'"{name}" cannot be a name', where=document.at("metadata.name"), fix=fix)
    try:
        return Target(known.named(value["apiVersion"], value["kind"]), name)
    except LatticeError as e:
        raise NotFound(e.what, where=document.at("kind"), fix=e.fix) from e


def _sources(place: str, recursive: bool) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of what is there, each with how to read it."""
    if place == "-":
        yield "<stdin>", lambda: _bounded(sys.stdin.buffer.read(MAX_FILE + 1), "<stdin>", MAX_FILE)
    elif place.startswith(("http://", "https://")):
        yield place, partial(_download, place)
    elif Path(place).is_dir():
        yield from ((str(path), partial(_read, path)) for path in _manifests_in(Path(place), recursive))
    else:
        yield place, partial(_read, Path(place))


def _manifests_in(folder: Path, recursive: bool) -> list[Path]:
    entries = folder.rglob("*") if recursive else folder.iterdir()
    found = sorted(path for path in entries if path.suffix in ENDINGS and path.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound(
            "no manifests in this folder",
            where=str(folder),
            fix=f"files must end in {', '.join(ENDINGS)}{deeper}",
        )
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(MAX_FILE + 1), str(path), MAX_FILE)
    except OSError as e:
        raise NotFound(
            f"cannot be read: {(e.strerror or str(e)).lower()}",
            where=str(path),
            fix="check the path and who may read it",
        ) from e


def _download(url: str) -> bytes:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS) as answer:  # noqa: S310 - only http and https come here
            return _bounded(answer.read(MAX_DOWNLOAD + 1), url, MAX_DOWNLOAD)
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise Unavailable(
            f"cannot be fetched: {reason}",
            where=url,
            fix="check the address, or download it and give the file",
        ) from e


def _bounded(text: bytes, where: str, limit: int) -> bytes:
    if len(text) > limit:
        raise TooLarge(f"is larger than {limit >> 20} MiB", where=where, fix="split it into several files")
    return text
