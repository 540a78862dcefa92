"""Labels: the offer must match the label selector of the service for pools."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk, Requirement
from lattice.placement.plugins.rejection_reasons import MissingProperty, offer_mask


@dataclass(frozen=True, slots=True)
class PoolSelector:
    """Filter plugin: rejects offers whose labels do not match; a label with a list of values matches any
    value of the list."""

    name: ClassVar[str] = "Labels"
    # The answer depends on properties of the offer only: the engine asks once per fixed shape.
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.labels)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        return {
            MissingProperty(self.name, requirement): _offers_without(rows, requirement)
            for requirement in ask.demand.labels
        }


def _offers_without(rows: Rows, required: Requirement) -> Flags:
    # The mask cache keeps the predicate, so every requirement needs a predicate of its own.
    label = required.label
    return offer_mask(
        rows, ("label", required.value), lambda offer: label is not None and not label.matches(offer.labels)
    )
