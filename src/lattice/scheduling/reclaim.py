"""What would be free on each node without those of lower priority? Sums kept per priority, up to date row by row."""

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.nodes import NodeTable, Placement

KEPT = 16  # priorities that sums are kept for
NOBODY = 1 << 40  # above every priority


class Reclaimable:
    """Of everything below one priority: `sums[resource, row]`, `largest` single amounts, how many, the lowest priority among them."""

    def __init__(self, table: NodeTable, below: int) -> None:
        self.table, self.below = table, below
        self.version = self.rows = -1
        self.sums: Integers = np.zeros((0, 0), np.int64)
        self.largest: Integers = np.zeros((0, 0), np.int64)
        self.count: Integers = np.zeros(0, np.int64)
        self.lowest: Integers = np.zeros(0, np.int64)

    def refresh(self) -> None:
        table = self.table
        changed = table.changed_since(self.version) if self.version >= 0 else None
        wanted = (len(table.resources) + 1, table.count)  # the last line: thousandths of GPUs
        if changed is None or self.sums.shape != wanted:
            self.sums, self.largest = np.zeros(wanted, np.int64), np.zeros(wanted, np.int64)
            self.count, self.lowest = np.zeros(table.count, np.int64), np.full(table.count, NOBODY, np.int64)
            changed = [row for row in range(table.count) if table.on_row[row]]
        for row in changed:
            self._sum_up(row)
        self.version = table.version

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
                sums[resource] += amount
                if amount > largest[resource]:
                    largest[resource] = amount
            if ask.demands.gpu:
                sums[-1] += ask.demands.gpu.total
                largest[-1] = max(largest[-1], ask.demands.gpu.total)
        self.sums[:, row], self.largest[:, row] = sums, largest
        self.count[row], self.lowest[row] = count, lowest

    def could_fit(self, ask: WorkloadAsk) -> Flags:
        """Rows where there would be room by number, were all of these gone."""
        fits: Flags = self.count > 0
        for resource, amount in ask.needs:
            fits &= self.table.free(resource) + self.sums[resource] >= amount
        if gpu := ask.demands.gpu:
            fits &= self.table.column("gpu_free") + self.sums[-1] >= gpu.total
            if gpu.models:
                known = [code for model, code in self.table.gpus.models.items() if model in gpu.models]
                fits &= np.isin(self.table.column("gpu_model"), known)
        return fits

    def at_least(self, ask: WorkloadAsk) -> Integers:
        """No fewer than so many must go, per row; only where could_fit."""
        fewest: Integers = np.ones(len(self.count), np.int64)
        for resource, amount in ask.needs:
            missing = amount - self.table.free(resource)
            np.maximum(fewest, -(-missing // np.maximum(self.largest[resource], 1)), out=fewest)
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


def lower(table: NodeTable, row: int, priority: int) -> list[Placement]:
    return [each for each in table.on_row[row].values() if each.ask.priority < priority]
