"""Why this node, or why none? What is kept of a decision with its workload: at most 2 KB."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.explain import Ranked, counts, ranked
from lattice.engine.batch_result import Picks
from lattice.engine.plugin import Ask, Reason, Shortfall
from lattice.kinds.meta.json_body import encode
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.cycle.profile import ProfileSpec

BEST = 3  # candidates that are kept
REASONS = 8  # of those that rule out nodes, the most frequent
MOST_BYTES = 2048
LONGEST = 120  # characters of one reason

Grounds = dict[str, Any]


def chosen(found: Decision | Picks, profile: ProfileSpec, revision: int) -> Iterator[Grounds]:
    """Of what found nodes: the best ones, what the score of the first is made of, and how many each reason ruled out.

    Of those that were decided together each as of its own turn, the node that it got beside the next best.
    """
    shared = {"profile": profile.name, **_input(found.ask, profile, revision)}
    if isinstance(found, Decision):
        yield _kept({**shared, **_best(ranked(found, BEST)), **_ruled_out(counts(found))})
        return
    for best, ruled_out in zip(found.ranked(), found.counts(), strict=True):
        yield _kept({**shared, **_best(best), **_ruled_out(ruled_out)})


def _best(found: Sequence[Ranked]) -> Grounds:
    best = {each.name: round(each.score, 2) for each in found}
    return (
        {"best": best, "parts": {part.plugin: round(part.score, 1) for part in found[0].parts}}
        if found
        else {}
    )


def refused(decision: Decision, profile: ProfileSpec, revision: int) -> Grounds:
    """Of one that found none: how many each reason ruled out, and what the nearest node lacks, with need, have and missing."""
    found: Grounds = {"profile": profile.name, **_ruled_out(counts(decision))}
    if (row := _nearest(decision)) is not None:
        short = [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]
        found["nearest"] = {"node": decision.table.names[row], "short": list(_told(short))}
    return _kept({**found, **_input(decision.ask, profile, revision)})


def _told(short: Iterable[Shortfall]) -> Iterable[Mapping[str, str]]:
    for each in list(short)[:BEST]:
        yield {name: value[:LONGEST] for name, value in each._asdict().items() if value}


def _ruled_out(found: Sequence[tuple[Reason, int]]) -> Grounds:
    return (
        {"reasons": {reason.summary()[:LONGEST]: count for reason, count in found[:REASONS]}} if found else {}
    )


def _nearest(decision: Decision) -> int | None:
    """The node with the fewest reasons against it, the first of them in tie order; None: there is no node."""
    alive = np.flatnonzero(decision.table.column("alive"))
    if not len(alive):
        return None
    against = sum(
        (mask.astype(np.int32) for mask in decision.reasons.values()),
        np.zeros(decision.table.count, np.int32),
    )
    order = np.lexsort((decision.table.column("rank")[alive], against[alive]))
    return int(alive[order[0]])


def _input(ask: Ask, profile: ProfileSpec, revision: int) -> Grounds:
    return {"input": digest(cast("WorkloadAsk", ask), profile), "revision": revision}


def digest(ask: WorkloadAsk, profile: ProfileSpec) -> str:
    """The same for the same demands, priority and profile; with the revision of the store it names all that was decided by."""
    return sha256(repr((ask.demands, ask.priority, ask.group, profile)).encode()).hexdigest()[:24]


def _kept(found: Grounds) -> Grounds:
    """What is least worth goes first, should names and reasons be very long."""
    for name in ("parts", "best", "nearest", "reasons"):
        if len(encode(found)) <= MOST_BYTES:
            break
        found.pop(name, None)
    return found
