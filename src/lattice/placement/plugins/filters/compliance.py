"""Compliance: the offer must have every compliance standard that the service or a policy requires,
compared in lower case."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plugins.rejection_reasons import MissingProperty, offer_mask


@dataclass(frozen=True, slots=True)
class Compliance:
    """Filter plugin: rejects offers without a required compliance standard."""

    name: ClassVar[str] = "Compliance"
    # The answer depends on properties of the offer only: the engine asks once per fixed shape.
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.compliance)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        return {
            MissingProperty(self.name, requirement): _offers_without(rows, requirement.value)
            for requirement in ask.demand.compliance
        }


def _offers_without(rows: Rows, value: str) -> Flags:
    # The mask cache keeps the predicate, so every value needs a predicate of its own.
    return offer_mask(rows, ("compliance", value), lambda offer: value not in offer.compliance)
