"""What is used, as tables to look at: from the server's document alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice.cli.output.table_renderer import TableRenderer, join_blocks
from lattice.kinds.meta.quantity import approximate_bytes
from lattice.placement.inputs.ledger_math import format_dollars

UsageRow = Mapping[str, Any]
Lines = list[str]

BAR_CHARS = 6  # characters of a bar
BAR_FULL, BAR_EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "."
NO_VALUE = "-"


class BarRenderer:
    """Draws bars in characters that the terminal has."""

    def __init__(self, encoding: str) -> None:
        self._full, self._empty = (
            (BAR_FULL, BAR_EMPTY) if "utf" in encoding.lower() else (ASCII_FULL, ASCII_EMPTY)
        )

    def bar(self, used: int | None, of: int | None) -> str:
        """`███░░░  38%`; nothing where nothing is limited."""
        if used is None or not of:
            return NO_VALUE
        percent = used * 100 // of
        filled = min(BAR_CHARS, -(-percent * BAR_CHARS // 100))
        return f"{self._full * filled}{self._empty * (BAR_CHARS - filled)} {percent:>3}%"

    def percent(self, used: int | None, of: int | None) -> str:
        return NO_VALUE if used is None or not of else f"{used * 100 // of}%"


def pools(rows: Sequence[UsageRow], look: TableRenderer, pen: BarRenderer) -> Lines:
    heads = [
        "POOL",
        "REGION",
        "NODES",
        "CPU",
        "CPU%",
        "MEMORY",
        "MEM%",
        "$/H",
        "SPENT",
        "PROJECTED",
        "BUDGET",
        "PHASE",
    ]
    drawn = []
    for each in rows:
        money = each.get("budget") or {}
        limit = money.get("limitMicros")
        drawn.append(
            [
                each["name"],
                each.get("region") or NO_VALUE,
                _count_of_max(each["nodes"], each.get("maxNodes")),
                *_usage_cells(each, pen),
                _dollars(money.get("hourlyMicros")),
                _rounded_dollars(money.get("spentMicros")),
                _rounded_dollars(money.get("projectedMicros")),
                NO_VALUE
                if limit is None
                else f"{pen.bar(money['projectedMicros'], limit)} of {_rounded_dollars(limit)}",
                each.get("phase") or NO_VALUE,
            ]
        )
    return look.table(heads, drawn, right_aligned=(2, 3, 5, 7, 8, 9))


def clusters(rows: Sequence[UsageRow], look: TableRenderer, pen: BarRenderer) -> Lines:
    heads = ["CLUSTER", "POOL", "NODES", "CPU", "CPU%", "MEMORY", "MEM%", "REPLICAS", "$/H", "PHASE"]
    drawn = [
        [
            each["name"],
            each["pool"],
            f"{each['readyNodes']}/{each['nodes']}",
            *_usage_cells(each, pen),
            f"{each['readyWorkloads']}/{each['workloads']}",
            _dollars(each["hourlyMicros"]),
            each["phase"] or NO_VALUE,
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right_aligned=(2, 3, 5, 7, 8))


def nodes(rows: Sequence[UsageRow], look: TableRenderer, pen: BarRenderer) -> Lines:
    heads = ["NODE", "CLUSTER", "CLASS", "CPU", "CPU%", "MEMORY", "MEM%", "DISK%", "WORKLOADS", "PHASE"]
    drawn = [
        [
            each["name"],
            each["cluster"] or NO_VALUE,
            each["class"] or NO_VALUE,
            *(_usage_cells(each, pen) if each["isConnected"] else [NO_VALUE] * 4),
            pen.percent(each["disk"]["used"], each["disk"]["of"]) if each["isConnected"] else NO_VALUE,
            str(each["workloads"]),
            _phase(each),
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right_aligned=(3, 5, 7, 8))


def services(rows: Sequence[UsageRow], look: TableRenderer, pen: BarRenderer) -> Lines:
    several = len({each["namespace"] for each in rows}) > 1
    heads = ["SERVICE", "READY", "", "CPU", "MEMORY", "FAILURES", "$/H", "PHASE", "POOLS"]
    drawn = [
        [
            f"{each['namespace']}/{each['name']}" if several else each["name"],
            f"{each['ready']}/{each['wanted']}",
            pen.bar(each["ready"], each["wanted"]).split(" ")[0],
            _cores(each["cpu"]["used"]),
            approximate_bytes(each["memory"]["used"]),
            str(each["failures"]),
            _dollars(each["hourlyMicros"]),
            _phase_with_verdict(each),
            ",".join(each["pools"]) or NO_VALUE,
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right_aligned=(1, 3, 4, 5, 6))


TABLES: dict[str, Callable[[Sequence[UsageRow], TableRenderer, BarRenderer], Lines]] = {
    "pools": pools,
    "services": services,
    "clusters": clusters,
    "nodes": nodes,
}


def top_lines(document: Mapping[str, Any], look: TableRenderer, pen: BarRenderer) -> Lines:
    found = [draw(document[name], look, pen) for name, draw in TABLES.items() if name in document]
    return join_blocks(*found) or ["nothing is there yet: declare pools and services with `lattice apply`"]


def _usage_cells(each: UsageRow, pen: BarRenderer) -> list[str]:
    cpu, memory = each["cpu"], each["memory"]
    return [
        _cores(cpu["used"]),
        pen.bar(cpu["used"], cpu["of"]),
        approximate_bytes(memory["used"]),
        pen.bar(memory["used"], memory["of"]),
    ]


def _phase(node: UsageRow) -> str:
    words = [node["phase"] or NO_VALUE]
    words += ["cordoned"] if node["unschedulable"] and node["phase"] != "Draining" else []
    words += ["not connected"] if not node["isConnected"] and node["phase"] == "Ready" else []
    return ", ".join(words)


def _phase_with_verdict(service: UsageRow) -> str:
    said = service["verdict"]
    return (
        f"{service['phase'] or NO_VALUE} ({said})"
        if said not in ("", "Placed")
        else service["phase"] or NO_VALUE
    )


def _cores(milli: int) -> str:
    return f"{milli / 1000:.2f}"


def _count_of_max(count: int, most: int | None) -> str:
    return str(count) if most is None else f"{count}/{most}"


def _dollars(micros: int | None) -> str:
    return NO_VALUE if micros is None else format_dollars(micros)


def _rounded_dollars(micros: int | None) -> str:
    """Whole cents: what is spent grows with every second."""
    return NO_VALUE if micros is None else format_dollars((micros + 5_000) // 10_000 * 10_000)
