"""The document of `cost`: the bill by pool, service, node or label. The rows of every grouping add up to the same
total."""

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.inputs.cost_allocation import CostPart, MachineState
from lattice.placement.plan.plan import FleetState
from lattice.placement.queries.plan_document import Document, price_document, rate_document


@dataclass(slots=True)
class _Row:
    """The sums of the parts of one row, in micro-dollars per hour. Machines of unknown price count with their last
    known price, or with 0."""

    micros: int = 0
    overhead: int = 0
    # Whether all parts are of machines without replicas.
    is_overhead: bool = True
    unpriced: int = 0

    def add(self, part: CostPart) -> None:
        self.micros += part.micros
        if part.state is not None:
            self.overhead += part.micros
        self.is_overhead &= part.state is not None
        self.unpriced += 0 if part.machine.is_priced else part.machine.count


def cost_document(state: FleetState, by: str, namespace: str = "") -> Document:
    """Return the costs by pool, service, node or label:KEY.

    With a namespace only costs of its services are returned, without machines that hold no replicas.
    """
    parts = [part for part in state.cost_parts if not namespace or part.service.startswith(f"{namespace}/")]
    rows: dict[str, _Row] = {}
    for part in parts:
        rows.setdefault(_row_name(state, by, part), _Row()).add(part)
    total = sum(row.micros for row in rows.values())
    # Rows of machines without replicas come last, unless rows are pools or nodes.
    is_last = by not in ("pool", "node")
    in_order = sorted(
        rows.items(), key=lambda item: (is_last and item[1].is_overhead, -item[1].micros, item[0])
    )
    idle = dict.fromkeys(MachineState, 0)
    for part in parts:
        if part.state is not None:
            idle[part.state] += part.micros
    unpriced = {id(part.machine): part.machine for part in parts if not part.machine.is_priced}
    missing = list(_missing_services(state, namespace))
    return {
        "ask": "cost",
        "by": by,
        "namespace": namespace or None,
        "isRecorded": state.recorded_bill is not None,
        "rows": [
            {
                "name": name,
                **rate_document(row.micros),
                "shareMillionths": row.micros * MILLIONTHS // total if total else 0,
                "overhead": rate_document(row.overhead),
                "unpricedMachines": row.unpriced,
            }
            for name, row in in_order
        ],
        "overhead": rate_document(sum(idle.values())),
        "empty": rate_document(idle[MachineState.EMPTY]),
        "beingMade": rate_document(idle[MachineState.BEING_MADE]),
        "leaving": rate_document(idle[MachineState.LEAVING]),
        "total": rate_document(total),
        "unpricedMachines": sum(machine.count for machine in unpriced.values()),
        "unplaced": [name for name, placed, _ in missing if not placed],
        "partlyPlaced": [
            {"name": name, "placed": placed, "replicas": replicas}
            for name, placed, replicas in missing
            if placed
        ],
        "prices": price_document(state.fleet, state.bill),
    }


def _missing_services(state: FleetState, namespace: str) -> Iterator[tuple[str, int, int]]:
    """Yield the services without a place for all replicas: name, placed replicas, and desired replicas."""
    demands = state.world.demands
    for demand in ordered_demands(demands.values()):
        if not namespace or demand.name.startswith(f"{namespace}/"):
            placed = state.placed_replicas(demand.name)
            if placed < demand.replicas:
                yield demand.name, placed, demand.replicas


def _row_name(state: FleetState, by: str, part: CostPart) -> str:
    if by == "pool":
        return part.machine.pool
    if by == "node":
        return part.machine.name
    # Machines without replicas belong to no service.
    if part.state is not None:
        return f"({part.state.words} in {part.machine.pool})"
    if by == "service":
        return part.service
    key = by.removeprefix("label:")
    stored = state.world.services.get(part.service)
    labels = (stored.metadata.labels or {}) if stored else {}
    return labels.get(key, f"(no label {key})")
