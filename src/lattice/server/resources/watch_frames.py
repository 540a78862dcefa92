"""The line of JSON that tells a change, made once however many watch."""

from dataclasses import dataclass, field

from lattice.kinds.meta.stored_encoding import splice_revision
from lattice.server.requests.catalog import ServedKind
from lattice.store.protocol import Change

MAX_CACHED_FRAMES = 4096  # lines kept for the other watchers of the same changes


@dataclass
class WatchFrameCache:
    """The plain JSON line of a change, made once however many watch."""

    lines: dict[tuple[str, int, str, str], bytes] = field(default_factory=dict)

    def line(self, served: ServedKind, kind: str, change: Change) -> bytes:
        identity = (served.resource.id, change.revision, change.key.path, kind)
        line = self.lines.get(identity)
        if line is None:
            line = b'{"type":"%b","object":%b}\n' % (
                kind.encode(),
                splice_revision(watch_event_value(kind, change), served.revision_offset, change.revision),
            )
            if len(self.lines) >= MAX_CACHED_FRAMES:
                for old in list(self.lines)[: MAX_CACHED_FRAMES // 2]:
                    del self.lines[old]
            self.lines[identity] = line
        return line


def watch_event_value(kind: str, change: Change) -> bytes:
    """What a deletion shows is the last that the watcher could see: it may live on, outside the selector."""
    value = change.previous.value if kind == "DELETED" and change.previous is not None else change.value
    assert value is not None, change  # noqa: S101 - a change without a new value had an old one
    return value
