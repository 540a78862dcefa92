"""Server-side tables as aligned lines: visible columns, sorted rows, and added NAMESPACE and LABELS columns."""

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
    """Columns of a table that the user asked for."""

    wide: bool = False
    show_namespace: bool = False
    show_labels: bool = False
    show_headers: bool = True
    # Names are shown as kind/name.
    show_kind: bool = False


@dataclass(slots=True)
class ServerTable:
    """Table of one kind; the widths of the first rows stay in use, so that later rows of a watch line up."""

    resource: Resource
    options: ColumnOptions
    columns: list[dict[str, Any]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def lines(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Lines of the rows; the first call also yields the headers."""
        shown = [self._cells(row) for row in rows]
        if not self.widths:
            if self.options.show_headers:
                heads = ["NAMESPACE"] * (self.options.show_namespace and self.resource.namespaced)
                heads += [str(self.columns[column]["name"]).upper() for column in self._visible_columns()]
                heads += ["LABELS"] * self.options.show_labels
                shown = [heads, *shown]
            # Rows that a watch adds later keep these widths.
            self.widths = render.widths(shown)
        return [render.line(cells, self.widths) for cells in shown]

    def update_columns(self, table: dict[str, Any]) -> None:
        # Tables of a watch may come without column definitions: the earlier ones stay in use.
        self.columns = table.get("columnDefinitions") or self.columns

    def _visible_columns(self) -> list[int]:
        return [i for i, c in enumerate(self.columns) if self.options.wide or not c.get("priority")]

    def _cells(self, row: dict[str, Any]) -> list[str]:
        values = row.get("cells") or []
        metadata = (row.get("object") or {}).get("metadata") or {}
        is_terminating = bool(metadata.get("deletionTimestamp"))
        cells = []
        for column in self._visible_columns():
            name = str(self.columns[column]["name"]).lower()
            is_phase = is_terminating and name in _PHASE_COLUMNS
            value = values[column] if column < len(values) else None
            # A missing value and an empty value both show as `<none>`.
            cells.append(_TERMINATING if is_phase else render.cell(None if value == "" else value))
        if self.options.show_kind and cells:
            cells[0] = f"{full_name(self.resource)}/{cells[0]}"
        namespace_cell = [render.cell(metadata.get("namespace", ""))] * (
            self.options.show_namespace and self.resource.namespaced
        )
        return (
            namespace_cell
            + cells
            + [render.cell(render.label_pairs(metadata.get("labels")))] * self.options.show_labels
        )


def sort_key(path: Path, value: Any) -> tuple[int, Any]:
    """Sort key of a field: missing values first, then numbers, then text."""
    matches = path.find(value)
    if not matches or matches[0] is None:
        return (0, 0)
    if isinstance(matches[0], int | Decimal):
        return (1, matches[0])
    return (2, str(matches[0]))
