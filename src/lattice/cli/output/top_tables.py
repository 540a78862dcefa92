"""What is used, as tables to look at: from the server's document alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice.cli.output.columns import Look, blocks
from lattice.kinds.meta.quantity import approximate_bytes
from lattice.placement.inputs.ledger_math import dollars

Row = Mapping[str, Any]
Drawn = list[str]

CELLS = 6  # characters of a bar
FULL, EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "."
NONE = "-"


class Pen:
    """Draws bars in characters that the terminal has."""

    def __init__(self, encoding: str) -> None:
        self._full, self._empty = (FULL, EMPTY) if "utf" in encoding.lower() else (ASCII_FULL, ASCII_EMPTY)

    def share(self, used: int | None, of: int | None) -> str:
        """`███░░░  38%`; nothing where nothing is limited."""
        if used is None or not of:
            return NONE
        percent = used * 100 // of
        filled = min(CELLS, -(-percent * CELLS // 100))
        return f"{self._full * filled}{self._empty * (CELLS - filled)} {percent:>3}%"

    def bare(self, used: int | None, of: int | None) -> str:
        return NONE if used is None or not of else f"{used * 100 // of}%"


def pools(rows: Sequence[Row], look: Look, pen: Pen) -> Drawn:
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
                each.get("region") or NONE,
                _of(each["nodes"], each.get("maxNodes")),
                *_used(each, pen),
                _money(money.get("hourlyMicros")),
                _cents(money.get("spentMicros")),
                _cents(money.get("projectedMicros")),
                NONE if limit is None else f"{pen.share(money['projectedMicros'], limit)} of {_cents(limit)}",
                each.get("phase") or NONE,
            ]
        )
    return look.table(heads, drawn, right=(2, 3, 5, 7, 8, 9))


def clusters(rows: Sequence[Row], look: Look, pen: Pen) -> Drawn:
    heads = ["CLUSTER", "POOL", "NODES", "CPU", "CPU%", "MEMORY", "MEM%", "REPLICAS", "$/H", "PHASE"]
    drawn = [
        [
            each["name"],
            each["pool"],
            f"{each['readyNodes']}/{each['nodes']}",
            *_used(each, pen),
            f"{each['readyWorkloads']}/{each['workloads']}",
            _money(each["hourlyMicros"]),
            each["phase"] or NONE,
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right=(2, 3, 5, 7, 8))


def nodes(rows: Sequence[Row], look: Look, pen: Pen) -> Drawn:
    heads = ["NODE", "CLUSTER", "CLASS", "CPU", "CPU%", "MEMORY", "MEM%", "DISK%", "WORKLOADS", "PHASE"]
    drawn = [
        [
            each["name"],
            each["cluster"] or NONE,
            each["class"] or NONE,
            *(_used(each, pen) if each["isConnected"] else [NONE] * 4),
            pen.bare(each["disk"]["used"], each["disk"]["of"]) if each["isConnected"] else NONE,
            str(each["workloads"]),
            _phase(each),
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right=(3, 5, 7, 8))


def services(rows: Sequence[Row], look: Look, pen: Pen) -> Drawn:
    several = len({each["namespace"] for each in rows}) > 1
    heads = ["SERVICE", "READY", "", "CPU", "MEMORY", "FAILURES", "$/H", "PHASE", "POOLS"]
    drawn = [
        [
            f"{each['namespace']}/{each['name']}" if several else each["name"],
            f"{each['ready']}/{each['wanted']}",
            pen.share(each["ready"], each["wanted"]).split(" ")[0],
            _cores(each["cpu"]["used"]),
            approximate_bytes(each["memory"]["used"]),
            str(each["failures"]),
            _money(each["hourlyMicros"]),
            _verdict(each),
            ",".join(each["pools"]) or NONE,
        ]
        for each in rows
    ]
    return look.table(heads, drawn, right=(1, 3, 4, 5, 6))


TABLES: dict[str, Callable[[Sequence[Row], Look, Pen], Drawn]] = {
    "pools": pools,
    "services": services,
    "clusters": clusters,
    "nodes": nodes,
}


def lines(document: Mapping[str, Any], look: Look, pen: Pen) -> Drawn:
    found = [draw(document[name], look, pen) for name, draw in TABLES.items() if name in document]
    return blocks(*found) or ["nothing is there yet: declare pools and services with `lattice apply`"]


def _used(each: Row, pen: Pen) -> list[str]:
    cpu, memory = each["cpu"], each["memory"]
    return [
        _cores(cpu["used"]),
        pen.share(cpu["used"], cpu["of"]),
        approximate_bytes(memory["used"]),
        pen.share(memory["used"], memory["of"]),
    ]


def _phase(node: Row) -> str:
    words = [node["phase"] or NONE]
    words += ["cordoned"] if node["unschedulable"] and node["phase"] != "Draining" else []
    words += ["not connected"] if not node["isConnected"] and node["phase"] == "Ready" else []
    return ", ".join(words)


def _verdict(service: Row) -> str:
    said = service["verdict"]
    return f"{service['phase'] or NONE} ({said})" if said not in ("", "Placed") else service["phase"] or NONE


def _cores(milli: int) -> str:
    return f"{milli / 1000:.2f}"


def _of(count: int, most: int | None) -> str:
    return str(count) if most is None else f"{count}/{most}"


def _money(micros: int | None) -> str:
    return NONE if micros is None else dollars(micros)


def _cents(micros: int | None) -> str:
    """Whole cents: what is spent grows with every second."""
    return NONE if micros is None else dollars((micros + 5_000) // 10_000 * 10_000)
