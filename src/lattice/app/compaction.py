"""Compact the history of the store: the leader drops revisions that are older than the history setting."""

from dataclasses import dataclass, field

import structlog

from lattice import metrics
from lattice.clock import Clock
from lattice.errors import LatticeError
from lattice.store.election import Election
from lattice.store.protocol import Store

log = structlog.get_logger()


@dataclass
class HistoryCompactor:
    """Samples the revision of the store, and compacts up to the newest sample that is old enough.

    Not a controller on `Loop`: followers, which run no controllers, sample revisions too.
    """

    store: Store
    clock: Clock
    election: Election
    # Compaction keeps revisions up to this age.
    history_s: float
    interval_s: float
    # Monotonic time and revision of every sample, oldest first.
    _samples: list[tuple[float, int]] = field(default_factory=list)

    async def run(self, *, first_sample_after_s: float = 0.0) -> None:
        """Sample and compact in every interval until cancelled."""
        if first_sample_after_s:
            await self.clock.sleep(first_sample_after_s)
        while True:
            try:
                await self._sample_and_compact()
            except LatticeError as error:
                log.warning("cannot compact", reason=str(error))
            await self.clock.sleep(self.interval_s)

    async def _sample_and_compact(self) -> None:
        sampled_at = self.clock.monotonic()
        current = await self.store.revision()
        metrics.REVISION.set(current)
        # Followers sample revisions too, so that a new leader can compact at once.
        self._samples.append((sampled_at, current))
        oldest_kept_at = self.clock.monotonic() - self.history_s
        old = [sample for sample in self._samples if sample[0] <= oldest_kept_at]
        if not old:
            return
        newest_old = old[-1]
        if self.election.term is not None:
            await self.store.compact(newest_old[1])
            self._samples = [sample for sample in self._samples if sample[1] > newest_old[1]]
        else:
            # Of the old samples a new leader needs only the newest.
            self._samples = self._samples[len(old) - 1 :]
