"""HostPorts: the host ports of the workload must be free on the node, and the port range must keep enough
free ports for the workload's dynamic ports."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Integers, Rows, Table
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import workload_names
from lattice.scheduling.table.port_allocator import (
    FIRST_PORT_COLUMN,
    LAST_PORT_COLUMN,
    port_column,
    port_number_column,
)
from lattice.scheduling.table.workload_ask import PORTS, WorkloadAsk


@dataclass(frozen=True, slots=True)
class PortInUse:
    """A workload on the node uses the port."""

    number: int
    protocol: str
    plugin: ClassVar[str] = "HostPorts"

    def summary(self) -> str:
        return f"with port {self.number}/{self.protocol} in use"

    def detail(self, table: Table, row: int) -> Shortfall:
        port = (self.number, self.protocol)
        users = workload_names(
            table,
            [row],
            lambda placement: port in placement.ask.demands.host_ports or self.number in placement.ports,
        )
        need = f"{self.number}/{self.protocol} free"
        return Shortfall("host port", need, f"in use by {users}" if users else "in use", need)


@dataclass(frozen=True, slots=True)
class PortRangeExhausted:
    """The port range of the node has too few free ports: a host port inside the range takes one of them."""

    numbers: tuple[int, ...]
    dynamic_count: int  # ports that the scheduler chooses, in addition to the host ports
    plugin: ClassVar[str] = "HostPorts"

    def summary(self) -> str:
        dynamic = f" and {self.dynamic_count} more" if self.dynamic_count else ""
        return f"without free ports in the port range for {', '.join(map(str, self.numbers))}{dynamic}"

    def detail(self, table: Table, row: int) -> Shortfall:
        need = self.dynamic_count + int(_new_in_range(self.numbers, table)[row])
        have = int(table.free(table.resource_index[PORTS])[row])
        return Shortfall(PORTS, str(need), str(have), str(need - have))


@dataclass(frozen=True, slots=True)
class HostPorts:
    name: ClassVar[str] = "HostPorts"
    scope: ClassVar[Scope] = "row"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = frozenset(
        {ClusterEvent.NODE_ADDED, ClusterEvent.NODE_GREW, ClusterEvent.WORKLOAD_GONE}
    )

    def applies(self, ask: WorkloadAsk) -> bool:
        return bool(ask.demands.host_ports)

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        rejections: Rejections = {
            PortInUse(number, protocol): rows.column(port_column((number, protocol)))
            for number, protocol in ask.demands.host_ports
        }
        numbers = tuple(sorted({number for number, _ in ask.demands.host_ports}))
        ports = rows.table.resource_index[PORTS]
        need, free = dict(ask.needs).get(ports, 0), rows.free(ports)
        inside = _new_in_range(numbers, rows)
        is_exhausted: Flags = (inside > 0) & (free < inside + need)
        # If the workload needs further ports, a node that lacks even these is left to Fit, which rejects the
        # node. If the workload needs none, Fit ignores ports. Then this filter must also reject a node whose
        # free ports are negative, because its range shrank below its allocated ports.
        if need:
            is_exhausted &= free >= need
        return {**rejections, PortRangeExhausted(numbers, ask.demands.ports): is_exhausted}


def _new_in_range(numbers: tuple[int, ...], rows: Rows) -> Integers:
    """How many of the port numbers are free and inside the port range, by node."""
    inside: Integers = np.zeros(rows.count, np.int64)
    first, last = rows.column(FIRST_PORT_COLUMN), rows.column(LAST_PORT_COLUMN)
    for number in numbers:
        inside += (first <= number) & (number <= last) & ~rows.column(port_number_column(number))
    return inside
