"""The differences between two plans of the same manifests, computed from their documents."""

from collections.abc import Callable, Mapping
from typing import Any

from lattice.errors import Malformed
from lattice.kinds.meta.quantity import format_per_hour

PlanDocument = Mapping[str, Any]
# The compared figures of one entry, by their label.
EntrySummary = Mapping[str, str]


def plan_differences(earlier: PlanDocument, later: PlanDocument) -> list[str]:
    """Return a line per new, missing or changed entry; for equal documents, one line that the manifests
    differ.

    Raises Malformed if a document is not a plan.
    """
    try:
        lines: list[str] = []
        for section, (noun, summarize) in SECTIONS.items():
            old_entries, new_entries = (
                {entry["name"]: summarize(entry) for entry in document.get(section) or ()}
                for document in (earlier, later)
            )
            for name in sorted({*old_entries, *new_entries}):
                change = _describe_change(old_entries.get(name), new_entries.get(name))
                lines += [f"{noun} {name}: {change}"] if change else []
    except (KeyError, TypeError, AttributeError) as e:
        raise Malformed(
            "the document to compare with is not a plan",
            fix="pass the output of `lattice plan -o json`, or the id of a plan",
        ) from e
    return lines or ["the manifests differ from the planned manifests"]


def _describe_change(old: EntrySummary | None, new: EntrySummary | None) -> str:
    """The changed figures of an entry; empty for an unchanged entry."""
    if old is None or new is None:
        return "was not in the plan" if old is None else "is no longer in the plan"
    changes = []
    for label, value in old.items():
        if value != new[label]:
            changes.append(f"{label} was {value}, now {new[label]}".strip())
    return "; ".join(changes)


def summarize_service(entry: PlanDocument) -> EntrySummary:
    cost = entry["cost"]
    return {
        "": _places(entry["after"]),
        "before": _places(entry["before"]),
        "cost": format_per_hour(cost["after"]["hourlyMicros"]),
        "cost before": format_per_hour(cost["before"]["hourlyMicros"]),
        "placement": "complete" if entry["isPlaced"] else "not complete",
    }


def _places(places: list[PlanDocument]) -> str:
    return (
        ", ".join(f"{place['replicas']:,} in {place['cluster']} ({place['class']})" for place in places)
        or "nowhere"
    )


def summarize_cluster(entry: PlanDocument) -> EntrySummary:
    return {"": _machines(entry["after"]), "before": _machines(entry["before"])}


def _machines(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {name}" for name, count in sorted(counts.items())) or "none"


def summarize_pool(entry: PlanDocument) -> EntrySummary:
    return {
        "": format_per_hour(entry["after"]["hourlyMicros"]),
        "before": format_per_hour(entry["before"]["hourlyMicros"]),
    }


def summarize_move(entry: PlanDocument) -> EntrySummary:
    return {
        "": "nowhere" if entry["to"] is None else _places(entry["to"]),
        "why": "; ".join(entry["reasons"]),
    }


def summarize_unplaced(entry: PlanDocument) -> EntrySummary:
    return {
        "": f"{entry['verdict']} ({entry['reason']})",
        "the number of unplaced replicas": f"{entry['missing']:,}",
    }


SECTIONS: Mapping[str, tuple[str, Callable[[PlanDocument], EntrySummary]]] = {
    "services": ("service", summarize_service),
    "clusters": ("cluster", summarize_cluster),
    "pools": ("cost of pool", summarize_pool),
    "wouldMove": ("move of", summarize_move),
    "unplaced": ("verdict on", summarize_unplaced),
}
