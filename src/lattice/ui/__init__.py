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
    """One file, as it is and compressed; `etag` is another one whenever the file is."""

    body: bytes
    content_type: str

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    @cached_property
    def gzipped(self) -> bytes:
        """Compressed when it is first asked for: a server that nobody looks at starts without."""
        return gzip.compress(self.body, 9, mtime=0)


def assets() -> Mapping[str, Asset]:
    """By path, such as `lib/api.js`."""
    found = sorted(_walk(files(__name__) / "static", ""))
    return {path: Asset(body, CONTENT_TYPES[_ending(path)]) for path, body in found}


def _walk(folder: Traversable, before: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        path = f"{before}{each.name}"
        if each.is_dir():
            yield from _walk(each, f"{path}/")
        elif _ending(path) in CONTENT_TYPES:
            yield path, each.read_bytes()


def _ending(path: str) -> str:
    return f".{path.rpartition('.')[2]}"
