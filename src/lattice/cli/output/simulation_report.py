"""A simulation's report as text and as JSON: who goes where, how full it gets, what found no place and why."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from lattice.cli.output import render
from lattice.engine.plugin import Shortfall
from lattice.kinds.container import BYTE_RESOURCES
from lattice.kinds.meta.quantity import approximate_bytes
from lattice.scheduling.offline.simulate import SimulationReport, UnschedulableGroup, Usage

MAX_ROWS = 50  # lines of a list, unless all are asked for; of more placements than that, counts per node
MAX_BUSIEST_NODES = 20  # nodes listed then
MAX_REASON_KINDS = 5  # of trouble that the others are told by, if there are no more
MAX_NAMES_PER_REASON = 3  # of the unplaced with one reason
MIN_COLUMN_CHARS = 30  # characters that a reason is folded into, at least


def report_lines(report: SimulationReport, *, wide: bool = False, max_width: int = 0) -> Iterator[str]:
    """Reasons are folded to fit into so many columns; 0: they are not."""
    yield _summary(report)
    if report.qos:
        yield _qos_counts(report)
    for block in (
        _explained(report, wide, max_width),
        _placements(report, wide),
        _displaced(report),
        _usage(report),
        _fullness(report) if wide else [],
        _unplaced(report, wide, max_width),
    ):
        if block:
            yield ""
            yield from block


def timing(report: SimulationReport) -> str:
    each = 1e6 * report.decide_seconds / report.decided_count if report.decided_count else 0.0
    return f"decided {report.decided_count:,} in {report.decide_seconds:.2f} s, {each:,.0f} µs each"


def _summary(report: SimulationReport) -> str:
    missing = report.decided_count - len(report.placements)
    parts = [f"{len(report.placements):,} placed", f"{missing:,} not placed"]
    parts += [f"{report.bound_count:,} bound before"] if report.bound_count else []
    parts += [f"{len(report.preempted):,} displaced"] if report.preempted else []
    parts += [f"{report.stopped_count:,} not meant to run"] if report.stopped_count else []
    return f"{report.node_count:,} node{'' if report.node_count == 1 else 's'}: {', '.join(parts)}"


def _qos_counts(report: SimulationReport) -> str:
    """`class of service: 2 Guaranteed, 7 Burstable`, of all that are meant to run."""
    counts = Counter(report.qos.values())
    return f"class of service: {', '.join(f'{counts[each]:,} {each.name}' for each in sorted(counts))}"


def _placements(report: SimulationReport, wide: bool) -> list[str]:
    if not report.placements:
        return []
    if wide:
        rows = [[render.cell(name), node, report.qos[name].name] for name, node in report.placements.items()]
        return render.table([["WORKLOAD", "NODE", "QOS"], *rows])
    if len(report.placements) <= MAX_ROWS:
        return render.table(
            [["WORKLOAD", "NODE"], *([render.cell(name), node] for name, node in report.placements.items())]
        )
    counts = Counter(report.placements.values())
    busiest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_BUSIEST_NODES]
    rows = [["NODE", "PLACED"], *([node, f"{count:,}"] for node, count in busiest)]
    rest = len(counts) - len(busiest)
    return [
        *render.table(rows),
        *([f"and {rest:,} more nodes; -o wide lists every placement"] if rest else []),
    ]


def _displaced(report: SimulationReport) -> list[str]:
    if not report.preempted:
        return []
    rows = [
        [name, each.node, each.preempted_by, report.placements.get(name, "<none>")]
        for name, each in report.preempted.items()
    ]
    return render.table([["DISPLACED", "WAS ON", "BY", "NOW ON"], *rows])


def _usage(report: SimulationReport) -> list[str]:
    if not report.usage:
        return []
    heads = ["RESOURCE", "TOTAL", "BEFORE", "AFTER", "MEAN", "FULLEST"]
    return render.table([heads, *(_usage_row(each) for each in report.usage)])


def _fullness(report: SimulationReport) -> list[str]:
    fullest = sorted(report.node_utilisation.items(), key=lambda pair: (-pair[1], pair[0]))
    return (
        render.table([["NODE", "UTILISATION"], *([node, f"{share:.1%}"] for node, share in fullest)])
        if fullest
        else []
    )


def _usage_row(each: Usage) -> list[str]:
    before = f"{format_amount(each.resource, each.used_before)} ({each.share_before:.1%})"
    after = f"{format_amount(each.resource, each.used_after)} ({each.share_after:.1%})"
    return [
        each.resource,
        format_amount(each.resource, each.total),
        before,
        after,
        f"{each.mean:.1%}",
        f"{each.highest:.1%}",
    ]


def format_amount(resource: str, value: int) -> str:
    """Sums over many nodes: 30,286.75 cores."""
    if resource in ("cpu", "gpu"):
        return f"{Decimal(value) / 1000:,f}"
    return (
        approximate_bytes(value)
        if resource in BYTE_RESOURCES or resource.startswith("hugepages-")
        else f"{value:,}"
    )


def _unplaced(report: SimulationReport, wide: bool, columns: int) -> list[str]:
    if not report.unschedulable:
        return []
    most_first = sorted(report.unschedulable, key=lambda each: -len(each.names))
    shown, rest = (
        (most_first, []) if wide else (most_first[:MAX_ROWS], _group_by_reason_kind(most_first[MAX_ROWS:]))
    )
    listed = [*shown, *rest] if len(rest) <= MAX_REASON_KINDS else shown
    rows = [[f"{len(each.names):,}", _truncated_names(each.names, wide), each.reason] for each in listed]
    hidden = sum(len(each.names) for each in (*shown, *rest)) - sum(len(each.names) for each in listed)
    told = _wrapped_table([["NOT PLACED", "WORKLOADS", "WHY"], *rows], columns)
    return [*told, *([f"and {hidden:,} more workloads; -o wide lists all"] if hidden else [])]


def _group_by_reason_kind(groups: Sequence[UnschedulableGroup]) -> list[UnschedulableGroup]:
    """Where there are too many to list: one for each kind of trouble, without the counts and amounts that differ."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        kinds.setdefault(group.reason_kinds or (group.reason,), []).extend(group.names)
    return [UnschedulableGroup(tuple(names), "; ".join(kind), kind) for kind, names in kinds.items()]


def _wrapped_table(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """A table whose last column goes on below where it would be too wide."""
    if not columns:
        return render.table(rows)
    room = max(MIN_COLUMN_CHARS, columns - sum(render.widths([row[:-1] for row in rows])))
    folded: list[Sequence[str]] = []
    for *before, last in rows:
        first, *more = _wrap_text(last, room)
        folded += [[*before, first], *([*[""] * len(before), part] for part in more)]
    return render.table(folded)


def _wrap_text(text: str, columns: int) -> list[str]:
    return (
        textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
        if columns and text
        else [text]
    )


def _truncated_names(names: Sequence[str], wide: bool) -> str:
    shown = names if wide else names[:MAX_NAMES_PER_REASON]
    return ", ".join(shown) + (", …" if len(shown) < len(names) else "")


def _explained(report: SimulationReport, wide: bool, columns: int) -> list[str]:
    found = report.explanation
    if found is None:
        return []
    plugins = list(dict.fromkeys(plugin for each in found["ranked"] for plugin in each["parts"]))
    rows = [["NODE", "SCORE", *(plugin.upper() for plugin in plugins)]]
    rows += [
        [
            each["name"],
            f"{each['score']:.1f}",
            *(f"{each['parts'][plugin]['score']:.0f}" for plugin in plugins),
        ]
        for each in found["ranked"]
    ]
    refused = [["REFUSED", "WHY"]]
    refused += [
        [name, "; ".join(_shortfall_text(each) for each in reasons)]
        for name, reasons in _limit_rejections(found["refused"], wide)
    ]
    hidden = len(found["refused"]) - len(refused) + 1
    told = _wrap_text(f"{found['ask']}: {found['summary']}", columns)
    told += ["", *render.table(rows)] if len(rows) > 1 else []
    told += ["", *_wrapped_table(refused, columns)] if len(refused) > 1 else []
    return [*told, *([f"and {hidden:,} more; -o wide lists all"] if hidden else [])]


def _limit_rejections(refused: dict[str, Any], wide: bool) -> list[tuple[str, Any]]:
    return list(refused.items()) if wide else list(refused.items())[:MAX_ROWS]


def _shortfall_text(shortfall: dict[str, str]) -> str:
    return str(Shortfall(**shortfall))


def as_json(report: SimulationReport, profile: str, seed: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "profile": profile,
        "seed": seed,
        "nodes": report.node_count,
        "placed": len(report.placements),
        "notPlaced": report.decided_count - len(report.placements),
        "bound": report.bound_count,
        "stopped": report.stopped_count,
        "placements": dict(report.placements),
        "unplaced": [
            {"count": len(each.names), "reason": each.reason, "workloads": list(each.names)}
            for each in report.unschedulable
        ],
        "displaced": {
            name: {"node": each.node, "by": each.preempted_by} for name, each in report.preempted.items()
        },
        "utilisation": {each.resource: _usage_json(each) for each in report.usage},
        "qos": {name: each.name for name, each in report.qos.items()},
        "fullness": {node: round(share, 6) for node, share in report.node_utilisation.items()},
        "warnings": [
            {"kind": each.kind, "name": each.name, "what": each.message} for each in report.warnings
        ],
    }
    return document if report.explanation is None else {**document, "explained": report.explanation}


def _usage_json(each: Usage) -> dict[str, Any]:
    numbers = {"total": each.total, "before": each.used_before, "after": each.used_after}
    return {
        **numbers,
        "share": round(each.share_after, 6),
        "mean": round(each.mean, 6),
        "max": round(each.highest, 6),
    }
