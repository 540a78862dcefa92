"""Why does a workload fit nowhere? In one sentence, what lasts before what may pass; and by kind, to tell like refusals together."""

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.explain import counts
from lattice.engine.plugin import Reason
from lattice.scheduling.plugins.filters.gpu import NoGpu, OtherModel
from lattice.scheduling.preemption.preemptor import can_be_cured
from lattice.scheduling.plugins.reasons import Because, OtherLabel

_AMOUNT = re.compile(r"(?<!\S)\d[\d,.]*(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?(?!\S)")

_LASTING = (NoGpu, OtherModel, Because, OtherLabel)


class Refusal(NamedTuple):
    why: str  # `0 of 3 nodes: 1 cordoned; 2 without 2 cpu free`: labels, taints and the like first, room last
    kinds: tuple[str, ...]  # what it says without counts and amounts, in an order of their own


def refusal(decision: Decision) -> Refusal:
    total, decision = int(np.count_nonzero(decision.table.column("alive"))), lasting_first(decision)
    lasts = _lasting(decision)
    found = [
        (reason.summary(), count)
        for reason, count in sorted(counts(decision), key=lambda pair: pair[0] not in lasts)
    ]
    told = "; ".join(f"{count:,} {summary}" for summary, count in found) or "there are none"
    kinds = sorted({_AMOUNT.sub("…", summary) for summary, _ in found})
    return Refusal(f"0 of {total:,} node{'' if total == 1 else 's'}: {told}", tuple(kinds))


def lasting_first(decision: Decision) -> Decision:
    """A node that several reasons rule out is counted for one that lasts, if there is one."""
    lasts = _lasting(decision)
    return replace(
        decision, reasons=dict(sorted(decision.reasons.items(), key=lambda pair: pair[0] not in lasts))
    )


def _lasting(decision: Decision) -> set[Reason]:
    """Nobody's leaving would help: labels, taints and the like, GPUs or topology keys that a node does not have."""
    passing = {each.name for each in decision.profile.filters if can_be_cured(each)}
    return {
        reason for reason in decision.reasons if reason.plugin not in passing or isinstance(reason, _LASTING)
    }
