"""What would be free on each node without those of lower priority? Sums kept per priority, up to date row by row."""

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.nodes import NodeTable, Placement

KEPT = 16  # priorities that sums are kept for
NOBODY = 1 << 40  # above every priority


class Reclaimable:
    """Of everything below one priority: sums and largest single amounts by row, how many, the lowest priority among them.

    Line 0 of `sums` and `largest` counts thousandths of GPUs, line r + 1 resource r.
    """

    def __init__(self, table: NodeTable, below: int) -> None:
        self.table, self.below = table, below
        self.version = -1
        self.sums: Integers = np.zeros((1, 0), np.int64)
        self.largest: Integers = np.zeros((1, 0), np.int64)
        self.count: Integers = np.zeros(0, np.int64)
        self.lowest: Integers = np.zeros(0, np.int64)

    def refresh(self) -> None:
        table = self.table
        changed = table.changed_since(self.version) if self.version >= 0 else None
        self._make_room()
        for row in range(table.count) if changed is None else changed:
            self._sum_up(row)
        self.version = table.version

    def _make_room(self) -> None:
        lines, rows = self.sums.shape
        more = ((0, len(self.table.resources) + 1 - lines), (0, self.table.count - rows))
        if more != ((0, 0), (0, 0)):
            self.sums, self.largest = np.pad(self.sums, more), np.pad(self.largest, more)
            self.count = np.pad(self.count, more[1])
            self.lowest = np.pad(self.lowest, more[1], constant_values=NOBODY)

    def _sum_up(self, row: int) -> None:
        width = len(self.sums)
        sums, largest, count, lowest = [0] * width, [0] * width, 0, NOBODY
        for placement in self.table.on_row[row].values():
            ask = placement.ask
            if ask.priority >= self.below:
                continue
            count += 1
            lowest = min(lowest, ask.priority)
            for resource, amount in ask.needs:
                sums[resource + 1] += amount
                if amount > largest[resource + 1]:
                    largest[resource + 1] = amount
            if ask.demands.gpu:
                sums[0] += ask.demands.gpu.total
                largest[0] = max(largest[0], ask.demands.gpu.total)
        self.sums[:, row], self.largest[:, row] = sums, largest
        self.count[row], self.lowest[row] = count, lowest

    def could_fit(self, ask: WorkloadAsk) -> Flags:
        """Rows where there would be room by number, were all of these gone."""
        fits: Flags = self.count > 0
        for resource, amount in ask.needs:
            fits &= self.table.free(resource) + self.sums[resource + 1] >= amount
        if gpu := ask.demands.gpu:
            fits &= self.table.column("gpu_free") + self.sums[0] >= gpu.total
            if gpu.models:
                counts = [self.table.column(f"gpu_count:{model}") for model in gpu.models if model in self.table.gpus.models]
                fits &= sum(counts, np.zeros(self.table.count, np.int32)) >= gpu.count
        return fits

    def at_least(self, ask: WorkloadAsk) -> Integers:
        """No fewer than so many must go, per row; only where could_fit."""
        fewest: Integers = np.ones(len(self.count), np.int64)
        for resource, amount in ask.needs:
            missing = amount - self.table.free(resource)
            if missing.max(initial=0) <= 0:
                continue
            np.maximum(fewest, -(-missing // np.maximum(self.largest[resource + 1], 1)), out=fewest)
        return fewest


class Reclaimables:
    """Sums for the priorities asked about lately."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._kept: dict[int, Reclaimable] = {}

    def below(self, priority: int) -> Reclaimable:
        found = self._kept.pop(priority, None) or Reclaimable(self._table, priority)
        self._kept[priority] = found
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        found.refresh()
        return found


def lower(table: NodeTable, row: int, ask: WorkloadAsk) -> list[Placement]:
    """Those on a node who may have to give way to it; members of its own group never do."""
    found = (each for each in table.on_row[row].values() if each.ask.priority < ask.priority)
    return [each for each in found if not ask.group or each.ask.group != ask.group]
