"""What is seen of a service's replicas: which are there, which are bound, which find no node, and which ask for something else by now."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, service_key
from lattice.kinds.workload import LatticeWorkload, WorkloadSpec
from lattice.lifecycle.replica_template import NODE_CLASS_LABEL, NodeGroupKey, node_group_of, template

NO_NODE_FITS = "NoNodeFits"
NOT_JOINED = "NotJoined"


@dataclass(frozen=True)
class ReplicaObservation:
    """By service, replicas in each cell. `unsettled`: clusters in which something is not where it is meant to be, or not yet."""

    unschedulable: Mapping[str, Counter[NodeGroupKey]] = field(default_factory=dict)
    updated_services: frozenset[str] = frozenset()
    unsettled_clusters: frozenset[str] = frozenset()
    joined_nodes: Counter[NodeGroupKey] = field(default_factory=Counter)
    blocked: frozenset[NodeGroupKey] = (
        frozenset()
    )  # none comes there, whatever is wanted: no more are paid for than are there


@dataclass(frozen=True, slots=True)
class SchedulingTimeout:
    """A workload that no node takes is left to wait for so long: nodes may be about to have room."""

    now: datetime
    grace: timedelta

    def has_passed(self, since: str) -> bool:
        """What is far ahead of this clock was written by another, and nobody knows how long ago."""
        return not -self.grace <= self.now - datetime.fromisoformat(since) < self.grace


def observe_replicas(
    services: Iterable[LatticeService],
    workloads: Iterable[LatticeWorkload],
    nodes: Iterable[LatticeNode],
    patience: SchedulingTimeout,
    paid: Iterable[Counter[NodeGroupKey]] = (),
) -> ReplicaObservation:
    """`paid`: machines that each ledger pays for."""
    joined = Counter((each.spec.cluster, each.spec.node_class) for each in nodes if has_joined(each))
    known = {each.metadata.name for each in nodes if not each.metadata.deletion_timestamp}
    fresh = {(each.spec.cluster, each.spec.node_class) for each in nodes if is_newly_ready(each, patience)}
    owned: dict[str, list[LatticeWorkload]] = {}
    unsettled: set[str] = set()
    for each in workloads:
        if not each.spec.service:
            continue
        if is_terminating(each):
            unsettled.add(each.spec.cluster)
        else:
            owned.setdefault(f"{each.metadata.namespace or 'default'}/{each.spec.service}", []).append(each)
    stuck: dict[str, Counter[NodeGroupKey]] = {}
    updated: set[str] = set()
    for service in services:
        name = service_key(service)
        mine, others = _split_by_owner(service, owned.pop(name, []))
        unsettled.update(each.spec.cluster for each in others)
        unsettled.update(_unsettled_clusters(service, mine, known))
        if waiting := Counter(
            cell
            for each in mine
            if (cell := node_group_of(each)) not in fresh and is_unschedulable(each, patience)
        ):
            stuck[name] = waiting
        if has_new_machine_needs(service, mine):
            updated.add(name)
    unsettled.update(each.spec.cluster for left in owned.values() for each in left)
    return ReplicaObservation(
        stuck, frozenset(updated), frozenset(unsettled), joined, _blocked_node_groups(nodes, paid)
    )


def _blocked_node_groups(
    nodes: Iterable[LatticeNode], paid: Iterable[Counter[NodeGroupKey]]
) -> frozenset[NodeGroupKey]:
    """Where none is on its way, and some budget pays for no more than are there: one that leaves has its money until it is gone."""
    there = Counter((each.spec.cluster, each.spec.node_class) for each in nodes)
    awaited = {
        (each.spec.cluster, each.spec.node_class)
        for each in nodes
        if not each.metadata.deletion_timestamp and not has_joined(each)
    }
    kinds: dict[str, list[NodeGroupKey]] = {}
    for cell in there:
        kinds.setdefault(cell[0], []).append(cell)
    known = ((counts, {name for name, _ in counts}) for counts in paid)
    cells = (
        cell
        for counts, names in known
        for name in names
        for cell in kinds.get(name, ())
        if counts[cell] <= there[cell]
    )
    return frozenset(cells) - awaited


def is_terminating(workload: LatticeWorkload) -> bool:
    return bool(workload.metadata.deletion_timestamp) or workload.spec.desired_state == "Deleted"


def holds_machine(workload: LatticeWorkload, service: LatticeService | None) -> bool:
    """Does it hold its machine? Not if it goes, nor if its service is gone or going: it is next, and takes part in no placement."""
    if is_terminating(workload):
        return False
    if not workload.spec.service:
        return True
    return service is not None and not service.metadata.deletion_timestamp and is_owned(workload, service)


def has_joined(node: LatticeNode) -> bool:
    """Its agent was heard of; one that is being removed does not count any more."""
    reasons = [each.reason for each in node.status.conditions if each.type == "Ready"]
    return bool(reasons) and NOT_JOINED not in reasons and not node.metadata.deletion_timestamp


def not_ready_message(node: LatticeNode) -> str:
    """What is said of one that joined and is not heard of; empty for all others."""
    said = next(
        (each for each in node.status.conditions if each.type == "Ready" and each.status == "False"), None
    )
    return said.message if said is not None and said.reason != NOT_JOINED else ""


def is_existing(node: LatticeNode) -> bool:
    """It is there, as far as anybody says, and is not being removed."""
    is_awaited = any(each.type == "Ready" and each.reason == NOT_JOINED for each in node.status.conditions)
    return not node.metadata.deletion_timestamp and not is_awaited


def is_newly_ready(node: LatticeNode, patience: SchedulingTimeout) -> bool:
    """It became ready just now: who has waited for it is about to be given it, and needs no other."""
    ready = next(
        (each for each in node.status.conditions if each.type == "Ready" and each.status == "True"), None
    )
    since = ready.last_transition_time if ready else None
    return not patience.has_passed(since) if since else False


def is_unschedulable(workload: LatticeWorkload, patience: SchedulingTimeout) -> bool:
    """No node has fitted it for longer than it may take."""
    for each in workload.status.conditions:
        if (
            each.type == "Scheduled"
            and each.status == "False"
            and each.reason == NO_NODE_FITS
            and each.last_transition_time
        ):
            return workload.status.binding is None and patience.has_passed(each.last_transition_time)
    return False


def unschedulable_reason(workload: LatticeWorkload) -> str:
    """Why no node takes it, with what the nearest lacks; empty while it has one, or nobody has looked."""
    said = next(
        (each for each in workload.status.conditions if each.type == "Scheduled" and each.status == "False"),
        None,
    )
    if said is None or said.reason != NO_NODE_FITS or workload.status.binding is not None:
        return ""
    nearest = workload.status.decision.get("nearest") or {}
    short = [f"{each['what']} {_numbers(each)}" for each in nearest.get("short", ()) if each.get("missing")]
    return f"{said.message}; nearest is {nearest['node']}: {'; '.join(short)}" if short else said.message


def _numbers(short: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {short[name]}" for name in ("need", "have", "missing") if name in short)


def _split_by_owner(
    service: LatticeService, found: Iterable[LatticeWorkload]
) -> tuple[list[LatticeWorkload], list[LatticeWorkload]]:
    """Its own, and those of an earlier service of the same name."""
    mine: list[LatticeWorkload] = []
    others: list[LatticeWorkload] = []
    for each in found:
        (mine if is_owned(each, service) else others).append(each)
    return mine, others


def is_owned(workload: LatticeWorkload, service: LatticeService) -> bool:
    return any(each.uid == service.metadata.uid for each in workload.metadata.owner_references)


def _unsettled_clusters(
    service: LatticeService, mine: Iterable[LatticeWorkload], nodes: set[str]
) -> set[str]:
    """Clusters where other replicas are bound than are placed."""
    placed = Counter({(each.cluster, each.node): each.replicas or 0 for each in service.status.placements})
    bound: Counter[NodeGroupKey] = Counter()
    found = set()
    for each in mine:
        if each.status.binding is None or each.status.binding.node not in nodes:
            found.add(each.spec.cluster)
        else:
            bound[node_group_of(each)] += 1
    return found | {cell[0] for cell in {*placed, *bound} if placed[cell] != bound[cell]}


def has_new_machine_needs(service: LatticeService, mine: list[LatticeWorkload]) -> bool:
    """Do its replicas ask for other machines than a new one would? Where there are none yet, that is decided from its generation."""
    if not mine:
        said = next((each for each in service.status.conditions if each.type == "Placed"), None)
        return said is not None and said.observed_generation != service.metadata.generation
    wanted = machine_needs(template(service))
    seen: dict[str, Hashable] = {}
    for each in mine:
        if each.spec.revision not in seen:
            seen[each.spec.revision] = machine_needs(each.spec)
    return any(each != wanted for each in seen.values())


def machine_needs(spec: WorkloadSpec) -> Hashable:
    """Of a machine."""
    constraints = spec.constraints
    selector = tuple(
        sorted((name, value) for name, value in constraints.node_selector.items() if name != NODE_CLASS_LABEL)
    )
    return (
        tuple(sorted(spec.request_amounts.items())),
        constraints.tolerations,
        selector,
        constraints.gpu_models,
        constraints.spread,
    )
