"""Place the replicas of one service one after another, and reuse the previous decision where a new decision
would be the same."""

from dataclasses import replace

import numpy as np

from lattice.engine.decide import NO_ROW, REJECTED_TOTAL, Decision, best_row, decide
from lattice.engine.plugin import Profile
from lattice.engine.table import Flags, Integers
from lattice.placement.greedy.machine_choice import OfferFiller, assign_in_offer, next_machine_type
from lattice.placement.greedy.profile import profile_of
from lattice.placement.model.demand import CHEAPEST_FIRST, Demand, ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, MachineType
from lattice.placement.model.replica_index import Assignment
from lattice.placement.model.replica_quotes import UNSET, TypeIds
from lattice.placement.plugins.filters.overflow import overflow_sources
from lattice.placement.plugins.scores.cost import cost_scores

# Bits of precision of a score. If costs differ by less than the largest cost >> 50, their scores may be
# equal.
SCORE_PRECISION_BITS = 50


def _is_price_only(demand: Demand, fleet: Fleet) -> bool:
    """Report whether the price alone orders rented offers for this demand.

    True if neighbours, latency, spread, overflow and free capacity have no influence on the scores.
    """
    depends_on_fleet = (
        demand.neighbours
        or demand.latency
        or demand.spread
        or demand.soft_spread
        or demand.required_terms
        or demand.preferred_terms
        or fleet.table.overflow_rows
    )
    return (
        not depends_on_fleet
        and demand.preferences in ((), CHEAPEST_FIRST)
        and "capacity" not in demand.ignored_limits
    )


class PriceOrder:
    """The offers of one decision ordered by the cost of a replica, without a run of the plugins.

    The order is valid as long as the fleet changes only in offers that were chosen and that can add no
    further machine.
    """

    def __init__(self, ask: ReplicaAsk, fleet: Fleet, decision: Decision) -> None:
        self.fleet, self.decision, self._capacity_target = fleet, decision, ask.capacity_target
        quote = fleet.quotes.quote_for(ask)
        self._rate_per_replica: Integers = quote.rate_per_replica.copy()
        self._type_ids: TypeIds = np.where(quote.affordable & quote.within_limits, quote.type_id, UNSET)
        self._max_rate = int(self._rate_per_replica[self._rate_per_replica < NO_LIMIT].max(initial=0))
        self._candidates: Flags = decision.totals > REJECTED_TOTAL

    def is_valid_for(self, ask: ReplicaAsk, row: int) -> bool:
        """Report whether the order still holds for `ask`: the capacity target is the same, and the chosen
        offer can add no machine of any class."""
        table = self.fleet.table
        return ask.capacity_target == self._capacity_target and bool(
            table.free(table.resource_index["nodes"])[row] < 1
        )

    def next_offer(self, row: int, *, has_free_capacity: bool) -> int:
        """Return the best offer after the offer `row` has sold its last machine; `NO_ROW` if no offer is
        feasible.

        With free capacity on the machines of `row`, a replica costs nothing there.
        """
        self._rate_per_replica[row], self._type_ids[row] = NO_LIMIT, UNSET
        if has_free_capacity:
            cheapest = int(self._rate_per_replica.min())
            self._rate_per_replica[row] = 0
            # With a smaller difference the scores may be equal, and the tie order decides; the scores are
            # then computed below.
            if cheapest > self._max_rate >> SCORE_PRECISION_BITS:
                return row
        else:
            self._candidates[row] = False
        scores = cost_scores(self._rate_per_replica, self._candidates)
        return best_row(self.fleet.table, np.where(self._candidates, scores, REJECTED_TOTAL))

    def decision_for(self, row: int, ask: ReplicaAsk) -> Decision:
        """Return a decision for offer `row` with the scores and reasons of the original decision."""
        original = self.decision
        return Decision(
            ask, original.table, original.profile, row, original.runner_up, original.totals, original.reasons
        )

    def machine_type_at(self, row: int) -> MachineType | None:
        """Return the machine type that a new machine in the offer would have, or None if the offer can add no
        machine."""
        catalogue, type_id = self.fleet.quotes.catalog, int(self._type_ids[row])
        return None if type_id == UNSET else catalogue.types[row][catalogue.type_names[type_id]]


class IncrementalPlacer:
    """Places the replicas of one demand while no other replicas are added to the fleet.

    Decisions and assignments are the same as if every replica were decided anew by `decide_with_overflow` and
    `assign_in_offer`, the reference; `test_batch_placement_equals_single_in_random_worlds` proves the equality.
    A decision depends on the chosen offer only through the free capacity of its machines and the cost of the next
    machine. As long as both and all other offers are unchanged, the next replica goes to the same offer.
    """

    def __init__(self, demand: Demand, fleet: Fleet, *, with_scores: bool = False) -> None:
        """With `with_scores`, users read the decisions, so every decision must carry the scores of its own
        moment."""
        self.demand, self.fleet, self.with_scores = demand, fleet, with_scores
        self.profile = profile_of(demand.preferences)
        self._last_ask = ReplicaAsk(demand)
        # The offer that was chosen last, and the data center that overflows to the offer.
        self._current_offer: tuple[int, str] | None = None
        self._fillers: dict[tuple[int, str], OfferFiller] = {}
        # Decisions for the current offer that may be reused, by whether its machines have free capacity.
        self._reusable_decisions: dict[bool, Decision] = {}
        # The machine type that the current offer adds next; None: not computed.
        self._next_type: MachineType | None = None
        # Offers that can add no machine. An offer never leaves the set, because capacity and headroom only
        # shrink here.
        self._exhausted_offers: set[tuple[int, str]] = set()
        self._weighs_free_capacity = any(sort == "availableCapacity" for sort, _, _ in demand.preferences)
        # The type of the next machine follows the number of missing replicas.
        self._has_choice = fleet.quotes.machine_fit(demand).has_choice
        self._uses_price_order = not with_scores and _is_price_only(demand, fleet)
        # Valid as long as only chosen offers have changed.
        self._price_order: PriceOrder | None = None

    def decide(self, ask: ReplicaAsk) -> Decision:
        """Choose an offer for the replica: reuse the previous decision if it still holds, else use the price
        order, else run all plugins."""
        # A replica that is tied to regions is always decided anew.
        if self._current_offer and not ask.region and not ask.excluded_regions:
            reusable = (
                self._reusable_decisions.get(self._filler.has_free_capacity)
                if self._reusable_decisions
                else None
            )
            reusable = reusable or self._decide_by_price(ask)
            if reusable is not None:
                return reusable
        effective_ask, decision = decide_with_overflow(ask, self.fleet, self.profile)
        self._price_order = None
        if decision.fits:
            self._set_current_offer(effective_ask, decision)
            if self._uses_price_order and not self.fleet.offers[decision.chosen].is_static:
                self._price_order = PriceOrder(effective_ask, self.fleet, decision)
        return decision

    def _decide_by_price(self, ask: ReplicaAsk) -> Decision | None:
        """Choose the next offer by price alone; None means that all plugins must run."""
        filler, price_order = self._filler, self._price_order
        if (
            price_order is None
            or not price_order.is_valid_for(ask, filler.row)
            # The stored order assumes that only chosen offers change; a shared budget shrinks other offers
            # too.
            or self._shares_budget(filler.row)
        ):
            return None
        row = price_order.next_offer(filler.row, has_free_capacity=filler.has_free_capacity)
        if row == NO_ROW:
            return None
        decision = price_order.decision_for(row, ask)
        self._set_current_offer(ask, decision)
        self._next_type = None if self._has_choice else price_order.machine_type_at(row)
        return decision

    def _set_current_offer(self, ask: ReplicaAsk, decision: Decision) -> None:
        offer_key = (decision.chosen, ask.overflow_source)
        if offer_key != self._current_offer:
            self._reusable_decisions, self._next_type = {}, None
        self._current_offer, self._last_ask = offer_key, ask
        if offer_key not in self._fillers:
            self._fillers[offer_key] = OfferFiller(ask, self.fleet, decision.chosen)
        if (
            not ask.region
            and not ask.excluded_regions
            and not ask.capacity_target
            and self._is_reusable(decision)
        ):
            self._reusable_decisions[self._fillers[offer_key].has_free_capacity] = (
                # Later decisions overwrite the scores in place; only decisions with scores need a copy.
                decision.copy() if self.with_scores else decision
            )

    def _is_reusable(self, decision: Decision) -> bool:
        """Report whether the replicas in the chosen offer affect the decision only through the free capacity
        of its machines."""
        row = decision.chosen
        if (
            self.demand.spread
            or self.demand.soft_spread
            or self.demand.has_self_terms
            or self._has_per_replica_limits(row)
            or row not in self.fleet.replicas.by_offer(self.demand.name)
        ):
            return False
        # Replicas change the score of a data center, but this matters only beside another feasible data
        # center.
        if not self.fleet.offers[row].is_static:
            return True
        if self.with_scores:
            return False
        return all(
            decision.totals[static_row] == REJECTED_TOTAL
            for static_row in self.fleet.table.static_rows
            if static_row != row
        )

    def _has_per_replica_limits(self, row: int) -> bool:
        """Report whether the offer has limits that count replicas instead of machines."""
        offer = self.fleet.offers[row]
        return bool(offer.has_reserve or (offer.limits.gpus and self.demand.needs.get("gpu")))

    def assign(self) -> Assignment:
        """Assign the replica of the last decision to a machine of the chosen offer.

        Raises LookupError if the offer has no capacity, or if no decision was made.
        """
        filler = self._filler
        if self.demand.has_self_terms:
            # Every replica may change which clusters and machines fit the next one: search them all again.
            return assign_in_offer(self._last_ask, self.fleet, filler.row)
        claimed_machines = filler.claimed_machines
        assignment = filler.assign(below_threshold=True)
        if assignment is None:
            assignment = self._provision(filler) or filler.assign(below_threshold=False)
        if filler.claimed_machines != claimed_machines:
            # The claim may have created a cluster that can grow: that changes the cost of the next machine.
            self._reusable_decisions, self._next_type, self._price_order = {}, None, None
            self._exhausted_offers.clear()
        if assignment is None:
            raise LookupError(
                f"{self.fleet.offers[filler.row].name} has no free capacity for {self.demand.name}"
            )
        return assignment

    @property
    def _filler(self) -> OfferFiller:
        if self._current_offer is None:
            raise LookupError(f"nothing is decided about {self.demand.name} yet")
        return self._fillers[self._current_offer]

    def _provision(self, filler: OfferFiller) -> Assignment | None:
        machine_type = self._next_type
        if machine_type is None:
            offer_key = (filler.row, self._last_ask.overflow_source)
            if offer_key in self._exhausted_offers:
                return None
            machine_type = next_machine_type(self._last_ask, self.fleet, filler.row)
            if machine_type is None:
                self._exhausted_offers.add(offer_key)
                return None
        could_grow = filler.may_grow
        assignment = filler.provision(machine_type)
        self._next_type = (
            machine_type
            if could_grow
            and filler.may_grow
            and not self._has_choice
            and self._is_offered(machine_type, filler.row)
            else None
        )
        if self._next_type is None:
            # The decision for an offer without free capacity counted on the next machine type.
            self._reusable_decisions.pop(False, None)
        # In these cases the new machine changes more than the cost of the next machine in the offer.
        affects_other_offers = (
            self._weighs_free_capacity
            or self._last_ask.overflow_source
            or self._has_per_replica_limits(filler.row)
            or self._shares_budget(filler.row)
        )
        if self._last_ask.capacity_target or affects_other_offers:
            self._reusable_decisions, self._next_type = {}, None
        return assignment

    def _is_offered(self, machine_type: MachineType, row: int) -> bool:
        """Report whether the offer can add one more machine of the type that was the best for the previous
        machine.

        A check of that type alone suffices: the set of available types only shrinks.
        """
        fleet, ignoring = self.fleet, self.demand.ignored_limits
        table = fleet.table
        if "capacity" not in ignoring:
            needed = {
                "nodes": 1,
                "cpu": machine_type.size.get("cpu", 0),
                "memory": machine_type.size.get("memory", 0),
            }
            if any(
                amount < NO_LIMIT and table.free(table.resource_index[name])[row] < amount
                for name, amount in needed.items()
            ):
                return False
        return (
            "budget" in ignoring
            or fleet.ledgers.headroom_by_offer[row] >= machine_type.rate
            or (machine_type.is_priced and not machine_type.rate)
        )

    def _shares_budget(self, row: int) -> bool:
        """Report whether a ledger with a cap pays for machines of this offer and of other offers."""
        fleet = self.fleet
        return any(
            fleet.ledgers.commit_cap(ledger) < NO_LIMIT and fleet.ledgers.is_shared(ledger)
            for ledger in fleet.offers[row].budgets
        )


def decide_with_overflow(ask: ReplicaAsk, fleet: Fleet, profile: Profile) -> tuple[ReplicaAsk, Decision]:
    """Decide without overflow first; if no offer is feasible, try the overflow targets of every data center
    that is full enough.

    Returns the ask that was decided, with its overflow source, and the decision.
    """
    first = decide(ask, fleet.table, profile)
    if first.fits:
        return ask, first
    for data_center in overflow_sources(ask, fleet):
        overflow_ask = replace(ask, overflow_source=data_center)
        second = decide(overflow_ask, fleet.table, profile)
        if second.fits:
            return overflow_ask, second
    return ask, first
