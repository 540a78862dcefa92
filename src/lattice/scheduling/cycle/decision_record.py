"""Why this node, or why none? What is kept of a decision with its workload: at most 2 KB."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, cast

import numpy as np

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.explain import RankedCandidate, rejection_counts, top_candidates
from lattice.engine.plugin import Ask, Reason, Shortfall
from lattice.kinds.meta.json_body import encode
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.plugins.filters.gpu import GpuModelMismatch, NoGpu
from lattice.scheduling.plugins.reasons import LabelMismatch, StaticReason
from lattice.scheduling.preemption.preemptor import is_resolvable_by_eviction
from lattice.scheduling.table.ask import WorkloadAsk

MAX_CANDIDATES = 3  # candidates that are kept
MAX_REASONS = 8  # of those that rule out nodes, the most frequent
MAX_RECORD_BYTES = 2048
MAX_REASON_CHARS = 120  # characters of one reason

DecisionRecord = dict[str, Any]


_AMOUNT = re.compile(r"(?<!\S)\d[\d,.]*(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?(?!\S)")
_PERMANENT_REASON_TYPES = (NoGpu, GpuModelMismatch, StaticReason, LabelMismatch)


def chosen_records(
    found: Decision | BatchResult, profile: ProfileSpec, revision: int
) -> Iterator[DecisionRecord]:
    """Of what found nodes: the best ones, what the score of the first is made of, and how many each reason ruled out.

    Of those that were decided together each as of its own turn, the node that it got beside the next best.
    """
    shared = {"profile": profile.name, **_input(found.ask, profile, revision)}
    if isinstance(found, Decision):
        yield _truncated(
            {
                **shared,
                **_candidate_fields(top_candidates(found, MAX_CANDIDATES)),
                **_reason_counts(rejection_counts(found)),
            }
        )
        return
    for best, ruled_out in zip(found.ranked(), found.rejection_counts(), strict=True):
        yield _truncated({**shared, **_candidate_fields(best), **_reason_counts(ruled_out)})


def _candidate_fields(found: Sequence[RankedCandidate]) -> DecisionRecord:
    best = {each.name: round(each.score, 2) for each in found}
    return (
        {"best": best, "parts": {part.plugin: round(part.score, 1) for part in found[0].parts}}
        if found
        else {}
    )


def rejected_record(decision: Decision, profile: ProfileSpec, revision: int) -> DecisionRecord:
    """Of one that found none: how many each reason ruled out, and what the nearest node lacks, with need, have and missing."""
    found: DecisionRecord = {"profile": profile.name, **_reason_counts(rejection_counts(decision))}
    if (row := _nearest(decision)) is not None:
        short = [reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]]
        found["nearest"] = {"node": decision.table.names[row], "short": list(_shortfall_documents(short))}
    return _truncated({**found, **_input(decision.ask, profile, revision)})


def _shortfall_documents(short: Iterable[Shortfall]) -> Iterable[Mapping[str, str]]:
    for each in list(short)[:MAX_CANDIDATES]:
        yield {name: value[:MAX_REASON_CHARS] for name, value in each._asdict().items() if value}


def _reason_counts(found: Sequence[tuple[Reason, int]]) -> DecisionRecord:
    return (
        {"reasons": {reason.summary()[:MAX_REASON_CHARS]: count for reason, count in found[:MAX_REASONS]}}
        if found
        else {}
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


def _input(ask: Ask, profile: ProfileSpec, revision: int) -> DecisionRecord:
    return {"input": input_digest(cast("WorkloadAsk", ask), profile), "revision": revision}


def input_digest(ask: WorkloadAsk, profile: ProfileSpec) -> str:
    """The same for the same demands, priority and profile; with the revision of the store it names all that was decided by."""
    return sha256(repr((ask.demands, ask.priority, ask.group, profile)).encode()).hexdigest()[:24]


def _truncated(found: DecisionRecord) -> DecisionRecord:
    """What is least worth goes first, should names and reasons be very long."""
    for name in ("parts", "best", "nearest", "reasons"):
        if len(encode(found)) <= MAX_RECORD_BYTES:
            break
        found.pop(name, None)
    return found


class RejectionSummary(NamedTuple):
    reason: (
        str  # `0 of 3 nodes: 1 cordoned; 2 without 2 cpu free`: labels, taints and the like first, room last
    )
    reason_kinds: tuple[str, ...]  # what it says without counts and amounts, in an order of their own


def rejection_summary(decision: Decision) -> RejectionSummary:
    total, decision = int(np.count_nonzero(decision.table.column("alive"))), permanent_reasons_first(decision)
    lasts = _permanent_reasons(decision)
    found = [
        (reason.summary(), count)
        for reason, count in sorted(rejection_counts(decision), key=lambda pair: pair[0] not in lasts)
    ]
    told = "; ".join(f"{count:,} {summary}" for summary, count in found) or "there are none"
    kinds = sorted({_AMOUNT.sub("…", summary) for summary, _ in found})
    return RejectionSummary(f"0 of {total:,} node{'' if total == 1 else 's'}: {told}", tuple(kinds))


def permanent_reasons_first(decision: Decision) -> Decision:
    """A node that several reasons rule out is counted for one that lasts, if there is one."""
    lasts = _permanent_reasons(decision)
    return replace(
        decision, reasons=dict(sorted(decision.reasons.items(), key=lambda pair: pair[0] not in lasts))
    )


def _permanent_reasons(decision: Decision) -> set[Reason]:
    """Nobody's leaving would help: labels, taints and the like, GPUs or topology keys that a node does not have."""
    passing = {each.name for each in decision.profile.filters if is_resolvable_by_eviction(each)}
    return {
        reason
        for reason in decision.reasons
        if reason.plugin not in passing or isinstance(reason, _PERMANENT_REASON_TYPES)
    }
