"""Why a node is ruled out, for the reasons that need no arithmetic, and the words that reasons share."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Rowids, Table
from lattice.scheduling.table.node_info import TOPOLOGY, NodeFacts
from lattice.scheduling.table.node_table import NodeTable, Placement

NAMED = 3  # of the workloads that are in the way
Value = TypeVar("Value", bound=Hashable)


def only(row: int) -> Rowids:
    """For reasons whose words for one node are those for many, of which there is one."""
    return np.array([row], np.intp)


def each_once(values: Sequence[Value], tell: Callable[[Value], Shortfall]) -> list[Shortfall]:
    """Nodes that are alike in this are told the same: there are many nodes and few values."""
    told = {value: tell(value) for value in dict.fromkeys(values)}
    return [told[value] for value in values]


def each_value(
    table: Table, key: str, rows: Rowids, tell: Callable[[str | None], Shortfall]
) -> list[Shortfall]:
    """By what nodes have under a label or topology key; None: they do not have it."""
    coded = cast("NodeTable", table).coded(key)
    return each_once(coded.codes[rows].tolist(), lambda code: tell(coded.names[code] if code >= 0 else None))


def each_fact(
    table: Table, rows: Rowids, fact: Callable[[NodeFacts], Value], tell: Callable[[Value], Shortfall]
) -> list[Shortfall]:
    """By what is known of nodes."""
    facts = cast("NodeTable", table).facts
    return each_once([fact(found) for row in rows.tolist() if (found := facts[row]) is not None], tell)


def facts_at(table: Table, row: int) -> NodeFacts:
    facts = cast("NodeTable", table).facts[row]
    if facts is None:
        raise LookupError(f"row {row} holds no node")
    return facts


def written(key: str, value: str | None) -> str:
    """`disk=hdd`, `no label disk`; zone and the like are no labels to the user, so `no zone`."""
    if value is None:
        return f"no {key}" if key in TOPOLOGY else f"no label {key}"
    return f"{key}={value}"


def named(table: Table, rows: Iterable[int], is_meant: Callable[[Placement], bool]) -> str:
    """The first few workloads on these rows that are meant, `default/a, default/b, …`."""
    placed = cast("NodeTable", table).on_row
    found: list[str] = []
    for row in rows:
        for each in placed[row].values():
            if is_meant(each):
                if len(found) == NAMED:
                    return ", ".join(found) + ", …"
                found.append(each.ask.name)
    return ", ".join(found)


@dataclass(frozen=True, slots=True)
class Because:
    """`words` stand after a count; for one node, `what` it is about with need, which is missing, and have, the same for every node."""

    plugin: str
    words: str
    what: str = ""
    need: str = ""
    have: str = ""

    def summary(self) -> str:
        return self.words

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return [Shortfall(self.what or self.words, self.need, self.have, self.need)] * len(rows)


@dataclass(frozen=True, slots=True)
class OtherLabel:
    """Because of a label: what the node has under `key` is shown next to what is needed."""

    plugin: str
    words: str
    what: str
    need: str
    key: str

    def summary(self) -> str:
        return self.words

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, only(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return each_value(table, self.key, rows, self.of)

    def of(self, value: str | None) -> Shortfall:
        """For nodes with this value under the key; None: without it."""
        return Shortfall(self.what, self.need, written(self.key, value), self.need)


def no_such_key(plugin: str, key: str) -> Because:
    """Nothing can be near or spread by a topology key that no node has."""
    return Because(
        plugin, f"without topology key {key}, which no node has", "topology key", key, "none on any node"
    )


def without_key(plugin: str, key: str) -> OtherLabel:
    return OtherLabel(plugin, f"without topology key {key}", "topology key", key, key)
