"""Residency: data must stay in the jurisdiction that is required."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Flags, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.rejection_reasons import MissingProperty, offer_mask


@dataclass(frozen=True, slots=True)
class Residency:
    name: ClassVar[str] = "Residency"
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return bool(ask.demand.residency)

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        return {
            MissingProperty(self.name, each): _offers_without(rows, each.value)
            for each in ask.demand.residency
        }


def _offers_without(rows: Rows, value: str) -> Flags:
    return offer_mask(rows, ("residency", value), lambda offer: value not in offer.residency)
