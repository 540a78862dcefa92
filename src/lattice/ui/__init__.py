"""Static files of the web page.

Imported by: app.
May import: errors.
May touch: nothing.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """One static file, plain and compressed; `etag` changes with the content of the file."""

    body: bytes
    content_type: str

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    @cached_property
    def gzipped(self) -> bytes:
        """The compressed body, computed on the first request, so that the server starts without compressing
        files."""
        return gzip.compress(self.body, 9, mtime=0)


def assets() -> Mapping[str, Asset]:
    """All static files of the page by path, such as `lib/api.js`."""
    # Sorted, so that the mapping does not depend on the order of the file system.
    bodies = sorted(_walk(files(__name__) / "static", ""))
    return {path: Asset(body, CONTENT_TYPES[_suffix(path)]) for path, body in bodies}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        elif _suffix(path) in CONTENT_TYPES:
            yield path, entry.read_bytes()


def _suffix(path: str) -> str:
    return f".{path.rpartition('.')[2]}"
