"""The replicas of one service, decided one after the other: what is known to come out as before is not decided again."""

from dataclasses import replace

import numpy as np

from lattice.engine.decide import NO_ROW, RULED_OUT, Decision, best_row, decide
from lattice.engine.plugin import Profile
from lattice.engine.table import Floats, Integers
from lattice.placement.greedy.machine_choice import OfferFiller, next_machine_type
from lattice.placement.greedy.profile import profile_of
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Assignment, Fleet
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.model.quotes import UNSET, TypeIds
from lattice.placement.plugins.filters.overflow import overflow_sources
from lattice.placement.plugins.scores.cost import cost_scores

SCORE_PRECISION_BITS = 22  # of a score, in bits: what differs by less than that may come out as equal


def is_price_only(demand: Demand, fleet: Fleet) -> bool:
    """Among what is rented: do neither other services, nor where its own replicas are, nor what is free make a difference?"""
    looks_around = (
        demand.neighbours or demand.latency or demand.spread or demand.soft_spread or fleet.overflow_rows
    )
    return (
        not looks_around
        and demand.preferences in ((), CHEAPEST_FIRST)
        and "capacity" not in demand.ignored_limits
    )


class PriceOrder:
    """The offers of one decision, by what a replica costs there, while nothing changes but that those chosen have no machine left."""

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, decision: Decision) -> None:
        self.fleet, self.decision, self._capacity_target = fleet, decision, ask.capacity_target
        quote = fleet.table.quotes.quote_for(ask)
        self._rate_per_replica: Integers = quote.rate_per_replica.copy()
        self._type_ids: TypeIds = np.where(quote.affordable & quote.within_limits, quote.type_id, UNSET)
        self._is_lost = fleet.table.column("lost").copy()
        self._max_rate = int(self._rate_per_replica[self._rate_per_replica < NO_LIMIT].max(initial=0))
        self._exclusions: Floats = np.where(decision.totals == RULED_OUT, RULED_OUT, np.float32(0))

    def is_valid_for(self, ask: ReplicaAsk, row: int) -> bool:
        """Is all the same, but that in the offer that was chosen not one machine more may be made, of whatever class?"""
        table = self.fleet.table
        return ask.capacity_target == self._capacity_target and bool(
            table.free(table.resource_index["nodes"])[row] < 1
        )

    def next_offer(self, row: int, *, has_free_capacity: bool) -> int:
        """The best, now that `row` is sold out, and has room on its machines or not."""
        self._rate_per_replica[row], self._type_ids[row] = NO_LIMIT, UNSET
        if has_free_capacity:
            cheapest = int(self._rate_per_replica.min())
            self._rate_per_replica[row] = 0
            if cheapest > self._max_rate >> SCORE_PRECISION_BITS:
                return row
        else:
            self._exclusions[row] = RULED_OUT
        return best_row(
            self.fleet.table, cost_scores(self._rate_per_replica, self._is_lost) + self._exclusions
        )

    def decision_for(self, row: int, ask: ReplicaAsk) -> Decision:
        """Its scores and reasons are those of before."""
        before = self.decision
        return Decision(
            ask, before.table, before.profile, row, before.runner_up, before.totals, before.reasons
        )

    def machine_type_at(self, row: int) -> MachineType | None:
        """The class that a new machine would be of."""
        catalogue, number = self.fleet.table.quotes.catalog, int(self._type_ids[row])
        return None if number == UNSET else catalogue.types[row][catalogue.type_names[number]]


class IncrementalPlacer:
    """While nothing but its own replicas comes to the fleet. Decisions and seats are those of deciding and settling each replica anew.

    A decision looks at the offer that was chosen only through whether there is room on its machines, and what the next one would cost.
    Until another offer or one of these is different, the next replica goes there, too.
    """

    def __init__(self, demand: Demand, fleet: Fleet, *, with_scores: bool = False) -> None:
        """`with_scores`: decisions are told to people, so that all their scores have to be those of the moment, too."""
        self.demand, self.fleet, self.with_scores = demand, fleet, with_scores
        self.profile = profile_of(demand.preferences)
        self._last_ask = ReplicaAsk(demand)
        self._current_offer: tuple[int, str] | None = (
            None  # the offer that was chosen last, and the data center that it is the overflow of
        )
        self._fillers: dict[tuple[int, str], OfferFiller] = {}
        self._reusable_decisions: dict[
            bool, Decision
        ] = {}  # with room on its machines and without: decisions for it that would come out the same now
        self._next_type: MachineType | None = (
            None  # the class of machine that would be bought there; None: that is not known
        )
        self._exhausted_offers: set[tuple[int, str]] = (
            set()
        )  # where nothing more can be bought: what is left only becomes less
        self._weighs_free_capacity = any(sort == "availableCapacity" for sort, _, _ in demand.preferences)
        self._uses_price_order = not with_scores and is_price_only(demand, fleet)
        self._price_order: PriceOrder | None = (
            None  # as long as only offers that were chosen are different from what they were
        )

    def decide(self, ask: ReplicaAsk) -> Decision:
        if self._current_offer and not ask.region and not ask.excluded_regions:
            known = (
                self._reusable_decisions.get(self._filler.has_free_capacity)
                if self._reusable_decisions
                else None
            )
            known = known or self._decide_by_price(ask)
            if known is not None:
                return known
        asked, decision = decide_with_overflow(ask, self.fleet, self.profile)
        self._price_order = None
        if decision.fits:
            self._set_current_offer(asked, decision)
            if self._uses_price_order and not self.fleet.offers[decision.chosen].is_static:
                self._price_order = PriceOrder(asked, self.fleet, decision)
        return decision

    def _decide_by_price(self, ask: ReplicaAsk) -> Decision | None:
        """None: every plugin has to be asked."""
        filling, turns = self._filler, self._price_order
        if turns is None or not turns.is_valid_for(ask, filling.row) or self._shares_budget(filling.row):
            return None
        row = turns.next_offer(filling.row, has_free_capacity=filling.has_free_capacity)
        if row == NO_ROW:
            return None
        decision = turns.decision_for(row, ask)
        self._set_current_offer(ask, decision)
        self._next_type = turns.machine_type_at(row)
        return decision

    def _set_current_offer(self, asked: ReplicaAsk, decision: Decision) -> None:
        at = (decision.chosen, asked.overflow_source)
        if at != self._current_offer:
            self._reusable_decisions, self._next_type = {}, None
        self._current_offer, self._last_ask = at, asked
        if at not in self._fillers:
            self._fillers[at] = OfferFiller(asked, self.fleet, decision.chosen)
        if (
            not asked.region
            and not asked.excluded_regions
            and not asked.capacity_target
            and self._is_reusable(decision)
        ):
            self._reusable_decisions[self._fillers[at].has_free_capacity] = (
                decision.copy() if self.with_scores else decision
            )

    def _is_reusable(self, decision: Decision) -> bool:
        """Does it not matter how many replicas are there already, but for the room that they leave?"""
        row = decision.chosen
        if (
            self.demand.spread
            or self.demand.soft_spread
            or self._has_per_replica_limits(row)
            or row not in self.fleet.replicas_by_offer(self.demand.name)
        ):
            return False
        if not self.fleet.offers[row].is_static:
            return True
        others = (each for each in self.fleet.static_rows if each != row)
        return not self.with_scores and all(decision.totals[each] == RULED_OUT for each in others)

    def _has_per_replica_limits(self, row: int) -> bool:
        """Are there limits that are counted by replica rather than by machine?"""
        offer = self.fleet.offers[row]
        return bool(offer.reserved_nodes or (offer.limits.gpus and self.demand.needs.get("gpu")))

    def assign(self) -> Assignment:
        """The replica that was decided about last."""
        filling = self._filler
        seat = filling.assign(below_threshold=True)
        if seat is None:
            seat = self._provision(filling) or filling.assign(below_threshold=False)
        if seat is None:
            raise LookupError(f"{self.fleet.offers[filling.row].name} has no room for {self.demand.name}")
        return seat

    @property
    def _filler(self) -> OfferFiller:
        if self._current_offer is None:
            raise LookupError(f"nothing is decided about {self.demand.name} yet")
        return self._fillers[self._current_offer]

    def _provision(self, filling: OfferFiller) -> Assignment | None:
        kind = self._next_type or self._offered(filling.row)
        if kind is None:
            return None
        grows = filling.may_grow
        seat = filling.provision(kind)
        self._next_type = kind if grows and filling.may_grow and self._is_offered(kind, filling.row) else None
        if self._next_type is None:
            self._reusable_decisions.pop(False, None)
        if self._last_ask.capacity_target or self._affects_other_offers(filling.row):
            self._reusable_decisions, self._next_type = {}, None
        return seat

    def _affects_other_offers(self, row: int) -> bool:
        """Does one more machine there change other things than what the next one costs?"""
        return (
            bool(self._weighs_free_capacity or self._last_ask.overflow_source)
            or self._has_per_replica_limits(row)
            or self._shares_budget(row)
        )

    def _offered(self, row: int) -> MachineType | None:
        at = (row, self._last_ask.overflow_source)
        if at in self._exhausted_offers:
            return None
        kind = next_machine_type(self._last_ask, self.fleet, row)
        if kind is None:
            self._exhausted_offers.add(at)
        return kind

    def _is_offered(self, kind: MachineType, row: int) -> bool:
        """One more of the class that was the best before: others can only have become fewer."""
        fleet, ignoring = self.fleet, self.demand.ignored_limits
        table = fleet.table
        if "capacity" not in ignoring:
            needed = {"nodes": 1, "cpu": kind.size.get("cpu", 0), "memory": kind.size.get("memory", 0)}
            if any(
                amount < NO_LIMIT and table.free(table.resource_index[name])[row] < amount
                for name, amount in needed.items()
            ):
                return False
        return (
            "budget" in ignoring
            or fleet.headroom_by_offer[row] >= kind.rate
            or (kind.is_priced and not kind.rate)
        )

    def _shares_budget(self, row: int) -> bool:
        """Is a machine there paid from a budget that others are paid from, too?"""
        fleet = self.fleet
        return any(
            fleet.commit_cap(each) < NO_LIMIT and fleet.is_shared_ledger(each)
            for each in fleet.offers[row].budgets
        )


def decide_with_overflow(ask: ReplicaAsk, fleet: Fleet, profile: Profile) -> tuple[ReplicaAsk, Decision]:
    """First as if there were no overflow; where that finds nothing, what each data center that is full enough overflows to."""
    first = decide(ask, fleet.table, profile)
    if first.fits:
        return ask, first
    for static in overflow_sources(ask, fleet):
        spilling = replace(ask, overflow_source=static)
        second = decide(spilling, fleet.table, profile)
        if second.fits:
            return spilling, second
    return ask, first
