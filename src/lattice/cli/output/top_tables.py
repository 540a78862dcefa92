"""Tables of `lattice top`, rendered from the server's JSON document."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice.cli.output.plan_tables import UNKNOWN, known_part
from lattice.cli.output.table_renderer import TableRenderer, join_blocks
from lattice.kinds.meta.quantity import MILLIONTHS, approximate_bytes, format_cents, format_hourly

UsageRow = Mapping[str, Any]
Lines = list[str]

BAR_CHARS = 6
BAR_FULL, BAR_EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "."
NO_VALUE = "-"


class BarRenderer:
    """Draws usage bars with block characters on a UTF-8 terminal, with ASCII characters on other terminals."""

    def __init__(self, encoding: str) -> None:
        self._full, self._empty = (
            (BAR_FULL, BAR_EMPTY) if "utf" in encoding.lower() else (ASCII_FULL, ASCII_EMPTY)
        )

    def bar(self, used: int | None, of: int | None) -> str:
        """A bar with its percentage, `███░░░ 38%`, or `-` where the resource has no limit."""
        if used is None or not of:
            return NO_VALUE
        percent = used * 100 // of
        # Rounded up: one percent already fills a character.
        filled = min(BAR_CHARS, -(-percent * BAR_CHARS // 100))
        return f"{self._full * filled}{self._empty * (BAR_CHARS - filled)} {percent:>3}%"

    def percent(self, used: int | None, of: int | None) -> str:
        return NO_VALUE if used is None or not of else f"{used * 100 // of}%"


def pools(rows: Sequence[UsageRow], renderer: TableRenderer, bars: BarRenderer) -> Lines:
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
    for pool in rows:
        money = pool.get("budget") or {}
        limit = money.get("limitMicros")
        # A server of an earlier version states the rate in the budget only.
        rate = pool.get("hourlyMicros", (pool.get("budget") or {}).get("hourlyMicros"))
        # The mark of a limit that refuses a purchase now.
        refusal = " refuses" if money.get("isRefusing") else ""
        drawn.append(
            [
                pool["name"],
                pool.get("region") or NO_VALUE,
                str(pool["nodes"]) if pool.get("maxNodes") is None else f"{pool['nodes']}/{pool['maxNodes']}",
                *_usage_cells(pool, bars),
                NO_VALUE
                if rate is None
                else known_part(format_hourly(rate), {"hourlyMicros": rate}, pool.get("unpricedMachines", 0)),
                _rounded_dollars(money.get("spentMicros")),
                _rounded_dollars(money.get("projectedMicros")),
                NO_VALUE
                if limit is None
                else f"{bars.bar(_used(money), MILLIONTHS)} of {_rounded_dollars(limit)}{refusal}",
                pool.get("phase") or NO_VALUE,
            ]
        )
    return renderer.table(heads, drawn, right_aligned=(2, 3, 5, 7, 8, 9))


def clusters(rows: Sequence[UsageRow], renderer: TableRenderer, bars: BarRenderer) -> Lines:
    heads = ["CLUSTER", "POOL", "NODES", "CPU", "CPU%", "MEMORY", "MEM%", "REPLICAS", "$/H", "PHASE"]
    drawn = [
        [
            cluster["name"],
            cluster["pool"],
            f"{cluster['readyNodes']}/{cluster['nodes']}",
            *_usage_cells(cluster, bars),
            f"{cluster['readyWorkloads']}/{cluster['workloads']}",
            _rate(cluster),
            cluster["phase"] or NO_VALUE,
        ]
        for cluster in rows
    ]
    return renderer.table(heads, drawn, right_aligned=(2, 3, 5, 7, 8))


def nodes(rows: Sequence[UsageRow], renderer: TableRenderer, bars: BarRenderer) -> Lines:
    heads = ["NODE", "CLUSTER", "CLASS", "CPU", "CPU%", "MEMORY", "MEM%", "DISK%", "WORKLOADS", "PHASE"]
    drawn = []
    for node in rows:
        is_connected, disk = node["isConnected"], node["disk"]
        phases = [node["phase"] or NO_VALUE]
        # A draining node is always cordoned.
        if node["unschedulable"] and node["phase"] != "Draining":
            phases.append("cordoned")
        if not is_connected and node["phase"] == "Ready":
            phases.append("not connected")
        drawn.append(
            [
                node["name"],
                node["cluster"] or NO_VALUE,
                node["class"] or NO_VALUE,
                # Usage of a disconnected node is stale.
                *(_usage_cells(node, bars) if is_connected else [NO_VALUE] * 4),
                bars.percent(disk["used"], disk["of"]) if is_connected else NO_VALUE,
                str(node["workloads"]),
                ", ".join(phases),
            ]
        )
    return renderer.table(heads, drawn, right_aligned=(3, 5, 7, 8))


def services(rows: Sequence[UsageRow], renderer: TableRenderer, bars: BarRenderer) -> Lines:
    several = len({service["namespace"] for service in rows}) > 1
    heads = ["SERVICE", "READY", "", "CPU", "MEMORY", "FAILURES", "$/H", "PHASE", "POOLS"]
    drawn = []
    for service in rows:
        phase, verdict = service["phase"] or NO_VALUE, service["verdict"]
        drawn.append(
            [
                f"{service['namespace']}/{service['name']}" if several else service["name"],
                f"{service['ready']}/{service['wanted']}",
                bars.bar(service["ready"], service["wanted"]).split(" ")[0],
                _cores(service["cpu"]["used"]),
                approximate_bytes(service["memory"]["used"]),
                str(service["failures"]),
                _rate(service),
                f"{phase} ({verdict})" if verdict not in ("", "Placed") else phase,
                ",".join(service["pools"]) or NO_VALUE,
            ]
        )
    return renderer.table(heads, drawn, right_aligned=(1, 3, 4, 5, 6))


TABLES: dict[str, Callable[[Sequence[UsageRow], TableRenderer, BarRenderer], Lines]] = {
    "pools": pools,
    "services": services,
    "clusters": clusters,
    "nodes": nodes,
}


def top_lines(document: Mapping[str, Any], renderer: TableRenderer, bars: BarRenderer) -> Lines:
    blocks = [draw(document[name], renderer, bars) for name, draw in TABLES.items() if name in document]
    return join_blocks(*blocks) or [
        "there are no objects yet: create pools and services with `lattice apply`"
    ]


def _usage_cells(row: UsageRow, bars: BarRenderer) -> list[str]:
    cpu, memory = row["cpu"], row["memory"]
    return [
        _cores(cpu["used"]),
        bars.bar(cpu["used"], cpu["of"]),
        approximate_bytes(memory["used"]),
        bars.bar(memory["used"], memory["of"]),
    ]


def _used(budget: UsageRow) -> int:
    """The use of the limit in millionths, under the rule that binds."""
    # A server of an earlier version states the projection only; a limit of zero is used up.
    projected = (
        budget["projectedMicros"] * MILLIONTHS // budget["limitMicros"]
        if budget["limitMicros"]
        else MILLIONTHS
    )
    return int(budget.get("usedMillionths", projected))


def _cores(milli: int) -> str:
    return f"{milli / 1000:.2f}"


def _rate(row: UsageRow) -> str:
    """The rate per hour of a row; the price of one of its machines may be unknown."""
    if not row.get("isPriced", True):
        return UNKNOWN
    return NO_VALUE if row["hourlyMicros"] is None else format_hourly(row["hourlyMicros"])


def _rounded_dollars(micros: int | None) -> str:
    """Dollars rounded to whole cents: the exact amount changes every second while machines run."""
    return NO_VALUE if micros is None else format_cents(micros)
