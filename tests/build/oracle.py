"""A naive scheduler oracle: the nodes that can take a workload, by plain loops that share only the manifest
classes with the scheduler."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.kinds.constraints import MachineImage, NodeTerm
from lattice.kinds.meta.selector import LabelSelector, Requirement
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.workload_ask import Demands


@dataclass(frozen=True)
class Placed:
    demands: Demands
    node: str
    gpus: tuple[int, ...] = ()  # by index on the node
    ports: tuple[int, ...] = ()  # allocated


class ClusterOracle:
    """The nodes of a cluster and their placements, updated event by event."""

    def __init__(self, nodes: Iterable[NodeInfo]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.placed: dict[str, Placed] = {}

    def feasible(self, wanted: Demands) -> set[str]:
        nodes, placed = list(self.nodes.values()), list(self.placed.values())
        return {node.name for node in nodes if can_take(node, nodes, placed, wanted)}

    def place(self, name: str, demands: Demands, node: str) -> None:
        """Assign the fullest GPU with capacity for a share, whole GPUs in order, and the lowest free ports."""
        gpus: tuple[int, ...] = ()
        here = [item for item in self.placed.values() if item.node == node]
        if demands.gpu is not None:
            room = gpu_room(self.nodes[node], here, demands)
            gpus = tuple(
                sorted(
                    number
                    for _, number in sorted((free, number) for number, free in room.items())[
                        : demands.gpu.count
                    ]
                )
            )
        free = sorted(set(port_range(self.nodes[node])) - fixed_numbers([demands]) - numbers_in_use(here))
        self.placed[name] = Placed(demands, node, gpus, tuple(free[: demands.ports]))

    def remove(self, name: str) -> None:
        del self.placed[name]

    def remove_node(self, node: str) -> None:
        """Remove the node and its placements."""
        del self.nodes[node]
        self.placed = {name: item for name, item in self.placed.items() if item.node != node}


def can_take(node: NodeInfo, nodes: Sequence[NodeInfo], placed: Sequence[Placed], wanted: Demands) -> bool:
    on_it = [item for item in placed if item.node == node.name]
    here = [item.demands for item in on_it]
    return (
        is_usable(node)
        and is_allowed(node, wanted)
        and tolerates(node, wanted)
        and machine_allows(node, wanted)
        and has_room(node, here, wanted)
        and has_ports(node, on_it, wanted)
        and (wanted.gpu is None or len(gpu_room(node, on_it, wanted)) >= wanted.gpu.count)
        and affinity_allows(node, nodes, placed, wanted)
        and spread_allows(node, nodes, placed, wanted)
    )


def is_usable(node: NodeInfo) -> bool:
    return node.is_ready and not node.is_cordoned and not node.is_draining


def is_allowed(node: NodeInfo, wanted: Demands) -> bool:
    """Whether cluster, node selector and node affinity allow the node."""
    if wanted.cluster and node.labels.get("cluster") != wanted.cluster:
        return False
    if any(node.labels.get(key) != value for key, value in wanted.node_selector):
        return False
    return not wanted.node_terms or any(term_matches(term, node.labels) for term in wanted.node_terms)


def term_matches(term: NodeTerm, labels: Mapping[str, str]) -> bool:
    return all(requirement_matches(match_expression, labels) for match_expression in term.match_expressions)


def requirement_matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether the labels satisfy one requirement."""
    value, values = labels.get(requirement.key), requirement.values
    if requirement.operator == "In":
        return value is not None and value in values
    if requirement.operator == "NotIn":
        return value is None or value not in values
    if requirement.operator == "Exists":
        return value is not None
    if requirement.operator == "DoesNotExist":
        return value is None
    if value is None or not re.fullmatch("-?[0-9]+", value):
        return False
    return int(value) > int(values[0]) if requirement.operator == "Gt" else int(value) < int(values[0])


def selector_matches(selector: LabelSelector, labels: Iterable[tuple[str, str]]) -> bool:
    """Whether the labels satisfy every label and requirement of the selector."""
    result = dict(labels)
    for key, value in selector.match_labels.items():
        if key not in result or result[key] != value:
            return False
    return all(
        requirement_matches(match_expression, result) for match_expression in selector.match_expressions
    )


def tolerates(node: NodeInfo, wanted: Demands) -> bool:
    for taint in node.taints:
        if taint.effect == "PreferNoSchedule":
            continue
        borne = False
        for toleration in wanted.tolerations:
            same_effect = toleration.effect is None or toleration.effect == taint.effect
            if toleration.operator == "Exists":
                borne = borne or (same_effect and (not toleration.key or toleration.key == taint.key))
            else:
                borne = borne or (
                    same_effect and toleration.key == taint.key and toleration.value == taint.value
                )
        if not borne:
            return False
    return True


def machine_allows(node: NodeInfo, wanted: Demands) -> bool:
    """Whether runtime, licence, image and volume zones allow the node."""
    if wanted.runtime and node.runtimes and wanted.runtime not in node.runtimes:
        return False
    if wanted.licences and not set(wanted.licences) & node.licences:
        return False
    for volume in wanted.volumes:
        if (volume.zone and node.labels.get("zone") != volume.zone) or (
            volume.region and node.labels.get("region") != volume.region
        ):
            return False
    return wanted.image is None or has_image(node.image, wanted.image)


def has_image(image: str, wanted: MachineImage) -> bool:
    """Images in tests are named name-1.2; versions compare number by number, missing numbers count as 0."""
    if wanted.pattern and not re.fullmatch(wanted.pattern.replace("*", ".*"), image):
        return False
    if not wanted.min_version:
        return True
    if not image:
        return False
    have, need = (
        [*map(int, text.split(".")), 0, 0] for text in (image.rpartition("-")[2], wanted.min_version)
    )
    return have[:3] >= need[:3]


def has_room(node: NodeInfo, here: Sequence[Demands], wanted: Demands) -> bool:
    for resource, amount in wanted.requests:
        used = sum(dict(item.requests).get(resource, 0) for item in here)
        if used + amount > node.allocatable.get(resource, 0):
            return False
    return "workloads" not in node.allocatable or len(here) < node.allocatable["workloads"]


def port_range(node: NodeInfo) -> range:
    first, last = node.port_range or (30000, 32767)
    return range(first, last + 1)


def fixed_numbers(demands: Iterable[Demands]) -> set[int]:
    return {number for demand in demands for number, _ in demand.host_ports}


def numbers_in_use(on_it: Sequence[Placed]) -> set[int]:
    return fixed_numbers(item.demands for item in on_it) | {number for item in on_it for number in item.ports}


def has_ports(node: NodeInfo, on_it: Sequence[Placed], wanted: Demands) -> bool:
    """An allocated port is taken for both protocols; each number of the range counts once."""
    for number, protocol in wanted.host_ports:
        if any((number, protocol) in item.demands.host_ports or number in item.ports for item in on_it):
            return False
    ports = port_range(node)
    most = min(len(ports), node.allocatable.get("ports", len(ports)))
    taken = sum(item.demands.ports for item in on_it) + len(
        fixed_numbers(item.demands for item in on_it) & set(ports)
    )
    more = wanted.ports + len((fixed_numbers([wanted]) - numbers_in_use(on_it)) & set(ports))
    return not more or taken + more <= most


def gpu_room(node: NodeInfo, on_it: Sequence[Placed], wanted: Demands) -> dict[int, int]:
    """By GPU number, the free amount of each GPU of an allowed model with enough capacity."""
    need = wanted.gpu
    results = {}
    for number, (model, milli) in enumerate(node.gpus):
        used = sum(
            item.demands.gpu.milli for item in on_it if item.demands.gpu is not None and number in item.gpus
        )
        if need is not None and milli - used >= need.milli and (not need.models or model in need.models):
            results[number] = milli - used
    return results


def count_near(node: NodeInfo, key: str, nodes: Sequence[NodeInfo], matching: Sequence[str]) -> int:
    """How many of `matching`, given by the nodes they are on, share this node's value of a topology key."""
    if key not in node.labels:
        return 0
    value = {node.name: node.labels.get(key) for node in nodes}
    return sum(value[name] == node.labels[key] for name in matching)


def nodes_of_matching(placed: Sequence[Placed], namespace: str, selector: LabelSelector) -> list[str]:
    return [
        item.node
        for item in placed
        if item.demands.namespace == namespace and selector_matches(selector, item.demands.labels)
    ]


def affinity_allows(
    node: NodeInfo, nodes: Sequence[NodeInfo], placed: Sequence[Placed], wanted: Demands
) -> bool:
    for term in wanted.affinity_terms:
        there = nodes_of_matching(placed, wanted.namespace, term.selector)
        anywhere = any(count_near(node, term.topology_key, nodes, there) for node in nodes)
        alone = not anywhere and selector_matches(term.selector, wanted.labels)
        if term.topology_key not in node.labels or not (
            alone or count_near(node, term.topology_key, nodes, there)
        ):
            return False
    for term in wanted.anti_affinity_terms:
        if term.topology_key not in node.labels or count_near(
            node, term.topology_key, nodes, nodes_of_matching(placed, wanted.namespace, term.selector)
        ):
            return False
    for item in placed:
        for term in item.demands.anti_affinity_terms:
            meant = item.demands.namespace == wanted.namespace and selector_matches(
                term.selector, wanted.labels
            )
            if meant and count_near(node, term.topology_key, nodes, [item.node]):
                return False
    return True


def spread_allows(
    node: NodeInfo, nodes: Sequence[NodeInfo], placed: Sequence[Placed], wanted: Demands
) -> bool:
    for spread in wanted.spread:
        if spread.when_unsatisfiable != "DoNotSchedule":
            continue
        if spread.topology_key not in node.labels:
            return False
        if spread.selector is not None:
            there = nodes_of_matching(placed, wanted.namespace, spread.selector)
            itself = selector_matches(spread.selector, wanted.labels)
        else:
            mine = (wanted.namespace, wanted.service)
            there = [
                item.node
                for item in placed
                if wanted.service and (item.demands.namespace, item.demands.service) == mine
            ]
            itself = bool(wanted.service)
        eligible = [
            node
            for node in nodes
            if is_usable(node) and is_allowed(node, wanted) and spread.topology_key in node.labels
        ]
        fewest = min((count_near(item, spread.topology_key, nodes, there) for item in eligible), default=0)
        if itself + count_near(node, spread.topology_key, nodes, there) - fewest > spread.max_skew and (
            itself or there
        ):
            return False
    return True
