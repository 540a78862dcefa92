"""The manifests that `-f` names: files, folders, addresses, standard input; all read before anything is sent."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lattice.cli.names import Names, Target
from lattice.errors import LatticeError, Malformed, NotFound, TooLarge, Unavailable
from lattice.kinds.manifest import Document, load

ENDINGS = (".yaml", ".yml", ".json")
MAX_FILE = 16 << 20  # bytes; a file may hold many objects of up to 1 MiB
MAX_DOWNLOAD = 1 << 20
_DOWNLOAD_SECONDS = 30.0


def documents(places: Sequence[str], recursive: bool = False) -> list[Document]:
    """Every manifest there; the first problem anywhere is raised."""
    found = [d for place in places for name, text in _texts(place, recursive) for d in load(text, name)]
    if not found:
        raise Malformed("there is no manifest here", where=", ".join(places), fix="a manifest has apiVersion, kind and metadata.name")
    return found


def target_of(document: Document, names: Names) -> Target:
    """Which object a manifest is about."""
    value = document.value
    metadata = value.get("metadata")
    for field, given in (("apiVersion", value.get("apiVersion")), ("kind", value.get("kind"))):
        if not isinstance(given, str) or not given:
            raise Malformed(f"{field} is missing", where=document.at(field), fix=f"say what this is with `{field}:`")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise Malformed(
            "metadata.name is missing", where=document.at("metadata.name"), fix="name the object; quote the name if it looks like a number"
        )
    if "/" in name or name in {".", ".."}:
        fix = "use lower-case letters, digits, '-' and '.'"
        raise Malformed(f'"{name}" cannot be a name', where=document.at("metadata.name"), fix=fix)
    try:
        return Target(names.named(value["apiVersion"], value["kind"]), name)
    except LatticeError as e:
        raise NotFound(e.what, where=document.at("kind"), fix=e.fix) from e


def _texts(place: str, recursive: bool) -> Iterator[tuple[str, bytes]]:
    if place == "-":
        yield "<stdin>", _bounded(sys.stdin.buffer.read(MAX_FILE + 1), "<stdin>", MAX_FILE)
    elif place.startswith(("http://", "https://")):
        yield place, _download(place)
    elif Path(place).is_dir():
        yield from ((str(path), _read(path)) for path in _manifests_in(Path(place), recursive))
    else:
        yield place, _read(Path(place))


def _manifests_in(folder: Path, recursive: bool) -> list[Path]:
    entries = folder.rglob("*") if recursive else folder.iterdir()
    found = sorted(path for path in entries if path.suffix in ENDINGS and path.is_file())
    if not found:
        deeper = "" if recursive else "; -R looks in folders below too"
        raise NotFound("no manifests in this folder", where=str(folder), fix=f"files must end in {', '.join(ENDINGS)}{deeper}")
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(MAX_FILE + 1), str(path), MAX_FILE)
    except OSError as e:
        raise NotFound(f"cannot be read: {(e.strerror or str(e)).lower()}", where=str(path), fix="check the path given with -f") from e


def _download(url: str) -> bytes:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS) as answer:  # noqa: S310 - only http and https come here
            return _bounded(answer.read(MAX_DOWNLOAD + 1), url, MAX_DOWNLOAD)
    except (OSError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise Unavailable(f"cannot be fetched: {reason}", where=url, fix="check the address, or download it and give the file") from e


def _bounded(text: bytes, where: str, limit: int) -> bytes:
    if len(text) > limit:
        raise TooLarge(f"is larger than {limit >> 20} MiB", where=where, fix="split it into several files")
    return text
