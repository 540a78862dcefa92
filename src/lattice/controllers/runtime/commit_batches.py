"""How garbage is written off: many small writes in few fenced commits, each counted by why it was made."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lattice import metrics
from lattice.store.protocol import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPERATIONS,
    Delete,
    Key,
    Put,
    RevisionConflict,
    Store,
    Term,
    Write,
)

GarbageReason = Literal["owner", "foreground", "orphan", "namespace", "ttl"]


class GarbageWrite(NamedTuple):
    write: Write
    reason: GarbageReason


@dataclass(frozen=True)
class BatchCommitter:
    """Every write carries the term: once it is over the first one raises Fenced, and nothing was written."""

    store: Store
    term: Term

    async def commit_all(self, steps: Iterable[GarbageWrite]) -> set[Key]:
        """Commit them all; those that somebody else changed meanwhile are left out and returned."""
        clashed: set[Key] = set()
        for bundle in batch_garbage_writes(steps):
            try:
                await self._commit(bundle)
            except RevisionConflict:
                clashed |= await self._commit_singly(bundle)
        return clashed

    async def _commit_singly(self, bundle: list[GarbageWrite]) -> set[Key]:
        clashed: set[Key] = set()
        for step in bundle:
            try:
                await self._commit([step])
            except RevisionConflict:
                clashed.add(step.write.key)
        return clashed

    async def _commit(self, bundle: list[GarbageWrite]) -> None:
        await self.store.commit([step.write for step in bundle], fence=self.term)
        for step in bundle:
            if isinstance(step.write, Delete):
                metrics.GARBAGE_COLLECTED.labels(step.reason).inc()


def batch_garbage_writes(steps: Iterable[GarbageWrite]) -> Iterator[list[GarbageWrite]]:
    """As many together as one commit takes."""
    bundle: list[GarbageWrite] = []
    size = 0
    for step in steps:
        cost = len(str(step.write.key)) + (len(step.write.value) if isinstance(step.write, Put) else 0)
        if bundle and (len(bundle) == MAX_COMMIT_OPERATIONS or size + cost > MAX_COMMIT_BYTES):
            yield bundle
            bundle, size = [], 0
        bundle.append(step)
        size += cost
    if bundle:
        yield bundle
