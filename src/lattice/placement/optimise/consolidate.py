"""Fewer machines for the same replicas in the same offers: half-empty ones are emptied onto others, where that pays for the moves."""

from dataclasses import dataclass

from lattice.placement.greedy.machine_choice import pick_machine, remove_empty_machines
from lattice.placement.model.assignments import assign
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Assignment, Cluster, Fleet
from lattice.placement.optimise.solve import Deadline
from lattice.placement.plan.plan import FleetState

MAX_FAILED_MACHINES = (
    4  # machines in a row that cannot be emptied, from the emptiest on: the others hold more
)


@dataclass
class MoveBudget:
    """What one move has to save, in micro-dollars per hour, and how many there may be."""

    move_price: int
    remaining_moves: int

    def covers(self, moves: int, saving: int) -> bool:
        return 0 < moves <= self.remaining_moves and moves * self.move_price < saving


def consolidate(settled: FleetState, allowance: MoveBudget, deadline: Deadline) -> FleetState:
    """On a fleet of its own; offers for which there is no time stay as they are."""
    world = settled.resulting_world()
    fleet = world.build_fleet()
    for row in range(fleet.table.count):
        for group in sorted({each.group for each in fleet.clusters_by_offer[row].values()}):
            if deadline.is_over:
                break
            together = [each for each in fleet.clusters_by_offer[row].values() if each.group == group]
            _Consolidation(fleet, together, world.demands, allowance).run()
    return FleetState(world, fleet, settled.placements, settled.orphaned)


@dataclass
class _Consolidation:
    fleet: Fleet
    clusters: list[Cluster]  # of one offer and under one set of rules: replicas may go from any to any
    demands: dict[str, Demand]
    budget: MoveBudget

    def run(self) -> None:
        machines, failed = self.fleet.machines, 0
        every = [each for cluster in self.clusters for each in cluster.machines]
        for machine in sorted(
            every,
            key=lambda each: (
                machines.replica_counts[each].total(),
                -machines.machine_type[each].rate,
                machines.names[each],
            ),
        ):
            moves = machines.replica_counts[machine].total()
            if failed < MAX_FAILED_MACHINES and self.budget.covers(
                moves, machines.machine_type[machine].rate
            ):
                is_emptied = machines.replica_counts[machine].keys() <= self.demands.keys() and self._empty(
                    machine
                )
                failed = 0 if is_emptied else failed + 1
                self.budget.remaining_moves -= moves if is_emptied else 0

    def _empty(self, machine: int) -> bool:
        """All of its replicas to other machines, largest first; nothing if they do not all find room, or if it has to stay."""
        fleet, home = self.fleet, self.fleet.machines.cluster[machine]
        before = len(home.machines)
        leaving = [
            self.demands[name]
            for name, count in fleet.machines.replica_counts[machine].items()
            for _ in range(count)
        ]
        with fleet.attempt() as attempt:
            for demand in leaving:
                fleet.unassign(self._assignment_on(demand, machine))
            for demand in sorted(
                leaving, key=lambda each: (-each.needs.get("cpu", 0), -each.needs.get("memory", 0), each.name)
            ):
                chosen = pick_machine(demand, fleet, self._target_machines(machine))
                if chosen is None:
                    return False
                assign(demand, fleet, chosen)
            remove_empty_machines(fleet, [home.name])
            attempt.succeeded = len(home.machines) < before
        return attempt.succeeded

    def _assignment_on(self, demand: Demand, machine: int) -> Assignment:
        return next(seat for seat in self.fleet.assignments[demand.name] if seat.machine == machine)

    def _target_machines(self, machine: int) -> list[int]:
        """Machines in use, of clusters that are below their threshold."""
        filling = (
            each for cluster in self.clusters if cluster.is_below_threshold for each in cluster.machines
        )
        return [each for each in filling if each != machine and self.fleet.machines.replica_counts[each]]
