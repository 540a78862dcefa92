"""Which of the offers that turned a replica away lack the least, and which would cost the least?"""

from collections.abc import Iterator

import numpy as np

from lattice.engine.table import Integers
from lattice.placement.explain.blockers import PlacementFailure
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.rejection_reasons import fleet_of
from lattice.placement.plugins.filters.available import ReplicaTooLarge
from lattice.placement.plugins.filters.latency import LatencyExceeded


def nearest_rows(failure: PlacementFailure) -> Iterator[int]:
    """Of offers that are ruled out by the same reasons, the one that lacks least and the cheapest; those with the fewest reasons first."""
    decision, names = failure.decision, failure.decision.table.names
    lacking, price = _missing_by_row(failure), _shortfalls(failure)["price"].tolist()
    signs = np.stack(list(decision.reasons.values()), axis=1)
    alike: dict[bytes, list[int]] = {}
    for row in sorted(decision.table.row_of.values(), key=lambda row: (lacking[row], price[row], names[row])):
        alike.setdefault(signs[row].tobytes(), []).append(row)
    for rows in sorted(alike.values(), key=lambda rows: (int(signs[rows[0]].sum()), names[rows[0]])):
        cheapest = min(rows[1:], key=lambda row: (price[row], lacking[row], names[row]), default=rows[0])
        yield from dict.fromkeys((rows[0], cheapest))


def _missing_by_row(failure: PlacementFailure) -> list[tuple[int, ...]]:
    """By row: money first, then machines, cores and memory, then milliseconds, then what one machine is too small by."""
    fleet, short = fleet_of(failure.decision.table), _shortfalls(failure)
    lines = [short[name] for name in ("money", "nodes", "cpu", "memory") if name in short]
    lines += [line for reason in failure.decision.reasons for line in _excess_by_row(reason, fleet)]
    return list(zip(*(line.tolist() for line in lines), strict=True)) if lines else [()] * fleet.table.count


def _shortfalls(failure: PlacementFailure) -> dict[str, Integers]:
    ask = failure.ask
    return fleet_of(failure.decision.table).table.quotes.limit_shortfalls(
        ask, ask.demand.replicas - failure.replica_number + 1
    )


def _excess_by_row(reason: object, fleet: Fleet) -> Iterator[Integers]:
    match reason:
        case LatencyExceeded(requirement=required, service=service):
            yield np.maximum(
                0, fleet.ms_to_nearest(sorted(set(fleet.offer_rows_of(service)))) - required.amount
            )
        case ReplicaTooLarge(demand=demand):
            catalogue = fleet.table.quotes.catalog
            for resource, amount in demand.effective_needs.items():
                yield np.maximum(0, amount - catalogue.size(resource).max(axis=0, initial=0))
