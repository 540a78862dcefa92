"""Builders of node tables, demands and constraints for tests of scheduling plugins."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lattice.kinds.constraints import (
    NodeTerm,
    PreferredNodes,
    PreferredWorkloads,
    Spread,
    Taint,
    Toleration,
    WorkloadTerm,
)
from lattice.kinds.container import parse_amounts
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import MILLI_PER_GPU, Demands, GpuNeed, WorkloadAsk

ROOM = {"cpu": 4, "memory": "16Gi"}


def a_node_info(name: str = "n1", room: Mapping[str, Any] | None = None, **facts: Any) -> NodeInfo:
    """`room` in manifest notation; labels by keyword `labels`, topology by zone=, region=, cluster=."""
    labels = dict(facts.pop("labels", {}))
    for key in ("zone", "region", "cluster", "pool", "provider"):
        if key in facts:
            labels[key] = facts.pop(key)
    gpus = facts.pop("gpus", ())
    gpus = tuple((gpu, MILLI_PER_GPU) if isinstance(gpu, str) else gpu for gpu in gpus)
    return NodeInfo(
        name,
        parse_amounts(dict(ROOM if room is None else room)),
        {**labels, "node": name},
        gpus=gpus,
        **facts,
    )


def nodes(*facts: NodeInfo, seed: int = 0, load: bool = True) -> NodeTable:
    table = NodeTable(seed)
    if load:
        table.load(facts)
    else:
        for fact in facts:
            table.put_node(fact)
    return table


def workload_demands(requests: Mapping[str, Any] | None = None, **demands: Any) -> Demands:
    """`requests` in manifest notation; labels and node_selector as mappings; gpu as a number, "500m" or a
    GpuNeed."""
    wanted = parse_amounts(dict({"cpu": 1, "memory": "1Gi"} if requests is None else requests))
    for key in ("labels", "node_selector"):
        if key in demands:
            demands[key] = tuple(sorted(demands[key].items()))
    if "gpu" in demands and not isinstance(demands["gpu"], GpuNeed | None):
        milli = parse_amounts({"gpu": demands["gpu"]})["gpu"]
        models = tuple(demands.pop("models", ()))
        whole = milli >= MILLI_PER_GPU
        demands["gpu"] = GpuNeed(
            milli // MILLI_PER_GPU if whole else 1, MILLI_PER_GPU if whole else milli, models
        )
    return Demands(
        requests=tuple(sorted((name, amount) for name, amount in wanted.items() if amount)), **demands
    )


def ask(
    table: NodeTable, demands: Demands | None = None, name: str = "default/w", priority: int = 0
) -> WorkloadAsk:
    return table.make_ask(name, workload_demands() if demands is None else demands, priority)


def place(table: NodeTable, demands: Demands, *on: str) -> None:
    """Place one such workload on each of the nodes, even beyond their capacity."""
    for node in on:
        name = f"{demands.namespace}/placed-{len(table.placements)}"
        table.admit(table.make_ask(name, demands), table.row_of[node])


def ruled_out(plugin: Any, table: NodeTable, demands: Demands) -> dict[str, list[str]]:
    """By node, the text of every reason of the filter."""
    asked = ask(table, demands)
    results: dict[str, list[str]] = {}
    if not plugin.applies(asked):
        return results
    for reason, mask in plugin.filter(asked, table).items():
        for name, row in table.row_of.items():
            if mask[row]:
                results.setdefault(name, []).append(reason.summary())
    return results


def scores(plugin: Any, table: NodeTable, demands: Demands) -> dict[str, float]:
    asked = ask(table, demands)
    values = plugin.score(asked, table)
    return {name: round(float(values[row]), 4) for name, row in sorted(table.row_of.items())}


def requirement(key: str, operator: Any, *values: str) -> Requirement:
    return Requirement(key=key, operator=operator, values=values)


def node_term(*requirements: Requirement) -> NodeTerm:
    return NodeTerm(match_expressions=requirements)


def node_preference(weight: int, *requirements: Requirement) -> PreferredNodes:
    return PreferredNodes(weight=weight, term=node_term(*requirements))


def near(topology_key: str, **labels: str) -> WorkloadTerm:
    """The term of an affinity, or of an anti-affinity."""
    return WorkloadTerm(selector=LabelSelector(match_labels=labels), topology_key=topology_key)


def workload_preference(weight: int, topology_key: str, **labels: str) -> PreferredWorkloads:
    return PreferredWorkloads(weight=weight, term=near(topology_key, **labels))


def a_spread(
    topology_key: str, max_skew: int = 1, *, soft: bool = False, labels: Mapping[str, str] | None = None
) -> Spread:
    selector = None if labels is None else LabelSelector(match_labels=dict(labels))
    when = "ScheduleAnyway" if soft else "DoNotSchedule"
    return Spread(topology_key=topology_key, max_skew=max_skew, when_unsatisfiable=when, selector=selector)


def a_taint(key: str, effect: Any = "NoSchedule", value: str = "") -> Taint:
    return Taint(key=key, effect=effect, value=value)


def a_toleration(key: str = "", operator: Any = "Equal", **rest: Any) -> Toleration:
    return Toleration(key=key, operator=operator, **rest)


def node_names(table: NodeTable, rows: Iterable[int] | Sequence[int]) -> list[str]:
    return [table.names[row] for row in rows]
