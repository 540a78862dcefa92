"""The line of JSON that tells a change, made once however many watch."""

from dataclasses import dataclass, field

from lattice.kinds.meta.stored import splice
from lattice.server.requests.catalog import Served
from lattice.store.protocol import Change

FRAMES = 4096  # lines kept for the other watchers of the same changes


@dataclass
class Frames:
    """The plain JSON line of a change, made once however many watch."""

    known: dict[tuple[str, int, str, str], bytes] = field(default_factory=dict)

    def line(self, served: Served, kind: str, change: Change) -> bytes:
        identity = (served.resource.id, change.revision, change.key.path, kind)
        line = self.known.get(identity)
        if line is None:
            line = b'{"type":"%b","object":%b}\n' % (
                kind.encode(),
                splice(shown(kind, change), served.head, change.revision),
            )
            if len(self.known) >= FRAMES:
                for old in list(self.known)[: FRAMES // 2]:
                    del self.known[old]
            self.known[identity] = line
        return line


def shown(kind: str, change: Change) -> bytes:
    """What a deletion shows is the last that the watcher could see: it may live on, outside the selector."""
    value = change.previous.value if kind == "DELETED" and change.previous is not None else change.value
    assert value is not None, change  # noqa: S101 - a change without a new value had an old one
    return value
