"""Decision records: why a workload got its node, or got none, in at most 2 KB, stored with the workload."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, cast

import numpy as np

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.explain import RankedCandidate, rejection_counts, top_candidates
from lattice.engine.plugin import Ask, Reason
from lattice.kinds.meta.json_body import encode
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.plugins.filters.gpu import GpuModelMismatch, NoGpu
from lattice.scheduling.plugins.reasons import LabelMismatch, StaticReason
from lattice.scheduling.preemption.preemptor import is_resolvable_by_eviction
from lattice.scheduling.table.workload_ask import WorkloadAsk

MAX_CANDIDATES = 3
MAX_REASONS = 8  # limit of rejection reasons in a record, the most frequent first
MAX_RECORD_BYTES = 2048
MAX_REASON_CHARS = 120

DecisionRecord = dict[str, Any]


# An amount with an optional unit suffix, as a word of its own.
_AMOUNT = re.compile(r"(?<!\S)\d[\d,.]*(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?(?!\S)")
# Reasons that no eviction changes, although their filters wake on evictions.
_PERMANENT_REASON_TYPES = (NoGpu, GpuModelMismatch, StaticReason, LabelMismatch)


def chosen_records(
    decision: Decision | BatchResult, profile: ProfileSpec, revision: int
) -> Iterator[DecisionRecord]:
    """Records of a decision that chose nodes: the best nodes, the score parts of the first node, rejected
    nodes by reason.

    For a batch, the records are in the order of the batch; a record shows the node that the workload got, and
    the next best nodes.
    """
    header = {"profile": profile.name, **_input(decision.ask, profile, revision)}
    if isinstance(decision, Decision):
        yield _truncated(
            {
                **header,
                **_candidate_fields(top_candidates(decision, MAX_CANDIDATES)),
                **_reason_counts(rejection_counts(decision)),
            }
        )
        return
    for best, rejected in zip(decision.ranked(), decision.rejection_counts(), strict=True):
        yield _truncated({**header, **_candidate_fields(best), **_reason_counts(rejected)})


def _candidate_fields(candidates: Sequence[RankedCandidate]) -> DecisionRecord:
    if not candidates:
        return {}
    best = {candidate.name: round(candidate.score, 2) for candidate in candidates}
    return {"best": best, "parts": {part.plugin: round(part.score, 1) for part in candidates[0].parts}}


def rejected_record(decision: Decision, profile: ProfileSpec, revision: int) -> DecisionRecord:
    """The record of a decision without a node: rejected nodes by reason, and the shortfalls of the nearest
    node."""
    record: DecisionRecord = {"profile": profile.name, **_reason_counts(rejection_counts(decision))}
    alive = np.flatnonzero(decision.table.column("alive"))
    if len(alive):
        # The node with the fewest rejection reasons, first in tie order.
        reason_counts = sum(
            (mask.astype(np.int32) for mask in decision.reasons.values()),
            np.zeros(decision.table.count, np.int32),
        )
        order = np.lexsort((decision.table.column("rank")[alive], reason_counts[alive]))
        row = int(alive[order[0]])
        shortfalls = [
            reason.detail(decision.table, row) for reason, mask in decision.reasons.items() if mask[row]
        ]
        documents = []
        for shortfall in shortfalls[:MAX_CANDIDATES]:
            values = shortfall._asdict().items()
            documents.append({name: value[:MAX_REASON_CHARS] for name, value in values if value})
        record["nearest"] = {"node": decision.table.names[row], "short": documents}
    return _truncated({**record, **_input(decision.ask, profile, revision)})


def _reason_counts(counts: Sequence[tuple[Reason, int]]) -> DecisionRecord:
    if not counts:
        return {}
    return {"reasons": {reason.summary()[:MAX_REASON_CHARS]: count for reason, count in counts[:MAX_REASONS]}}


def _input(ask: Ask, profile: ProfileSpec, revision: int) -> DecisionRecord:
    return {"input": input_digest(cast("WorkloadAsk", ask), profile), "revision": revision}


def input_digest(ask: WorkloadAsk, profile: ProfileSpec) -> str:
    """A digest of demands, priority, gang and profile. With the store revision, the digest identifies the
    input of a decision."""
    return sha256(repr((ask.demands, ask.priority, ask.group, profile)).encode()).hexdigest()[:24]


def _truncated(record: DecisionRecord) -> DecisionRecord:
    """Drop the least important fields while the record is too long."""
    for name in ("parts", "best", "nearest", "reasons"):
        if len(encode(record)) <= MAX_RECORD_BYTES:
            break
        record.pop(name, None)
    return record


class RejectionSummary(NamedTuple):
    # For example `0 of 3 nodes: 1 cordoned; 2 without 2 cpu free`. Permanent reasons come first.
    reason: str
    reason_kinds: tuple[str, ...]  # the reasons without counts and amounts, sorted


def rejection_summary(decision: Decision) -> RejectionSummary:
    """The reasons of a decision without a node, as text."""
    total, decision = int(np.count_nonzero(decision.table.column("alive"))), permanent_reasons_first(decision)
    permanent = _permanent_reasons(decision)
    counts = sorted(rejection_counts(decision), key=lambda pair: pair[0] not in permanent)
    summaries = [(reason.summary(), count) for reason, count in counts]
    text = "; ".join(f"{count:,} {summary}" for summary, count in summaries) or "no nodes exist"
    kinds = sorted({_AMOUNT.sub("…", summary) for summary, _ in summaries})
    return RejectionSummary(f"0 of {total:,} node{'' if total == 1 else 's'}: {text}", tuple(kinds))


def permanent_reasons_first(decision: Decision) -> Decision:
    """Order the reasons of a decision so that permanent reasons come first, because a node with several
    reasons is counted only for the first of them."""
    permanent = _permanent_reasons(decision)
    return replace(
        decision, reasons=dict(sorted(decision.reasons.items(), key=lambda pair: pair[0] not in permanent))
    )


def _permanent_reasons(decision: Decision) -> set[Reason]:
    """Reasons that no eviction can change: labels, taints, and GPUs or topology keys that the node does not
    have."""
    resolvable = {plugin.name for plugin in decision.profile.filters if is_resolvable_by_eviction(plugin)}
    return {
        reason
        for reason in decision.reasons
        if reason.plugin not in resolvable or isinstance(reason, _PERMANENT_REASON_TYPES)
    }
