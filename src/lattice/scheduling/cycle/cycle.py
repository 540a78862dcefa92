"""One scheduling cycle: assign nodes to a batch of workloads, or reject workloads with a reason."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision, decide
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.engine.explain import best_rows
from lattice.engine.plugin import Profile
from lattice.kinds.meta.quantity import pluralize
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.scheduling.cycle.binder import Binder, BindEvent
from lattice.scheduling.cycle.decision_record import rejection_summary
from lattice.scheduling.cycle.gang import (
    Assignment,
    AssignmentFinder,
    GangAssignment,
    NoFeasibleNode,
    assign_cyclic_gang,
    assign_gang,
    forget_victims,
    without_gang_affinity,
)
from lattice.scheduling.cycle.profile import ProfileSpec, compile_profile
from lattice.scheduling.cycle.reservations import Reservation, ReservationRejection, Reservations
from lattice.scheduling.cycle.tie_break import RandomSource, Selector, TieBreaker, scaled_score, total_weight
from lattice.scheduling.plugins.cluster_events import ALL_EVENTS, ClusterEvent
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.workload_ask import WorkloadAsk

# Reason kind of a gang that still lacks members; it concerns no single node.
GANG_INCOMPLETE = "group incomplete"


@dataclass(frozen=True, slots=True)
class ScheduledWorkload:
    """A workload with a reserved node. The workload is bound only after the workloads in `waits_for` are
    gone: its victims, and all workloads that are being evicted from the node. `CompositeScheduler.evictions`
    holds the evictions that are not finished yet."""

    ask: WorkloadAsk
    node: str
    reservation: Reservation
    score: float | None = None  # 0..100; None: victims must be evicted first
    victims: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnschedulableWorkload:
    """A workload without a node. The workload is tried again after one of the events in `wakes_on`, at the
    latest after UNSCHEDULABLE_RETRY_S."""

    ask: WorkloadAsk
    reason: str
    wakes_on: frozenset[Hashable] = frozenset()
    reason_kinds: tuple[str, ...] = ()  # the reasons without counts and amounts


@dataclass(slots=True)
class CycleResult:
    scheduled: list[ScheduledWorkload] = field(default_factory=list)
    unschedulable: list[UnschedulableWorkload] = field(default_factory=list)
    expired: list[Reservation] = field(default_factory=list)
    bind_attempted: set[str] = field(default_factory=set)  # reservations with a bind attempt

    @property
    def evictions(self) -> list[tuple[str, str]]:
        """Pairs of a victim and the workload that preempts the victim, in order of scheduling."""
        evictions = []
        for scheduled in self.scheduled:
            evictions += [(victim, scheduled.ask.name) for victim in scheduled.victims]
        return evictions


@dataclass(slots=True)
class CompositeScheduler:
    """The scheduler in exchangeable phases: the profile filters and scores, the selector selects, the binder
    binds.

    Without preemptor no workload is evicted. `standalone_profile` is the profile of workloads without a
    service, if different; its filters are those of `profile`. `evictions` holds a victim until the victim has
    left its node; until then, workloads that this cycle or a later cycle places on the node wait for the
    victim. The scheduler calls `on_decided` with every decision about a batch, and with every decision about
    one workload that finds a node without preemption. The call comes before the table changes.
    """

    profile: Profile
    reservations: Reservations
    selector: Selector = field(default_factory=Selector)
    preemptor: Preemptor | None = None
    binder: Binder | None = None
    standalone_profile: Profile | None = None
    evictions: DecidedEvictions = field(default_factory=DecidedEvictions)
    on_decided: Callable[[Sequence[WorkloadAsk], Decision | BatchResult], None] = lambda asks, decision: None

    @property
    def table(self) -> NodeTable:
        return self.reservations.table

    def profile_of(self, ask: WorkloadAsk) -> Profile:
        if self.standalone_profile is None or ask.demands.service:
            return self.profile
        return self.standalone_profile

    def cycle(self, batch: Iterable[Sequence[WorkloadAsk]], now: float) -> CycleResult:
        """Schedule a batch in order, and reserve nodes.

        Each sequence of the batch is a run: successive workloads of equal priority, shape and gang, as
        `SchedulingQueue.pop_batch` returns them.
        """
        cycle = CycleResult(expired=self.reservations.expire(now))
        runs = list(batch)
        gangs: set[str] = set()
        for run in runs:
            if not run[0].group:
                rejection: NoFeasibleNode | None = None
                for ask in self._schedule_equal_at_once(self._drop_already_placed(run, cycle), now, cycle):
                    result = rejection or self._find_assignment(ask, self.preemptor)
                    if isinstance(result, Assignment):
                        self._reserve(result, now, cycle)
                    else:
                        # The table has not changed, so the remaining workloads of the run are rejected for
                        # the same reason.
                        rejection = result
                        cycle.unschedulable.append(
                            UnschedulableWorkload(ask, result.reason, result.wakes_on, result.reason_kinds)
                        )
            elif run[0].group not in gangs:
                # A gang may have several runs; all its members are scheduled at its first run.
                gangs.add(run[0].group)
                members = [ask for ask in chain.from_iterable(runs) if ask.group == run[0].group]
                self._schedule_gang(members, now, cycle)
        return cycle

    def remove_node(self, node: str) -> list[str]:
        """Remove a node from the table, and return the workloads that were placed on the node or were leaving
        it. These workloads may still be there when the node returns, so the caller must update them again."""
        lost = self.table.remove_node(node)
        return [*(placement.ask.name for placement in lost), *self.evictions.forget_victims_on(node)]

    def pending_evictions(self, scheduled: ScheduledWorkload) -> list[str]:
        """The workloads that a scheduled workload waits for and that are not gone yet."""
        return [name for name in scheduled.waits_for if self.evictions.node_of_victim(name)]

    async def bind(self, cycle: CycleResult) -> list[BindEvent]:
        """Bind the scheduled workloads that wait for no eviction, and return one event per attempt. Of a
        gang, at least minMember members are bound, or none.

        A further call, after an eviction has finished, binds the workloads that waited for the eviction.
        """
        if self.binder is None:
            return []
        ready = [
            scheduled
            for scheduled in cycle.scheduled
            if scheduled.reservation.id not in cycle.bind_attempted and not self.pending_evictions(scheduled)
        ]
        # Marked before the first await, so that a second call does not attempt the reservation again.
        cycle.bind_attempted.update(
            scheduled.reservation.id for scheduled in ready if not scheduled.ask.group
        )
        events = [
            await self.binder.bind(scheduled.reservation) for scheduled in ready if not scheduled.ask.group
        ]
        for group in dict.fromkeys(scheduled.ask.group for scheduled in ready if scheduled.ask.group):
            gang = [scheduled for scheduled in cycle.scheduled if scheduled.ask.group == group]
            if not any(self.pending_evictions(scheduled) for scheduled in gang):
                cycle.bind_attempted.update(scheduled.reservation.id for scheduled in gang)
                # The table already counts the scheduled members as placed, although they are not bound yet.
                least = self.missing_members(gang[0].ask, uncounted=len(gang))
                events += await self.binder.bind_gang([scheduled.reservation for scheduled in gang], least)
        return events

    def _drop_already_placed(self, run: Sequence[WorkloadAsk], cycle: CycleResult) -> list[WorkloadAsk]:
        placements, unplaced = self.table.placements, []
        for ask in run:
            if ask.name in placements:
                cycle.unschedulable.append(
                    UnschedulableWorkload(
                        ask, f"already placed on node {self.table.names[placements[ask.name].row]}"
                    )
                )
            else:
                unplaced.append(ask)
        return unplaced

    def _schedule_equal_at_once(
        self, run: Sequence[WorkloadAsk], now: float, cycle: CycleResult
    ) -> Sequence[WorkloadAsk]:
        """Schedule a run of equal workloads together, on the nodes that scheduling them one by one would
        choose, and return the workloads that are not scheduled yet."""
        profile = self.profile_of(run[0])
        if (
            len(run) < 2
            or self.selector.tie_breaker is not TieBreaker.FIXED
            or not can_batch(run[0], profile, self.table)
        ):
            return run
        result = decide_batch(run[0], self.table, profile, len(run))
        self.on_decided(run, result)
        weight = total_weight(run[0], profile)
        for ask, pick in zip(run, result.picks, strict=False):
            self._reserve(Assignment(ask, pick.row, scaled_score(pick.total, weight)), now, cycle)
        return run[len(result) :]

    def _schedule_gang(self, members: Sequence[WorkloadAsk], now: float, cycle: CycleResult) -> None:
        members = self._drop_already_placed(members, cycle)
        least = self.missing_members(members[0]) if members else 0
        if len(members) < least:
            absent = pluralize(least - len(members), "more member")
            reason = f"the group waits for {absent}: minMember is {members[0].min_member}"
            wakes: frozenset[Hashable] = frozenset({ClusterEvent.WORKLOAD_ADDED})
            cycle.unschedulable += [
                UnschedulableWorkload(ask, reason, wakes, (GANG_INCOMPLETE,)) for ask in members
            ]
            return
        finder = AssignmentFinder(
            find=lambda ask: self._find_assignment(ask, None),
            best_rows=lambda ask, most: best_rows(decide(ask, self.table, self.profile_of(ask)), most),
        )
        gang = assign_gang(members, least, self.table, finder.find)
        if not gang.assignments:
            gang = assign_cyclic_gang(members, least, self.table, finder) or gang
        if not gang.assignments and self.preemptor:
            gang = self._assign_with_preemption(members, least, self.preemptor)
        for assignment in gang.assignments:
            self._reserve(assignment, now, cycle)
        rejections = {rejection.ask.name: rejection for rejection in gang.rejections}
        assigned = {assignment.ask.name for assignment in gang.assignments}
        prefix = "" if assigned else self._gang_shortfall_message(members, gang)
        for ask in members:
            if ask.name in assigned:
                continue
            # A member without a reason of its own gets the reason of the first rejected member.
            rejection = rejections.get(ask.name) or gang.rejections[0]
            kinds = rejection.reason_kinds if assigned else ("group members", *rejection.reason_kinds)
            cycle.unschedulable.append(
                UnschedulableWorkload(ask, prefix + rejection.reason, rejection.wakes_on, kinds)
            )

    def _assign_with_preemption(
        self, members: Sequence[WorkloadAsk], least: int, preemptor: Preemptor
    ) -> GangAssignment:
        """Assign a gang with preemption.

        Disruption limits are charged during the trial and restored afterwards, because `_reserve` charges the
        victims of the assignments.
        """
        charged: list[Placement] = []

        def find(ask: WorkloadAsk) -> Assignment | NoFeasibleNode:
            result = self._find_assignment(ask, preemptor)
            if isinstance(result, Assignment):
                preemptor.charge(result.victims)
                charged.extend(result.victims)
            return result

        gang = assign_gang(members, least, self.table, find)
        preemptor.charge(charged, -1)
        return gang

    def _gang_shortfall_message(self, members: Sequence[WorkloadAsk], gang: GangAssignment) -> str:
        first = members[0]
        placed = self.table.gang_sizes[first.group]
        placed_text = f", {placed} already placed" if placed else ""
        is_cyclic = any(
            without_gang_affinity(rejection.ask, members, self.table) for rejection in gang.rejections[:1]
        )
        cyclic_text = ""
        if is_cyclic:
            cyclic_text = "; the members must be near each other, and no node has capacity for enough of them"
        return (
            f"{gang.fitting_count} of {len(members)} group members fit, "
            f"minMember is {first.min_member}{placed_text}{cyclic_text}; the next member: "
        )

    def missing_members(self, ask: WorkloadAsk, uncounted: int = 0) -> int:
        """How many more members the gang needs to reach minMember. `uncounted` of the placed members do not
        count as placed."""
        return max(0, ask.min_member - (self.table.gang_sizes[ask.group] - uncounted))

    def _find_assignment(self, ask: WorkloadAsk, preemptor: Preemptor | None) -> Assignment | NoFeasibleNode:
        """Decide and select a node; if no node is feasible, look for victims."""
        decision = decide(ask, self.table, self.profile_of(ask))
        selection = self.selector.select(decision)
        if selection.fits:
            self.on_decided([ask], decision)
            return Assignment(ask, selection.row, selection.score)
        preemption = preemptor.find(ask, decision) if preemptor else None
        if preemption:
            return Assignment(ask, preemption.row, victims=preemption.victims)
        limit = preemptor.disruption_limit_message(ask, decision) if preemptor else ""
        summary, wakes = rejection_summary(decision), wakes_on(decision)
        if not limit:
            return NoFeasibleNode(ask, summary.reason, wakes, summary.reason_kinds)
        return NoFeasibleNode(
            ask,
            f"{summary.reason}; {limit}",
            wakes | {ClusterEvent.DISRUPTION_LIMITS_EASED},
            (*summary.reason_kinds, "disruption limit"),
        )

    def _reserve(self, assignment: Assignment, now: float, cycle: CycleResult) -> None:
        """Remove the victims from the table, then reserve the node. If the profile accepted a node on which
        the amounts do not fit, the reservation is rejected and the victims stay."""
        forget_victims(assignment, self.table)
        reservation = self.reservations.reserve(assignment.ask, assignment.row, now)
        if isinstance(reservation, ReservationRejection):
            for victim in assignment.victims:
                self.table.restore(victim)
            reason = reservation.reason
            cycle.unschedulable.append(UnschedulableWorkload(assignment.ask, reason, ALL_EVENTS, (reason,)))
            return
        if self.preemptor:
            self.preemptor.charge(assignment.victims)
        for victim in assignment.victims:
            # The node is the victim's, not the preemptor's: a gang is evicted as a whole, and its members may
            # be on other nodes.
            self.evictions.add_victim(
                self.table.names[victim.row], victim.ask.name, preemptor=assignment.ask.name
            )
        node, victims = reservation.node, tuple(victim.ask.name for victim in assignment.victims)
        waits_for = tuple(dict.fromkeys((*victims, *self.evictions.victims_on(node))))
        cycle.scheduled.append(
            ScheduledWorkload(assignment.ask, node, reservation, assignment.score, victims, waits_for)
        )


def compose(
    spec: ProfileSpec,
    table: NodeTable,
    rng: RandomSource | None = None,
    holder: str = "scheduler",
    standalone: ProfileSpec | None = None,
    evictions: DecidedEvictions | None = None,
) -> CompositeScheduler:
    """Build the scheduler of a profile, without binder and preemptor. `rng` is a seeded random source.

    Only the scores of `standalone` are used; filters, tie-breaking and binding mode are those of `spec`.
    """
    reservations = Reservations(table, holder, spec.reservation_timeout)
    tie_breaker = TieBreaker(spec.tie_breaker)
    selector = Selector(tie_breaker, rng) if rng else Selector(tie_breaker)
    standalone_profile = compile_profile(replace(standalone, disabled=spec.disabled)) if standalone else None
    return CompositeScheduler(
        compile_profile(spec),
        reservations,
        selector,
        standalone_profile=standalone_profile,
        evictions=evictions or DecidedEvictions(),
    )


def wakes_on(decision: Decision) -> frozenset[Hashable]:
    """The cluster events that may end the rejections of a decision: a new node, and the events that the
    rejecting filters declare. A filter that declares no events wakes on every event."""
    rejecting = {reason.plugin for reason, mask in decision.reasons.items() if mask.any()}
    # A new node may accept any workload.
    events: set[Hashable] = {ClusterEvent.NODE_ADDED}
    for plugin in decision.profile.filters:
        if plugin.name in rejecting:
            events |= getattr(plugin, "wakes_on", ALL_EVENTS)
    return frozenset(events)
