"""The server's tables as lines of text: columns chosen, rows sorted, NAMESPACE and LABELS added."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from lattice.cli.output import render
from lattice.cli.client.kind_names import full_name
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.jsonpath import Path

_PHASES, _LEAVING = ("phase", "status"), "Terminating"


@dataclass(frozen=True, slots=True)
class Look:
    """Which columns to show."""

    wide: bool = False
    namespaces: bool = False
    labels: bool = False
    heads: bool = True
    prefix: bool = False  # show names as kind/name


@dataclass(slots=True)
class Grid:
    """One kind's table; remembers its columns and widths, so that rows that come later line up."""

    resource: Resource
    look: Look
    columns: list[dict[str, Any]] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)

    def lines(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """The rows; with the heads above if they are the first."""
        first = not self.wide
        shown = [self._cells(row) for row in rows]
        if first:
            shown = [self._heads(), *shown] if self.look.heads else shown
            self.wide = render.widths(shown)
        return [render.line(cells, self.wide) for cells in shown]

    def learn(self, table: dict[str, Any]) -> None:
        self.columns = table.get("columnDefinitions") or self.columns

    def _chosen(self) -> list[int]:
        return [i for i, c in enumerate(self.columns) if self.look.wide or not c.get("priority")]

    def _tells_phase(self, column: int) -> bool:
        return str(self.columns[column]["name"]).lower() in _PHASES

    def _heads(self) -> list[str]:
        heads = [str(self.columns[i]["name"]).upper() for i in self._chosen()]
        return (
            ["NAMESPACE"] * (self.look.namespaces and self.resource.namespaced)
            + heads
            + ["LABELS"] * self.look.labels
        )

    def _cells(self, row: dict[str, Any]) -> list[str]:
        given = row.get("cells") or []
        metadata = (row.get("object") or {}).get("metadata") or {}
        leaving = bool(metadata.get("deletionTimestamp"))
        cells = [_LEAVING if leaving and self._tells_phase(i) else _cell(given, i) for i in self._chosen()]
        if self.look.prefix and cells:
            cells[0] = f"{full_name(self.resource)}/{cells[0]}"
        before = [render.cell(metadata.get("namespace", ""))] * (
            self.look.namespaces and self.resource.namespaced
        )
        return before + cells + [render.cell(render.pairs(metadata.get("labels")))] * self.look.labels


def _cell(given: Sequence[Any], column: int) -> str:
    """Nothing looks like nothing, whether the server has no value or an empty one."""
    value = given[column] if column < len(given) else None
    return render.cell(None if value == "" else value)


def sort_key(path: Path, value: Any) -> tuple[int, Any]:
    """Missing values first, then numbers by size, then text."""
    found = path.find(value)
    if not found or found[0] is None:
        return (0, 0)
    if isinstance(found[0], int | Decimal):
        return (1, found[0])
    return (2, str(found[0]))
