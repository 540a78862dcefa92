"""Clusters and machines of the trial fleet: added and removed with their usage, money and undo records."""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from lattice.engine.table import Table
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.model.journal import Journal
from lattice.placement.model.offer import NO_LIMIT, RUNTIMES, MachineType, OfferTable
from lattice.placement.model.offer_ledgers import OfferLedgers

# The group of joined machines that no cluster has claimed: any demand may claim them.
UNCLAIMED_GROUP = "unclaimed"
# Replicas of the service on the machine, free milli-cores, free bytes, the tie key of the type, the name.
MachineRank = tuple[int, int, int, int, str]


def group_name(rules: str, overflow: str, reserve: str) -> str:
    """The name of a cluster group, `RULES/OVERFLOW/RESERVE`: the hash of the cluster rules, the data center
    whose overflow the clusters take, and the offer whose reserve they use; the last two may be empty."""
    return f"{rules}/{overflow}/{reserve}"


@dataclass(slots=True, eq=False)
class Cluster:
    """Machines of one offer for services under equal rules."""

    name: str
    offer_row: int
    # Key of the services that may share the cluster, see `group_name`: the hash of the rules, the data center
    # whose overflow the cluster takes, and the offer whose reserve the cluster uses.
    group: str
    min_nodes: int
    max_nodes: int
    # Above this utilisation, in millionths, the cluster gets another machine before it is filled further.
    packing_threshold: int
    overflow_source: str = ""
    # The cluster uses the reserve of the offer: only services that may use the reserve are in the cluster.
    is_reserved: bool = False
    machines: list[int] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})
    size: dict[str, int] = field(default_factory=lambda: {"cpu": 0, "memory": 0})

    @property
    def utilisation(self) -> int:
        """Millionths used of cpu or memory, the larger of the two."""
        shares = [
            self.used[name] * MILLIONTHS // self.size[name]
            for name in ("cpu", "memory")
            if 0 < self.size[name] < NO_LIMIT
        ]
        return max(shares, default=0)

    @property
    def is_unclaimed(self) -> bool:
        """Whether this is no cluster, but the list of the joined machines that no cluster has claimed."""
        return self.group == UNCLAIMED_GROUP

    @property
    def is_below_threshold(self) -> bool:
        return self.utilisation < self.packing_threshold


class MachineTable(Table):
    """Table of machines, a row per machine."""

    def __init__(self) -> None:
        super().__init__(("cpu", "memory", "storage", "gpu"))
        self.add_column("offer", np.int32)
        self.add_column("group", np.int32)
        # No new replica is assigned to the machine, for example because its node is not ready, cordoned or
        # draining, or because its size is unknown.
        self.add_column("closed", np.bool_)
        self.add_column("joined", np.bool_)
        self.cluster: dict[int, Cluster] = {}
        self.machine_type: dict[int, MachineType] = {}
        # By machine: replicas by service.
        self.replica_counts: dict[int, Counter[str]] = {}
        # The number of every cluster group, for the column "group".
        self.group_ids: dict[str, int] = {}

    def init_rows(self, rows: Sequence[int], cluster: Cluster, kind: MachineType) -> None:
        """Set the columns and attributes of new, empty machines of the cluster."""
        for row in rows:
            self.cluster[row], self.machine_type[row], self.replica_counts[row] = cluster, kind, Counter()
        columns, index = self._columns, rows[0] if len(rows) == 1 else rows
        columns["offer"][index] = cluster.offer_row
        columns["group"][index] = self.group_ids.setdefault(cluster.group, len(self.group_ids))
        columns["closed"][index] = False
        columns["joined"][index] = kind.is_joined
        for row in rows:
            self.touch(row)

    def rank(self, service: str, row: int) -> MachineRank:
        """The sort key of a machine; the lowest key is the best machine for a replica: few replicas of the
        service, then little free capacity."""
        free_cpu, free_memory = int(self.free(0)[row]), int(self.free(1)[row])
        tie_key = self.machine_type[row].tie_key
        return self.replica_counts[row][service], free_cpu, free_memory, tie_key, self.names[row]

    def ranks(self, service: str, rows: Sequence[int]) -> list[MachineRank]:
        """The ranks of many machines at once: faster than a call of `rank` per machine."""
        cpu, memory = self.free(0)[rows].tolist(), self.free(1)[rows].tolist()
        return [
            (
                self.replica_counts[row][service],
                cpu[position],
                memory[position],
                self.machine_type[row].tie_key,
                self.names[row],
            )
            for position, row in enumerate(rows)
        ]


class ClusterInventory:
    """All clusters with their machines. Every change also updates the usage of the offer and the ledgers; the
    journal records how to undo it."""

    def __init__(self, table: OfferTable, ledgers: OfferLedgers, journal: Journal) -> None:
        self._table, self._ledgers, self._journal = table, ledgers, journal
        self.machines = MachineTable()
        self.clusters: dict[str, Cluster] = {}
        # The next four fields are by row of the offer. The number of a deleted cluster is not used again.
        self.clusters_by_offer: list[dict[str, Cluster]] = [{} for _ in table.offers]
        self.machines_by_offer: list[set[int]] = [set() for _ in table.offers]
        self.next_cluster_number: dict[int, int] = {}
        # Machines of clusters that are not on the reserve.
        self.unreserved_nodes_used: list[int] = [0] * len(table.offers)
        # By row of the offer: the joined machines that no cluster has claimed. They are not in `clusters`.
        self.unclaimed: dict[int, Cluster] = {}
        # Names of joined machines that stay in their cluster while it has replicas.
        self.pinned: set[str] = set()
        # Whether a machine has taints that its machine type in the catalog does not state.
        self.has_tainted_machines = False
        # Runtimes that some machine does not have.
        self.lacking_runtimes: set[str] = set()
        # By row of the offer: what replicas of services use that may not use the reserve of the offer.
        self.unentitled_usage: list[Counter[str]] = [Counter() for _ in table.offers]
        # Overflow clusters by the data center that overflows.
        self.overflow_clusters: Counter[str] = Counter()

    def add_cluster(self, cluster: Cluster, number: int) -> None:
        """Add an empty cluster; the number keeps later clusters of the offer from getting the same name."""
        self.clusters[cluster.name] = cluster
        self.clusters_by_offer[cluster.offer_row][cluster.name] = cluster
        next_number = self.next_cluster_number.get(cluster.offer_row, 1)
        self.next_cluster_number[cluster.offer_row] = max(next_number, number + 1)
        self._count_cluster(cluster, 1)
        self._journal.record_undo(self._remove_cluster, cluster.name, next_number)

    def unclaimed_cluster(self, row: int) -> Cluster:
        """The list of the unclaimed joined machines of the offer."""
        if row not in self.unclaimed:
            name = f"{self._table.offers[row].name}/{UNCLAIMED_GROUP}"
            self.unclaimed[row] = Cluster(name, row, UNCLAIMED_GROUP, 0, 0, 0)
        return self.unclaimed[row]

    def move_machine(self, machine: int, cluster: Cluster) -> None:
        """Move a joined machine with everything on it into another cluster of its offer: a cluster claims the
        machine, or gives it back."""
        machines, previous = self.machines, self.machines.cluster[machine]
        size = machines.machine_type[machine].size
        for name in ("cpu", "memory"):
            used = int(machines.allocated(machines.resource_index[name])[machine])
            for changed, sign in ((previous, -1), (cluster, 1)):
                changed.size[name] += sign * size.get(name, 0)
                changed.used[name] += sign * used
        previous.machines.remove(machine)
        cluster.machines.append(machine)
        machines.cluster[machine] = cluster
        group = machines.group_ids.setdefault(cluster.group, len(machines.group_ids))
        machines.set(machine, "group", group, fixed=False)
        self._table.touch(cluster.offer_row)
        self._journal.record_undo(self.move_machine, machine, previous)

    def skip_cluster_numbers(self, offer: str, number: int) -> None:
        """Give numbers below `number` to no further cluster of the offer."""
        row = self._table.row_of.get(offer)
        if row is not None:
            self.next_cluster_number[row] = max(self.next_cluster_number.get(row, 1), number)

    def drop_cluster(self, name: str) -> None:
        """Remove an empty cluster; the number of the cluster is not used again."""
        cluster = self.clusters[name]
        self._remove_cluster(name)
        # Number 0 leaves the next number of the offer as it is.
        self._journal.record_undo(self.add_cluster, cluster, 0)

    def _remove_cluster(self, name: str, next_number: int | None = None) -> None:
        cluster = self.clusters.pop(name)
        del self.clusters_by_offer[cluster.offer_row][name]
        if next_number is not None:
            self.next_cluster_number[cluster.offer_row] = next_number
        self._count_cluster(cluster, -1)

    def _count_cluster(self, cluster: Cluster, count: int) -> None:
        if cluster.overflow_source:
            self.overflow_clusters[cluster.overflow_source] += count
            self._table.touch_overflow_targets(cluster.overflow_source)
        self._table.allocate(cluster.offer_row, [(self._table.resource_index["clusters"], count)])

    def growable_clusters(self, row: int, groups: Collection[str]) -> list[str]:
        """Names of the clusters of the groups that may get more machines, the highest utilisation first."""
        clusters = [
            cluster
            for cluster in self.clusters_by_offer[row].values()
            if cluster.group in groups and len(cluster.machines) < cluster.max_nodes
        ]
        clusters.sort(key=lambda cluster: (-cluster.utilisation, cluster.name))
        return [cluster.name for cluster in clusters]

    def new_machine_names(self, cluster: Cluster, kind: str, count: int) -> list[str]:
        """Unused names for `count` machines that do not exist yet."""
        numbered = (f"{cluster.name}/{kind}/{number}" for number in itertools.count(len(cluster.machines)))
        return list(itertools.islice((name for name in numbered if name not in self.machines.row_of), count))

    def add_machine(self, cluster: Cluster, kind: MachineType, name: str = "") -> int:
        names = [name] if name else self.new_machine_names(cluster, kind.name, 1)
        return self.add_machines(cluster, kind, names)[0]

    def add_machines(self, cluster: Cluster, kind: MachineType, names: Sequence[str]) -> list[int]:
        """Add empty machines to the cluster; return their rows."""
        rows = self.machines.add_identical(
            names, {resource: min(amount, NO_LIMIT) for resource, amount in kind.size.items()}
        )
        self.machines.init_rows(rows, cluster, kind)
        for row in rows:
            self._journal.record_undo(self._remove_machine, row)
        cluster.machines += rows
        self.machines_by_offer[cluster.offer_row].update(rows)
        self._count_machines(cluster, kind, len(rows))
        return rows

    def drop_machine(self, row: int) -> None:
        """Remove an empty machine."""
        machines = self.machines
        cluster, kind, name = machines.cluster[row], machines.machine_type[row], machines.names[row]
        is_closed = bool(machines.column("closed")[row])
        self._remove_machine(row)
        self._journal.record_undo(self._restore_machine, cluster, kind, name, is_closed)

    def _restore_machine(self, cluster: Cluster, kind: MachineType, name: str, is_closed: bool) -> None:
        row = self.add_machine(cluster, kind, name)
        self.machines.set(row, "closed", is_closed, fixed=False)

    def _remove_machine(self, row: int) -> None:
        machines = self.machines
        cluster, kind = machines.cluster.pop(row), machines.machine_type.pop(row)
        del machines.replica_counts[row]
        cluster.machines.remove(row)
        self.machines_by_offer[cluster.offer_row].discard(row)
        machines.remove(machines.names[row])
        self._count_machines(cluster, kind, -1)

    def _count_machines(self, cluster: Cluster, kind: MachineType, count: int) -> None:
        """Change size, usage and committed rate by `count` machines; a negative count removes."""
        row, index = cluster.offer_row, self._table.resource_index
        if kind.runtimes is not None:
            self.lacking_runtimes |= RUNTIMES - kind.runtimes
        if kind.is_joined:
            # The limits and budgets of an offer bound the machines that Lattice makes.
            for name in ("cpu", "memory"):
                cluster.size[name] += count * kind.size.get(name, 0)
            self.has_tainted_machines |= bool(kind.taints)
            self._table.touch(row)
            return
        if not cluster.is_reserved:
            self.unreserved_nodes_used[row] += count
        usage = [(index["nodes"], count)]
        for name in ("cpu", "memory"):
            amount = kind.size.get(name, 0)
            cluster.size[name] += count * amount
            if amount < NO_LIMIT:
                usage.append((index[name], count * amount))
        self._table.allocate(row, usage)
        self._ledgers.commit(row, cluster.overflow_source, count * kind.rate)
