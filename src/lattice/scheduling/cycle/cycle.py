"""One scheduling cycle: a batch of workloads and the nodes in, who goes where and who does not, with reasons, out."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lattice.engine.decide import Decision, decide
from lattice.engine.explain import best_rows
from lattice.engine.decide_batch import decide_many, groupable
from lattice.engine.batch_result import Picks
from lattice.engine.plugin import Profile
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.cycle.binder import Binder, BindEvent
from lattice.scheduling.plugins.cluster_events import ANYTHING, Change
from lattice.scheduling.cycle.circle import Finding, leans, seat_in_circle
from lattice.scheduling.cycle.gang import NoSeat, Seat, Together, make_way, seat_together
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.cycle.profile import ProfileSpec, compile_profile
from lattice.scheduling.cycle.refusal import refusal
from lattice.scheduling.cycle.reservations import Refused, Reservation, Reservations
from lattice.scheduling.cycle.tie_break import Dice, Selector, TieBreaker, shown, weight_of

GROUP_WAITS = (
    "its group waits for more"  # the kind of reason that is none of the nodes': there are too few members yet
)


@dataclass(frozen=True, slots=True)
class Placed:
    """To be bound once its victims are gone, and everybody else who leaves its node (`waits_for` has both): their room is kept for it."""

    ask: WorkloadAsk
    node: str
    reservation: Reservation
    score: float | None = None  # 0..100; None: others have to make way first
    victims: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unplaced:
    """It stays pending until one of `wakes_on` happens."""

    ask: WorkloadAsk
    why: str
    wakes_on: frozenset[Hashable] = frozenset()
    kinds: tuple[str, ...] = ()  # of its reasons, without counts and amounts


@dataclass(slots=True)
class Cycle:
    placed: list[Placed] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    expired: list[Reservation] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)  # reservations that were bound, or were to be

    @property
    def evictions(self) -> list[tuple[str, str]]:
        """(victim, for whom), in the order in which room is needed."""
        return [(victim, each.ask.name) for each in self.placed for victim in each.victims]


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
    plain: Profile | None = None
    tell: Callable[[Sequence[WorkloadAsk], Decision | Picks], None] = lambda asks, found: None

    @property
    def table(self) -> NodeTable:
        return self.reservations.table

    def profile_of(self, ask: WorkloadAsk) -> Profile:
        return self.profile if self.plain is None or ask.demands.service else self.plain

    def cycle(self, batch: Iterable[Sequence[WorkloadAsk]], now: float) -> Cycle:
        """The batch comes in order, in runs of equal priority and shape, as Queue.pop_batch makes them. Placed ones hold reservations."""
        cycle = Cycle(expired=self.reservations.expire(now))
        runs = list(batch)
        gangs: set[str] = set()
        for run in runs:
            if not run[0].group:
                self._place_equal(run, now, cycle)
            elif run[0].group not in gangs:
                gangs.add(run[0].group)
                self._place_gang(
                    [ask for each in runs for ask in each if ask.group == run[0].group], now, cycle
                )
        return cycle

    def departed(self, workload: str, node: str = "") -> None:
        """One that was leaving is gone from that node; from all that it was leaving, if none is named."""
        leaving = self.table.leaving
        for each in [node] if node else list(leaving):
            leaving.get(each, {}).pop(workload, None)
            if not leaving.get(each, True):
                del leaving[each]

    def still_waits_for(self, placed: Placed) -> list[str]:
        """Of those it waits for, who has not left yet."""
        leaving = {name for each in self.table.leaving.values() for name in each}
        return [name for name in placed.waits_for if name in leaving]

    async def bind(self, cycle: Cycle) -> list[BindEvent]:
        """Bind what needs nobody to leave first; gangs all or nothing. One event each, also for those that failed.

        Once more after somebody departed, it binds what waited.
        """
        if self.binder is None:
            return []
        ready = [
            each
            for each in cycle.placed
            if each.reservation.id not in cycle.tried and not self.still_waits_for(each)
        ]
        cycle.tried.update(each.reservation.id for each in ready if not each.ask.group)
        events = [await self.binder.bind(each.reservation) for each in ready if not each.ask.group]
        for group in dict.fromkeys(each.ask.group for each in ready if each.ask.group):
            gang = [each for each in cycle.placed if each.ask.group == group]
            if not any(self.still_waits_for(each) for each in gang):
                cycle.tried.update(each.reservation.id for each in gang)
                least = self.still_needed(gang[0].ask, of_which=len(gang))
                events += await self.binder.bind_together([each.reservation for each in gang], least)
        return events

    def _place_equal(self, run: Sequence[WorkloadAsk], now: float, cycle: Cycle) -> None:
        refused: NoSeat | None = None
        for ask in self._place_grouped(self._not_yet_placed(run, cycle), now, cycle):
            answer = refused or self._seat(ask, self.preemptor)
            if isinstance(answer, Seat):
                self._settle(answer, now, cycle)
            else:
                refused = answer  # nothing has changed for the rest of them
                cycle.unplaced.append(Unplaced(ask, answer.why, answer.wakes_on, answer.kinds))

    def _not_yet_placed(self, run: Sequence[WorkloadAsk], cycle: Cycle) -> list[WorkloadAsk]:
        placements, fresh = self.table.placements, []
        for ask in run:
            if ask.name in placements:
                cycle.unplaced.append(
                    Unplaced(ask, f"it is on node {self.table.names[placements[ask.name].row]} already")
                )
            else:
                fresh.append(ask)
        return fresh

    def _place_grouped(self, run: Sequence[WorkloadAsk], now: float, cycle: Cycle) -> Sequence[WorkloadAsk]:
        """Equals decided together, with the same rows as one by one; who is left over fits nowhere as things are."""
        profile = self.profile_of(run[0])
        if (
            len(run) < 2
            or self.selector.tie_breaker is not TieBreaker.FIXED
            or not groupable(run[0], profile, self.table)
        ):
            return run
        picks = decide_many(run[0], self.table, profile, len(run))
        self.tell(run, picks)
        weight = weight_of(run[0], profile)
        for ask, pick in zip(run, picks.each, strict=False):
            self._settle(Seat(ask, pick.row, shown(pick.total, weight)), now, cycle)
        return run[len(picks) :]

    def _place_gang(self, members: Sequence[WorkloadAsk], now: float, cycle: Cycle) -> None:
        members = self._not_yet_placed(members, cycle)
        least = self.still_needed(members[0]) if members else 0
        if len(members) < least:
            why = f"its group waits for {least - len(members)} more: minMember is {members[0].min_member}"
            cycle.unplaced += [
                Unplaced(ask, why, frozenset({Change.WORKLOAD_ADDED}), (GROUP_WAITS,)) for ask in members
            ]
            return
        together = self._seat_as_things_are(members, least)
        if not together.seats and self.preemptor:
            together = self._seat_by_evicting(members, least, self.preemptor)
        for seat in together.seats:
            self._settle(seat, now, cycle)
        self._refuse_gang(members, together, cycle)

    def _seat_as_things_are(self, members: Sequence[WorkloadAsk], least: int) -> Together:
        finding = Finding(lambda ask: self._seat(ask, None), self._best_rows)
        together = seat_together(members, least, self.table, finding.seat)
        return together if together.seats else seat_in_circle(members, least, self.table, finding) or together

    def _best_rows(self, ask: WorkloadAsk, most: int) -> list[int]:
        return best_rows(decide(ask, self.table, self.profile_of(ask)), most)

    def _seat_by_evicting(self, members: Sequence[WorkloadAsk], least: int, preemptor: Preemptor) -> Together:
        """Limits on disruption are spent while trying, and given back afterwards: who really goes is charged when seats are taken."""

        charged: list[Placement] = []

        def find(ask: WorkloadAsk) -> Seat | NoSeat:
            answer = self._seat(ask, preemptor)
            if isinstance(answer, Seat):
                preemptor.charge(answer.victims)
                charged.extend(answer.victims)
            return answer

        together = seat_together(members, least, self.table, find)
        preemptor.charge(charged, -1)
        return together

    def _refuse_gang(self, members: Sequence[WorkloadAsk], together: Together, cycle: Cycle) -> None:
        reasons = {each.ask.name: each for each in together.refused}
        seated = {seat.ask.name for seat in together.seats}
        short = "" if seated else self._short_of(members, together)
        for ask in members:
            if ask.name in seated:
                continue
            own = reasons.get(ask.name) or together.refused[0]
            kinds = own.kinds if seated else ("its group", *own.kinds)
            cycle.unplaced.append(Unplaced(ask, short + own.why, own.wakes_on, kinds))

    def _short_of(self, members: Sequence[WorkloadAsk], together: Together) -> str:
        first = members[0]
        there = self.table.members[first.group]
        running = f", {there} in place already" if there else ""
        circle = any(leans(each.ask, members, self.table) for each in together.refused[:1])
        near = (
            "; it must be near others of its own group, and no node has room for enough of them"
            if circle
            else ""
        )
        return f"{together.fitting} of {len(members)} would fit, minMember is {first.min_member}{running}{near}; the next: "

    def still_needed(self, ask: WorkloadAsk, of_which: int = 0) -> int:
        """Besides the members of its group that have their place; of these some may not count yet."""
        return max(0, ask.min_member - (self.table.members[ask.group] - of_which))

    def _seat(self, ask: WorkloadAsk, preemptor: Preemptor | None) -> Seat | NoSeat:
        """Decide and select; if it fits nowhere, see whether others of lower priority can make way."""
        decision = decide(ask, self.table, self.profile_of(ask))
        selection = self.selector.select(decision)
        if selection.fits:
            self.tell([ask], decision)
            return Seat(ask, selection.row, selection.score)
        evicting = preemptor.find(ask, decision) if preemptor else None
        if evicting:
            return Seat(ask, evicting.row, victims=evicting.victims)
        return _no_seat(ask, decision, preemptor.held_back(ask, decision) if preemptor else "")

    def _settle(self, seat: Seat, now: float, cycle: Cycle) -> None:
        """Victims first, then the reservation. Refused means that the profile let through what does not fit by number."""
        make_way(seat, self.table)
        held = self.reservations.reserve(seat.ask, seat.row, now)
        if isinstance(held, Refused):
            for victim in seat.victims:
                self.table.restore(victim)
            cycle.unplaced.append(Unplaced(seat.ask, held.why, ANYTHING, (held.why,)))
            return
        if self.preemptor:
            self.preemptor.charge(seat.victims)
        leaving = self.table.leaving
        for victim in seat.victims:
            leaving.setdefault(self.table.names[victim.row], {})[victim.ask.name] = None
        victims = tuple(victim.ask.name for victim in seat.victims)
        waits_for = tuple(dict.fromkeys((*victims, *leaving.get(held.node, ()))))
        cycle.placed.append(Placed(seat.ask, held.node, held, seat.score, victims, waits_for))


def _no_seat(ask: WorkloadAsk, decision: Decision, held_back: str) -> NoSeat:
    told, wakes = refusal(decision), wakes_on(decision)
    if not held_back:
        return NoSeat(ask, told.why, wakes, told.kinds)
    return NoSeat(
        ask,
        f"{told.why}; {held_back}",
        wakes | {Change.LIMITS_EASED},
        (*told.kinds, "held back by a limit on disruption"),
    )


def compose(
    spec: ProfileSpec,
    table: NodeTable,
    dice: Dice | None = None,
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
    return CompositeScheduler(compile_profile(spec), book, selector, plain=other)


def wakes_on(decision: Decision) -> frozenset[Hashable]:
    """The changes that those filters named which ruled anything out; one that names none may be helped by anything."""
    rejecting = {reason.plugin for reason, mask in decision.reasons.items() if mask.any()}
    named: set[Hashable] = {Change.NODE_ADDED}
    for each in decision.profile.filters:
        if each.name in rejecting:
            named |= getattr(each, "wakes_on", ANYTHING)
    return frozenset(named)
