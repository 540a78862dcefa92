"""Figures in documents come from bench/results: a link to a table, whose title is the row, shows the measured
value."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
FIGURE = re.compile(r'\[([^\]\[]+)\]\(((?:\.\./)*bench/results/(\w+)\.md) "([^"]+)"\)')


def measured(name: str) -> dict[str, str]:
    """Figures of a table by row; of rows with equal names the first counts, or the row that "subject: row"
    names."""
    rows = (
        line.strip("| \n").split(" | ")
        for line in (RESULTS / f"{name}.md").read_text().splitlines()
        if line.startswith("| ")
    )
    values: dict[str, str] = {}
    for row in rows:
        if len(row) > 2:
            values.setdefault(row[1], row[2])
            values[f"{row[0]}: {row[1]}"] = row[2]
    return values


def refreshed(text: str) -> str:
    """The page with every figure as measured last. Raises KeyError for a missing row."""
    return FIGURE.sub(lambda match: f'[{measured(match[3])[match[4]]}]({match[2]} "{match[4]}")', text)


def pages() -> Iterator[Path]:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        if FIGURE.search(path.read_text()):
            yield path


def write() -> list[Path]:
    """Update the figures of all pages; returns the changed pages."""
    stale = [path for path in pages() if refreshed(path.read_text()) != path.read_text()]
    for path in stale:
        path.write_text(refreshed(path.read_text()))
    return stale
