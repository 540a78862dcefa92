"""Consolidate machines: empty lightly used machines onto other machines of the same offer where the saving
pays for the moves."""

from dataclasses import dataclass

from lattice.placement.greedy.machine_choice import pick_machine, remove_empty_machines
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.placement.optimise.solve import Deadline
from lattice.placement.plan.plan import FleetState

# If this number of machines in a row could not be emptied, no further machine is tried: machines with few
# replicas come first, so the later machines hold more replicas.
MAX_FAILED_MACHINES = 4


@dataclass
class MoveBudget:
    """The saving that a move must bring, in micro-dollars per hour, and the number of moves that remain."""

    move_price: int
    remaining_moves: int

    def covers(self, moves: int, saving: int) -> bool:
        return 0 < moves <= self.remaining_moves and moves * self.move_price < saving


def consolidate(state: FleetState, budget: MoveBudget, deadline: Deadline) -> FleetState:
    """Return the state with consolidated machines, computed on a fleet of its own; offers that are not
    reached before the deadline stay as they are."""
    world = state.resulting_world()
    fleet = world.build_fleet()
    state.orphaned.commit_to(fleet)
    for row in range(fleet.table.count):
        for group in sorted({cluster.group for cluster in fleet.inventory.clusters_by_offer[row].values()}):
            if deadline.is_over:
                break
            clusters = [
                cluster
                for cluster in fleet.inventory.clusters_by_offer[row].values()
                if cluster.group == group
            ]
            _Consolidation(fleet, clusters, world.demands, budget).run()
    return FleetState(world, fleet, state.placements, state.orphaned)


@dataclass
class _Consolidation:
    fleet: Fleet
    # Clusters of one offer with equal rules: replicas may move between any two of them.
    clusters: list[Cluster]
    demands: dict[str, Demand]
    budget: MoveBudget

    def run(self) -> None:
        machines, failed = self.fleet.machines, 0
        candidates: list[int] = []
        for cluster in self.clusters:
            candidates += cluster.machines
        # Machines with few replicas first, and among them the most expensive.
        candidates.sort(
            key=lambda machine: (
                machines.replica_counts[machine].total(),
                -machines.machine_type[machine].rate,
                machines.names[machine],
            )
        )
        for machine in candidates:
            moves = machines.replica_counts[machine].total()
            if failed >= MAX_FAILED_MACHINES or not self.budget.covers(
                moves, machines.machine_type[machine].rate
            ):
                continue
            # Replicas that belong to no service cannot move.
            services = machines.replica_counts[machine].keys()
            # A replica that moves could leave the replicas that must be near it.
            is_movable = services <= self.demands.keys() and services.isdisjoint(self.fleet.affinity_services)
            if is_movable and self._empty(machine):
                failed = 0
                self.budget.remaining_moves -= moves
            else:
                failed += 1

    def _empty(self, machine: int) -> bool:
        """Move all replicas of the machine to other machines, largest first; undone unless every replica fits
        and the machine can be removed."""
        fleet, home = self.fleet, self.fleet.machines.cluster[machine]
        machine_count = len(home.machines)
        moving: list[Demand] = []
        for name, count in fleet.machines.replica_counts[machine].items():
            moving += [self.demands[name]] * count
        with fleet.attempt() as attempt:
            for demand in moving:
                assignments = fleet.assignments[demand.name]
                fleet.unassign(next(item for item in assignments if item.machine == machine))
            moving.sort(
                key=lambda demand: (-demand.needs.get("cpu", 0), -demand.needs.get("memory", 0), demand.name)
            )
            for demand in moving:
                # Other machines in use, in clusters below their packing threshold.
                targets: list[int] = []
                for cluster in self.clusters:
                    if cluster.is_below_threshold:
                        targets += [
                            target
                            for target in cluster.machines
                            if target != machine and fleet.machines.replica_counts[target]
                        ]
                chosen = pick_machine(demand, fleet, targets)
                if chosen is None:
                    return False
                fleet.assign_replica(demand, chosen)
            remove_empty_machines(fleet, [home.name])
            attempt.succeeded = len(home.machines) < machine_count
        return attempt.succeeded
