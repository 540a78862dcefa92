"""Ports of nodes: the ports in use, and the choice of ports for a workload."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from lattice.engine.table import Table
from lattice.kinds.container import Container
from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import Demands

DEFAULT_PORT_RANGE = (30000, 32767)  # for a node without a port range
PROTOCOLS = ("TCP", "UDP")
# How long a port in use by a program outside Lattice is not assigned; after this time the port is tried
# again.
TAKEN_PORT_TTL = timedelta(minutes=10)
MAX_TAKEN_PORTS = 64  # limit of remembered taken ports of one node
FIRST_PORT_COLUMN, LAST_PORT_COLUMN = "port_first", "port_last"

Port = tuple[int, str]  # number and protocol


def port_column(port: Port) -> str:
    """The name of the column that says on which nodes a host port is in use."""
    return f"port {port[0]}/{port[1]}"


def port_number_column(number: int) -> str:
    """The name of the column that says on which nodes a port number is in use by any protocol."""
    return f"port {number}"


def port_range_of(node_info: NodeInfo) -> range:
    first, last = node_info.port_range or DEFAULT_PORT_RANGE
    return range(first, last + 1)


def assignable_port_count(node_info: NodeInfo) -> int:
    """The number of ports in a node's range that no program outside Lattice uses."""
    ports = port_range_of(node_info)
    return len(ports) - sum(number in ports for number in node_info.taken_ports)


class PortAllocator:
    """The ports in use on every node.

    A host port is used by one protocol; a port that the scheduler chooses is reserved for both protocols. The
    free ports of a node's range are counted by number: a host port inside the range, for one protocol or
    both, takes one number.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._in_use: list[dict[Port, int]] = []
        self._taken_ports: list[frozenset[int]] = []  # by row: ports of programs outside Lattice
        # By row: number of workloads per host port number.
        self._host_port_counts: list[Counter[int]] = []
        for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN):
            table.add_column(column, np.int32)

    def in_use(self, row: int) -> Mapping[Port, int]:
        return self._in_use[row]

    def set_node(self, row: int, node_info: NodeInfo) -> int:
        """Set the port range of a node, and return the change in the number of host ports inside the range."""
        if row == len(self._in_use):
            self._in_use.append({})
            self._host_port_counts.append(Counter())
            self._taken_ports.append(node_info.taken_ports)
        self._taken_ports[row] = node_info.taken_ports
        previous_count, ports = (
            self.count_in_range(row, self._host_port_counts[row]),
            port_range_of(node_info),
        )
        self._table.set(row, FIRST_PORT_COLUMN, ports.start)
        self._table.set(row, LAST_PORT_COLUMN, ports.stop - 1)
        return self.count_in_range(row, self._host_port_counts[row]) - previous_count

    def count_in_range(self, row: int, numbers: Mapping[int, object] | set[int]) -> int:
        """The number of given ports inside the range of the node."""
        if not numbers:
            return 0
        first, last = (
            int(self._table.column(column)[row]) for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN)
        )
        return sum(first <= number <= last for number in numbers)

    def new_in_range(self, row: int, demands: Demands) -> int:
        """The number of free ports of the range that the host ports of a workload would take."""
        return self.count_in_range(
            row, {number for number, _ in demands.host_ports if not self._is_in_use(row, number)}
        )

    def _is_in_use(self, row: int, number: int) -> bool:
        in_use = self._in_use[row]
        return any((number, protocol) in in_use for protocol in PROTOCOLS)

    def choose(self, row: int, demands: Demands) -> tuple[int, ...]:
        """The lowest free ports of the range, apart from the workload's own host ports; fewer ports if the
        range has too few."""
        if not demands.ports:
            return ()
        # By number, since a chosen port is reserved for both protocols.
        busy = {number for number, _ in (*self._in_use[row], *demands.host_ports)} | self._taken_ports[row]
        first, last = (
            int(self._table.column(column)[row]) for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN)
        )
        free = (number for number in range(first, last + 1) if number not in busy)
        return tuple(number for number, _ in zip(free, range(demands.ports), strict=False))

    def track(self, port: Port) -> None:
        """Add two columns: on which nodes the port is in use, and on which nodes its number is in use by any
        protocol.

        Only host ports that a workload requests get columns.
        """
        for column, matches in (
            (port_column(port), port.__eq__),
            (port_number_column(port[0]), lambda used: used[0] == port[0]),
        ):
            if self._table.has_column(column):
                continue
            self._table.add_column(column, np.bool_)
            for row, used in enumerate(self._in_use):
                if any(map(matches, used)):
                    self._table.set(row, column, True, fixed=False)

    def allocate(self, placement: Placement) -> int:
        """Take the ports of a placement, and return how many numbers of the range become host ports."""
        row, host_port_counts = placement.row, self._host_port_counts[placement.row]
        new_numbers = {number for number, _ in placement.ask.demands.host_ports} - host_port_counts.keys()
        host_port_counts.update({number for number, _ in placement.ask.demands.host_ports})
        in_use = self._in_use[row]
        for port in _ports_of(placement):
            in_use[port] = in_use.get(port, 0) + 1
            self._update_columns(row, port)
        return self.count_in_range(row, new_numbers)

    def release(self, placement: Placement) -> int:
        """Free the ports of a placement, and return how many numbers of the range are no longer host
        ports."""
        row, host_port_counts = placement.row, self._host_port_counts[placement.row]
        numbers = {number for number, _ in placement.ask.demands.host_ports}
        host_port_counts.subtract(numbers)
        freed_numbers = {number for number in numbers if not host_port_counts[number]}
        for number in freed_numbers:
            del host_port_counts[number]
        in_use = self._in_use[row]
        for port in _ports_of(placement):
            in_use[port] -= 1
            if not in_use[port]:
                del in_use[port]
            self._update_columns(row, port)
        return self.count_in_range(row, freed_numbers)

    def _update_columns(self, row: int, port: Port) -> None:
        in_use, table = self._in_use[row], self._table
        if table.has_column(port_column(port)):
            table.set(row, port_column(port), port in in_use, fixed=False)
        if table.has_column(port_number_column(port[0])):
            table.set(row, port_number_column(port[0]), self._is_in_use(row, port[0]), fixed=False)


def _ports_of(placement: Placement) -> Iterator[Port]:
    yield from placement.ask.demands.host_ports
    for number in placement.ports:
        yield from ((number, protocol) for protocol in PROTOCOLS)


def named_ports(containers: Mapping[str, Container]) -> list[tuple[str, int | None]]:
    """The name and fixed number of every port; the number is None for a port that the scheduler chooses.

    A port name that several containers use is written `container.port`.
    """
    ports = [(name, port) for name, container in containers.items() for port in container.ports]
    if len(ports) == 1:
        return [(ports[0][1].name, ports[0][1].port)]
    times = Counter(port.name for _, port in ports)
    return [
        (port.name if times[port.name] == 1 else f"{name}.{port.name}", port.port) for name, port in ports
    ]


def allocated_ports(containers: Mapping[str, Container], chosen: Sequence[int]) -> dict[str, int]:
    """Port numbers by name: fixed numbers, and chosen numbers in order for the remaining ports."""
    remaining = iter(chosen)
    numbers = {
        name: next(remaining, None) if fixed is None else fixed for name, fixed in named_ports(containers)
    }
    return {name: number for name, number in numbers.items() if number is not None}


def dynamic_ports(containers: Mapping[str, Container], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The chosen port numbers among the allocated numbers of a workload: the inverse of `allocated_ports`."""
    return tuple(
        numbers[name] for name, fixed in named_ports(containers) if fixed is None and name in numbers
    )


def add_taken_ports(taken_ports: Mapping[str, str], ports: Iterable[int], now: datetime) -> dict[str, str]:
    """Add ports in use by programs outside Lattice, with their expiry time; above MAX_TAKEN_PORTS the oldest
    ports are dropped."""
    until = format_micro_time(now + TAKEN_PORT_TTL)
    merged = {**taken_ports, **{str(number): until for number in ports}}
    # By expiry, then by number: the latest entries are kept.
    latest = sorted(merged, key=lambda number: (merged[number], int(number)))[-MAX_TAKEN_PORTS:]
    return {number: merged[number] for number in sorted(latest, key=int)}


def unexpired_taken_ports(taken_ports: Mapping[str, str], now: datetime) -> dict[str, str]:
    """The taken ports whose expiry is ahead.

    An expiry further ahead than the time to live plus clock skew was written before the clock was set back,
    and is dropped.
    """
    latest = now + TAKEN_PORT_TTL + timedelta(seconds=MAX_CLOCK_SKEW_S)
    return {
        number: until for number, until in taken_ports.items() if now < (parse_time(until) or now) <= latest
    }
