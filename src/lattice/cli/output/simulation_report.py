"""A simulation's report as text and as JSON: who goes where, how full it gets, what found no place and why."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from lattice.cli.output import render
from lattice.engine.plugin import Shortfall
from lattice.kinds.container import BYTES
from lattice.kinds.meta.quantity import approximate_bytes
from lattice.scheduling.offline.simulate import Report, Unplaced, Usage

FEW = 50  # lines of a list, unless all are asked for; of more placements than that, counts per node
BUSIEST = 20  # nodes listed then
KINDS = 5  # of trouble that the others are told by, if there are no more
NAMED = 3  # of the unplaced with one reason
NARROWEST = 30  # characters that a reason is folded into, at least


def lines(report: Report, *, wide: bool = False, columns: int = 0) -> Iterator[str]:
    """Reasons are folded to fit into so many columns; 0: they are not."""
    yield _summary(report)
    if report.qos:
        yield _classes(report)
    for block in (
        _explained(report, wide, columns),
        _placements(report, wide),
        _displaced(report),
        _usage(report),
        _fullness(report) if wide else [],
        _unplaced(report, wide, columns),
    ):
        if block:
            yield ""
            yield from block


def timing(report: Report) -> str:
    each = 1e6 * report.seconds / report.decided if report.decided else 0.0
    return f"decided {report.decided:,} in {report.seconds:.2f} s, {each:,.0f} µs each"


def _summary(report: Report) -> str:
    missing = report.decided - len(report.placements)
    parts = [f"{len(report.placements):,} placed", f"{missing:,} not placed"]
    parts += [f"{report.bound:,} bound before"] if report.bound else []
    parts += [f"{len(report.displaced):,} displaced"] if report.displaced else []
    parts += [f"{report.stopped:,} not meant to run"] if report.stopped else []
    return f"{report.nodes:,} node{'' if report.nodes == 1 else 's'}: {', '.join(parts)}"


def _classes(report: Report) -> str:
    """`class of service: 2 Guaranteed, 7 Burstable`, of all that are meant to run."""
    counts = Counter(report.qos.values())
    return f"class of service: {', '.join(f'{counts[each]:,} {each.name}' for each in sorted(counts))}"


def _placements(report: Report, wide: bool) -> list[str]:
    if not report.placements:
        return []
    if wide:
        rows = [[render.cell(name), node, report.qos[name].name] for name, node in report.placements.items()]
        return render.table([["WORKLOAD", "NODE", "QOS"], *rows])
    if len(report.placements) <= FEW:
        return render.table(
            [["WORKLOAD", "NODE"], *([render.cell(name), node] for name, node in report.placements.items())]
        )
    counts = Counter(report.placements.values())
    busiest = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:BUSIEST]
    rows = [["NODE", "PLACED"], *([node, f"{count:,}"] for node, count in busiest)]
    rest = len(counts) - len(busiest)
    return [
        *render.table(rows),
        *([f"and {rest:,} more nodes; -o wide lists every placement"] if rest else []),
    ]


def _displaced(report: Report) -> list[str]:
    if not report.displaced:
        return []
    rows = [
        [name, each.node, each.by, report.placements.get(name, "<none>")]
        for name, each in report.displaced.items()
    ]
    return render.table([["DISPLACED", "WAS ON", "BY", "NOW ON"], *rows])


def _usage(report: Report) -> list[str]:
    if not report.usage:
        return []
    heads = ["RESOURCE", "TOTAL", "BEFORE", "AFTER", "MEAN", "FULLEST"]
    return render.table([heads, *(_usage_row(each) for each in report.usage)])


def _fullness(report: Report) -> list[str]:
    fullest = sorted(report.fullness.items(), key=lambda pair: (-pair[1], pair[0]))
    return (
        render.table([["NODE", "UTILISATION"], *([node, f"{share:.1%}"] for node, share in fullest)])
        if fullest
        else []
    )


def _usage_row(each: Usage) -> list[str]:
    before = f"{amount(each.resource, each.before)} ({each.share_before:.1%})"
    after = f"{amount(each.resource, each.after)} ({each.share_after:.1%})"
    return [
        each.resource,
        amount(each.resource, each.total),
        before,
        after,
        f"{each.mean:.1%}",
        f"{each.highest:.1%}",
    ]


def amount(resource: str, value: int) -> str:
    """Sums over many nodes: 30,286.75 cores."""
    if resource in ("cpu", "gpu"):
        return f"{Decimal(value) / 1000:,f}"
    return (
        approximate_bytes(value) if resource in BYTES or resource.startswith("hugepages-") else f"{value:,}"
    )


def _unplaced(report: Report, wide: bool, columns: int) -> list[str]:
    if not report.unplaced:
        return []
    most_first = sorted(report.unplaced, key=lambda each: -len(each.names))
    shown, rest = (most_first, []) if wide else (most_first[:FEW], _alike(most_first[FEW:]))
    listed = [*shown, *rest] if len(rest) <= KINDS else shown
    rows = [[f"{len(each.names):,}", _named(each.names, wide), each.reason] for each in listed]
    hidden = sum(len(each.names) for each in (*shown, *rest)) - sum(len(each.names) for each in listed)
    told = _folded([["NOT PLACED", "WORKLOADS", "WHY"], *rows], columns)
    return [*told, *([f"and {hidden:,} more workloads; -o wide lists all"] if hidden else [])]


def _alike(groups: Sequence[Unplaced]) -> list[Unplaced]:
    """Where there are too many to list: one for each kind of trouble, without the counts and amounts that differ."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        kinds.setdefault(group.kinds or (group.reason,), []).extend(group.names)
    return [Unplaced(tuple(names), "; ".join(kind), kind) for kind, names in kinds.items()]


def _folded(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """A table whose last column goes on below where it would be too wide."""
    if not columns:
        return render.table(rows)
    room = max(NARROWEST, columns - sum(render.widths([row[:-1] for row in rows])))
    folded: list[Sequence[str]] = []
    for *before, last in rows:
        first, *more = _wrapped(last, room)
        folded += [[*before, first], *([*[""] * len(before), part] for part in more)]
    return render.table(folded)


def _wrapped(text: str, columns: int) -> list[str]:
    return (
        textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False)
        if columns and text
        else [text]
    )


def _named(names: Sequence[str], wide: bool) -> str:
    shown = names if wide else names[:NAMED]
    return ", ".join(shown) + (", …" if len(shown) < len(names) else "")


def _explained(report: Report, wide: bool, columns: int) -> list[str]:
    found = report.explained
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
        [name, "; ".join(_short(each) for each in reasons)]
        for name, reasons in _shown(found["refused"], wide)
    ]
    hidden = len(found["refused"]) - len(refused) + 1
    told = _wrapped(f"{found['ask']}: {found['summary']}", columns)
    told += ["", *render.table(rows)] if len(rows) > 1 else []
    told += ["", *_folded(refused, columns)] if len(refused) > 1 else []
    return [*told, *([f"and {hidden:,} more; -o wide lists all"] if hidden else [])]


def _shown(refused: dict[str, Any], wide: bool) -> list[tuple[str, Any]]:
    return list(refused.items()) if wide else list(refused.items())[:FEW]


def _short(shortfall: dict[str, str]) -> str:
    return str(Shortfall(**shortfall))


def as_json(report: Report, profile: str, seed: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "profile": profile,
        "seed": seed,
        "nodes": report.nodes,
        "placed": len(report.placements),
        "notPlaced": report.decided - len(report.placements),
        "bound": report.bound,
        "stopped": report.stopped,
        "placements": dict(report.placements),
        "unplaced": [
            {"count": len(each.names), "reason": each.reason, "workloads": list(each.names)}
            for each in report.unplaced
        ],
        "displaced": {name: {"node": each.node, "by": each.by} for name, each in report.displaced.items()},
        "utilisation": {each.resource: _usage_json(each) for each in report.usage},
        "qos": {name: each.name for name, each in report.qos.items()},
        "fullness": {node: round(share, 6) for node, share in report.fullness.items()},
        "warnings": [{"kind": each.kind, "name": each.name, "what": each.what} for each in report.odd],
    }
    return document if report.explained is None else {**document, "explained": report.explained}


def _usage_json(each: Usage) -> dict[str, Any]:
    numbers = {"total": each.total, "before": each.before, "after": each.after}
    return {
        **numbers,
        "share": round(each.share_after, 6),
        "mean": round(each.mean, 6),
        "max": round(each.highest, 6),
    }
