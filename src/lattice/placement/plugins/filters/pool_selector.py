"""Labels: the offer must match the labels by which the service selects pools."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.model.rejection_reasons import MissingProperty, offer_mask


@dataclass(frozen=True, slots=True)
class PoolSelector:
    name: ClassVar[str] = "Labels"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.labels)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        """A list of values matches whatever it contains."""
        return {MissingProperty(self.name, each): _offers_without(rows, each) for each in ask.demand.labels}


def _offers_without(rows: Rows, required: Requirement) -> Flags:
    label = required.label
    return offer_mask(
        rows, ("label", required.value), lambda offer: label is not None and not label.matches(offer.labels)
    )
