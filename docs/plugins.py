"""The page of the plugins: what every filter rejects, what every score prefers, and the weights."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from docs.markdown import table
from lattice.placement.greedy import profile as fleet
from lattice.scheduling.cycle import profile as nodes

SCOPES = {
    "fixed": "lasting facts of the candidate",
    "row": "the candidate and what is on it",
    "domain": "everything in the candidate's topology domain",
    "table": "all candidates together",
}
FLEET_WEIGHTS = (
    (fleet.OwnedFirst(), f"{fleet.OWNED_FIRST_WEIGHT:g}"),
    (fleet.OverflowOrder(), f"{fleet.OVERFLOW_ORDER_WEIGHT:g}"),
    (fleet.Proximity(), f"{fleet.PROXIMITY_WEIGHT:g}"),
    (fleet.SoftSpread(), f"{fleet.SOFT_SPREAD_WEIGHT:g}"),
    (fleet.PreferredAffinity(), f"{fleet.PREFERRED_AFFINITY_WEIGHT:g}"),
    (fleet.Cost(True), "by `preferences[].weight` of the policies, 1 in all; 1 if no policy has a wish"),
    (fleet.LeastAllocated(True), "by `preferences[].weight` of the policies, 1 in all"),
    (
        fleet.StaticHeadroom(),
        f"{fleet.STATIC_HEADROOM_WEIGHT:g}, unless a policy sorts by available capacity",
    ),
)


def plugins() -> Iterator[str]:
    yield "# Plugins"
    yield (
        "A decision is the same at both levels: filters rule candidates out, each with a reason; scores rank the rest; the best wins. "
        "`lattice why` shows the filters and scores of a service, `lattice simulate --explain` those of a workload."
    )
    yield "## Choosing pools for a service"
    yield (
        "Candidates are pools, regions of clouds and data centers. The filters cannot be turned off. Each score is from 0 to 1; "
        "one that weighs more goes before all that weigh less together."
    )
    for fleet_filter in fleet.FILTERS:
        yield from _plugin(fleet_filter, "filter")
    for score, weight in FLEET_WEIGHTS:
        yield from _plugin(score, "score", f"- Weight: {weight}")
    yield "## Choosing a node for a workload"
    yield (
        "Candidates are the nodes of one cluster; of workloads that belong to no service, all nodes. A candidate that several filters "
        "rule out is counted for the first of them in this order. [Profiles](../guides/simulate.md#write-your-own-profile) say which "
        "scores count how much, and may leave filters out."
    )
    for node_filter in nodes.FILTERS.values():
        vital = "- Cannot be disabled." if node_filter.name in nodes.REQUIRED_FILTERS else ""
        yield from _plugin(node_filter, "filter", _wakes(node_filter), vital)
    for node_score in nodes.SCORES.values():
        yield from _plugin(node_score, "score")
    yield "## Weights in the presets"
    yield table(
        ("score", *nodes.PRESETS),
        (
            [f"`{name}`", *(_weight(preset, name) for preset in nodes.PRESETS.values())]
            for name in nodes.SCORES
        ),
    )


def names() -> list[str]:
    """Every plugin by its heading on the page."""
    groups: list[tuple[Iterable[Any], str]] = [
        (fleet.FILTERS, "filter"),
        ([score for score, _ in FLEET_WEIGHTS], "score"),
        (nodes.FILTERS.values(), "filter"),
        (nodes.SCORES.values(), "score"),
    ]
    titles: list[str] = []
    for group, role in groups:
        titles += (_title(plugin, role) for plugin in group)
    return titles


def _title(plugin: Any, role: str) -> str:
    return f"{plugin.name} ({'pools' if '.placement.' in type(plugin).__module__ else 'nodes'}, {role})"


def _plugin(plugin: Any, role: str, *facts: str) -> Iterator[str]:
    module = inspect.getmodule(type(plugin))
    summary = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0]  # type: ignore[union-attr]
    yield f"### {_title(plugin, role)}"
    words = summary.partition(": ")[2].replace("\n", " ")
    yield words[:1].upper() + words[1:]
    counted = inspect.getdoc(plugin.score) if role == "score" else ""
    lines: Iterable[str] = (
        f"- Counts: {counted.replace(chr(10), ' ')}" if counted else "",
        f"- Looks at: {SCOPES[plugin.scope]}",
        *facts,
    )
    yield "\n".join(line for line in lines if line)


def _wakes(plugin: Any) -> str:
    changes = ", ".join(sorted(change.value for change in plugin.wakes_on))
    return f"- A workload that it rejects on every node is tried again after: {changes}"


def _weight(profile: nodes.ProfileSpec, score: str) -> str:
    return f"{profile.scores[score]:g}" if profile.scores.get(score) else ""
