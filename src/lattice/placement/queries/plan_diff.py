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
                old, new = old_entries.get(name), new_entries.get(name)
                changes = []
                if old is None:
                    changes.append("was not in the plan")
                elif new is None:
                    changes.append("is no longer in the plan")
                else:
                    for label, value in old.items():
                        if value != new[label]:
                            changes.append(f"{label} was {value}, now {new[label]}".strip())
                if changes:
                    lines.append(f"{noun} {name}: {'; '.join(changes)}")
    except (KeyError, TypeError, AttributeError) as e:
        raise Malformed(
            "the document to compare with is not a plan",
            fix="pass the output of `lattice plan -o json`, or the id of a plan",
        ) from e
    return lines or ["the manifests differ from the planned manifests"]


def _summarize_service(entry: PlanDocument) -> EntrySummary:
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


def _machines(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {name}" for name, count in sorted(counts.items())) or "none"


def _summarize_pool(entry: PlanDocument) -> EntrySummary:
    return {
        "": format_per_hour(entry["after"]["hourlyMicros"]),
        "before": format_per_hour(entry["before"]["hourlyMicros"]),
    }


def _summarize_move(entry: PlanDocument) -> EntrySummary:
    return {
        "": "nowhere" if entry["to"] is None else _places(entry["to"]),
        "why": "; ".join(entry["reasons"]),
    }


def _summarize_unplaced(entry: PlanDocument) -> EntrySummary:
    return {
        "": f"{entry['verdict']} ({entry['reason']})",
        "the number of unplaced replicas": f"{entry['missing']:,}",
    }


SECTIONS: Mapping[str, tuple[str, Callable[[PlanDocument], EntrySummary]]] = {
    "services": ("service", _summarize_service),
    "clusters": (
        "cluster",
        lambda entry: {"": _machines(entry["after"]), "before": _machines(entry["before"])},
    ),
    "pools": ("cost of pool", _summarize_pool),
    "wouldMove": ("move of", _summarize_move),
    "unplaced": ("verdict on", _summarize_unplaced),
}
