"""Assign replicas of a service to machines of the trial fleet, and rank machines for the next replica."""

from collections.abc import Sequence

from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.model.quotes import gpu_resource_for


def assign(demand: Demand, fleet: Fleet, machine: int) -> Assignment:
    """Assign one replica to the machine, counting GPUs against the offer where the offer counts GPUs in
    total."""
    row = fleet.machines.cluster[machine].offer_row
    offer, needs = fleet.offers[row], demand.effective_needs
    limit = gpu_resource_for(fleet, demand, row) if needs.get("gpu") and offer.limits.gpus else ""
    assignment = Assignment(demand.name, machine, tuple(needs.items()), limit)
    fleet.assign(assignment)
    return assignment


def bulk_assignments(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[Assignment] | None:
    """Assignments to be applied later in one bulk; None if a machine belongs to an offer that counts GPUs in
    total."""
    if any(fleet.offers[fleet.machines.cluster[machine].offer_row].limits.gpus for machine in machines):
        return None
    needs = tuple(demand.effective_needs.items())
    return [Assignment(demand.name, machine, needs) for machine in machines]


def machine_ranks(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[tuple[int, int, int, str]]:
    """Sort keys, the best machine first: few replicas of the service, then little free capacity."""
    table, service = fleet.machines, demand.name
    cpu, memory = table.free(0)[machines].tolist(), table.free(1)[machines].tolist()
    return [
        (table.replica_counts[machine][service], cpu[position], memory[position], table.names[machine])
        for position, machine in enumerate(machines)
    ]
