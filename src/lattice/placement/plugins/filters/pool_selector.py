"""Labels: the offer must match the labels by which the service selects pools."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.reasons import Lacks, mask_of


@dataclass(frozen=True, slots=True)
class Labels:
    name: ClassVar[str] = "Labels"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.labels)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        """A list of values matches whatever it contains."""
        return {Lacks(self.name, each): _without(rows, each) for each in ask.demand.labels}


def _without(rows: Rows, required: Requirement) -> Flags:
    label = required.label
    return mask_of(
        rows, ("label", required.value), lambda offer: label is not None and not label.matches(offer.labels)
    )
