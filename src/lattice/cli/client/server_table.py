"""The server's tables as lines of text: columns chosen, rows sorted, NAMESPACE and LABELS added."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from lattice.cli.client.kind_names import full_name
from lattice.cli.output import render
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.jsonpath import Path

_PHASE_COLUMNS, _TERMINATING = ("phase", "status"), "Terminating"


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Which columns to show."""

    wide: bool = False
    show_namespace: bool = False
    show_labels: bool = False
    show_headers: bool = True
    show_kind: bool = False  # show names as kind/name


@dataclass(slots=True)
class ServerTable:
    """One kind's table; remembers its columns and widths, so that rows that come later line up."""

    resource: Resource
    options: ColumnOptions
    columns: list[dict[str, Any]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def lines(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """The rows; with the heads above if they are the first."""
        first = not self.widths
        shown = [self._cells(row) for row in rows]
        if first:
            shown = [self._headers(), *shown] if self.options.show_headers else shown
            self.widths = render.widths(shown)
        return [render.line(cells, self.widths) for cells in shown]

    def update_columns(self, table: dict[str, Any]) -> None:
        self.columns = table.get("columnDefinitions") or self.columns

    def _visible_columns(self) -> list[int]:
        return [i for i, c in enumerate(self.columns) if self.options.wide or not c.get("priority")]

    def _is_phase_column(self, column: int) -> bool:
        return str(self.columns[column]["name"]).lower() in _PHASE_COLUMNS

    def _headers(self) -> list[str]:
        heads = [str(self.columns[i]["name"]).upper() for i in self._visible_columns()]
        return (
            ["NAMESPACE"] * (self.options.show_namespace and self.resource.namespaced)
            + heads
            + ["LABELS"] * self.options.show_labels
        )

    def _cells(self, row: dict[str, Any]) -> list[str]:
        given = row.get("cells") or []
        metadata = (row.get("object") or {}).get("metadata") or {}
        leaving = bool(metadata.get("deletionTimestamp"))
        cells = [
            _TERMINATING if leaving and self._is_phase_column(i) else _cell(given, i)
            for i in self._visible_columns()
        ]
        if self.options.show_kind and cells:
            cells[0] = f"{full_name(self.resource)}/{cells[0]}"
        before = [render.cell(metadata.get("namespace", ""))] * (
            self.options.show_namespace and self.resource.namespaced
        )
        return (
            before
            + cells
            + [render.cell(render.label_pairs(metadata.get("labels")))] * self.options.show_labels
        )


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
