"""Commit the writes of the garbage collector in few fenced commits and count every deletion by its reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lattice import metrics
from lattice.store.commit_packing import cost_of_writes, pack_commits
from lattice.store.protocol import Delete, Key, RevisionConflict, Store, Term, Write

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
        for batch in pack_commits(writes, lambda garbage_write: cost_of_writes([garbage_write.write])):
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
