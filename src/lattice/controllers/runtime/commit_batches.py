"""Commit the writes of the garbage collector in few fenced commits and count every deletion by its reason."""

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
    """Commit garbage writes under the term of the leader.

    Once the term is over, the first commit raises Fenced and writes nothing.
    """

    store: Store
    term: Term

    async def commit_all(self, writes: Iterable[GarbageWrite]) -> set[Key]:
        """Commit all writes; leave out objects that another writer changed meanwhile and return their
        keys."""
        conflicts: set[Key] = set()
        for batch in batch_garbage_writes(writes):
            try:
                await self._commit(batch)
            except RevisionConflict:
                # One conflict fails the whole batch: commit the writes one by one to find the conflicts.
                for garbage_write in batch:
                    try:
                        await self._commit([garbage_write])
                    except RevisionConflict:
                        conflicts.add(garbage_write.write.key)
        return conflicts

    async def _commit(self, batch: list[GarbageWrite]) -> None:
        await self.store.commit([garbage_write.write for garbage_write in batch], fence=self.term)
        # Counted after the commit: a deletion that the store rejected does not count.
        for garbage_write in batch:
            if isinstance(garbage_write.write, Delete):
                metrics.GARBAGE_COLLECTED.labels(garbage_write.reason).inc()


def batch_garbage_writes(writes: Iterable[GarbageWrite]) -> Iterator[list[GarbageWrite]]:
    """Group writes into batches that stay within the operation and byte limits of one commit."""
    batch: list[GarbageWrite] = []
    size = 0
    for garbage_write in writes:
        # The size of key and value approximates the size of the operation in the store.
        cost = len(str(garbage_write.write.key)) + (
            len(garbage_write.write.value) if isinstance(garbage_write.write, Put) else 0
        )
        if batch and (len(batch) == MAX_COMMIT_OPERATIONS or size + cost > MAX_COMMIT_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(garbage_write)
        size += cost
    if batch:
        yield batch
