"""The replicas of one service, decided one after the other: what is known to come out as before is not decided again."""

from dataclasses import replace

from lattice.engine.decide import NOWHERE, RULED_OUT, Decision, decide
from lattice.engine.plugin import Profile
from lattice.placement.model.demand import Demand, ReplicaAsk
from lattice.placement.greedy.fill import Filling
from lattice.placement.model.fleet import Fleet, Seat
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.plugins.filters.overflow import sources
from lattice.placement.greedy.profile import profile_of
from lattice.placement.greedy.machine_choice import offered
from lattice.placement.greedy.turns import Turns, only_price_counts


class Series:
    """While nothing but its own replicas comes to the fleet. Decisions and seats are those of deciding and settling each replica anew.

    A decision looks at the offer that was chosen only through whether there is room on its machines, and what the next one would cost.
    Until another offer or one of these is different, the next replica goes there, too.
    """

    def __init__(self, demand: Demand, fleet: Fleet, *, with_scores: bool = False) -> None:
        """`with_scores`: decisions are told to people, so that all their scores have to be those of the moment, too."""
        self.demand, self.fleet, self.with_scores = demand, fleet, with_scores
        self.profile = profile_of(demand.preferences)
        self._asked = ReplicaAsk(demand)
        self._at: tuple[int, str] | None = (
            None  # the offer that was chosen last, and the data center that it is the overflow of
        )
        self._fillings: dict[tuple[int, str], Filling] = {}
        self._known: dict[
            bool, Decision
        ] = {}  # with room on its machines and without: decisions for it that would come out the same now
        self._next: MachineType | None = (
            None  # the class of machine that would be bought there; None: that is not known
        )
        self._sold_out: set[tuple[int, str]] = (
            set()
        )  # where nothing more can be bought: what is left only becomes less
        self._weighs_room = any(sort == "availableCapacity" for sort, _, _ in demand.preferences)
        self._takes_turns = not with_scores and only_price_counts(demand, fleet)
        self._turns: Turns | None = (
            None  # as long as only offers that were chosen are different from what they were
        )

    def decide(self, ask: ReplicaAsk) -> Decision:
        if self._at and not ask.region and not ask.avoid:
            known = self._known.get(self._filling.has_room) if self._known else None
            known = known or self._next_turn(ask)
            if known is not None:
                return known
        asked, decision = decide_with_overflow(ask, self.fleet, self.profile)
        self._turns = None
        if decision.fits:
            self._go_to(asked, decision)
            if self._takes_turns and not self.fleet.offers[decision.chosen].is_static:
                self._turns = Turns(asked, self.fleet, decision)
        return decision

    def _next_turn(self, ask: ReplicaAsk) -> Decision | None:
        """None: every plugin has to be asked."""
        filling, turns = self._filling, self._turns
        if turns is None or not turns.hold_for(ask, filling.row) or self._is_shared(filling.row):
            return None
        row = turns.next(filling.row, has_room=filling.has_room)
        if row == NOWHERE:
            return None
        decision = turns.to(row, ask)
        self._go_to(ask, decision)
        self._next = turns.offered(row)
        return decision

    def _go_to(self, asked: ReplicaAsk, decision: Decision) -> None:
        at = (decision.chosen, asked.overflow)
        if at != self._at:
            self._known, self._next = {}, None
        self._at, self._asked = at, asked
        if at not in self._fillings:
            self._fillings[at] = Filling(asked, self.fleet, decision.chosen)
        if not asked.region and not asked.avoid and not asked.room_for and self._is_steady(decision):
            self._known[self._fillings[at].has_room] = decision.copied() if self.with_scores else decision

    def _is_steady(self, decision: Decision) -> bool:
        """Does it not matter how many replicas are there already, but for the room that they leave?"""
        row = decision.chosen
        if (
            self.demand.spread
            or self.demand.even
            or self._is_rationed(row)
            or row not in self.fleet.counts(self.demand.name)
        ):
            return False
        if not self.fleet.offers[row].is_static:
            return True
        others = (each for each in self.fleet.statics if each != row)
        return not self.with_scores and all(decision.totals[each] == RULED_OUT for each in others)

    def _is_rationed(self, row: int) -> bool:
        """Are there limits that are counted by replica rather than by machine?"""
        offer = self.fleet.offers[row]
        return bool(offer.reserved_nodes or (offer.limits.gpus and self.demand.needs.get("gpu")))

    def settle(self) -> Seat:
        """The replica that was decided about last."""
        filling = self._filling
        seat = filling.seat(filling=True)
        if seat is None:
            seat = self._buy(filling) or filling.seat(filling=False)
        if seat is None:
            raise LookupError(f"{self.fleet.offers[filling.row].name} has no room for {self.demand.name}")
        return seat

    @property
    def _filling(self) -> Filling:
        if self._at is None:
            raise LookupError(f"nothing is decided about {self.demand.name} yet")
        return self._fillings[self._at]

    def _buy(self, filling: Filling) -> Seat | None:
        kind = self._next or self._offered(filling.row)
        if kind is None:
            return None
        grows = filling.may_grow
        seat = filling.buy(kind)
        self._next = kind if grows and filling.may_grow and self._is_offered(kind, filling.row) else None
        if self._next is None:
            self._known.pop(False, None)
        if self._asked.room_for or self._changes_more(filling.row):
            self._known, self._next = {}, None
        return seat

    def _changes_more(self, row: int) -> bool:
        """Does one more machine there change other things than what the next one costs?"""
        return (
            bool(self._weighs_room or self._asked.overflow) or self._is_rationed(row) or self._is_shared(row)
        )

    def _offered(self, row: int) -> MachineType | None:
        at = (row, self._asked.overflow)
        if at in self._sold_out:
            return None
        kind = offered(self._asked, self.fleet, row)
        if kind is None:
            self._sold_out.add(at)
        return kind

    def _is_offered(self, kind: MachineType, row: int) -> bool:
        """One more of the class that was the best before: others can only have become fewer."""
        fleet, ignoring = self.fleet, self.demand.ignoring
        table = fleet.table
        if "capacity" not in ignoring:
            needed = {"nodes": 1, "cpu": kind.size.get("cpu", 0), "memory": kind.size.get("memory", 0)}
            if any(
                amount < NO_LIMIT and table.free(table.index[name])[row] < amount
                for name, amount in needed.items()
            ):
                return False
        return "budget" in ignoring or fleet.left[row] >= kind.rate or (kind.is_priced and not kind.rate)

    def _is_shared(self, row: int) -> bool:
        """Is a machine there paid from a budget that others are paid from, too?"""
        fleet = self.fleet
        return any(fleet.cap(each) < NO_LIMIT and fleet.is_shared(each) for each in fleet.offers[row].budgets)


def decide_with_overflow(ask: ReplicaAsk, fleet: Fleet, profile: Profile) -> tuple[ReplicaAsk, Decision]:
    """First as if there were no overflow; where that finds nothing, what each data center that is full enough overflows to."""
    first = decide(ask, fleet.table, profile)
    if first.fits:
        return ask, first
    for static in sources(ask, fleet):
        spilling = replace(ask, overflow=static)
        second = decide(spilling, fleet.table, profile)
        if second.fits:
            return spilling, second
    return ask, first
