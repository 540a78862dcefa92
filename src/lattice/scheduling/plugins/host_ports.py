"""HostPorts: the fixed ports that it listens on must not be in use on the node."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope
from lattice.engine.table import Rows
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import Change
from lattice.scheduling.nodes import port_column
from lattice.scheduling.reason import Because


@dataclass(frozen=True, slots=True)
class HostPorts:
    name: ClassVar[str] = "HostPorts"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[Change]] = frozenset({Change.NODE_ADDED, Change.WORKLOAD_GONE})

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.host_ports)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        return {
            Because(self.name, f"with port {number}/{protocol} in use"): rows.column(port_column((number, protocol)))
            for number, protocol in ask.demands.host_ports
        }
