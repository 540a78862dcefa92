"""Which nodes can take a workload, found by the slowest and most obvious loops. Shares nothing with the scheduler but the manifest classes."""

import re
from collections.abc import Sequence

from lattice.kinds.selector import LabelSelector
from lattice.scheduling.ask import Demands
from lattice.scheduling.facts import NodeFacts

Placed = Sequence[tuple[Demands, str]]  # what, and on which node


def feasible(nodes: Sequence[NodeFacts], placed: Placed, wanted: Demands) -> set[str]:
    return {node.name for node in nodes if can_take(node, nodes, placed, wanted)}


def can_take(node: NodeFacts, nodes: Sequence[NodeFacts], placed: Placed, wanted: Demands) -> bool:
    here = [demands for demands, name in placed if name == node.name]
    return (
        is_usable(node)
        and is_allowed(node, wanted)
        and tolerates(node, wanted)
        and suits(node, wanted)
        and has_room(node, here, wanted)
        and has_gpus(node, here, wanted)
        and not any(set(each.host_ports) & set(wanted.host_ports) for each in here)
        and neighbours_agree(node, nodes, placed, wanted)
        and stays_even(node, nodes, placed, wanted)
    )


def is_usable(node: NodeFacts) -> bool:
    return node.ready and not node.cordoned and not node.draining


def is_allowed(node: NodeFacts, wanted: Demands) -> bool:
    """By cluster, node selector and node affinity."""
    if wanted.cluster and node.labels.get("cluster") != wanted.cluster:
        return False
    if any(node.labels.get(key) != value for key, value in wanted.node_selector):
        return False
    return not wanted.node_terms or any(term.matches(dict(node.labels)) for term in wanted.node_terms)


def tolerates(node: NodeFacts, wanted: Demands) -> bool:
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not any(each.tolerates(taint) for each in wanted.tolerations):
            return False
    return True


def suits(node: NodeFacts, wanted: Demands) -> bool:
    """By runtime, licence, image and the place of its volumes."""
    if wanted.runtime and node.runtimes and wanted.runtime not in node.runtimes:
        return False
    if wanted.licences and not set(wanted.licences) & node.licences:
        return False
    for volume in wanted.volumes:
        if (volume.zone and node.labels.get("zone") != volume.zone) or (volume.region and node.labels.get("region") != volume.region):
            return False
    return wanted.image is None or not wanted.image.pattern or bool(re.fullmatch(wanted.image.pattern.replace("*", ".*"), node.image))


def has_room(node: NodeFacts, here: Sequence[Demands], wanted: Demands) -> bool:
    for resource, amount in wanted.requests:
        used = sum(dict(each.requests).get(resource, 0) for each in here)
        if used + amount > node.totals.get(resource, 0):
            return False
    first, last = node.ports or (30000, 32767)
    if wanted.ports and sum(each.ports for each in here) + wanted.ports > node.totals.get("ports", last - first + 1):
        return False
    return "workloads" not in node.totals or len(here) < node.totals["workloads"]


def has_gpus(node: NodeFacts, here: Sequence[Demands], wanted: Demands) -> bool:
    """Each workload that is here took the fullest GPU with room for its part, or the first wholly free ones, in order of arrival."""
    free = [milli for _, milli in node.gpus]
    for each in here:
        if each.gpu is not None and each.gpu.milli == 1000:
            for _ in range(each.gpu.count):
                free[free.index(1000)] = 0
        elif each.gpu is not None:
            room = [number for number, milli in enumerate(free) if milli >= each.gpu.milli]
            free[min(room, key=lambda number: free[number])] -= each.gpu.milli
    if wanted.gpu is None:
        return True
    if wanted.gpu.models and not any(model in wanted.gpu.models for model, _ in node.gpus):
        return False
    return sum(milli >= wanted.gpu.milli for milli in free) >= wanted.gpu.count


def count_near(node: NodeFacts, key: str, nodes: Sequence[NodeFacts], matching: Sequence[str]) -> int:
    """How many of `matching`, given by the nodes they are on, share this node's value of a topology key."""
    if key not in node.labels:
        return 0
    value = {each.name: each.labels.get(key) for each in nodes}
    return sum(value[name] == node.labels[key] for name in matching)


def where(placed: Placed, namespace: str, selector: LabelSelector) -> list[str]:
    return [name for each, name in placed if each.namespace == namespace and selector.matches(dict(each.labels))]


def neighbours_agree(node: NodeFacts, nodes: Sequence[NodeFacts], placed: Placed, wanted: Demands) -> bool:
    keys = {key for each in nodes for key in each.labels}
    for term in wanted.near:
        there = where(placed, wanted.namespace, term.selector)
        anywhere = any(count_near(each, term.topology_key, nodes, there) for each in nodes)
        alone = not anywhere and term.selector.matches(dict(wanted.labels))
        if term.topology_key not in node.labels or not (alone or count_near(node, term.topology_key, nodes, there)):
            return False
    for term in wanted.far:
        if term.topology_key not in keys or count_near(node, term.topology_key, nodes, where(placed, wanted.namespace, term.selector)):
            return False
    for each, name in placed:
        for term in each.far:
            meant = each.namespace == wanted.namespace and term.selector.matches(dict(wanted.labels))
            if meant and count_near(node, term.topology_key, nodes, [name]):
                return False
    return True


def stays_even(node: NodeFacts, nodes: Sequence[NodeFacts], placed: Placed, wanted: Demands) -> bool:
    for spread in wanted.spread:
        if spread.when_unsatisfiable != "DoNotSchedule":
            continue
        if spread.topology_key not in node.labels:
            return False
        if spread.selector is not None:
            there = where(placed, wanted.namespace, spread.selector)
            itself = spread.selector.matches(dict(wanted.labels))
        else:
            there = [
                name for each, name in placed if wanted.service and (each.namespace, each.service) == (wanted.namespace, wanted.service)
            ]
            itself = bool(wanted.service)
        eligible = [each for each in nodes if is_usable(each) and is_allowed(each, wanted) and spread.topology_key in each.labels]
        fewest = min((count_near(each, spread.topology_key, nodes, there) for each in eligible), default=0)
        if itself + count_near(node, spread.topology_key, nodes, there) - fewest > spread.max_skew and (itself or there):
            return False
    return True
