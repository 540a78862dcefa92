"""Eviction: one state machine for a workload that must leave its node, whatever the cause.

    NotEvicting -> Planned -> Requested -> Stopping -> Released

- Planned: the scheduler chose the workload as a victim of preemption and has not stored the choice. If the
  preemptor is gone, the victim is spared: the scheduler withdraws the choice.
- Requested: the workload must leave. The workload controller orders the stop. On a silent node there is no
  stop order: as soon as the workload may fail over, the controller releases it.
- Stopping: the order to stop is stored, and a copy may still run on the node. If no cause is known (the
  cause ended, or a new leader has not decided yet), the state stays Stopping.
- Released: the workload is no longer bound, and the scheduler may bind it again. A workload whose node was
  removed becomes Released without an eviction.

If the cause ends before the stop is ordered, or the victim is spared, Planned and Requested return to
NotEvicting.

| cause | decided by | durable record until the stop is ordered |
|---|---|---|
| NodeLost | node health, from heartbeats | none: every leader measures the silence itself |
| Drain, NoExecuteTaint | the eviction controller, within the disruption budget | the taints of the node |
| NodePressure | the eviction controller, from the usage in heartbeats; outside of disruption budgets | none: a new leader decides again |
| Preemption | the scheduler, within the disruption budget | the condition `Leaving` of the victim |

`derive_eviction` is the only function that derives the state, from the stored workload and the decisions of
this leader; `DecidedEvictions` is the only place where this leader remembers these decisions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.workload import EVICTED, LatticeWorkload
from lattice.lifecycle.workload import LIVE_STATES, Action, desired_state


class EvictionCause(StrEnum):
    """Why a workload must leave its node; of several causes, the first in this order decides."""

    NODE_LOST = "NodeLost"
    DRAIN = "Drain"
    NO_EXECUTE_TAINT = "NoExecuteTaint"
    NODE_PRESSURE = "NodePressure"
    PREEMPTION = "Preemption"


class EvictionState(StrEnum):
    NOT_EVICTING = "NotEvicting"
    PLANNED = "Planned"
    REQUESTED = "Requested"
    STOPPING = "Stopping"
    RELEASED = "Released"


ACTIVE_STATES = frozenset({EvictionState.PLANNED, EvictionState.REQUESTED, EvictionState.STOPPING})
CAUSE_ORDER = tuple(EvictionCause)
# After these actions the workload is bound to no node.
RELEASING_ACTIONS = frozenset({Action.RESCHEDULE, Action.RELEASE})


@dataclass(frozen=True, slots=True)
class DecidedEviction:
    """A decision of this leader that a workload must leave its node, stored or not."""

    cause: EvictionCause
    # Empty for a planned victim of preemption: the workload is stopped only for a stored preemption.
    reason: str
    # True: the replica does not run, so the drain does not wait for a replacement; if the replica recovers
    # before the stop is ordered, it stays.
    is_withdrawn_if_available: bool = False


PLANNED_PREEMPTION = DecidedEviction(EvictionCause.PREEMPTION, "")


@dataclass(frozen=True, slots=True)
class Eviction:
    """The eviction of one workload, as `derive_eviction` returns it."""

    state: EvictionState = EvictionState.NOT_EVICTING
    cause: EvictionCause | None = None
    # Empty if no known cause requires the stop: not evicting, planned, or stopping without a known cause.
    reason: str = ""
    # The decision is not final: a replica that becomes available stays.
    is_withdrawn_if_available: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the workload leaves its node or is about to, and therefore does not count as available."""
        return self.state in ACTIVE_STATES


NOT_EVICTING = Eviction()
RELEASED = Eviction(EvictionState.RELEASED)


def is_available(workload: LatticeWorkload) -> bool:
    """Whether the workload runs, is ready and should run."""
    return (
        bool(workload.status.ready)
        and workload.status.actual_state == "Running"
        and desired_state(workload) == "Running"
    )


def derive_eviction(
    workload: LatticeWorkload,
    decisions: Iterable[DecidedEviction] = (),
    *,
    is_reported_ready: bool = False,
) -> Eviction:
    """Return the eviction of the workload, from its stored state and the decisions about it.

    Without decisions the result depends on the store alone, so every leader derives the same result.
    `is_reported_ready`: the node reports the workload as ready, which may not be stored yet.
    """
    status = workload.status
    if status.binding is None:
        return RELEASED if status.last_action in RELEASING_ACTIONS else NOT_EVICTING
    is_stopping = (
        status.last_action == Action.APPLY_STOPPED
        and status.actual_state in LIVE_STATES
        and desired_state(workload) == "Running"
    )
    causes = []
    for decision in decisions:
        is_withdrawn = (
            decision.is_withdrawn_if_available
            and not is_stopping
            and (is_reported_ready or is_available(workload))
        )
        if not is_withdrawn:
            causes.append(decision)
    preempted = find_condition(status.conditions, EVICTED)
    if preempted is not None and preempted.status == "True":
        reason = preempted.message or preempted.reason
        causes.append(DecidedEviction(EvictionCause.PREEMPTION, reason))
    # A planned preemption, which has no reason yet, comes after every cause that requires the stop.
    first = min(
        causes, key=lambda decision: (not decision.reason, CAUSE_ORDER.index(decision.cause)), default=None
    )
    if is_stopping:
        state = EvictionState.STOPPING
    elif first is None:
        return NOT_EVICTING
    else:
        state = EvictionState.REQUESTED if first.reason else EvictionState.PLANNED
    if first is None:
        return Eviction(state)
    is_withdrawable = not is_stopping and all(decision.is_withdrawn_if_available for decision in causes)
    return Eviction(state, first.cause, first.reason, is_withdrawable)


@dataclass(slots=True)
class DecidedEvictions:
    """The evictions that this leader has decided, stored or not. All controllers of a term share one object.

    The eviction controller decides for a node as a whole (drain, taints). The scheduler adds the victims of
    preemption one by one. The record of a victim lasts until the victim has left its node: while the victim
    still runs, its resources already count as free for the preemptor.
    """

    # By node and path of the workload. A node without an entry has neither a drain nor a NoExecute taint.
    _by_node: dict[str, Mapping[str, DecidedEviction]] = field(default_factory=dict)
    # By node and path of the victim: the preemptor; empty once the preemption is stored.
    _victims: dict[str, dict[str, str]] = field(default_factory=dict)
    _listeners: list[Callable[[Iterable[str]], None]] = field(default_factory=list)

    def on_change(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call the listener with the paths of workloads whose eviction by a drain or a taint starts or is
        withdrawn; the listener must not block."""
        self._listeners.append(listener)

    def eviction_of(
        self,
        workload: LatticeWorkload,
        failover: DecidedEviction | None = None,
        *,
        is_reported_ready: bool = False,
    ) -> Eviction:
        """Return the eviction of the workload from the node to which it is bound; `failover` is the decision
        of node health about a silent node."""
        binding = workload.status.binding
        if binding is None:
            return derive_eviction(workload)
        path = path_of(workload)
        decisions = [] if failover is None else [failover]
        if decided := self.of_node(binding.node).get(path):
            decisions.append(decided)
        if path in self._victims.get(binding.node, ()):
            decisions.append(PLANNED_PREEMPTION)
        return derive_eviction(workload, decisions, is_reported_ready=is_reported_ready)

    def of_node(self, node: str) -> Mapping[str, DecidedEviction]:
        """The evictions by drain and taints of the node, by path of the workload."""
        return self._by_node.get(node, {})

    def decide_for_node(self, node: str, evictions: Mapping[str, DecidedEviction]) -> None:
        """Replace the evictions by drain and taints of the node, and notify the listeners of changes."""
        previous = self._by_node.pop(node, {})
        if evictions:
            self._by_node[node] = evictions
        if changed := sorted({*previous} ^ {*evictions}):
            for listener in self._listeners:
                listener(changed)

    def add_victim(self, node: str, path: str, preemptor: str = "") -> None:
        """Record a victim of preemption; without a preemptor the preemption is stored already."""
        self._victims.setdefault(node, {})[path] = preemptor

    def victims_on(self, node: str) -> tuple[str, ...]:
        """The victims of preemption that have not left the node yet, in the order of the decisions."""
        return tuple(self._victims.get(node, ()))

    def victims(self) -> Iterator[tuple[str, str, str]]:
        """All victims that have not left their nodes yet: node, path, and the preemptor until the preemption
        is stored."""
        for node, victims in self._victims.items():
            for path, preemptor in victims.items():
                yield node, path, preemptor

    def node_of_victim(self, path: str) -> str:
        """The node that the victim has not left yet; empty for a workload that is no victim."""
        return next((node for node, victims in self._victims.items() if path in victims), "")

    def mark_stored(self, path: str) -> None:
        """Note that the preemption of the victim is stored: the victim can no longer be spared."""
        for victims in self._victims.values():
            if path in victims:
                victims[path] = ""

    def remove_victim(self, path: str, node: str = "") -> None:
        """Forget a victim that has left the node or is spared; without `node`, on every node."""
        for name in [node] if node else list(self._victims):
            victims = self._victims.get(name, {})
            victims.pop(path, None)
            if not victims:
                self._victims.pop(name, None)

    def forget_victims_on(self, node: str) -> list[str]:
        """Forget the victims on a removed node, and return their paths."""
        return list(self._victims.pop(node, ()))
