"""An undo journal: records how to undo changes while a trial is open, and rolls the changes back in reverse
order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempt:
    """The outcome of an attempt; the caller sets `succeeded` to keep the changes."""

    succeeded: bool = False


@dataclass(slots=True)
class Journal:
    """A stack of undo calls for nested trials; outside of a trial no undo call is recorded."""

    _undo: list[tuple[Callable[..., None], tuple[object, ...]]] = field(default_factory=list)
    _depth: int = 0

    def record_undo(self, undo: Callable[..., None], *arguments: object) -> None:
        if self._depth:
            self._undo.append((undo, arguments))

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """A trial whose changes are always rolled back on exit."""
        with self._recording() as mark:
            try:
                yield
            finally:
                self._roll_back(mark)

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """A trial whose changes are rolled back on exit, unless the attempt succeeded."""
        attempt = Attempt()
        with self._recording() as mark:
            try:
                yield attempt
            finally:
                if not attempt.succeeded:
                    self._roll_back(mark)

    @contextmanager
    def _recording(self) -> Iterator[int]:
        mark = len(self._undo)
        self._depth += 1
        try:
            yield mark
        finally:
            self._depth -= 1
            if not self._depth:
                self._undo.clear()

    def _roll_back(self, mark: int) -> None:
        # Undo calls are changes too: with depth 0 the journal does not record the rollback itself.
        depth, self._depth = self._depth, 0
        while len(self._undo) > mark:
            undo, arguments = self._undo.pop()
            undo(*arguments)
        self._depth = depth
