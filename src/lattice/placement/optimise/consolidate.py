"""Fewer machines for the same replicas in the same offers: half-empty ones are emptied onto others, where that pays for the moves."""

from dataclasses import dataclass

from lattice.placement.optimise.deadline import Deadline
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Cluster, Fleet, Seat
from lattice.placement.plan.plan import Settled
from lattice.placement.greedy.machine_choice import pick_machine, take_seat, trim

TRIES = 4  # machines in a row that cannot be emptied, from the emptiest on: the others hold more


@dataclass
class Allowance:
    """What one move has to save, in micro-dollars per hour, and how many there may be."""

    price: int
    moves: int

    def covers(self, moves: int, saving: int) -> bool:
        return 0 < moves <= self.moves and moves * self.price < saving


def compacted(settled: Settled, allowance: Allowance, deadline: Deadline) -> Settled:
    """On a fleet of its own; offers for which there is no time stay as they are."""
    world = settled.applied()
    fleet = world.fleet()
    for row in range(fleet.table.count):
        for group in sorted({each.group for each in fleet.in_offer[row].values()}):
            if deadline.is_over:
                break
            together = [each for each in fleet.in_offer[row].values() if each.group == group]
            _Compaction(fleet, together, world.demands, allowance).run()
    return Settled(world, fleet, settled.placements, settled.adrift)


@dataclass
class _Compaction:
    fleet: Fleet
    clusters: list[Cluster]  # of one offer and under one set of rules: replicas may go from any to any
    demands: dict[str, Demand]
    allowance: Allowance

    def run(self) -> None:
        machines, failed = self.fleet.machines, 0
        every = [each for cluster in self.clusters for each in cluster.machines]
        for machine in sorted(
            every,
            key=lambda each: (machines.holds[each].total(), -machines.kind[each].rate, machines.names[each]),
        ):
            moves = machines.holds[machine].total()
            if failed < TRIES and self.allowance.covers(moves, machines.kind[machine].rate):
                is_emptied = machines.holds[machine].keys() <= self.demands.keys() and self._empty(machine)
                failed = 0 if is_emptied else failed + 1
                self.allowance.moves -= moves if is_emptied else 0

    def _empty(self, machine: int) -> bool:
        """All of its replicas to other machines, largest first; nothing if they do not all find room, or if it has to stay."""
        fleet, home = self.fleet, self.fleet.machines.cluster[machine]
        before = len(home.machines)
        leaving = [
            self.demands[name] for name, count in fleet.machines.holds[machine].items() for _ in range(count)
        ]
        with fleet.attempt() as attempt:
            for demand in leaving:
                fleet.unseat(self._seat(demand, machine))
            for demand in sorted(
                leaving, key=lambda each: (-each.needs.get("cpu", 0), -each.needs.get("memory", 0), each.name)
            ):
                chosen = pick_machine(demand, fleet, self._others(machine))
                if chosen is None:
                    return False
                take_seat(demand, fleet, chosen)
            trim(fleet, [home.name])
            attempt.succeeded = len(home.machines) < before
        return attempt.succeeded

    def _seat(self, demand: Demand, machine: int) -> Seat:
        return next(seat for seat in self.fleet.seats[demand.name] if seat.machine == machine)

    def _others(self, machine: int) -> list[int]:
        """Machines in use, of clusters that are below their threshold."""
        filling = (each for cluster in self.clusters if cluster.is_filling for each in cluster.machines)
        return [each for each in filling if each != machine and self.fleet.machines.holds[each]]
