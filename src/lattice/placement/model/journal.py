"""What undoes each change, in the order in which they were made, while somebody may want that."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempt:
    succeeded: bool = False


@dataclass(slots=True)
class Journal:
    _undo: list[tuple[Callable[..., None], tuple[object, ...]]] = field(default_factory=list)
    _depth: int = 0

    def record_undo(self, undo: Callable[..., None], *arguments: object) -> None:
        if self._depth:
            self._undo.append((undo, arguments))

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """On the way out everything is as it was."""
        with self._recording() as mark:
            try:
                yield
            finally:
                self._roll_back(mark)

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """What was done stays only if it was a success."""
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
        depth, self._depth = self._depth, 0
        while len(self._undo) > mark:
            undo, arguments = self._undo.pop()
            undo(*arguments)
        self._depth = depth
