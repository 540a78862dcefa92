"""How garbage is written off: many small writes in few fenced commits, each counted by why it was made."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lattice import metrics
from lattice.store.protocol import MAX_BYTES, MAX_OPERATIONS, Clash, Delete, Key, Put, Store, Term, Write

Reason = Literal["owner", "foreground", "orphan", "namespace", "ttl"]


class Step(NamedTuple):
    write: Write
    reason: Reason


@dataclass(frozen=True)
class Sweep:
    """Every write carries the term: once it is over the first one raises Fenced, and nothing was written."""

    store: Store
    term: Term

    async def take(self, steps: Iterable[Step]) -> set[Key]:
        """Commit them all; those that somebody else changed meanwhile are left out and returned."""
        clashed: set[Key] = set()
        for bundle in bundles(steps):
            try:
                await self._commit(bundle)
            except Clash:
                clashed |= await self._one_by_one(bundle)
        return clashed

    async def _one_by_one(self, bundle: list[Step]) -> set[Key]:
        clashed: set[Key] = set()
        for step in bundle:
            try:
                await self._commit([step])
            except Clash:
                clashed.add(step.write.key)
        return clashed

    async def _commit(self, bundle: list[Step]) -> None:
        await self.store.commit([step.write for step in bundle], fence=self.term)
        for step in bundle:
            if isinstance(step.write, Delete):
                metrics.COLLECTED.labels(step.reason).inc()


def bundles(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """As many together as one commit takes."""
    bundle: list[Step] = []
    size = 0
    for step in steps:
        cost = len(str(step.write.key)) + (len(step.write.value) if isinstance(step.write, Put) else 0)
        if bundle and (len(bundle) == MAX_OPERATIONS or size + cost > MAX_BYTES):
            yield bundle
            bundle, size = [], 0
        bundle.append(step)
        size += cost
    if bundle:
        yield bundle
