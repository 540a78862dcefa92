"""Which of the offers that turned a replica away lack the least, and which would cost the least?"""

from collections.abc import Iterator

import numpy as np

from lattice.engine.table import Integers
from lattice.placement.model.fleet import Fleet
from lattice.placement.explain.blockers import Failure
from lattice.placement.plugins.filters.available import TooBig
from lattice.placement.plugins.filters.latency import TooFar
from lattice.placement.model.reasons import fleet_of


def nearest_rows(failure: Failure) -> Iterator[int]:
    """Of offers that are ruled out by the same reasons, the one that lacks least and the cheapest; those with the fewest reasons first."""
    decision, names = failure.decision, failure.decision.table.names
    lacking, price = _lacking(failure), _short(failure)["price"].tolist()
    signs = np.stack(list(decision.reasons.values()), axis=1)
    alike: dict[bytes, list[int]] = {}
    for row in sorted(decision.table.row_of.values(), key=lambda row: (lacking[row], price[row], names[row])):
        alike.setdefault(signs[row].tobytes(), []).append(row)
    for rows in sorted(alike.values(), key=lambda rows: (int(signs[rows[0]].sum()), names[rows[0]])):
        cheapest = min(rows[1:], key=lambda row: (price[row], lacking[row], names[row]), default=rows[0])
        yield from dict.fromkeys((rows[0], cheapest))


def _lacking(failure: Failure) -> list[tuple[int, ...]]:
    """By row: money first, then machines, cores and memory, then milliseconds, then what one machine is too small by."""
    fleet, short = fleet_of(failure.decision.table), _short(failure)
    lines = [short[name] for name in ("money", "nodes", "cpu", "memory") if name in short]
    lines += [line for reason in failure.decision.reasons for line in _beyond(reason, fleet)]
    return list(zip(*(line.tolist() for line in lines), strict=True)) if lines else [()] * fleet.table.count


def _short(failure: Failure) -> dict[str, Integers]:
    ask = failure.ask
    return fleet_of(failure.decision.table).table.quotes.short_of(
        ask, ask.demand.replicas - failure.replica + 1
    )


def _beyond(reason: object, fleet: Fleet) -> Iterator[Integers]:
    match reason:
        case TooFar(requirement=required, service=service):
            yield np.maximum(0, fleet.nearest(sorted(set(fleet.rows_of(service)))) - required.amount)
        case TooBig(demand=demand):
            catalogue = fleet.table.quotes.catalogue
            for resource, amount in demand.effective_needs.items():
                yield np.maximum(0, amount - catalogue.size(resource).max(axis=0, initial=0))
