"""Rank the offers that rejected a replica by their missing capacity and by their price."""

from collections.abc import Iterator

import numpy as np

from lattice.engine.table import Integers
from lattice.placement.explain.blockers import PlacementFailure
from lattice.placement.plugins.filters.available import MachinesDiffer, ReplicaTooLarge
from lattice.placement.plugins.filters.latency import LatencyExceeded
from lattice.placement.plugins.rejection_reasons import fleet_of


def nearest_rows(failure: PlacementFailure) -> Iterator[int]:
    """Yield, for every set of reasons, the offer with the least missing and the cheapest offer; the fewest
    reasons first."""
    decision, names = failure.decision, failure.decision.table.names
    missing, price = _missing_by_row(failure), _shortfalls(failure)["price"].tolist()
    reason_bits = np.stack(list(decision.reasons.values()), axis=1)
    rows_by_reasons: dict[bytes, list[int]] = {}
    for row in sorted(decision.table.row_of.values(), key=lambda row: (missing[row], price[row], names[row])):
        rows_by_reasons.setdefault(reason_bits[row].tobytes(), []).append(row)
    for rows in sorted(
        rows_by_reasons.values(), key=lambda rows: (int(reason_bits[rows[0]].sum()), names[rows[0]])
    ):
        cheapest = min(rows[1:], key=lambda row: (price[row], missing[row], names[row]), default=rows[0])
        yield from dict.fromkeys((rows[0], cheapest))


def _missing_by_row(failure: PlacementFailure) -> list[tuple[int, ...]]:
    """Return the missing amounts by row: money, machines, cores, memory, then milliseconds, then the
    resources of one machine."""
    fleet, shortfalls = fleet_of(failure.decision.table), _shortfalls(failure)
    columns = [shortfalls[name] for name in ("money", "nodes", "cpu", "memory") if name in shortfalls]
    for reason in failure.decision.reasons:
        match reason:
            case LatencyExceeded(requirement=requirement, service=service):
                rtt_ms = fleet.ms_to_nearest(sorted(set(fleet.replicas.offer_rows(service))))
                columns.append(np.maximum(0, rtt_ms - requirement.amount))
            # By how much the largest machine of every offer is too small.
            case ReplicaTooLarge(demand=demand) | MachinesDiffer(demand=demand):
                catalog = fleet.quotes.catalog
                for resource, amount in demand.effective_needs.items():
                    largest = catalog.size(resource).max(axis=0, initial=0)
                    columns.append(np.maximum(0, amount - largest))
    if not columns:
        return [()] * fleet.table.count
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _shortfalls(failure: PlacementFailure) -> dict[str, Integers]:
    ask = failure.ask
    return fleet_of(failure.decision.table).quotes.limit_shortfalls(
        ask, ask.demand.replicas - failure.replica_number + 1
    )
