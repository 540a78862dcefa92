"""Report of `lattice simulate` as text and as JSON: placements, utilisation and unschedulable workloads with
their reasons."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from lattice.cli.output import render
from lattice.cli.output.table_renderer import MAX_ROWS, MIN_COLUMN_CHARS
from lattice.engine.plugin import Shortfall
from lattice.kinds.container import BYTE_RESOURCES
from lattice.kinds.meta.quantity import approximate_bytes
from lattice.scheduling.offline.simulate import SimulationReport, UnschedulableGroup

# Nodes listed when there are more placements than MAX_ROWS.
MAX_BUSIEST_NODES = 20
# Groups of unschedulable workloads beyond MAX_ROWS share one row for each combination of kinds of reasons. If
# there are more combinations than this, the report only counts the workloads of these groups.
MAX_REASON_KINDS = 5
# Names of unschedulable workloads with the same reason.
MAX_NAMES_PER_REASON = 3


def report_lines(report: SimulationReport, *, wide: bool = False, max_width: int = 0) -> Iterator[str]:
    """Lines of the report; reasons are wrapped to `max_width` characters (0: not wrapped)."""
    missing = report.decided_count - len(report.placements)
    parts = [f"{len(report.placements):,} placed", f"{missing:,} not placed"]
    parts += [f"{report.bound_count:,} already bound"] if report.bound_count else []
    parts += [f"{len(report.preempted):,} preempted"] if report.preempted else []
    parts += [f"{report.stopped_count:,} stopped"] if report.stopped_count else []
    yield f"{report.node_count:,} node{'' if report.node_count == 1 else 's'}: {', '.join(parts)}"
    if report.qos:
        counts = Counter(report.qos.values())
        texts = [f"{counts[qos]:,} {qos.name}" for qos in sorted(counts)]
        yield f"QoS classes: {', '.join(texts)}"
    # Table of used resources before and after the simulation; if wide, also the utilisation of every node.
    resource_rows = [["RESOURCE", "TOTAL", "BEFORE", "AFTER", "MEAN", "FULLEST"]]
    for usage in report.usage:
        total, before, after = (
            format_amount(usage.resource, amount)
            for amount in (usage.total, usage.used_before, usage.used_after)
        )
        shares = (f"{before} ({usage.share_before:.1%})", f"{after} ({usage.share_after:.1%})")
        resource_rows.append([usage.resource, total, *shares, f"{usage.mean:.1%}", f"{usage.highest:.1%}"])
    lines = render.table(resource_rows) if report.usage else []
    fullest = sorted(report.node_utilisation.items(), key=lambda pair: (-pair[1], pair[0]))
    if wide and fullest:
        rows = [[node, f"{share:.1%}"] for node, share in fullest]
        lines += [*([""] if lines else []), *render.table([["NODE", "UTILISATION"], *rows])]
    for block in (
        _explained(report, wide, max_width),
        _placements(report, wide),
        _displaced(report),
        lines,
        _unplaced(report, wide, max_width),
    ):
        if block:
            yield ""
            yield from block


def timing(report: SimulationReport) -> str:
    microseconds = 1e6 * report.decide_seconds / report.decided_count if report.decided_count else 0.0
    decisions = f"{report.decided_count:,} decision{'' if report.decided_count == 1 else 's'}"
    return f"{decisions} in {report.decide_seconds:.2f} s, {microseconds:,.0f} µs per decision"


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
    hidden = len(counts) - len(busiest)
    return [
        *render.table(rows),
        *([f"and {hidden:,} more nodes; -o wide lists every placement"] if hidden else []),
    ]


def _displaced(report: SimulationReport) -> list[str]:
    if not report.preempted:
        return []
    rows = [
        [name, victim.node, victim.preempted_by, report.placements.get(name, "<none>")]
        for name, victim in report.preempted.items()
    ]
    return render.table([["PREEMPTED", "WAS ON", "BY", "NOW ON"], *rows])


def format_amount(resource: str, value: int) -> str:
    """Amount of a resource summed over nodes, such as 30,286.75 cores; bytes in a binary unit."""
    if resource in ("cpu", "gpu"):
        # Cores and GPUs are counted in thousandths.
        return f"{Decimal(value) / 1000:,f}"
    return (
        approximate_bytes(value)
        if resource in BYTE_RESOURCES or resource.startswith("hugepages-")
        else f"{value:,}"
    )


def _unplaced(report: SimulationReport, wide: bool, columns: int) -> list[str]:
    if not report.unschedulable:
        return []
    most_first = sorted(report.unschedulable, key=lambda group: -len(group.names))
    shown = most_first if wide else most_first[:MAX_ROWS]
    # Past the limit, workloads whose reasons differ only in counts and amounts share a row.
    names_by_kind: dict[tuple[str, ...], list[str]] = {}
    for group in most_first[len(shown) :]:
        names_by_kind.setdefault(group.reason_kinds or (group.reason,), []).extend(group.names)
    grouped = [
        UnschedulableGroup(tuple(names), "; ".join(kind), kind) for kind, names in names_by_kind.items()
    ]
    listed = [*shown, *grouped] if len(grouped) <= MAX_REASON_KINDS else shown
    rows = []
    for group in listed:
        listed_names = group.names if wide else group.names[:MAX_NAMES_PER_REASON]
        truncation = ", …" if len(listed_names) < len(group.names) else ""
        rows.append([f"{len(group.names):,}", ", ".join(listed_names) + truncation, group.reason])
    hidden = sum(len(group.names) for group in (*shown, *grouped)) - sum(len(group.names) for group in listed)
    lines = _wrapped_table([["NOT PLACED", "WORKLOADS", "WHY"], *rows], columns)
    return [*lines, *([f"and {hidden:,} more workloads; -o wide lists all"] if hidden else [])]


def _wrapped_table(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Lines of a table whose last column is wrapped to the terminal's width; 0 columns: not wrapped."""
    if not columns:
        return render.table(rows)
    width = max(MIN_COLUMN_CHARS, columns - sum(render.widths([row[:-1] for row in rows])))
    folded: list[Sequence[str]] = []
    for *leading_cells, last in rows:
        first, *continuation = _wrap_text(last, width)
        folded += [[*leading_cells, first], *([*[""] * len(leading_cells), part] for part in continuation)]
    return render.table(folded)


def _wrap_text(text: str, columns: int) -> list[str]:
    return (
        textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
        if columns and text
        else [text]
    )


def _explained(report: SimulationReport, wide: bool, columns: int) -> list[str]:
    explanation = report.explanation
    if explanation is None:
        return []
    plugins: list[str] = []
    for candidate in explanation["ranked"]:
        plugins += [plugin for plugin in candidate["parts"] if plugin not in plugins]
    rows = [["NODE", "SCORE", *(plugin.upper() for plugin in plugins)]]
    rows += [
        [
            candidate["name"],
            f"{candidate['score']:.1f}",
            *(f"{candidate['parts'][plugin]['score']:.0f}" for plugin in plugins),
        ]
        for candidate in explanation["ranked"]
    ]
    rejected = [["REJECTED", "WHY"]]
    shown = list(explanation["refused"].items())
    shown = shown if wide else shown[:MAX_ROWS]
    for name, reasons in shown:
        rejected.append([name, "; ".join(str(Shortfall(**reason)) for reason in reasons)])
    hidden = len(explanation["refused"]) - len(shown)
    lines = _wrap_text(f"{explanation['ask']}: {explanation['summary']}", columns)
    lines += ["", *render.table(rows)] if len(rows) > 1 else []
    lines += ["", *_wrapped_table(rejected, columns)] if len(rejected) > 1 else []
    return [*lines, *([f"and {hidden:,} more; -o wide lists all"] if hidden else [])]


def as_json(report: SimulationReport, profile: str, seed: int) -> dict[str, Any]:
    """The report as a JSON document; shares are rounded to six digits."""
    utilisation: dict[str, Any] = {}
    for usage in report.usage:
        utilisation[usage.resource] = {
            "total": usage.total,
            "before": usage.used_before,
            "after": usage.used_after,
            "share": round(usage.share_after, 6),
            "mean": round(usage.mean, 6),
            "max": round(usage.highest, 6),
        }
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
            {"count": len(group.names), "reason": group.reason, "workloads": list(group.names)}
            for group in report.unschedulable
        ],
        "displaced": {
            name: {"node": victim.node, "by": victim.preempted_by}
            for name, victim in report.preempted.items()
        },
        "utilisation": utilisation,
        "qos": {name: qos.name for name, qos in report.qos.items()},
        "fullness": {node: round(share, 6) for node, share in report.node_utilisation.items()},
        "warnings": [
            {"kind": warning.kind, "name": warning.name, "what": warning.message}
            for warning in report.warnings
        ],
    }
    return document if report.explanation is None else {**document, "explained": report.explanation}
