"""Tier: prefer owned data centers to rented machines."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats, Rows
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.plugins.rejection_reasons import offer_mask


@dataclass(frozen=True, slots=True)
class OwnedFirst:
    """Score plugin: 1 for a data center, 0 for a pool or a cloud region."""

    name: ClassVar[str] = "Tier"
    # The kind of an offer never changes.
    scope: ClassVar[Scope] = "fixed"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def score(self, ask: ReplicaAsk, rows: Rows) -> Floats:
        return offer_mask(rows, "static", lambda offer: offer.is_static).astype(np.float32)
