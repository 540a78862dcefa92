"""Why this node, or why none? What is kept of a decision with its workload: at most 2 KB."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.explain import counts, ranked
from lattice.engine.plugin import Shortfall
from lattice.kinds.body import encode
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.profile import ProfileSpec

BEST = 3  # candidates that are kept
REASONS = 8  # of those that rule out nodes, the most frequent
MOST_BYTES = 2048
LONGEST = 120  # characters of one reason

Grounds = dict[str, Any]


def chosen(decision: Decision, profile: ProfileSpec, revision: int) -> Grounds:
    """Of a decision that found nodes: the best three, what the best one's score is made of, and how many each reason ruled out."""
    best = ranked(decision, BEST)
    found: Grounds = {"profile": profile.name, "best": {each.name: round(each.score, 2) for each in best}}
    if best:
        found["parts"] = {part.plugin: round(part.score, 1) for part in best[0].parts}
    return _kept({**found, **_ruled_out(decision), **_input(decision, profile, revision)})


def refused(decision: Decision, profile: ProfileSpec, revision: int) -> Grounds:
    """Of one that found none: how many each reason ruled out, and what the nearest node lacks, with need, have and missing."""
    found: Grounds = {"profile": profile.name, **_ruled_out(decision)}
    if (row := _nearest(decision)) is not None:
        short = [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]
        found["nearest"] = {"node": decision.table.names[row], "short": list(_told(short))}
    return _kept({**found, **_input(decision, profile, revision)})


def _told(short: Iterable[Shortfall]) -> Iterable[Mapping[str, str]]:
    for each in list(short)[:BEST]:
        yield {name: value[:LONGEST] for name, value in each._asdict().items() if value}


def _ruled_out(decision: Decision) -> Grounds:
    found = counts(decision)[:REASONS]
    return {"reasons": {reason.summary()[:LONGEST]: count for reason, count in found}} if found else {}


def _nearest(decision: Decision) -> int | None:
    """The node with the fewest reasons against it, the first of them in tie order; None: there is no node."""
    alive = np.flatnonzero(decision.table.column("alive"))
    if not len(alive):
        return None
    against = sum((mask.astype(np.int32) for mask in decision.reasons.values()), np.zeros(decision.table.count, np.int32))
    order = np.lexsort((decision.table.column("rank")[alive], against[alive]))
    return int(alive[order[0]])


def _input(decision: Decision, profile: ProfileSpec, revision: int) -> Grounds:
    return {"input": digest(decision.ask, profile), "revision": revision}  # type: ignore[arg-type]


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
