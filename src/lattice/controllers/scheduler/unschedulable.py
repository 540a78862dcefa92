"""Who finds no node, and who must make room: told on the record of each, once per change of reason."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lattice import metrics
from lattice.controllers.scheduler.binding_records import Deeds
from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.decision_record import Grounds, refused
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.cycle.queue import Queue
from lattice.scheduling.cycle.scheduler_cache import is_leaving
from lattice.scheduling.cycle.cycle import CompositeScheduler, Cycle, Unplaced
from lattice.store.protocol import MAX_OPERATIONS, Clash, Put


class Untold(NamedTuple):
    why: str
    kinds: tuple[str, ...]
    grounds: Grounds


@dataclass
class Refusals:
    deeds: Deeds
    scheduler: CompositeScheduler
    profiles: Mapping[Profile, ProfileSpec]
    untold: dict[str, Untold] = field(default_factory=dict)
    _for_whom: dict[str, str] = field(default_factory=dict)  # by victim

    def note(self, cycle: Cycle, queue: Queue, now: float, revision: int) -> None:
        """They sleep until something changes that could help them."""
        self._for_whom.update(cycle.evictions)
        for each, grounds in self._explained(cycle.unplaced, revision):
            if each.ask.name in self.scheduler.table.placements:
                queue.done(each.ask.name)
                continue
            metrics.SCHEDULING_FAILURES.inc()
            metrics.ATTEMPT_UNPLACED.inc()
            queue.unschedulable(each.ask.name, each.wakes_on, now)
            self.untold[each.ask.name] = Untold(each.why, each.kinds, grounds)

    def _explained(self, unplaced: Iterable[Unplaced], revision: int) -> Iterator[tuple[Unplaced, Grounds]]:
        """Those that ask for the same and are refused for the same reason are explained once."""
        known: dict[object, Grounds] = {}
        for each in unplaced:
            key = (each.ask.shape, each.kinds)
            if key not in known:
                decision = decide(each.ask, self.scheduler.table, self.scheduler.profile_of(each.ask))
                known[key] = (
                    refused(decision, self.profiles[decision.profile], revision) if not decision.fits else {}
                )
            yield each, known[key]

    async def tell(self, queue: Queue) -> None:
        copy, puts = self.deeds.office.copy(LatticeWorkload), {}
        for name, each in list(self.untold.items()):
            entry = copy.entry(name) if name in queue else None
            made = self.deeds.unplaced(entry, each.why, each.kinds, each.grounds) if entry else []
            if made:
                puts[name] = made
            else:
                del self.untold[name]
        for name in await self._write(puts):
            self.untold.pop(name, None)

    def in_vain(self, queue: Queue, awaited: Container[str]) -> Iterator[str]:
        """Who was to make room, was not told so yet, and needs not any more: whoever it was for is gone, and nobody else waits for it."""
        copy, placements = self.deeds.office.copy(LatticeWorkload), self.scheduler.table.placements
        for name, whom in list(self._for_whom.items()):
            found = copy.get(name)
            if (
                name not in awaited
                and whom not in queue
                and whom not in placements
                and not (found and is_leaving(found))
            ):
                del self._for_whom[name]
                yield name

    async def mark(self, leaving: Mapping[str, str]) -> None:
        """By workload, the node that it must leave. Who is being deleted leaves it anyway."""
        copy, puts = self.deeds.office.copy(LatticeWorkload), {}
        for name, node in leaving.items():
            found, entry = copy.get(name), copy.entry(name)
            binding = found.status.binding if found else None
            is_there = binding is not None and binding.node == node
            if (
                found
                and entry
                and is_there
                and not is_leaving(found)
                and not found.metadata.deletion_timestamp
            ):
                puts[name] = self.deeds.leaving(
                    entry, f"makes room on node {node} for {self._for_whom.get(name, 'another')}"
                )
        for name in await self._write(puts):
            self._for_whom.pop(name, None)

    async def _write(self, puts: Mapping[str, Sequence[Put]]) -> list[str]:
        """Those whose record is still as it was read; the others are tried again, once the copy knows what a rival wrote."""
        office = self.deeds.office
        done: list[str] = []
        names = list(puts)
        most = MAX_OPERATIONS // 2
        for part in (names[start : start + most] for start in range(0, len(names), most)):
            left = part
            while left:
                try:
                    await office.commit([put for name in left for put in puts[name]])
                except Clash as clash:
                    left = [name for name in left if clash.key.path != name]
                    await office.copy(LatticeWorkload).wait_for(clash.found or await office.store.revision())
                    continue
                done += left
                break
        return done
