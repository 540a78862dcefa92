"""Reasons to reject a node that are found without arithmetic, and text that reasons share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Rowids, Table
from lattice.scheduling.table.node_info import TOPOLOGY_KEYS, NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement

MAX_NAMED_WORKLOADS = 3  # limit of names of conflicting workloads in one reason
Value = TypeVar("Value", bound=Hashable)

# Limit of topology domains up to which details name the domains; with more domains they state only counts.
MAX_NAMED_DOMAINS = 100


def single_row(row: int) -> Rowids:
    """An array of one row, for reasons that describe a single node with the method for many nodes."""
    return np.array([row], np.intp)


def shortfalls_by_value(
    values: Sequence[Value], make_shortfall: Callable[[Value], Shortfall]
) -> list[Shortfall]:
    """One shortfall per node, made once per distinct value, because a table has many nodes and few values."""
    shortfalls = {value: make_shortfall(value) for value in dict.fromkeys(values)}
    return [shortfalls[value] for value in values]


def shortfalls_by_label(
    table: Table, key: str, rows: Rowids, make_shortfall: Callable[[str | None], Shortfall]
) -> list[Shortfall]:
    """One shortfall per node, by its value under a label or topology key; None for a node without the key."""
    coded = cast("NodeTable", table).label_codes(key)
    return shortfalls_by_value(
        coded.codes[rows].tolist(), lambda code: make_shortfall(coded.values[code] if code >= 0 else None)
    )


def shortfalls_by_node_info(
    table: Table,
    rows: Rowids,
    attribute: Callable[[NodeInfo], Value],
    make_shortfall: Callable[[Value], Shortfall],
) -> list[Shortfall]:
    """One shortfall per node, by an attribute of its node info."""
    infos = cast("NodeTable", table).node_infos
    values = [attribute(info) for row in rows.tolist() if (info := infos[row]) is not None]
    return shortfalls_by_value(values, make_shortfall)


def label_text(key: str, value: str | None) -> str:
    """A label as text: `disk=hdd`, `no label disk`. Topology keys are not labels to the user: `no zone`."""
    if value is None:
        return f"no {key}" if key in TOPOLOGY_KEYS else f"no label {key}"
    return f"{key}={value}"


def workload_names(table: Table, rows: Iterable[int], is_meant: Callable[[Placement], bool]) -> str:
    """The first few workloads on the rows for which `is_meant` holds, as `default/a, default/b, …`."""
    placed = cast("NodeTable", table).placements_by_row
    names: list[str] = []
    for row in rows:
        for placement in placed[row].values():
            if is_meant(placement):
                if len(names) == MAX_NAMED_WORKLOADS:
                    return ", ".join(names) + ", …"
                names.append(placement.ask.name)
    return ", ".join(names)


@dataclass(frozen=True, slots=True)
class StaticReason:
    """A reason that is equal for every node.

    `text` follows the count of nodes. For one node, the shortfall shows `subject`, `need` and `have`; the
    whole need counts as missing.
    """

    plugin: str
    text: str
    subject: str = ""
    need: str = ""
    have: str = ""

    def summary(self) -> str:
        return self.text

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return [Shortfall(self.subject or self.text, self.need, self.have, self.need)] * len(rows)


@dataclass(frozen=True, slots=True)
class LabelMismatch:
    """A reason about a label: the node's value under `key` is shown next to the needed value."""

    plugin: str
    text: str
    subject: str
    need: str
    key: str

    def summary(self) -> str:
        return self.text

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_label(table, self.key, rows, self.shortfall_for)

    def shortfall_for(self, value: str | None) -> Shortfall:
        """The shortfall of nodes with the value under the key; None for nodes without the key."""
        return Shortfall(self.subject, self.need, label_text(self.key, value), self.need)


def unknown_topology_key(plugin: str, key: str) -> StaticReason:
    """The reason for a topology key that no node has: no workload can be near or spread by that key."""
    return StaticReason(
        plugin, f"without topology key {key}, which no node has", "topology key", key, "none on any node"
    )


def missing_topology_key(plugin: str, key: str) -> LabelMismatch:
    return LabelMismatch(plugin, f"without topology key {key}", "topology key", key, key)
