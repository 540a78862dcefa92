"""Why does a workload fit nowhere? In one sentence, what lasts before what may pass; and by kind, to tell like refusals together."""

import re
from typing import NamedTuple

import numpy as np

from lattice.engine.decide import Decision
from lattice.engine.explain import counts
from lattice.engine.plugin import Reason
from lattice.scheduling.plugins.gpu import OtherModel
from lattice.scheduling.preempt import can_be_cured

_AMOUNT = re.compile(r"(?<!\S)\d[\d,.]*(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?(?!\S)")


class Refusal(NamedTuple):
    why: str  # `0 of 3 nodes: 1 cordoned; 2 without 2 cpu free`: labels, taints and the like first, room last
    kinds: tuple[str, ...]  # what it says without counts and amounts, in an order of their own


def refusal(decision: Decision) -> Refusal:
    total = int(np.count_nonzero(decision.table.column("alive")))
    found = [(reason.summary(), count) for reason, count in _lasting_first(decision)]
    told = "; ".join(f"{count:,} {summary}" for summary, count in found) or "there are none"
    kinds = sorted({_AMOUNT.sub("…", summary) for summary, _ in found})
    return Refusal(f"0 of {total:,} node{'' if total == 1 else 's'}: {told}", tuple(kinds))


def _lasting_first(decision: Decision) -> list[tuple[Reason, int]]:
    passing = {each.name for each in decision.profile.filters if can_be_cured(each)}
    return sorted(counts(decision), key=lambda pair: pair[0].plugin in passing and not isinstance(pair[0], OtherModel))
