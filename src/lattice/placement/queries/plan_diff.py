"""How does a plan differ from an earlier one with the same manifests? Only what is another now, from the two documents alone."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lattice.errors import Malformed
from lattice.placement.inputs.ledger_math import format_per_hour

PlanDocument = Mapping[str, Any]
EntrySummary = Mapping[str, str]  # what is told of one entry, by what it is about


def plan_differences(then: PlanDocument, now: PlanDocument) -> list[str]:
    """What is new, gone or other; equal documents of other manifests say so."""
    try:
        found = [line for section in SECTIONS for line in _section(section, then, now)]
    except (KeyError, TypeError, AttributeError) as e:
        raise Malformed(
            "what it is compared with is not a plan",
            fix="give one as `lattice plan -o json` prints it, or its id",
        ) from e
    return found or ["the manifests are others than those that were planned"]


def _section(section: str, then: PlanDocument, now: PlanDocument) -> Iterator[str]:
    word, said = SECTIONS[section]
    before, after = (
        {each["name"]: said(each) for each in document.get(section) or ()} for document in (then, now)
    )
    for name in sorted({*before, *after}):
        if how := _describe_change(before.get(name), after.get(name)):
            yield f"{word} {name}: {how}"


def _describe_change(before: EntrySummary | None, after: EntrySummary | None) -> str:
    if before is None or after is None:
        return "was not in the plan" if before is None else "is not in it any more"
    other = [(what, old, after[what]) for what, old in before.items() if old != after[what]]
    return "; ".join(f"{what} was {old}, now {new}".strip() for what, old, new in other)


def _service(each: PlanDocument) -> EntrySummary:
    cost = each["cost"]
    return {
        "": _places(each["after"]),
        "before": _places(each["before"]),
        "cost": format_per_hour(cost["after"]["hourlyMicros"]),
        "cost before": format_per_hour(cost["before"]["hourlyMicros"]),
        "its placement": "complete" if each["isPlaced"] else "not complete",
    }


def _places(found: list[PlanDocument]) -> str:
    return (
        ", ".join(f"{each['replicas']:,} in {each['cluster']} ({each['class']})" for each in found)
        or "nowhere"
    )


def _cluster(each: PlanDocument) -> EntrySummary:
    return {"": _machines(each["after"]), "before": _machines(each["before"])}


def _machines(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {name}" for name, count in sorted(counts.items())) or "none"


def _pool(each: PlanDocument) -> EntrySummary:
    return {
        "": format_per_hour(each["after"]["hourlyMicros"]),
        "before": format_per_hour(each["before"]["hourlyMicros"]),
    }


def _moving(each: PlanDocument) -> EntrySummary:
    return {"": "nowhere" if each["to"] is None else _places(each["to"]), "why": "; ".join(each["reasons"])}


def _unplaced(each: PlanDocument) -> EntrySummary:
    return {
        "": f"{each['verdict']} ({each['reason']})",
        "the number of replicas without a place": f"{each['missing']:,}",
    }


SECTIONS: Mapping[str, tuple[str, Callable[[PlanDocument], EntrySummary]]] = {
    "services": ("service", _service),
    "clusters": ("cluster", _cluster),
    "pools": ("cost of pool", _pool),
    "wouldMove": ("move of", _moving),
    "unplaced": ("verdict on", _unplaced),
}
