"""Watch of a list that reconnects with back-off and resumes at the last revision."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lattice.cli.client.http import Client, Request, error_from_status
from lattice.cli.output import messages as say
from lattice.errors import Unavailable

# Back-off between two attempts to reconnect, in seconds.
_MIN_RECONNECT_S, _MAX_RECONNECT_S = 0.5, 10.0


class RetryWatcher:
    """Watches one path from a revision on; raises Gone when the server has compacted that revision."""

    def __init__(self, client: Client, path: str, query: Mapping[str, str], accept: str) -> None:
        self.client = client
        self.path = path
        # A watch has no pages.
        self.query = {k: v for k, v in query.items() if k not in ("limit", "continue")}
        self.accept = accept
        self.sleep: Callable[[float], None] = time.sleep

    def changes(self, revision: str) -> Iterator[tuple[str, Any]]:
        """Type and object of every change after the revision; never ends by itself."""
        pause, is_warned = 0.0, False
        while True:
            query = {
                **self.query,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": revision,
            }
            try:
                for event in self.client.stream_events(Request("GET", self.path, query, accept=self.accept)):
                    kind, value = event["type"], event["object"]
                    # A compacted revision arrives as an ERROR event; its status becomes Gone.
                    if kind == "ERROR":
                        raise error_from_status(value.get("code", 500), value)
                    pause, is_warned, revision = 0.0, False, revision_of(value) or revision
                    # A bookmark carries only a newer revision to resume from.
                    if kind != "BOOKMARK":
                        yield kind, value
            except Unavailable as e:
                if not is_warned:
                    say.warning(f"{e.message}; retrying")
                # One warning per outage, not one per attempt.
                is_warned = True
            pause = min(max(pause * 2, _MIN_RECONNECT_S), _MAX_RECONNECT_S)
            self.sleep(pause)


def revision_of(value: Mapping[str, Any]) -> str:
    """Revision of an object, or of the last row of a table."""
    own = value.get("metadata", {}).get("resourceVersion", "")
    rows = value.get("rows") or []
    inner = rows[-1].get("object", {}).get("metadata", {}).get("resourceVersion", "") if rows else ""
    return str(inner or own)
