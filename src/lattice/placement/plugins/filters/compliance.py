"""Compliance: every certificate that the service or a policy requires must be held by the offer, in upper or lower case."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.rejection_reasons import MissingProperty, offer_mask


@dataclass(frozen=True, slots=True)
class Compliance:
    name: ClassVar[str] = "Compliance"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.compliance)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        return {
            MissingProperty(self.name, each): _offers_without(rows, each.value)
            for each in ask.demand.compliance
        }


def _offers_without(rows: Rows, value: str) -> Flags:
    return offer_mask(rows, ("compliance", value), lambda offer: value not in offer.compliance)
