"""Gang scheduling: assign nodes to at least the needed number of members at once, or to none."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from lattice.errors import Conflict
from lattice.scheduling.plugins.cluster_events import ALL_EVENTS
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import WorkloadAsk

MAX_START_NODES = 16  # limit of nodes tried for the first member of a cyclic gang, see `assign_cyclic_gang`


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node for a workload, and the victims that must be evicted first."""

    ask: WorkloadAsk
    row: int
    score: float | None = None  # 0..100; None: victims must be evicted first
    victims: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class NoFeasibleNode:
    """Why no node is feasible for a workload, and the cluster events that could change that."""

    ask: WorkloadAsk
    reason: str
    wakes_on: frozenset[Hashable] = frozenset()
    reason_kinds: tuple[str, ...] = ()  # the reasons without counts and amounts


@dataclass(frozen=True, slots=True)
class GangAssignment:
    """The assignments of a gang: at least the needed number, or none. `fitting_count` is the number of
    members that fit, even if they are too few and nothing is assigned."""

    assignments: tuple[Assignment, ...]
    fitting_count: int
    rejections: tuple[NoFeasibleNode, ...]  # one for each member that was tried and does not fit


def assign_gang(
    members: Sequence[WorkloadAsk],
    least: int,
    table: NodeTable,
    find: Callable[[WorkloadAsk], Assignment | NoFeasibleNode],
) -> GangAssignment:
    """Assign nodes to the members in order, each as if the earlier members were already placed. The table is
    unchanged afterwards."""
    assignments: list[Assignment] = []
    rejections: list[NoFeasibleNode] = []
    with table.what_if():
        for ask in members:
            last = rejections[-1] if rejections else None
            result: Assignment | NoFeasibleNode
            # Members of equal shape and priority are rejected for the same reason; the priority matters
            # because it decides which workloads may be victims.
            if last and (last.ask.shape, last.ask.priority) == (ask.shape, ask.priority):
                result = replace(last, ask=ask)
            else:
                result = find(ask)
            if isinstance(result, NoFeasibleNode):
                rejections.append(result)
            elif misfit := assume_assignment(result, table):
                rejections.append(misfit)
            else:
                assignments.append(result)
    is_enough = len(assignments) >= max(1, least)
    return GangAssignment(tuple(assignments) if is_enough else (), len(assignments), tuple(rejections))


def assume_assignment(assignment: Assignment, table: NodeTable) -> NoFeasibleNode | None:
    """Remove the victims from the table and place the workload on the node as assumed; return None on
    success.

    If the workload does not fit by amounts, although the filters accepted the node, restore the victims and
    return the reason.
    """
    forget_victims(assignment, table)
    try:
        table.assume(assignment.ask, assignment.row)
    except Conflict as problem:
        for victim in assignment.victims:
            table.restore(victim)
        return NoFeasibleNode(assignment.ask, problem.message, ALL_EVENTS, (problem.message,))
    return None


def forget_victims(assignment: Assignment, table: NodeTable) -> None:
    for victim in assignment.victims:
        table.forget(victim.ask.name)


@dataclass(frozen=True, slots=True)
class AssignmentFinder:
    """The functions that gang assignment calls: `find` assigns a node to one workload, and `best_rows`
    returns at most a given number of rows for a workload, best first."""

    find: Callable[[WorkloadAsk], Assignment | NoFeasibleNode]
    best_rows: Callable[[WorkloadAsk, int], Sequence[int]]


def without_gang_affinity(
    ask: WorkloadAsk, members: Sequence[WorkloadAsk], table: NodeTable
) -> WorkloadAsk | None:
    """The ask without the affinity terms that another member of its gang meets; None if there is no such
    term."""
    if not ask.demands.affinity_terms:
        return None
    peers = {member.demands.labels: member for member in members if member.name != ask.name}.values()
    remaining_terms = tuple(
        term
        for term in ask.demands.affinity_terms
        if not any(member.matches_term(term, ask.demands.namespace) for member in peers)
    )
    if len(remaining_terms) == len(ask.demands.affinity_terms):
        return None
    relaxed = table.make_ask(ask.name, replace(ask.demands, affinity_terms=remaining_terms), ask.priority)
    return replace(relaxed, group=ask.group, min_member=ask.min_member)


def assign_cyclic_gang(
    members: Sequence[WorkloadAsk], least: int, table: NodeTable, finder: AssignmentFinder
) -> GangAssignment | None:
    """Assign a gang whose members require affinity to each other; None if no node for the first member leads
    to enough members.

    One member is assigned first, without its affinity to the gang, and then the remaining members. In the
    end, every affinity must be met.
    """
    # One member per shape is enough, because equal members lead to equal results.
    for first in {member.shape: member for member in reversed(members)}.values():
        relaxed = without_gang_affinity(first, members, table)
        for row in finder.best_rows(relaxed, MAX_START_NODES) if relaxed else ():
            gang = _assign_after_first(Assignment(first, row), members, table, finder)
            if len(gang.assignments) >= max(1, least):
                return gang
    return None


def _assign_after_first(
    first: Assignment, members: Sequence[WorkloadAsk], table: NodeTable, finder: AssignmentFinder
) -> GangAssignment:
    """Assign the remaining members in rounds, because a member may need a member that is assigned later.

    The table is unchanged afterwards.
    """
    assignments, waiting = [first], [member for member in members if member.name != first.ask.name]
    rejections: dict[str, NoFeasibleNode] = {}
    with table.what_if():
        if misfit := assume_assignment(first, table):
            return GangAssignment((), 0, (misfit,))
        assigned_in_round = 1
        while assigned_in_round:
            assigned_in_round = 0
            for ask in tuple(waiting):
                result = finder.find(ask)
                if isinstance(result, Assignment):
                    result = assume_assignment(result, table) or result
                if isinstance(result, NoFeasibleNode):
                    rejections[ask.name] = result
                    continue
                assignments.append(result)
                waiting.remove(ask)
                rejections.pop(ask.name, None)
                assigned_in_round += 1
        is_met = not any(
            mask[assignment.row]
            for assignment in assignments
            for mask in WorkloadAffinity().filter(assignment.ask, table).values()
        )
    return GangAssignment(tuple(assignments) if is_met else (), len(assignments), tuple(rejections.values()))
