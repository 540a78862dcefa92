"""Why is a service not placed: not here, not now, over budget, without a known price or never; and what exactly is in its way?"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.placement.explain.awaited import Services, behind
from lattice.placement.explain.contradiction import Contradiction, contradictions
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.explain.blockers import (
    IGNORABLE,
    Failure,
    Limit,
    Obstacle,
    cures,
    dropping,
    first_failure,
    is_feasible,
    obstacles,
    open_rows,
)
from lattice.placement.greedy.place import Placement
from lattice.placement.plugins.filters.budget import Unpriced, unpriced_classes
from lattice.placement.plugins.filters.capacity import Full
from lattice.placement.model.reasons import fleet_of
from lattice.placement.explain.required_infrastructure import NOTHING, Required, required_for

VerdictKind = Literal["NotHere", "NoPrice", "OverBudget", "NotNow", "Never"]
MOST_PARTS = 6  # things to drop together before giving up
STARTS = 6  # different beginnings of a combination that are followed up
NAMED = 3  # offers named in a sentence

Conflict = tuple[
    Obstacle, ...
]  # dropped together they make the service fit, and none of them can be left out


@dataclass(frozen=True, slots=True)
class Verdict:
    """`conflicts` are all the single things whose absence would be enough; where there is none, combinations."""

    kind: VerdictKind
    service: str
    reason: str  # one sentence
    refusals: tuple[tuple[str, tuple[Shortfall, ...]], ...]  # every offer, with everything that rules it out
    conflicts: tuple[Conflict, ...]
    waits: tuple[str, ...]  # what would have to happen, if time could cure it
    required: Required
    contradictions: tuple[Contradiction, ...] = ()  # two rules of which each could be kept, but not both


def judge(placement: Placement, fleet: Fleet, known: Services | None = None) -> Verdict:
    """Of a service that place() could not place completely, in the fleet that it was to be placed in. `known`: services that exist."""
    demand = placement.demand
    trial = Trial(demand, fleet)
    failure = first_failure(demand, fleet)
    kind = _kind(trial, fleet)
    return Verdict(
        kind=kind,
        service=demand.name,
        reason="; ".join(
            [
                _reason(kind, demand, fleet, failure),
                *(behind(demand, fleet, known) if failure and known is not None else ()),
            ]
        ),
        refusals=failure.refusals if failure else (),
        conflicts=tuple(conflicts(trial, failure)),
        waits=tuple(_waits(trial, failure, known)) if kind in ("NotNow", "NoPrice", "OverBudget") else (),
        required=NOTHING if demand.problem else required_for(demand, failure, fleet),
        contradictions=tuple(contradictions(demand, fleet)),
    )


class Trial:
    """Would it fit without these? Each question is asked once."""

    def __init__(self, demand: Demand, fleet: Fleet) -> None:
        self.demand, self.fleet = demand, fleet
        self.all = obstacles(demand, fleet)
        self._known: dict[frozenset[Obstacle], bool] = {}

    def fits_without(self, dropped: Iterable[Obstacle]) -> bool:
        gone = frozenset(dropped)
        found = self._known.get(gone)
        if found is None:
            found = self._known[gone] = is_feasible(dropping(self.demand, gone), self.fleet)
        return found

    @property
    def passing(self) -> tuple[Limit, ...]:
        """Limits that time or money could lift."""
        return tuple(each for each in self.all if isinstance(each, Limit) and each.kind in IGNORABLE)


def _kind(trial: Trial, fleet: Fleet) -> VerdictKind:
    if trial.demand.problem:
        return "Never"
    if absent_regions(trial.demand, fleet):
        return "NotHere"
    if Limit("prices") in trial.all and trial.fits_without([Limit("prices")]):
        return "NoPrice"
    if Limit("budget") in trial.all and trial.fits_without([Limit("budget")]):
        return "OverBudget"
    return "NotNow" if trial.fits_without(trial.passing) else "Never"


def absent_regions(demand: Demand, fleet: Fleet) -> list[str]:
    """Required regions that no offer is in."""
    return [
        each.value for each in demand.regions if not any(offer.is_in(each.value) for offer in fleet.offers)
    ]


def _reason(kind: VerdictKind, demand: Demand, fleet: Fleet, failure: Failure | None) -> str:
    if failure is None:
        return demand.problem
    which = f"replica {failure.replica:,} of {demand.replicas:,}: " if failure.replica > 1 else ""
    where = f"no pool here is in {', '.join(absent_regions(demand, fleet))}: " if kind == "NotHere" else ""
    return f"{where}{which}{failure.sentence}"


def conflicts(trial: Trial, failure: Failure | None) -> list[Conflict]:
    """Single things first; only if none is enough, combinations that have been found to be."""
    alone: list[Conflict] = [(each,) for each in trial.all if trial.fits_without([each])]
    return alone or sorted(_combinations(trial, failure), key=lambda each: (len(each), _order(trial, each)))


def _order(trial: Trial, parts: Conflict) -> list[int]:
    return [trial.all.index(each) for each in parts]


def _combinations(trial: Trial, failure: Failure | None) -> Iterator[Conflict]:
    found: set[frozenset[Obstacle]] = set()
    for start in _starts(failure, trial.demand):
        grown = _grown(trial, start)
        if grown is not None:
            found.add(smallest(grown, trial.fits_without, trial.all))
    if not found and trial.fits_without(trial.all):
        found.add(smallest(frozenset(trial.all), trial.fits_without, trial.all))
    for each in found:
        if not any(other < each for other in found):
            yield tuple(part for part in trial.all if part in each)


def _starts(failure: Failure | None, demand: Demand) -> list[frozenset[Obstacle]]:
    """Ways to open the offers that are nearest to taking the replica, those that open most of them first."""
    if failure is None:
        return []
    counted: dict[frozenset[Obstacle], int] = {}
    for row in representatives(failure):
        for way in cures(failure, demand, row):
            counted[way] = counted.get(way, 0) + 1
    return sorted(counted, key=lambda way: (len(way), -counted[way], sorted(map(str, way))))[:STARTS]


def representatives(failure: Failure) -> list[int]:
    """One offer of those that are ruled out by the same reasons, the first by name."""
    masks = list(failure.decision.reasons.values())
    names = failure.decision.table.names
    rows = sorted(failure.decision.table.row_of.values(), key=names.__getitem__)
    signs = np.stack(masks, axis=1) if masks else np.zeros((len(names), 0), np.bool_)
    kept: dict[bytes, int] = {}
    for row in rows:
        kept.setdefault(signs[row].tobytes(), row)
    return list(kept.values())


def _grown(trial: Trial, start: frozenset[Obstacle]) -> frozenset[Obstacle] | None:
    """With what else it takes, replica after replica; None: no end in sight."""
    dropped = start
    while not trial.fits_without(dropped):
        if len(dropped) >= MOST_PARTS:
            return None
        kept = dropping(trial.demand, dropped)
        failure = first_failure(kept, trial.fleet, details=False)
        more = [way - dropped for way in _starts(failure, kept)]
        more = [way for way in more if way]
        if not more:
            return None
        dropped = dropped | more[0]
    return dropped


def smallest(
    parts: frozenset[Obstacle], is_enough: Callable[[Iterable[Obstacle]], bool], order: tuple[Obstacle, ...]
) -> frozenset[Obstacle]:
    """A smallest part of it that is enough on its own; nothing can be left out of that."""
    kept = [each for each in order if each in parts]
    for each in list(kept):
        fewer = [other for other in kept if other is not each]
        if len(kept) > MOST_PARTS and is_enough(fewer):
            kept = fewer
    for size in range(1, min(len(kept), MOST_PARTS + 1)):
        for some in combinations(kept, size):
            if is_enough(some):
                return frozenset(some)
    return frozenset(kept)


def _waits(trial: Trial, failure: Failure | None, known: Services | None) -> Iterator[str]:
    """For the fewest limits whose lifting would do."""
    limits = trial.passing
    for size in range(1, len(limits) + 1):
        for some in combinations(limits, size):
            if trial.fits_without(some):
                yield from (words for each in some for words in _waiting(each, trial, failure, known))
                return


def _waiting(limit: Limit, trial: Trial, failure: Failure | None, known: Services | None) -> Iterator[str]:
    fleet, demand = trial.fleet, trial.demand
    match limit.kind:
        case "dependencies":
            for name, service in demand.latency_to:
                if not fleet.seats.get(service):
                    is_known = known is None or service in known
                    yield f"{name}, which is not {'placed' if is_known else 'defined'}"
        case "capacity":
            full = (
                [fleet.offers[row].name for row in np.flatnonzero(open_rows(failure, Full))]
                if failure
                else []
            )
            yield f"room in {_some(full)}" if full else "room"
        case "overflow":
            rules = {
                offer.name: offer.overflow.enabled for offer in fleet.offers if offer.overflow is not None
            }
            gates = sorted(name for name, is_enabled in rules.items() if is_enabled)
            off = sorted(name for name, is_enabled in rules.items() if not is_enabled)
            yield from [f"{_some(gates)} to be full enough to overflow"] if gates else []
            yield from [f"overflow of {_some(off)} to be enabled"] if off else []
        case "reservation":
            keepers = sorted(
                offer.name
                for offer in fleet.offers
                if offer.reserved_nodes and offer.name not in demand.admitted
            )
            yield f"capacity of {_some(keepers)} that is reserved for others"
        case "prices":
            yield from sorted(_prices(failure)) or ["prices of machines that run"]
        case "budget":
            yield "budget"


def _prices(failure: Failure | None) -> set[str]:
    """Of which classes, and how they are given."""
    found = set()
    for reason, mask in failure.decision.reasons.items() if failure else ():
        if isinstance(reason, Unpriced):
            fleet = fleet_of(failure.decision.table)  # type: ignore[union-attr]
            for row in np.flatnonzero(mask).tolist():
                provider = fleet.offers[row].place.provider
                found |= {
                    f"a price of class {name} (costPerHour.{provider}, or a price file)"
                    for name in unpriced_classes(reason.ask, fleet, row)
                }
    return found


def _some(names: list[str]) -> str:
    rest = len(names) - NAMED
    return f"{', '.join(sorted(names)[:NAMED])}{f' or {rest} more' if rest > 0 else ''}"
