"""plan(before, change): what would be created, grown, moved and removed, for how much, and what becomes risky."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.orphaned import Adrift, adrift, adrift_in_the_end
from lattice.placement.greedy.place_all import arrange_all, outgrown, stale
from lattice.placement.model.costs_part import cost_of, run_rate
from lattice.placement.plan.declared import Declared, declared
from lattice.placement.model.demand import Demand, key_of
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.greedy.place import Placement, place, withdraw
from lattice.placement.plugins.filters.capacity import Full
from lattice.placement.plugins.filters.overflow import Gated, utilisation
from lattice.placement.model.current_state import Layout
from lattice.placement.status.pressure import Use, is_pressed, scarcest_in, uses
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.status.service_status import PLACED, Answer, settled_objects, state_of
from lattice.placement.model.world import Key, World, key, placed_counts

Where = tuple[str, str, str]  # offer, cluster, class


@dataclass
class Settled:
    """A world after everything that could be placed was."""

    world: World
    fleet: Fleet
    placements: Mapping[str, Placement]  # of services that were looked at
    adrift: Adrift = field(default_factory=Adrift)

    @staticmethod
    def now(world: World) -> "Settled":
        """As it is, with nobody placed who is not."""
        fleet = world.fleet()
        return Settled(world, fleet, {}, adrift(world, fleet))

    @cached_property
    def unplaced(self) -> dict[str, Placement]:
        return {name: each for name, each in self.placements.items() if not each.is_complete}

    @cached_property
    def where(self) -> dict[str, Counter[Where]]:
        here = (
            name for name in self.world.services if name in self.fleet.seats or name in self.adrift.replicas
        )
        return {name: placed_counts(self.fleet, name) + self.adrift.where(name) for name in here}

    def placed(self, service: str) -> int:
        """Replicas that have a place."""
        return len(self.fleet.seats.get(service, ())) + self.adrift.where(service).total()

    @cached_property
    def clusters(self) -> dict[str, Counter[str]]:
        left = {each.metadata.name: Counter(each.spec.nodes) for each in self.adrift.clusters}
        return {
            **left,
            **{name: class_counts(self.fleet, each) for name, each in self.fleet.clusters.items()},
        }

    @cached_property
    def offer_of(self) -> dict[str, str]:
        left = {each.metadata.name: each.spec.pool for each in self.adrift.clusters}
        return {
            **left,
            **{name: self.fleet.offers[each.row].name for name, each in self.fleet.clusters.items()},
        }

    @cached_property
    def costs(self) -> Mapping[str, int]:
        """Micro-dollars per hour by service: its part of the machines that it is on."""
        found = cost_of(self.fleet).services
        return {
            **found,
            **{name: found.get(name, 0) + self.adrift.cost(name) for name in self.adrift.replicas},
        }

    @cached_property
    def rates(self) -> dict[str, int]:
        return dict(sorted((Counter(run_rate(self.fleet)) + Counter(self.adrift.rates)).items()))

    def applied(self) -> World:
        """The world with what Lattice would have written by now."""
        gone = [
            each
            for each in self.world.objects
            if each[0] == LatticeCluster.resource.kind and each[2] not in self.clusters
        ]
        state = state_of(self.fleet)
        answers = {
            name: Answer(each, PLACED if each.is_complete else "Pending", state=state)
            for name, each in self.placements.items()
        }
        objects = [
            self.adrift.beside(each, key_of(each)) if isinstance(each, LatticeService) else each
            for each in settled_objects(self.world, self.fleet, answers)
        ]
        written = self.world.having(objects, gone, with_status=True)
        return written.laid_out(Layout.of(self.fleet, self.world.layout))


def settle(world: World, *, keep: int = 0, updated: Iterable[str] = ()) -> Settled:
    """Whoever lacks replicas gets them where there is room; what nobody needs any more goes. `updated`: services that ask for more now."""
    fleet = world.fleet()
    for name in updated:
        for seat in outgrown(world.demands[name], fleet):
            fleet.unseat(seat)
    left = adrift_in_the_end(world, fleet)
    return Settled(world, fleet, arrange_all(map(left.fewer, world.demands.values()), fleet, keep=keep), left)


@dataclass(frozen=True, slots=True)
class ServiceChange:
    name: str
    before: Mapping[Where, int]
    after: Mapping[Where, int]
    cost_before: int
    cost_after: int
    is_placed: bool = True

    @property
    def mark(self) -> str:
        return "+" if not self.before else "-" if not self.after and self.is_placed else "~"


@dataclass(frozen=True, slots=True)
class ClusterChange:
    name: str
    offer: str
    before: Mapping[str, int]
    after: Mapping[str, int]

    @property
    def mark(self) -> str:
        return "+" if not self.before else "-" if not self.after else "~"


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """Micro-dollars: projected of this month before and after, of the limit."""

    ledger: str
    subject: str
    limit: int
    before: int
    after: int
    alert: int
    hard: bool
    old_limit: int | None = None  # None: there was none
    left: int | None = None  # per hour, for more machines, after; None: it refuses none
    machine: int | None = (
        None  # per hour, of the cheapest machine that it pays for, as far as prices are known
    )

    @property
    def is_used_up(self) -> bool:
        """Is the next machine refused? That is measured by the hour, over 30 days: long before this month's projection is at the limit."""
        return self.left is not None and self.machine is not None and self.left < self.machine

    @property
    def was_passed(self) -> bool:
        return self.old_limit is not None and self.before > self.old_limit

    @property
    def was_alerting(self) -> bool:
        return self.old_limit is not None and self.before * 1_000_000 >= self.old_limit * self.alert

    def percent(self, projected: int) -> int:
        """Rounded to the nearest whole percent."""
        return (projected * 200 + self.limit) // (2 * self.limit) if self.limit else 100


@dataclass(frozen=True, slots=True)
class Moving:
    """A service that would not be put where it is. `to` is where it would go; None: nowhere."""

    name: str
    reasons: tuple[str, ...]
    to: Mapping[Where, int] | None


@dataclass(frozen=True)
class Plan:
    services: tuple[ServiceChange, ...]
    clusters: tuple[ClusterChange, ...]
    rates: Mapping[
        str, tuple[int, int]
    ]  # micro-dollars per hour by offer, before and after, where they differ
    total: tuple[int, int]
    budgets: tuple[BudgetChange, ...]
    would_move: tuple[Moving, ...]
    unplaced: tuple[str, ...]  # not placed after, whether or not they were before
    risks: tuple[str, ...]
    untouched: tuple[str, ...] = ()  # of those: who was so before, is not in the manifests and loses nothing
    id: str = ""
    declared: tuple[
        Declared, ...
    ] = ()  # what is written otherwise than before, with or without an effect on anything above
    before: Settled | None = field(default=None, compare=False, repr=False)
    after: Settled | None = field(default=None, compare=False, repr=False)

    @property
    def is_empty(self) -> bool:
        return not (
            self.services or self.clusters or self.would_move or self.risks or self.rates or self.declared
        )

    @property
    def is_feasible(self) -> bool:
        """What the change is about has a place, nobody loses one, and whatever would move has somewhere to go."""
        return len(self.unplaced) == len(self.untouched) and all(
            each.to is not None for each in self.would_move
        )


def plan(before: World, changes: Iterable[Kind], gone: Iterable[Key] = (), *, keep: int = 1) -> Plan:
    """What applying these would do."""
    changed, removed = list(changes), list(gone)
    return compare(*settle_both(before, changed, removed, keep=keep), changed, removed)


def settle_both(
    before: World, changes: Iterable[Kind], gone: Iterable[Key], *, keep: int = 0
) -> tuple[Settled, Settled]:
    """Without the change and with it. Before is taken as settled: what Lattice had already to do is not the change's."""
    settled = settle(before)
    start = settled.applied()
    wanted = start.having(changes, gone)
    return settled, settle(wanted, keep=keep, updated=_updated(start, wanted))


def _updated(before: World, after: World) -> list[str]:
    """Services whose replicas ask for other machines than they did."""
    known = before.demands
    return [
        name
        for name, demand in after.demands.items()
        if name in known and known[name].machine_needs != demand.machine_needs
    ]


def compare(before: Settled, after: Settled, changes: Sequence[Kind] = (), gone: Sequence[Key] = ()) -> Plan:
    services = tuple(_service_changes(before, after))
    clusters = tuple(_cluster_changes(before, after))
    names = sorted({*before.rates, *after.rates})
    rates = {name: (before.rates.get(name, 0), after.rates.get(name, 0)) for name in names}
    made = Plan(
        services=services,
        clusters=clusters,
        rates={name: each for name, each in rates.items() if each[0] != each[1]},
        total=(sum(before.rates.values()), sum(after.rates.values())),
        budgets=tuple(_budget_changes(before, after)),
        would_move=tuple(_moving(before, after)),
        unplaced=tuple(sorted(after.unplaced)),
        risks=tuple(_risks(before, after)),
        untouched=tuple(_untouched(before, after, changes)) if changes or gone else (),
        declared=tuple(declared(before.world, changes, gone, before.where)),
        before=before,
        after=after,
    )
    return replace(made, id=plan_id(made, changes, gone))


def _untouched(before: Settled, after: Settled, changes: Iterable[Kind]) -> Iterable[str]:
    """Services that had no place, and have none for reasons that are not this change's."""
    named = {key_of(each) for each in changes if isinstance(each, LatticeService)}
    for name in sorted({*before.unplaced} & {*after.unplaced} - named):
        if after.placed(name) >= before.placed(name):
            yield name


def plan_id(made: Plan, changes: Iterable[Kind], gone: Iterable[Key]) -> str:
    """Hash of the manifests and of the result: the same manifests with another result have another id."""
    seen = hashlib.sha256()
    for each in sorted(changes, key=key):
        labels = sorted((each.metadata.labels or {}).items())
        seen.update(msgspec.json.encode((key(each), labels, getattr(each, "spec", None))))
    result = (
        sorted(gone),
        made.services,
        made.clusters,
        sorted(made.rates.items()),
        made.total,
        made.would_move,
        made.unplaced,
    )
    seen.update(repr(_plain(result)).encode())
    return f"p-{seen.hexdigest()[:16]}"


def _plain(value: object) -> object:
    """The same text for equal values, whatever order a mapping was filled in."""
    if isinstance(value, Mapping):
        return sorted((_plain(name), _plain(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (ServiceChange, ClusterChange, Moving)):
        return [_plain(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def _service_changes(before: Settled, after: Settled) -> Iterable[ServiceChange]:
    for name in sorted({*before.where, *after.where, *after.unplaced}):
        old, new = before.where.get(name, Counter()), after.where.get(name, Counter())
        costs = before.costs.get(name, 0), after.costs.get(name, 0)
        if old != new or costs[0] != costs[1] or (name in after.unplaced and name not in before.unplaced):
            yield ServiceChange(name, dict(old), dict(new), *costs, name not in after.unplaced)


def _cluster_changes(before: Settled, after: Settled) -> Iterable[ClusterChange]:
    for name in sorted({*before.clusters, *after.clusters}):
        old, new = before.clusters.get(name, Counter()), after.clusters.get(name, Counter())
        if old != new:
            offer = after.offer_of.get(name) or before.offer_of[name]
            yield ClusterChange(name, offer, dict(old), dict(new))


def _budget_changes(before: Settled, after: Settled) -> Iterable[BudgetChange]:
    """Of budgets that are there; one that went with its pool limits nothing any more."""
    for name, budget in sorted(after.world.supply.budgets.items()):
        if budget.limit is None:
            continue
        was, will = (
            each.world.projected(name, each.fleet.committed[name]) if name in each.world.supply.budgets else 0
            for each in (before, after)
        )
        old = before.world.supply.budgets.get(name)
        if was != will or old is None or old.limit != budget.limit:
            old_limit = old.limit if old else None
            of_machines = _left(after.fleet, name), _cheapest(after.fleet, name)
            yield BudgetChange(
                name,
                str(budget.account),
                budget.limit,
                was,
                will,
                budget.alert,
                budget.hard,
                old_limit,
                *of_machines,
            )


def _left(fleet: Fleet, ledger: str) -> int | None:
    cap = fleet.cap(ledger)
    return max(0, cap - fleet.committed[ledger]) if cap < NO_LIMIT else None


def _cheapest(fleet: Fleet, ledger: str) -> int | None:
    return min(
        (
            kind.rate
            for each in fleet.offers
            if ledger in each.budgets
            for kind in each.types
            if kind.is_priced
        ),
        default=None,
    )


def _moving(before: Settled, after: Settled) -> Iterable[Moving]:
    """Services that the change makes misplaced; those that were so before are not its doing."""
    for name, demand in after.world.demands.items():
        reasons, old = _troubles(demand, after), before.world.demands.get(name)
        if reasons and (old is None or _troubles(old, before) != reasons):
            yield Moving(name, reasons, _would_go(demand, after))


def _troubles(demand: Demand, settled: Settled) -> tuple[str, ...]:
    """Why it would not be put where it is."""
    found = stale(demand, settled.fleet)
    return (*settled.adrift.reasons(demand.name), *(found.reasons if found else ()))


def _would_go(demand: Demand, after: Settled) -> Mapping[Where, int] | None:
    """Everything the service has, put anew."""
    fleet = after.fleet
    with fleet.what_if():
        withdraw(fleet, list(fleet.seats.get(demand.name, ())))
        placement = place(demand, fleet)
        return dict(placed_counts(fleet, demand.name)) if placement.is_complete else None


def _risks(before: Settled, after: Settled) -> Iterable[str]:
    for change in _budget_changes(before, after):
        alert = change.limit * change.alert // 1_000_000
        percent = f"{change.percent(change.after)} % of its limit"
        if change.after > change.limit and not change.was_passed:
            yield f"budget of {change.subject} is passed: {percent}" + (
                "" if change.hard else "; it is soft and only warns"
            )
        elif change.limit >= change.after >= alert and not change.was_alerting:
            yield f"budget of {change.subject} reaches its alert: {percent}"
    known = _pressed(before)
    yield from (
        f"{offer} is {used * 100 // whole} % full"
        for offer, (used, whole) in _pressed(after).items()
        if offer not in known
    )
    in_pieces = set(_in_pieces(before))
    yield from (each for each in _in_pieces(after) if each not in in_pieces)
    yield from _over_limits(before, after)
    yield from _lone_regions(before, after)


def _in_pieces(settled: Settled) -> Iterable[str]:
    """Data centers without room for a service that waits, though they are not full enough to overflow."""
    fleet = settled.fleet
    for name, placement in sorted(settled.unplaced.items()):
        for decision in placement.decisions[-1:]:
            for gate in (each for each in decision.reasons if isinstance(each, Gated) and not each.is_past):
                row = fleet.row(gate.static)
                overflow = fleet.offers[row].overflow
                if (
                    overflow
                    and overflow.enabled
                    and any(mask[row] for each, mask in decision.reasons.items() if isinstance(each, Full))
                ):
                    used = utilisation(fleet, row, with_reserve=gate.with_reserve)
                    yield (
                        f"{gate.static} has no room for {name} and does not overflow: {used / 10_000:g} % is in use, in pieces that are "
                        f"too small, and it overflows from {overflow.trigger_millionths / 10_000:g} %"
                    )


def _over_limits(before: Settled, after: Settled) -> Iterable[str]:
    """Limits that were lowered below what is in use; nothing is taken away for it, and nothing more is made."""
    known = set(_beyond(before))
    for offer, what, taken, limit in _beyond(after):
        if not any(each[:2] == (offer, what) for each in known):
            yield f"{offer} has more {what} in use ({taken:,}) than it may ({limit:,}): nothing is removed, nothing more is made"


def _beyond(settled: Settled) -> Iterable[tuple[str, str, int, int]]:
    for row, offer in enumerate(settled.fleet.offers):
        yield from (
            (offer.name, name, taken, limit)
            for name, (taken, limit) in uses(settled.fleet, row).items()
            if taken > limit
        )


def _pressed(settled: Settled) -> dict[str, Use]:
    found = {offer.name: scarcest_in(settled.fleet, row) for row, offer in enumerate(settled.fleet.offers)}
    return {name: use for name, use in found.items() if use is not None and is_pressed(use)}


def _lone_regions(before: Settled, after: Settled) -> Iterable[str]:
    """Services that were in several regions and are in one now."""
    for name in after.where:
        counts = [
            len(
                {each.fleet.offers[row].region for row in each.fleet.rows_of(name)}
                | each.adrift.regions(name)
            )
            for each in (before, after)
        ]
        if counts[0] > 1 and counts[1] == 1:
            yield f"{name} is left in one region"
