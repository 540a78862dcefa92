"""Where in an offer do the replicas of one service go, one after the other, without a look at every machine each time?"""

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Cluster, Fleet, Seat
from lattice.placement.model.offer import MachineType
from lattice.placement.model.quotes import takes
from lattice.placement.greedy.machine_choice import nearest_first, neighbours_in, new_machines, take_seat

Entry = tuple[
    int, int, int, str, int
]  # replicas of the service there, free milli-cores and bytes, name and row of a machine


class Filling:
    """The machines of one offer that have room, while nothing but replicas of this service comes there. Seats are those of `settle`.

    What has no room any more never has it again, so that every machine is looked at once.
    """

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, row: int) -> None:
        self.ask, self.fleet, self.row = ask, fleet, row
        self._near = neighbours_in(ask.demand, fleet)
        own, groups = (
            fleet.growing_groups(ask.demand, ask.overflow, row),
            fleet.groups_of(ask.demand, ask.overflow),
        )
        clusters = [each for each in fleet.in_offer[row].values() if each.group in own]
        self._machines: dict[
            str, list[Entry]
        ] = {}  # heaps by cluster, best first; a cluster that is not here was not looked at yet
        self._growing = [each for each in clusters if len(each.machines) < each.max_nodes]
        self._filling = sorted((each for each in clusters if each.is_filling), key=self._rank)
        self._others = [
            each for each in fleet.in_offer[row].values() if each.group in groups
        ]  # all that may have room
        self._is_sorted = False
        self._checked: tuple[str, Entry] | None = (
            None  # the cluster and machine that were found to have room since the last replica came
        )

    def _rank(self, cluster: Cluster) -> tuple[bool, int, int, str]:
        return nearest_first(cluster, self._near)

    @property
    def may_grow(self) -> bool:
        return bool(self._growing)

    @property
    def has_room(self) -> bool:
        while self._others:
            if self._best(self._others[-1]):
                return True
            self._others.pop()
        return False

    def seat(self, *, filling: bool) -> Seat | None:
        """In the nearest and fullest cluster that has room, of those below their packing threshold or of all. None: there is no room."""
        cluster = self._below_threshold() if filling else self._fullest()
        if cluster is None:
            return None
        best = self._best(cluster)
        return None if best is None else self._taken(cluster, best)

    def buy(self, kind: MachineType) -> Seat:
        """On one more machine of the nearest and fullest cluster that may grow, else in a new one."""
        grown = min(self._growing, key=self._rank, default=None)
        cluster, added = new_machines(self.ask, self.fleet, self.row, kind, grown)
        some = self._growing if grown else [cluster]
        self._growing = [each for each in some if len(each.machines) < each.max_nodes]
        self._look_again(cluster, added)
        return self._settled(cluster, added[0])

    def _look_again(self, cluster: Cluster, added: Iterable[int]) -> None:
        known = self._machines.get(cluster.name)
        if known is not None:
            self._machines[cluster.name] = [*known, *(self._entry(each) for each in added)]
            heapify(self._machines[cluster.name])
        self._others = [*(each for each in self._others if each is not cluster), cluster]
        self._filling = [*(each for each in self._filling if each is not cluster), cluster]
        self._is_sorted = False

    def _below_threshold(self) -> Cluster | None:
        if not self._is_sorted:
            self._sort()
        while self._filling:
            cluster = self._filling[0]
            if cluster.is_filling and self._best(cluster):
                return cluster
            self._filling.pop(0)
        return None

    def _sort(self) -> None:
        """Only the first of those that are filled gets fuller, so they stay in order until one grows."""
        self._filling = sorted((each for each in self._filling if each.is_filling), key=self._rank)
        self._is_sorted = True

    def _fullest(self) -> Cluster | None:
        self._others = [each for each in self._others if self._best(each)]
        return min(self._others, key=self._rank, default=None)

    def _best(self, cluster: Cluster) -> Entry | None:
        if self._checked and self._checked[0] == cluster.name:
            return self._checked[1]
        found = self._machines.get(cluster.name)
        if found is None:
            found = self._machines[cluster.name] = [
                self._entry(each) for each in cluster.machines if self._takes(each)
            ]
            heapify(found)
        while found and not self._takes(found[0][-1]):
            heappop(found)
        if not found:
            return None
        self._checked = (cluster.name, found[0])
        return found[0]

    def _takes(self, machine: int) -> bool:
        return takes(self.fleet, self.ask.demand, machine)

    def _entry(self, machine: int) -> Entry:
        machines = self.fleet.machines
        held = machines.holds[machine][self.ask.demand.name]
        return (
            held,
            int(machines.free(0)[machine]),
            int(machines.free(1)[machine]),
            machines.names[machine],
            machine,
        )

    def _taken(self, cluster: Cluster, best: Entry) -> Seat:
        seat, self._checked = take_seat(self.ask.demand, self.fleet, best[-1]), None
        heapreplace(self._machines[cluster.name], self._entry(best[-1]))
        return seat

    def _settled(self, cluster: Cluster, machine: int) -> Seat:
        """On a machine that was just added, whether or not another one would come first."""
        seat, self._checked = take_seat(self.ask.demand, self.fleet, machine), None
        known = self._machines.get(cluster.name)
        if known is not None:
            self._machines[cluster.name] = [
                each if each[-1] != machine else self._entry(machine) for each in known
            ]
            heapify(self._machines[cluster.name])
        return seat
