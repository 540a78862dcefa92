"""Which ports of a node are in use, and which ones a workload gets?"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from lattice.kinds.container import Container
from lattice.kinds.meta.timestamps import MAX_CLOCK_SKEW_S, format_micro_time, parse_time
from lattice.scheduling.table.ask import Demands
from lattice.scheduling.table.node_info import NodeInfo

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable, Placement

DEFAULT_PORT_RANGE = (30000, 32767)  # given out where a node names no range
PROTOCOLS = ("TCP", "UDP")
TAKEN_PORT_TTL = timedelta(
    minutes=10
)  # that a port which another program has is not given out; then it is tried again
MAX_TAKEN_PORTS = 64  # that are remembered of a node
FIRST_PORT_COLUMN, LAST_PORT_COLUMN = "port_first", "port_last"  # columns: the range of each node

Port = tuple[int, str]  # number and protocol


def port_column(port: Port) -> str:
    """The column that says on which nodes a host port is in use."""
    return f"port {port[0]}/{port[1]}"


def number_column(number: int) -> str:
    """The column that says on which nodes any protocol uses this number."""
    return f"port {number}"


def port_range_of(facts: NodeInfo) -> range:
    first, last = facts.port_range or DEFAULT_PORT_RANGE
    return range(first, last + 1)


def assignable_port_count(facts: NodeInfo) -> int:
    """How many of its ports nobody else was found to have."""
    ports = port_range_of(facts)
    return len(ports) - sum(number in ports for number in facts.taken_ports)


class PortAllocator:
    """Fixed ports are told apart by protocol; a chosen one is kept for both.

    The range that a node chooses from is counted by number: one that is fixed there, for one protocol or both, is one fewer to choose.
    """

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self._in_use: list[dict[Port, int]] = []
        self._taken_ports: list[frozenset[int]] = []  # of each row: by programs that are none of ours
        self._host_port_counts: list[
            Counter[int]
        ] = []  # of each row: the numbers that are fixed there, and for how many
        for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN):
            table.add_column(column, np.int32)

    def in_use(self, row: int) -> Mapping[Port, int]:
        return self._in_use[row]

    def set_node(self, row: int, facts: NodeInfo) -> int:
        """The node has this range. How many more, or fewer, of its numbers are fixed by what is there."""
        if row == len(self._in_use):
            self._in_use.append({})
            self._host_port_counts.append(Counter())
            self._taken_ports.append(facts.taken_ports)
        self._taken_ports[row] = facts.taken_ports
        before, ports = self.count_in_range(row, self._host_port_counts[row]), port_range_of(facts)
        self._table.set(row, FIRST_PORT_COLUMN, ports.start)
        self._table.set(row, LAST_PORT_COLUMN, ports.stop - 1)
        return self.count_in_range(row, self._host_port_counts[row]) - before

    def count_in_range(self, row: int, numbers: Mapping[int, object] | set[int]) -> int:
        """How many of them are in the range of this node."""
        if not numbers:
            return 0
        first, last = (
            int(self._table.column(column)[row]) for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN)
        )
        return sum(first <= number <= last for number in numbers)

    def new_in_range(self, row: int, demands: Demands) -> int:
        """How many numbers of the range its fixed ports would take that are free now."""
        return self.count_in_range(
            row, {number for number, _ in demands.host_ports if not self._is_in_use(row, number)}
        )

    def _is_in_use(self, row: int, number: int) -> bool:
        in_use = self._in_use[row]
        return any((number, protocol) in in_use for protocol in PROTOCOLS)

    def choose(self, row: int, demands: Demands) -> tuple[int, ...]:
        """The lowest free ones, beside its own fixed ones; fewer if there are not so many."""
        if not demands.ports:
            return ()
        busy = {number for number, _ in (*self._in_use[row], *demands.host_ports)} | self._taken_ports[row]
        first, last = (
            int(self._table.column(column)[row]) for column in (FIRST_PORT_COLUMN, LAST_PORT_COLUMN)
        )
        free = (number for number in range(first, last + 1) if number not in busy)
        return tuple(number for number, _ in zip(free, range(demands.ports), strict=False))

    def track(self, port: Port) -> None:
        """From now on columns say where this port, and its number by any protocol, is in use: only of ports that somebody asked for."""
        for column, matches in (
            (port_column(port), port.__eq__),
            (number_column(port[0]), lambda used: used[0] == port[0]),
        ):
            if self._table.has_column(column):
                continue
            self._table.add_column(column, np.bool_)
            for row, used in enumerate(self._in_use):
                if any(map(matches, used)):
                    self._table.set(row, column, True, fixed=False)

    def allocate(self, placement: "Placement") -> int:
        """It has its ports now. How many more numbers of the range are fixed."""
        row, fixed = placement.row, self._host_port_counts[placement.row]
        new = {number for number, _ in placement.ask.demands.host_ports} - fixed.keys()
        fixed.update({number for number, _ in placement.ask.demands.host_ports})
        in_use = self._in_use[row]
        for port in _ports_of(placement):
            in_use[port] = in_use.get(port, 0) + 1
            self._update_columns(row, port)
        return self.count_in_range(row, new)

    def release(self, placement: "Placement") -> int:
        """How many fewer numbers of the range are fixed."""
        row, fixed = placement.row, self._host_port_counts[placement.row]
        numbers = {number for number, _ in placement.ask.demands.host_ports}
        fixed.subtract(numbers)
        gone = {number for number in numbers if not fixed[number]}
        for number in gone:
            del fixed[number]
        in_use = self._in_use[row]
        for port in _ports_of(placement):
            in_use[port] -= 1
            if not in_use[port]:
                del in_use[port]
            self._update_columns(row, port)
        return self.count_in_range(row, gone)

    def _update_columns(self, row: int, port: Port) -> None:
        in_use, table = self._in_use[row], self._table
        if table.has_column(port_column(port)):
            table.set(row, port_column(port), port in in_use, fixed=False)
        if table.has_column(number_column(port[0])):
            table.set(row, number_column(port[0]), self._is_in_use(row, port[0]), fixed=False)


def _ports_of(placement: "Placement") -> Iterator[Port]:
    yield from placement.ask.demands.host_ports
    for number in placement.ports:
        yield from ((number, protocol) for protocol in PROTOCOLS)


def named_ports(containers: Mapping[str, Container]) -> list[tuple[str, int | None]]:
    """Every port with its fixed number, None where one is chosen; named `container.port` where two containers name one alike."""
    ports = [(name, port) for name, container in containers.items() for port in container.ports]
    if len(ports) == 1:
        return [(ports[0][1].name, ports[0][1].port)]
    times = Counter(port.name for _, port in ports)
    return [
        (port.name if times[port.name] == 1 else f"{name}.{port.name}", port.port) for name, port in ports
    ]


def allocated_ports(containers: Mapping[str, Container], chosen: Sequence[int]) -> dict[str, int]:
    """Numbers by name: fixed ones as they are, the others from those chosen on the node, in order."""
    left = iter(chosen)
    numbers = {name: next(left, None) if fixed is None else fixed for name, fixed in named_ports(containers)}
    return {name: number for name, number in numbers.items() if number is not None}


def dynamic_ports(containers: Mapping[str, Container], numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The other way round: of the numbers that it has, those that were chosen."""
    return tuple(
        numbers[name] for name, fixed in named_ports(containers) if fixed is None and name in numbers
    )


def add_taken_ports(known: Mapping[str, str], ports: Iterable[int], now: datetime) -> dict[str, str]:
    """These were found to be another program's, too; the oldest are forgotten when there are too many."""
    until = format_micro_time(now + TAKEN_PORT_TTL)
    found = {**known, **{str(number): until for number in ports}}
    latest = sorted(found, key=lambda number: (found[number], int(number)))[-MAX_TAKEN_PORTS:]
    return {number: found[number] for number in sorted(latest, key=int)}


def unexpired_taken_ports(known: Mapping[str, str], now: datetime) -> dict[str, str]:
    """Without those whose time is over, or further ahead than any could be: our clock was set back."""
    latest = now + TAKEN_PORT_TTL + timedelta(seconds=MAX_CLOCK_SKEW_S)
    return {number: until for number, until in known.items() if now < (parse_time(until) or now) <= latest}
