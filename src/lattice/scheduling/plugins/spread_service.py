"""SpreadService: prefer nodes and zones with fewer replicas of the same service."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Scope
from lattice.engine.table import Floats
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.domains import evenness
from lattice.scheduling.nodes import EVERYTHING, NodeTable


@dataclass(frozen=True, slots=True)
class SpreadService:
    name: ClassVar[str] = "SpreadService"
    scope: ClassVar[Scope] = "domain"

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.service)

    def score(self, ask: WorkloadAsk, rows: NodeTable) -> Floats:
        """Half for the node, half for the zone, if nodes have zones: n more than on the emptiest score 1/(n+1)."""
        tally = rows.tally(ask.demands.namespace, EVERYTHING, ask.demands.service)
        here = np.add(tally.per_node(rows), np.float32(1), out=rows.floats(), casting="unsafe", dtype=np.float32)
        if not rows.domain_count("zone"):
            return np.divide(np.float32(1), here, out=here)
        np.divide(np.float32(0.5), here, out=here)
        zone = evenness(rows, ask, "zone", tally)
        zone *= np.float32(0.5)
        here += zone
        return here
