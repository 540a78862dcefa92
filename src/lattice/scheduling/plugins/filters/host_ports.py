"""HostPorts: the fixed ports that it listens on must not be in use on the node, and leave room in the range that others are chosen from."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Integers, Rows, Table
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.reasons import workload_names
from lattice.scheduling.table.ask import PORTS, WorkloadAsk
from lattice.scheduling.table.port_allocator import (
    FIRST_PORT_COLUMN,
    LAST_PORT_COLUMN,
    number_column,
    port_column,
)


@dataclass(frozen=True, slots=True)
class PortInUse:
    """Somebody on the node listens there."""

    number: int
    protocol: str
    plugin: ClassVar[str] = "HostPorts"

    def summary(self) -> str:
        return f"with port {self.number}/{self.protocol} in use"

    def detail(self, table: Table, row: int) -> Shortfall:
        port = (self.number, self.protocol)
        who = workload_names(
            table, [row], lambda each: port in each.ask.demands.host_ports or self.number in each.ports
        )
        need = f"{self.number}/{self.protocol} free"
        return Shortfall("host port", need, f"in use by {who}" if who else "in use", need)


@dataclass(frozen=True, slots=True)
class PortRangeExhausted:
    """Fixed ports inside the range are as many fewer to choose from; there would be too few."""

    numbers: tuple[int, ...]
    dynamic_count: int  # besides them
    plugin: ClassVar[str] = "HostPorts"

    def summary(self) -> str:
        more = f" and {self.dynamic_count} more" if self.dynamic_count else ""
        return f"without room in the port range for {', '.join(map(str, self.numbers))}{more}"

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
        found: Rejections = {
            PortInUse(number, protocol): rows.column(port_column((number, protocol)))
            for number, protocol in ask.demands.host_ports
        }
        numbers = tuple(sorted({number for number, _ in ask.demands.host_ports}))
        return {**found, PortRangeExhausted(numbers, ask.demands.ports): _is_exhausted(ask, numbers, rows)}


def _is_exhausted(ask: WorkloadAsk, numbers: tuple[int, ...], rows: Rows) -> Flags:
    """By the fixed ones: where there are too few without them it is Fit that says so."""
    ports = rows.table.resource_index[PORTS]
    need, free = dict(ask.needs).get(ports, 0), rows.free(ports)
    inside = _new_in_range(numbers, rows)
    used_up: Flags = (inside > 0) & (free < inside + need)
    return (
        used_up & (free >= need) if need else used_up
    )  # of a node that has shrunk less than none may be free


def _new_in_range(numbers: tuple[int, ...], rows: Rows) -> Integers:
    """How many of them are in the range of each node, and free there."""
    inside: Integers = np.zeros(rows.count, np.int64)
    first, last = rows.column(FIRST_PORT_COLUMN), rows.column(LAST_PORT_COLUMN)
    for number in numbers:
        inside += (first <= number) & (number <= last) & ~rows.column(number_column(number))
    return inside
