"""Figures in the documents come from bench/results: a link to the table, whose title is the row, shows what was measured there."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
FIGURE = re.compile(r'\[([^\]\[]+)\]\(((?:\.\./)*bench/results/(\w+)\.md) "([^"]+)"\)')


def measured(name: str) -> dict[str, str]:
    """Row to figure, of one table; of rows of the same name the first counts, or the one that "subject: row" names."""
    rows = (
        line.strip("| \n").split(" | ")
        for line in (RESULTS / f"{name}.md").read_text().splitlines()
        if line.startswith("| ")
    )
    found: dict[str, str] = {}
    for row in rows:
        if len(row) > 2:
            found.setdefault(row[1], row[2])
            found[f"{row[0]}: {row[1]}"] = row[2]
    return found


def refreshed(text: str) -> str:
    """The same page with every figure as it was measured last; a row that is gone raises KeyError."""
    return FIGURE.sub(lambda found: f'[{measured(found[3])[found[4]]}]({found[2]} "{found[4]}")', text)


def pages() -> Iterator[Path]:
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        if FIGURE.search(path.read_text()):
            yield path


def write() -> list[Path]:
    """Which pages were brought up to date."""
    stale = [path for path in pages() if refreshed(path.read_text()) != path.read_text()]
    for path in stale:
        path.write_text(refreshed(path.read_text()))
    return stale
