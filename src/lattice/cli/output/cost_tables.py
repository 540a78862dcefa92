"""Tables of `cost`, rendered from the JSON document of the query alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from lattice.cli.output.plan_tables import data_sources, known_part, unknown_prices
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks
from lattice.kinds.meta.quantity import MILLIONTHS, format_cents, format_hourly, pluralize

JsonObject = Mapping[str, Any]
# Names listed in one line.
MAX_NAMES_INLINE = 5


def cost_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """Cost per row of the grouping with a total, the machines without replicas, the services that the total leaves
    out, and the price sources."""
    by, total = document["by"], document["total"]
    rows = [_cost(row, by) for row in document["rows"]]
    if len(rows) > 1:
        total_row = {
            "name": "total",
            **total,
            "shareMillionths": MILLIONTHS if total["hourlyMicros"] else 0,
            "overhead": document["overhead"],
            "unpricedMachines": document.get("unpricedMachines", 0),
        }
        # The total stays visible when the table is cut.
        rows = [*(rows if renderer.wide else rows[:MAX_ROWS]), _cost(total_row, by)]
    empty = ["EMPTY $/H"] if by == "pool" else []
    table = renderer.table(
        [by.removeprefix("label:").upper(), "$/H", "30 DAYS", "SHARE", *empty],
        rows,
        right_aligned=range(1, 4 + len(empty)),
    )
    nothing = "there are no costs" + (
        f" in namespace {document['namespace']}" if document["namespace"] else ""
    )
    return join_blocks(
        table or [nothing],
        [*_idle_machines(document), *unknown_prices(document["prices"], renderer)],
        _uncounted_services(document),
        data_sources(document, renderer),
    )


def _idle_machines(document: JsonObject) -> list[str]:
    """Line about the machines that no replica uses, if some of them are being made or are leaving."""
    # A server of an earlier version states the sum only.
    rates = {
        name: document.get(name, {}).get("hourlyMicros", 0) for name in ("empty", "beingMade", "leaving")
    }
    if not (rates["beingMade"] or rates["leaving"]):
        return []
    words = {"empty": "empty", "beingMade": "being made", "leaving": "leaving"}
    parts = [f"{format_hourly(rate)}/h {words[name]}" for name, rate in rates.items() if rate]
    return [f"nodes without replicas: {', '.join(parts)}"]


def _uncounted_services(document: JsonObject) -> list[str]:
    """Lines about partly placed services, of which the total counts only placed replicas, and unplaced
    services."""
    lines = []
    if document["partlyPlaced"]:
        partly = [
            f"{service['name']} {service['placed']:,} of {service['replicas']:,}"
            for service in document["partlyPlaced"]
        ]
        lines.append(
            f"{pluralize(len(partly), 'service')} partly placed, counted by their placed replicas: "
            f"{_truncated_list(partly)}"
        )
    if unplaced := document["unplaced"]:
        lines.append(
            f"{pluralize(len(unplaced), 'service')} not placed, not counted: {_truncated_list(unplaced)}"
        )
    return lines


def _cost(row: JsonObject, by: str) -> list[str]:
    cells = [
        row["name"],
        known_part(format_hourly(row["hourlyMicros"]), row, row.get("unpricedMachines", 0)),
        known_part(format_cents(row["projected30DayMicros"]), row, row.get("unpricedMachines", 0)),
        f"{row['shareMillionths'] / 10_000:.1f} %",
    ]
    return [*cells, format_hourly(row["overhead"]["hourlyMicros"])] if by == "pool" else cells


def _truncated_list(words: Sequence[str]) -> str:
    hidden = len(words) - MAX_NAMES_INLINE
    return ", ".join(words[:MAX_NAMES_INLINE]) + (f" and {hidden} more" if hidden > 0 else "")
