"""The cache of watch events as JSON lines, shared by every watch of a resource."""

from dataclasses import dataclass, field

from lattice.kinds.meta.stored_encoding import splice_revision
from lattice.server.requests.catalog import ServedKind
from lattice.store.protocol import Change

# Lines of recent changes; other watches of the same resource soon request the same lines.
MAX_CACHED_FRAMES = 4096


@dataclass
class WatchFrameCache:
    """JSON lines of changes by resource, revision, path and event type; the cache encodes a change once for
    all watches."""

    lines: dict[tuple[str, int, str, str], bytes] = field(default_factory=dict)

    def line(self, served: ServedKind, event_type: str, change: Change) -> bytes:
        identity = (served.resource.id, change.revision, change.key.path, event_type)
        line = self.lines.get(identity)
        if line is None:
            line = b'{"type":"%b","object":%b}\n' % (
                event_type.encode(),
                splice_revision(
                    watch_event_value(event_type, change), served.revision_offset, change.revision
                ),
            )
            if len(self.lines) >= MAX_CACHED_FRAMES:
                for oldest in list(self.lines)[: MAX_CACHED_FRAMES // 2]:
                    del self.lines[oldest]
            self.lines[identity] = line
        return line


def watch_event_value(event_type: str, change: Change) -> bytes:
    """Return the value that an event shows.

    A DELETED event shows the last value that matched the selector: the object may exist on, outside the
    selector.
    """
    value = change.previous.value if event_type == "DELETED" and change.previous is not None else change.value
    assert value is not None, change  # noqa: S101 - a change without a new value had an old one
    return value
