"""One scheduling cycle: a batch of workloads and the nodes in, who goes where and who does not, with reasons, out."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision, decide
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.engine.explain import best_rows
from lattice.engine.plugin import Profile
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
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.node_table import NodeTable, Placement

GANG_INCOMPLETE = (
    "its group waits for more"  # the kind of reason that is none of the nodes': there are too few members yet
)


@dataclass(frozen=True, slots=True)
class ScheduledWorkload:
    """To be bound once its victims are gone, and everybody else who leaves its node (`waits_for` has both): their room is kept for it."""

    ask: WorkloadAsk
    node: str
    reservation: Reservation
    score: float | None = None  # 0..100; None: others have to make way first
    victims: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnschedulableWorkload:
    """It stays pending until one of `wakes_on` happens."""

    ask: WorkloadAsk
    reason: str
    wakes_on: frozenset[Hashable] = frozenset()
    reason_kinds: tuple[str, ...] = ()  # of its reasons, without counts and amounts


@dataclass(slots=True)
class CycleResult:
    scheduled: list[ScheduledWorkload] = field(default_factory=list)
    unschedulable: list[UnschedulableWorkload] = field(default_factory=list)
    expired: list[Reservation] = field(default_factory=list)
    bind_attempted: set[str] = field(default_factory=set)  # reservations that were bound, or were to be

    @property
    def evictions(self) -> list[tuple[str, str]]:
        """(victim, for whom), in the order in which room is needed."""
        return [(victim, each.ask.name) for each in self.scheduled for victim in each.victims]


@dataclass(slots=True)
class CompositeScheduler:
    """Four exchangeable phases: the profile filters and scores, the selector selects, the binder binds. No preemptor: nobody is evicted.

    `plain`: the profile of workloads that belong to no service, if that is another one, with the same filters.

    Who is evicted is leaving until `departed` says that it is gone; whatever is placed on its node until then waits for it, in this
    cycle and in later ones. `tell` hears by what each was given a node, while that is as it was decided.
    """

    profile: Profile
    reservations: Reservations
    selector: Selector = field(default_factory=Selector)
    preemptor: Preemptor | None = None
    binder: Binder | None = None
    standalone_profile: Profile | None = None
    on_decided: Callable[[Sequence[WorkloadAsk], Decision | BatchResult], None] = lambda asks, found: None

    @property
    def table(self) -> NodeTable:
        return self.reservations.table

    def profile_of(self, ask: WorkloadAsk) -> Profile:
        return (
            self.profile
            if self.standalone_profile is None or ask.demands.service
            else self.standalone_profile
        )

    def cycle(self, batch: Iterable[Sequence[WorkloadAsk]], now: float) -> CycleResult:
        """The batch comes in order, in runs of equal priority and shape, as Queue.pop_batch makes them. Placed ones hold reservations."""
        cycle = CycleResult(expired=self.reservations.expire(now))
        runs = list(batch)
        gangs: set[str] = set()
        for run in runs:
            if not run[0].group:
                self._schedule_equal(run, now, cycle)
            elif run[0].group not in gangs:
                gangs.add(run[0].group)
                self._schedule_gang(
                    [ask for each in runs for ask in each if ask.group == run[0].group], now, cycle
                )
        return cycle

    def finish_eviction(self, workload: str, node: str = "") -> None:
        """One that was leaving is gone from that node; from all that it was leaving, if none is named."""
        leaving = self.table.evicting
        for each in [node] if node else list(leaving):
            leaving.get(each, {}).pop(workload, None)
            if not leaving.get(each, True):
                del leaving[each]

    def pending_evictions(self, placed: ScheduledWorkload) -> list[str]:
        """Of those it waits for, who has not left yet."""
        leaving = {name for each in self.table.evicting.values() for name in each}
        return [name for name in placed.waits_for if name in leaving]

    async def bind(self, cycle: CycleResult) -> list[BindEvent]:
        """Bind what needs nobody to leave first; gangs all or nothing. One event each, also for those that failed.

        Once more after somebody departed, it binds what waited.
        """
        if self.binder is None:
            return []
        ready = [
            each
            for each in cycle.scheduled
            if each.reservation.id not in cycle.bind_attempted and not self.pending_evictions(each)
        ]
        cycle.bind_attempted.update(each.reservation.id for each in ready if not each.ask.group)
        events = [await self.binder.bind(each.reservation) for each in ready if not each.ask.group]
        for group in dict.fromkeys(each.ask.group for each in ready if each.ask.group):
            gang = [each for each in cycle.scheduled if each.ask.group == group]
            if not any(self.pending_evictions(each) for each in gang):
                cycle.bind_attempted.update(each.reservation.id for each in gang)
                least = self.missing_members(gang[0].ask, uncounted=len(gang))
                events += await self.binder.bind_gang([each.reservation for each in gang], least)
        return events

    def _schedule_equal(self, run: Sequence[WorkloadAsk], now: float, cycle: CycleResult) -> None:
        refused: NoFeasibleNode | None = None
        for ask in self._schedule_equal_at_once(self._drop_already_placed(run, cycle), now, cycle):
            answer = refused or self._find_assignment(ask, self.preemptor)
            if isinstance(answer, Assignment):
                self._reserve(answer, now, cycle)
            else:
                refused = answer  # nothing has changed for the rest of them
                cycle.unschedulable.append(
                    UnschedulableWorkload(ask, answer.reason, answer.wakes_on, answer.reason_kinds)
                )

    def _drop_already_placed(self, run: Sequence[WorkloadAsk], cycle: CycleResult) -> list[WorkloadAsk]:
        placements, fresh = self.table.placements, []
        for ask in run:
            if ask.name in placements:
                cycle.unschedulable.append(
                    UnschedulableWorkload(
                        ask, f"it is on node {self.table.names[placements[ask.name].row]} already"
                    )
                )
            else:
                fresh.append(ask)
        return fresh

    def _schedule_equal_at_once(
        self, run: Sequence[WorkloadAsk], now: float, cycle: CycleResult
    ) -> Sequence[WorkloadAsk]:
        """Equals decided together, with the same rows as one by one; who is left over fits nowhere as things are."""
        profile = self.profile_of(run[0])
        if (
            len(run) < 2
            or self.selector.tie_breaker is not TieBreaker.FIXED
            or not can_batch(run[0], profile, self.table)
        ):
            return run
        picks = decide_batch(run[0], self.table, profile, len(run))
        self.on_decided(run, picks)
        weight = total_weight(run[0], profile)
        for ask, pick in zip(run, picks.picks, strict=False):
            self._reserve(Assignment(ask, pick.row, scaled_score(pick.total, weight)), now, cycle)
        return run[len(picks) :]

    def _schedule_gang(self, members: Sequence[WorkloadAsk], now: float, cycle: CycleResult) -> None:
        members = self._drop_already_placed(members, cycle)
        least = self.missing_members(members[0]) if members else 0
        if len(members) < least:
            why = f"its group waits for {least - len(members)} more: minMember is {members[0].min_member}"
            cycle.unschedulable += [
                UnschedulableWorkload(ask, why, frozenset({ClusterEvent.WORKLOAD_ADDED}), (GANG_INCOMPLETE,))
                for ask in members
            ]
            return
        together = self._assign_without_preemption(members, least)
        if not together.assignments and self.preemptor:
            together = self._assign_with_preemption(members, least, self.preemptor)
        for seat in together.assignments:
            self._reserve(seat, now, cycle)
        self._reject_gang(members, together, cycle)

    def _assign_without_preemption(self, members: Sequence[WorkloadAsk], least: int) -> GangAssignment:
        finding = AssignmentFinder(lambda ask: self._find_assignment(ask, None), self._best_rows)
        together = assign_gang(members, least, self.table, finding.find)
        return (
            together
            if together.assignments
            else assign_cyclic_gang(members, least, self.table, finding) or together
        )

    def _best_rows(self, ask: WorkloadAsk, most: int) -> list[int]:
        return best_rows(decide(ask, self.table, self.profile_of(ask)), most)

    def _assign_with_preemption(
        self, members: Sequence[WorkloadAsk], least: int, preemptor: Preemptor
    ) -> GangAssignment:
        """Limits on disruption are spent while trying, and given back afterwards: who really goes is charged when seats are taken."""

        charged: list[Placement] = []

        def find(ask: WorkloadAsk) -> Assignment | NoFeasibleNode:
            answer = self._find_assignment(ask, preemptor)
            if isinstance(answer, Assignment):
                preemptor.charge(answer.victims)
                charged.extend(answer.victims)
            return answer

        together = assign_gang(members, least, self.table, find)
        preemptor.charge(charged, -1)
        return together

    def _reject_gang(
        self, members: Sequence[WorkloadAsk], together: GangAssignment, cycle: CycleResult
    ) -> None:
        reasons = {each.ask.name: each for each in together.rejections}
        seated = {seat.ask.name for seat in together.assignments}
        short = "" if seated else self._gang_shortfall_message(members, together)
        for ask in members:
            if ask.name in seated:
                continue
            own = reasons.get(ask.name) or together.rejections[0]
            kinds = own.reason_kinds if seated else ("its group", *own.reason_kinds)
            cycle.unschedulable.append(UnschedulableWorkload(ask, short + own.reason, own.wakes_on, kinds))

    def _gang_shortfall_message(self, members: Sequence[WorkloadAsk], together: GangAssignment) -> str:
        first = members[0]
        there = self.table.gang_sizes[first.group]
        running = f", {there} in place already" if there else ""
        circle = any(without_gang_affinity(each.ask, members, self.table) for each in together.rejections[:1])
        near = (
            "; it must be near others of its own group, and no node has room for enough of them"
            if circle
            else ""
        )
        return f"{together.fitting_count} of {len(members)} would fit, minMember is {first.min_member}{running}{near}; the next: "

    def missing_members(self, ask: WorkloadAsk, uncounted: int = 0) -> int:
        """Besides the members of its group that have their place; of these some may not count yet."""
        return max(0, ask.min_member - (self.table.gang_sizes[ask.group] - uncounted))

    def _find_assignment(self, ask: WorkloadAsk, preemptor: Preemptor | None) -> Assignment | NoFeasibleNode:
        """Decide and select; if it fits nowhere, see whether others of lower priority can make way."""
        decision = decide(ask, self.table, self.profile_of(ask))
        selection = self.selector.select(decision)
        if selection.fits:
            self.on_decided([ask], decision)
            return Assignment(ask, selection.row, selection.score)
        evicting = preemptor.find(ask, decision) if preemptor else None
        if evicting:
            return Assignment(ask, evicting.row, victims=evicting.victims)
        return _no_feasible_node(
            ask, decision, preemptor.disruption_limit_message(ask, decision) if preemptor else ""
        )

    def _reserve(self, seat: Assignment, now: float, cycle: CycleResult) -> None:
        """Victims first, then the reservation. Refused means that the profile let through what does not fit by number."""
        forget_victims(seat, self.table)
        held = self.reservations.reserve(seat.ask, seat.row, now)
        if isinstance(held, ReservationRejection):
            for victim in seat.victims:
                self.table.restore(victim)
            cycle.unschedulable.append(
                UnschedulableWorkload(seat.ask, held.reason, ALL_EVENTS, (held.reason,))
            )
            return
        if self.preemptor:
            self.preemptor.charge(seat.victims)
        leaving = self.table.evicting
        for victim in seat.victims:
            leaving.setdefault(self.table.names[victim.row], {})[victim.ask.name] = None
        victims = tuple(victim.ask.name for victim in seat.victims)
        waits_for = tuple(dict.fromkeys((*victims, *leaving.get(held.node, ()))))
        cycle.scheduled.append(ScheduledWorkload(seat.ask, held.node, held, seat.score, victims, waits_for))


def _no_feasible_node(ask: WorkloadAsk, decision: Decision, held_back: str) -> NoFeasibleNode:
    told, wakes = rejection_summary(decision), wakes_on(decision)
    if not held_back:
        return NoFeasibleNode(ask, told.reason, wakes, told.reason_kinds)
    return NoFeasibleNode(
        ask,
        f"{told.reason}; {held_back}",
        wakes | {ClusterEvent.DISRUPTION_LIMITS_EASED},
        (*told.reason_kinds, "held back by a limit on disruption"),
    )


def compose(
    spec: ProfileSpec,
    table: NodeTable,
    dice: RandomSource | None = None,
    holder: str = "scheduler",
    plain: ProfileSpec | None = None,
) -> CompositeScheduler:
    """The scheduler that a profile describes, without binder and preemptor; `dice` are seeded by whoever throws them.

    Of `plain` only the scores count: who is let in, how ties are broken and what is bound how is for all alike.
    """
    book = Reservations(table, holder, spec.reservation_timeout)
    selector = (
        Selector(TieBreaker(spec.tie_breaker), dice) if dice else Selector(TieBreaker(spec.tie_breaker))
    )
    other = compile_profile(replace(plain, disabled=spec.disabled)) if plain else None
    return CompositeScheduler(compile_profile(spec), book, selector, standalone_profile=other)


def wakes_on(decision: Decision) -> frozenset[Hashable]:
    """The changes that those filters named which ruled anything out; one that names none may be helped by anything."""
    rejecting = {reason.plugin for reason, mask in decision.reasons.items() if mask.any()}
    named: set[Hashable] = {ClusterEvent.NODE_ADDED}
    for each in decision.profile.filters:
        if each.name in rejecting:
            named |= getattr(each, "wakes_on", ALL_EVENTS)
    return frozenset(named)
