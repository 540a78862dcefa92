"""Screens of `lattice top` and `lattice logs`: bars, lines cut to the window, prefixed lines, and plain text
for pipes."""

import pytest

from lattice.cli.commands.logs import prefix_lines
from lattice.cli.commands.top import colour_line, render_frame
from lattice.cli.output.table_renderer import TableRenderer
from lattice.cli.output.top_tables import BarRenderer, top_lines

GI = 1 << 30
USE = {"cpu": {"used": 500, "of": 2000}, "memory": {"used": GI, "of": 4 * GI}}
DOCUMENT = {
    "pools": [
        {
            "name": "north",
            "region": "n",
            "nodes": 1,
            "readyNodes": 1,
            "maxNodes": 4,
            "phase": "Ready",
            "budget": {
                "hourlyMicros": 24_000,
                "spentMicros": 1_234_567,
                "projectedMicros": 54_000_000,
                "limitMicros": 60_000_000,
            },
            **USE,
        },
        {
            "name": "aws/us-east-1",
            "nodes": 0,
            "readyNodes": 0,
            "cpu": {"used": 0, "of": 0},
            "memory": {"used": 0, "of": 0},
        },
    ],
    "nodes": [
        {
            "name": "n1",
            "cluster": "north-001",
            "class": "nano",
            "phase": "Ready",
            "isReady": True,
            "isConnected": True,
            "unschedulable": True,
            "workloads": 2,
            "disk": {"used": 1, "of": 4},
            **USE,
        },
        {
            "name": "n2",
            "cluster": "",
            "class": "",
            "phase": "Ready",
            "isReady": True,
            "isConnected": False,
            "unschedulable": False,
            "workloads": 0,
            "disk": {"used": 0, "of": 0},
            **USE,
        },
    ],
    "services": [
        {
            "namespace": "default",
            "name": "web",
            "ready": 1,
            "wanted": 2,
            "failures": 3,
            "pools": [],
            "cpu": {"used": 1500},
            "memory": {"used": GI},
            "hourlyMicros": None,
            "phase": "Pending",
            "verdict": "OverBudget",
        }
    ],
}


def drawn(encoding: str = "utf-8") -> str:
    return "\n".join(top_lines(DOCUMENT, TableRenderer(), BarRenderer(encoding)))


def test_a_pool_with_its_budget() -> None:
    found = next(line for line in drawn().splitlines() if line.startswith("north"))
    assert found.split() == [
        *("north", "n", "1/4", "0.50", "██░░░░", "25%", "1Gi", "██░░░░", "25%"),
        *("$0.024", "$1.23", "$54.00", "██████", "90%", "of", "$60.00", "Ready"),
    ]


def test_offer_without_details_shows_dashes() -> None:
    found = next(line for line in drawn().splitlines() if line.startswith("aws/us-east-1"))
    assert found.split() == ["aws/us-east-1", "-", "0", "0.00", "-", "0", "-", *["-"] * 5]


def test_node_row_shows_cordon_and_connection() -> None:
    text = drawn()
    assert "Ready, cordoned" in text
    gone = next(line for line in text.splitlines() if line.startswith("n2"))
    assert gone.split() == ["n2", *["-"] * 7, "0", "Ready,", "not", "connected"]


def test_pending_service_row_shows_the_reason() -> None:
    found = next(line for line in drawn().splitlines() if line.startswith("web"))
    assert found.split() == ["web", "1/2", "███░░░", "1.50", "1Gi", "3", "-", "Pending", "(OverBudget)", "-"]


def test_bars_are_ascii_without_unicode() -> None:
    assert drawn("ascii").isascii()


def test_empty_fleet_shows_the_next_step() -> None:
    assert top_lines({"pools": [], "nodes": []}, TableRenderer(), BarRenderer("utf-8")) == [
        "there are no objects yet: create pools and services with `lattice apply`"
    ]


@pytest.mark.parametrize(
    ("used", "of", "shown"),
    [
        (0, 100, "░░░░░░   0%"),
        (1, 1000, "░░░░░░   0%"),
        (1, 100, "█░░░░░   1%"),
        (100, 100, "██████ 100%"),
        (300, 100, "██████ 300%"),
        (None, 100, "-"),
        (1, None, "-"),
        (1, 0, "-"),
    ],
)
def test_bars(used: int | None, of: int | None, shown: str) -> None:
    assert BarRenderer("UTF-8").bar(used, of) == shown


def test_screen_is_cut_to_the_window() -> None:
    picture = render_frame([f"row {number} " + "x" * 50 for number in range(30)], columns=20, rows=10)
    rows = picture.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\x1b[K\n")[:-1]
    assert len(rows) == 9
    assert all(len(row) <= 19 for row in rows)
    assert rows[-1] == "… and 22 more lines"
    assert render_frame(["one"], 80, 24) == "\x1b[Hone\x1b[K\n\x1b[J"


def test_unhealthy_lines_are_coloured_unless_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour_line("n1 NotReady") == "\x1b[31mn1 NotReady\x1b[0m"
    assert colour_line("n1 Draining") == "\x1b[33mn1 Draining\x1b[0m"
    assert colour_line("n1 Ready") == "n1 Ready"
    monkeypatch.setenv("NO_COLOR", "1")
    assert colour_line("n1 NotReady") == "n1 NotReady"


def test_log_lines_are_prefixed_across_chunks() -> None:
    assert (
        b"".join(prefix_lines(iter([b"on", b"e\ntw", b"o\n", b"thr"]), b"[a] "))
        == b"[a] one\n[a] two\n[a] thr\n"
    )
    assert list(prefix_lines(iter([]), b"[a] ")) == []
