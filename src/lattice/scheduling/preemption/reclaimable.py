"""What would be free on each node without those of lower priority? Sums kept per priority, up to date row by row."""

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.scheduling.table.ask import MILLI_PER_GPU, PORTS, WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement, needs_with_ports

MAX_CACHED_PRIORITIES = 16  # priorities that sums are kept for
ABOVE_ANY_PRIORITY = 1 << 40  # above every priority


class ReclaimableResources:
    """Of everything below one priority: sums and largest single amounts by row, how many, the lowest priority among them.

    Line 0 of `sums` and `largest` counts thousandths of GPUs, line r + 1 resource r.
    """

    def __init__(self, table: NodeTable, below: int) -> None:
        self.table, self.below_priority = table, below
        self.version = -1
        self.sums: Integers = np.zeros((1, 0), np.int64)
        self.largest: Integers = np.zeros((1, 0), np.int64)
        self.victim_count: Integers = np.zeros(0, np.int64)
        self.lowest_priority: Integers = np.zeros(0, np.int64)
        self.has_gang_member: Flags = np.zeros(0, np.bool_)  # rows with a member of any gang
        self._lowest_gang_priority = ABOVE_ANY_PRIORITY  # of all gangs, at any time so far

    def refresh(self) -> None:
        table = self.table
        changed = table.changed_since(self.version) if self.version >= 0 else None
        self._grow()
        for row in range(table.count) if changed is None else changed:
            self._sum_up(row)
        self.version = table.version

    def _grow(self) -> None:
        lines, rows = self.sums.shape
        more = ((0, len(self.table.resources) + 1 - lines), (0, self.table.count - rows))
        if more != ((0, 0), (0, 0)):
            self.sums, self.largest = np.pad(self.sums, more), np.pad(self.largest, more)
            self.victim_count, self.has_gang_member = (
                np.pad(self.victim_count, more[1]),
                np.pad(self.has_gang_member, more[1]),
            )
            self.lowest_priority = np.pad(self.lowest_priority, more[1], constant_values=ABOVE_ANY_PRIORITY)

    def _sum_up(self, row: int) -> None:
        width = len(self.sums)
        sums, largest, count, lowest, gangs = [0] * width, [0] * width, 0, ABOVE_ANY_PRIORITY, False
        for placement in self.table.placements_by_row[row].values():
            ask = placement.ask
            if ask.priority >= self.below_priority:
                continue
            count += 1
            lowest = min(lowest, ask.priority)
            if ask.group:
                gangs, self._lowest_gang_priority = True, min(self._lowest_gang_priority, ask.priority)
            for resource, amount in reclaimable_needs(self.table, placement):
                sums[resource + 1] += amount
                if amount > largest[resource + 1]:
                    largest[resource + 1] = amount
            if ask.demands.gpu:
                sums[0] += ask.demands.gpu.total_milli
                largest[0] = max(largest[0], ask.demands.gpu.total_milli)
        self.sums[:, row], self.largest[:, row] = sums, largest
        self.victim_count[row], self.lowest_priority[row], self.has_gang_member[row] = count, lowest, gangs

    def could_fit(self, ask: WorkloadAsk) -> Flags:
        """Rows where there would be room by number, were all of these gone."""
        fits: Flags = self.victim_count > 0
        for resource, amount in ask.needs:
            fits &= self.table.free(resource) + self.sums[resource + 1] >= amount
        if gpu := ask.demands.gpu:
            fits &= self.table.column("gpu_free") + self.sums[0] >= gpu.total_milli
            if gpu.models:
                counts = [
                    self.table.column(f"gpu_count:{model}")
                    for model in gpu.models
                    if model in self.table.gpus.models
                ]
                fits &= sum(counts, np.zeros(self.table.count, np.int32)) >= gpu.count
        return fits

    def min_victims(self, ask: WorkloadAsk) -> Integers:
        """No fewer than so many must go, per row; only where could_fit."""
        fewest: Integers = np.ones(len(self.victim_count), np.int64)
        for resource, amount in ask.needs:
            missing = amount - self.table.free(resource)
            if missing.max(initial=0) <= 0:
                continue
            np.maximum(fewest, -(-missing // np.maximum(self.largest[resource + 1], 1)), out=fewest)
        if ask.demands.gpu and ask.demands.gpu.milli == MILLI_PER_GPU:
            missing = ask.demands.gpu.count - self.table.column("gpu_whole").astype(np.int64)
            np.maximum(fewest, -(-missing // np.maximum(self.largest[0] // MILLI_PER_GPU, 1)), out=fewest)
        return fewest

    def min_priority_sum(self, fewest: Integers) -> Integers:
        """So many cost no less, per row; mates on other nodes, who may have to go along, may be the cheaper ones."""
        lowest = np.where(
            self.has_gang_member,
            np.minimum(self.lowest_priority, self._lowest_gang_priority),
            self.lowest_priority,
        )
        worth: Integers = fewest * lowest
        return worth


class ReclaimableCache:
    """Sums for the priorities asked about lately."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_priority: dict[int, ReclaimableResources] = {}

    def for_priority(self, priority: int) -> ReclaimableResources:
        found = self._by_priority.pop(priority, None) or ReclaimableResources(self._table, priority)
        self._by_priority[priority] = found
        if len(self._by_priority) > MAX_CACHED_PRIORITIES:
            del self._by_priority[next(iter(self._by_priority))]
        found.refresh()
        return found


def victim_candidates(table: NodeTable, row: int, ask: WorkloadAsk) -> list[Placement]:
    """Those on a node who may have to give way to it; members of its own group never do."""
    found = (each for each in table.placements_by_row[row].values() if each.ask.priority < ask.priority)
    return [each for each in found if not ask.group or each.ask.group != ask.group]


def reclaimable_needs(table: NodeTable, placement: Placement) -> tuple[tuple[int, int], ...]:
    """What it takes where it is at most, each resource once: a fixed number of the range may be another's too, for another protocol."""
    ask = placement.ask
    fixed = table.ports.count_in_range(placement.row, {number for number, _ in ask.demands.host_ports})
    return needs_with_ports(ask, table.resource_index[PORTS], fixed)
