"""Resources that evicting the workloads below a priority would free on each node, updated row by row."""

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.scheduling.table.node_table import NodeTable, needs_with_ports
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, PORTS, WorkloadAsk

MAX_CACHED_PRIORITIES = 16
ABOVE_ANY_PRIORITY = 1 << 40


class ReclaimableResources:
    """What evicting the workloads below one priority could free, by row: for each resource the sum of their
    requests and the largest single request; also their number and their lowest priority.

    Line 0 of `sums` and `largest` holds thousandths of GPUs, line r + 1 holds resource r.
    """

    def __init__(self, table: NodeTable, below_priority: int) -> None:
        self.table, self.below_priority = table, below_priority
        self.version = -1
        self.sums: Integers = np.zeros((1, 0), np.int64)
        self.largest: Integers = np.zeros((1, 0), np.int64)
        self.victim_count: Integers = np.zeros(0, np.int64)
        self.lowest_priority: Integers = np.zeros(0, np.int64)
        self.has_gang_member: Flags = np.zeros(0, np.bool_)  # rows with a member of any gang
        # The lowest priority that any gang member has had so far. As a lower bound, it need not rise when the
        # member leaves.
        self._lowest_gang_priority = ABOVE_ANY_PRIORITY

    def refresh(self) -> None:
        """Update the rows that changed since the last refresh."""
        table = self.table
        changed = table.changed_since(self.version) if self.version >= 0 else None
        lines, rows = self.sums.shape
        padding = ((0, len(table.resources) + 1 - lines), (0, table.count - rows))
        if padding != ((0, 0), (0, 0)):
            self.sums, self.largest = np.pad(self.sums, padding), np.pad(self.largest, padding)
            self.victim_count = np.pad(self.victim_count, padding[1])
            self.has_gang_member = np.pad(self.has_gang_member, padding[1])
            self.lowest_priority = np.pad(
                self.lowest_priority, padding[1], constant_values=ABOVE_ANY_PRIORITY
            )
        for row in range(table.count) if changed is None else changed:
            width = len(self.sums)
            sums, largest, count, lowest, has_gang_member = (
                [0] * width,
                [0] * width,
                0,
                ABOVE_ANY_PRIORITY,
                False,
            )
            for placement in self.table.placements_by_row[row].values():
                ask = placement.ask
                if ask.priority >= self.below_priority:
                    continue
                count += 1
                lowest = min(lowest, ask.priority)
                if ask.group:
                    has_gang_member, self._lowest_gang_priority = (
                        True,
                        min(self._lowest_gang_priority, ask.priority),
                    )
                for resource, amount in reclaimable_needs(self.table, placement):
                    sums[resource + 1] += amount
                    if amount > largest[resource + 1]:
                        largest[resource + 1] = amount
                if ask.demands.gpu:
                    sums[0] += ask.demands.gpu.total_milli
                    largest[0] = max(largest[0], ask.demands.gpu.total_milli)
            self.sums[:, row], self.largest[:, row] = sums, largest
            self.victim_count[row], self.lowest_priority[row], self.has_gang_member[row] = (
                count,
                lowest,
                has_gang_member,
            )
        self.version = table.version

    def could_fit(self, ask: WorkloadAsk) -> Flags:
        """Rows on which the amounts would suffice for the workload if every workload below the priority were
        evicted."""
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
        """A lower bound of the number of victims, by row; valid only for rows of `could_fit`."""
        fewest: Integers = np.ones(len(self.victim_count), np.int64)
        for resource, amount in ask.needs:
            missing = amount - self.table.free(resource)
            if missing.max(initial=0) <= 0:
                continue
            # No victim frees more than the largest single amount. The quotient is rounded up.
            np.maximum(fewest, -(-missing // np.maximum(self.largest[resource + 1], 1)), out=fewest)
        if ask.demands.gpu and ask.demands.gpu.milli == MILLI_PER_GPU:
            missing = ask.demands.gpu.count - self.table.column("gpu_whole").astype(np.int64)
            np.maximum(fewest, -(-missing // np.maximum(self.largest[0] // MILLI_PER_GPU, 1)), out=fewest)
        return fewest

    def min_priority_sum(self, fewest: Integers) -> Integers:
        """A lower bound of the sum of the victims' priorities, by row.

        A victim may be a gang member: its whole gang is evicted, and members on other nodes may have a lower
        priority.
        """
        lowest = np.where(
            self.has_gang_member,
            np.minimum(self.lowest_priority, self._lowest_gang_priority),
            self.lowest_priority,
        )
        priority_sum: Integers = fewest * lowest
        return priority_sum


class ReclaimableCache:
    """Reclaimable resources for the priorities used last."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_priority: dict[int, ReclaimableResources] = {}

    def for_priority(self, priority: int) -> ReclaimableResources:
        reclaimable = self._by_priority.pop(priority, None) or ReclaimableResources(self._table, priority)
        self._by_priority[priority] = reclaimable
        if len(self._by_priority) > MAX_CACHED_PRIORITIES:
            # The first key was unused for the longest time, because `for_priority` moves a used key to the
            # end.
            del self._by_priority[next(iter(self._by_priority))]
        reclaimable.refresh()
        return reclaimable


def victim_candidates(table: NodeTable, row: int, ask: WorkloadAsk) -> list[Placement]:
    """The workloads of a node with a lower priority than the asking workload, without members of its own
    gang."""
    lower = (
        placement
        for placement in table.placements_by_row[row].values()
        if placement.ask.priority < ask.priority
    )
    return [placement for placement in lower if not ask.group or placement.ask.group != ask.group]


def reclaimable_needs(table: NodeTable, placement: Placement) -> tuple[tuple[int, int], ...]:
    """The most that evicting a workload frees, one entry per resource.

    Another workload may use a host port of the same number with another protocol; the number then stays in
    use, and the eviction frees fewer ports.
    """
    ask = placement.ask
    fixed = table.ports.count_in_range(placement.row, {number for number, _ in ask.demands.host_ports})
    return needs_with_ports(ask, table.resource_index[PORTS], fixed)
