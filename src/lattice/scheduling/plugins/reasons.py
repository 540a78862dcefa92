"""Why a node is ruled out, for the reasons that need no arithmetic, and the words that reasons share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Rowids, Table
from lattice.scheduling.table.node_info import TOPOLOGY_KEYS, NodeInfo
from lattice.scheduling.table.node_table import NodeTable, Placement

MAX_NAMED_WORKLOADS = 3  # of the workloads that are in the way
Value = TypeVar("Value", bound=Hashable)


def single_row(row: int) -> Rowids:
    """For reasons whose words for one node are those for many, of which there is one."""
    return np.array([row], np.intp)


def shortfalls_by_value(values: Sequence[Value], tell: Callable[[Value], Shortfall]) -> list[Shortfall]:
    """Nodes that are alike in this are told the same: there are many nodes and few values."""
    told = {value: tell(value) for value in dict.fromkeys(values)}
    return [told[value] for value in values]


def shortfalls_by_label(
    table: Table, key: str, rows: Rowids, tell: Callable[[str | None], Shortfall]
) -> list[Shortfall]:
    """By what nodes have under a label or topology key; None: they do not have it."""
    coded = cast("NodeTable", table).label_codes(key)
    return shortfalls_by_value(
        coded.codes[rows].tolist(), lambda code: tell(coded.values[code] if code >= 0 else None)
    )


def shortfalls_by_node_info(
    table: Table, rows: Rowids, fact: Callable[[NodeInfo], Value], tell: Callable[[Value], Shortfall]
) -> list[Shortfall]:
    """By what is known of nodes."""
    facts = cast("NodeTable", table).node_infos
    return shortfalls_by_value(
        [fact(found) for row in rows.tolist() if (found := facts[row]) is not None], tell
    )


def node_info_at(table: Table, row: int) -> NodeInfo:
    facts = cast("NodeTable", table).node_infos[row]
    if facts is None:
        raise LookupError(f"row {row} holds no node")
    return facts


def label_text(key: str, value: str | None) -> str:
    """`disk=hdd`, `no label disk`; zone and the like are no labels to the user, so `no zone`."""
    if value is None:
        return f"no {key}" if key in TOPOLOGY_KEYS else f"no label {key}"
    return f"{key}={value}"


def workload_names(table: Table, rows: Iterable[int], is_meant: Callable[[Placement], bool]) -> str:
    """The first few workloads on these rows that are meant, `default/a, default/b, …`."""
    placed = cast("NodeTable", table).placements_by_row
    found: list[str] = []
    for row in rows:
        for each in placed[row].values():
            if is_meant(each):
                if len(found) == MAX_NAMED_WORKLOADS:
                    return ", ".join(found) + ", …"
                found.append(each.ask.name)
    return ", ".join(found)


@dataclass(frozen=True, slots=True)
class StaticReason:
    """`words` stand after a count; for one node, `what` it is about with need, which is missing, and have, the same for every node."""

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
    """Because of a label: what the node has under `key` is shown next to what is needed."""

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
        """For nodes with this value under the key; None: without it."""
        return Shortfall(self.subject, self.need, label_text(self.key, value), self.need)


def unknown_topology_key(plugin: str, key: str) -> StaticReason:
    """Nothing can be near or spread by a topology key that no node has."""
    return StaticReason(
        plugin, f"without topology key {key}, which no node has", "topology key", key, "none on any node"
    )


def missing_topology_key(plugin: str, key: str) -> LabelMismatch:
    return LabelMismatch(plugin, f"without topology key {key}", "topology key", key, key)
