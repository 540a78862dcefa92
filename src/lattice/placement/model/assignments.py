"""Assigning replicas of a service to machines of the trial fleet, and the order in which machines are preferred."""

from collections.abc import Sequence

from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.model.quotes import gpu_resource_for


def assign(demand: Demand, fleet: Fleet, machine: int) -> Assignment:
    row = fleet.machines.cluster[machine].offer_row
    offer, needs = fleet.offers[row], demand.effective_needs
    limit = gpu_resource_for(fleet, demand, row) if needs.get("gpu") and offer.limits.gpus else ""
    seat = Assignment(demand.name, machine, tuple(needs.items()), limit)
    fleet.assign(seat)
    return seat


def bulk_assignments(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[Assignment] | None:
    """For these replicas, to be taken later and with others; None: some are in places that count GPUs."""
    if any(fleet.offers[fleet.machines.cluster[each].offer_row].limits.gpus for each in machines):
        return None
    needs = tuple(demand.effective_needs.items())
    return [Assignment(demand.name, each, needs) for each in machines]


def machine_ranks(demand: Demand, fleet: Fleet, machines: Sequence[int]) -> list[tuple[int, int, int, str]]:
    """The least goes first: few replicas of the service, then little room."""
    table, service = fleet.machines, demand.name
    cpu, memory = table.free(0)[machines].tolist(), table.free(1)[machines].tolist()
    return [
        (table.replica_counts[each][service], cpu[at], memory[at], table.names[each])
        for at, each in enumerate(machines)
    ]
