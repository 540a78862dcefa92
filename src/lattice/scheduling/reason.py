"""Why a node is ruled out, for the reasons that need no arithmetic."""

from dataclasses import dataclass
from typing import cast

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Table
from lattice.scheduling.facts import NodeFacts
from lattice.scheduling.nodes import NodeTable


def facts_at(table: Table, row: int) -> NodeFacts:
    facts = cast("NodeTable", table).facts[row]
    if facts is None:
        raise LookupError(f"row {row} holds no node")
    return facts


@dataclass(frozen=True, slots=True)
class Because:
    """`words` stand after a count; `need` and the node's value of `label` are shown for one node, if there are any."""

    plugin: str
    words: str
    need: str = ""
    label: str = ""

    def summary(self) -> str:
        return self.words

    def detail(self, table: Table, row: int) -> Shortfall:
        if not self.label:
            return Shortfall(self.words)
        have = facts_at(table, row).labels.get(self.label)
        return Shortfall(self.words, self.need, "none" if have is None else f"{self.label}={have}")
