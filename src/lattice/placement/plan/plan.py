"""plan(before, change): what would be created, grown, moved and removed, for how much, and what becomes risky."""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.kinds.service import LatticeService, service_key
from lattice.lifecycle.replica_template import template
from lattice.placement.greedy.machine_choice import class_counts
from lattice.placement.greedy.orphaned import OrphanedState, find_final_orphans, find_orphans
from lattice.placement.greedy.place import Placement, place, remove_assignments
from lattice.placement.greedy.place_all import find_stale_placement, outgrown_assignments, place_all
from lattice.placement.model.costs import fleet_costs, run_rate
from lattice.placement.model.current_state import PlannedLayout
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import to_json_value
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import ObjectKey, World, object_key, placed_counts
from lattice.placement.plugins.filters.capacity import InsufficientCapacity
from lattice.placement.plugins.filters.overflow import OverflowClosed, offer_utilisation
from lattice.placement.status.service_status import PLACED, PlacementResult, fleet_digest, objects_to_write
from lattice.placement.status.supply_conditions import (
    ResourceUsage,
    highest_offer_usage,
    is_under_pressure,
    offer_usage,
)

FieldChange = tuple[str, Any, Any]  # path, before and after


PlacementKey = tuple[str, str, str]  # offer, cluster, class


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """`mark`: + is new, - is gone, ~ has other fields than it had."""

    mark: str
    object: ObjectKey
    fields: tuple[FieldChange, ...] = ()
    is_restarted: bool = (
        False  # its replicas run something else than before: they are replaced one after the other
    )


def manifest_changes(
    before: World, changes: Iterable[Kind], gone: Iterable[ObjectKey], placed: Container[str] = ()
) -> Iterator[ManifestChange]:
    """By kind and name. What is applied as it is already is not among them. `placed`: services that have replicas before."""
    found = [ManifestChange("-", each) for each in gone if each in before.objects]
    for each in changes:
        known = before.objects.get(object_key(each))
        if known is None:
            found.append(ManifestChange("+", object_key(each)))
        elif fields := tuple(_fields(known, each)):
            found.append(ManifestChange("~", object_key(each), fields, _is_restarted(known, each, placed)))
    yield from sorted(found, key=lambda each: each.object)


def _is_restarted(before: Kind, after: Kind, placed: Container[str]) -> bool:
    if not (isinstance(before, LatticeService) and isinstance(after, LatticeService)):
        return False
    return service_key(before) in placed and template(before).revision != template(after).revision


def _fields(before: Kind, after: Kind) -> Iterator[FieldChange]:
    labels = before.metadata.labels or {}, after.metadata.labels or {}
    if labels[0] != labels[1]:
        yield from _diff_values("metadata.labels", *labels)
    specs = getattr(before, "spec", None), getattr(after, "spec", None)
    if specs[0] != specs[1]:
        yield from _diff_values("spec", *map(to_json_value, specs))


def _diff_values(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield from _diff_values(f"{path}.{name}", before.get(name), after.get(name))
    else:
        yield path, before, after


@dataclass
class FleetState:
    """A world after everything that could be placed was."""

    world: World
    fleet: Fleet
    placements: Mapping[str, Placement]  # of services that were looked at
    orphaned: OrphanedState = field(default_factory=OrphanedState)

    @staticmethod
    def current(world: World) -> "FleetState":
        """As it is, with nobody placed who is not."""
        fleet = world.build_fleet()
        return FleetState(world, fleet, {}, find_orphans(world, fleet))

    @cached_property
    def unplaced(self) -> dict[str, Placement]:
        return {name: each for name, each in self.placements.items() if not each.is_complete}

    @cached_property
    def replica_counts(self) -> dict[str, Counter[PlacementKey]]:
        here = (
            name
            for name in self.world.services
            if name in self.fleet.assignments or name in self.orphaned.replicas
        )
        return {name: placed_counts(self.fleet, name) + self.orphaned.replica_counts(name) for name in here}

    def placed_replicas(self, service: str) -> int:
        """Replicas that have a place."""
        return len(self.fleet.assignments.get(service, ())) + self.orphaned.replica_counts(service).total()

    @cached_property
    def clusters(self) -> dict[str, Counter[str]]:
        left = {each.metadata.name: Counter(each.spec.nodes) for each in self.orphaned.clusters}
        return {
            **left,
            **{name: class_counts(self.fleet, each) for name, each in self.fleet.clusters.items()},
        }

    @cached_property
    def offer_of(self) -> dict[str, str]:
        left = {each.metadata.name: each.spec.pool for each in self.orphaned.clusters}
        return {
            **left,
            **{name: self.fleet.offers[each.offer_row].name for name, each in self.fleet.clusters.items()},
        }

    @cached_property
    def service_rates(self) -> Mapping[str, int]:
        """Micro-dollars per hour by service: its part of the machines that it is on."""
        found = fleet_costs(self.fleet).services
        return {
            **found,
            **{
                name: found.get(name, 0) + self.orphaned.service_cost(name) for name in self.orphaned.replicas
            },
        }

    @cached_property
    def offer_rates(self) -> dict[str, int]:
        return dict(sorted((Counter(run_rate(self.fleet)) + Counter(self.orphaned.offer_rates)).items()))

    def resulting_world(self) -> World:
        """The world with what Lattice would have written by now."""
        gone = [
            each
            for each in self.world.objects
            if each[0] == LatticeCluster.resource.kind and each[2] not in self.clusters
        ]
        state = fleet_digest(self.fleet)
        answers = {
            name: PlacementResult(each, PLACED if each.is_complete else "Pending", fleet_digest=state)
            for name, each in self.placements.items()
        }
        objects = [
            self.orphaned.with_orphans(each, service_key(each)) if isinstance(each, LatticeService) else each
            for each in objects_to_write(self.world, self.fleet, answers)
        ]
        written = self.world.with_objects(objects, gone, with_status=True)
        return written.with_layout(PlannedLayout.of(self.fleet, self.world.layout))


def converge(world: World, *, max_decisions: int = 0, resized: Iterable[str] = ()) -> FleetState:
    """Whoever lacks replicas gets them where there is room; what nobody needs any more goes. `updated`: services that ask for more now."""
    fleet = world.build_fleet()
    for name in resized:
        for seat in outgrown_assignments(world.demands[name], fleet):
            fleet.unassign(seat)
    left = find_final_orphans(world, fleet)
    return FleetState(
        world,
        fleet,
        place_all(map(left.subtract_orphans, world.demands.values()), fleet, keep_decisions=max_decisions),
        left,
    )


@dataclass(frozen=True, slots=True)
class ServiceChange:
    name: str
    placed_before: Mapping[PlacementKey, int]
    placed_after: Mapping[PlacementKey, int]
    cost_before: int
    cost_after: int
    is_placed: bool = True

    @property
    def mark(self) -> str:
        return "+" if not self.placed_before else "-" if not self.placed_after and self.is_placed else "~"


@dataclass(frozen=True, slots=True)
class ClusterChange:
    name: str
    offer: str
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]

    @property
    def mark(self) -> str:
        return "+" if not self.nodes_before else "-" if not self.nodes_after else "~"


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """Micro-dollars: projected of this month before and after, of the limit."""

    ledger: str
    subject: str
    limit: int
    projected_before: int
    projected_after: int
    alert_millionths: int
    hard: bool
    limit_before: int | None = None  # None: there was none
    headroom: int | None = None  # per hour, for more machines, after; None: it refuses none
    cheapest_machine_rate: int | None = (
        None  # per hour, of the cheapest machine that it pays for, as far as prices are known
    )

    @property
    def is_exhausted(self) -> bool:
        """Is the next machine refused? That is measured by the hour, over 30 days: long before this month's projection is at the limit."""
        return (
            self.headroom is not None
            and self.cheapest_machine_rate is not None
            and self.headroom < self.cheapest_machine_rate
        )

    @property
    def was_exceeded(self) -> bool:
        return self.limit_before is not None and self.projected_before > self.limit_before

    @property
    def was_alerting(self) -> bool:
        return (
            self.limit_before is not None
            and self.projected_before * 1_000_000 >= self.limit_before * self.alert_millionths
        )

    def percent(self, projected: int) -> int:
        """Rounded to the nearest whole percent."""
        return (projected * 200 + self.limit) // (2 * self.limit) if self.limit else 100


@dataclass(frozen=True, slots=True)
class MisplacedService:
    """A service that would not be put where it is. `to` is where it would go; None: nowhere."""

    name: str
    reasons: tuple[str, ...]
    destination: Mapping[PlacementKey, int] | None


@dataclass(frozen=True)
class Plan:
    services: tuple[ServiceChange, ...]
    clusters: tuple[ClusterChange, ...]
    rates: Mapping[
        str, tuple[int, int]
    ]  # micro-dollars per hour by offer, before and after, where they differ
    total: tuple[int, int]
    budgets: tuple[BudgetChange, ...]
    would_move: tuple[MisplacedService, ...]
    unplaced: tuple[str, ...]  # not placed after, whether or not they were before
    risks: tuple[str, ...]
    untouched: tuple[str, ...] = ()  # of those: who was so before, is not in the manifests and loses nothing
    id: str = ""
    manifest_changes: tuple[
        ManifestChange, ...
    ] = ()  # what is written otherwise than before, with or without an effect on anything above
    state_before: FleetState | None = field(default=None, compare=False, repr=False)
    state_after: FleetState | None = field(default=None, compare=False, repr=False)

    @property
    def is_empty(self) -> bool:
        return not (
            self.services
            or self.clusters
            or self.would_move
            or self.risks
            or self.rates
            or self.manifest_changes
        )

    @property
    def is_feasible(self) -> bool:
        """What the change is about has a place, nobody loses one, and whatever would move has somewhere to go."""
        return len(self.unplaced) == len(self.untouched) and all(
            each.destination is not None for each in self.would_move
        )


def plan(
    before: World, changes: Iterable[Kind], deleted: Iterable[ObjectKey] = (), *, max_decisions: int = 1
) -> Plan:
    """What applying these would do."""
    changed, removed = list(changes), list(deleted)
    return compare(*converge_both(before, changed, removed, max_decisions=max_decisions), changed, removed)


def converge_both(
    before: World, changes: Iterable[Kind], gone: Iterable[ObjectKey], *, max_decisions: int = 0
) -> tuple[FleetState, FleetState]:
    """Without the change and with it. Before is taken as settled: what Lattice had already to do is not the change's."""
    settled = converge(before)
    start = settled.resulting_world()
    wanted = start.with_objects(changes, gone)
    return settled, converge(wanted, max_decisions=max_decisions, resized=_resized_services(start, wanted))


def _resized_services(before: World, after: World) -> list[str]:
    """Services whose replicas ask for other machines than they did."""
    known = before.demands
    return [
        name
        for name, demand in after.demands.items()
        if name in known and known[name].machine_needs != demand.machine_needs
    ]


def compare(
    before: FleetState, after: FleetState, changes: Sequence[Kind] = (), gone: Sequence[ObjectKey] = ()
) -> Plan:
    services = tuple(_service_changes(before, after))
    clusters = tuple(_cluster_changes(before, after))
    names = sorted({*before.offer_rates, *after.offer_rates})
    rates = {name: (before.offer_rates.get(name, 0), after.offer_rates.get(name, 0)) for name in names}
    made = Plan(
        services=services,
        clusters=clusters,
        rates={name: each for name, each in rates.items() if each[0] != each[1]},
        total=(sum(before.offer_rates.values()), sum(after.offer_rates.values())),
        budgets=tuple(_budget_changes(before, after)),
        would_move=tuple(_misplaced_services(before, after)),
        unplaced=tuple(sorted(after.unplaced)),
        risks=tuple(_risks(before, after)),
        untouched=tuple(_untouched(before, after, changes)) if changes or gone else (),
        manifest_changes=tuple(manifest_changes(before.world, changes, gone, before.replica_counts)),
        state_before=before,
        state_after=after,
    )
    return replace(made, id=plan_id(made, changes, gone))


def _untouched(before: FleetState, after: FleetState, changes: Iterable[Kind]) -> Iterable[str]:
    """Services that had no place, and have none for reasons that are not this change's."""
    named = {service_key(each) for each in changes if isinstance(each, LatticeService)}
    for name in sorted({*before.unplaced} & {*after.unplaced} - named):
        if after.placed_replicas(name) >= before.placed_replicas(name):
            yield name


def plan_id(made: Plan, changes: Iterable[Kind], gone: Iterable[ObjectKey]) -> str:
    """Hash of the manifests and of the result: the same manifests with another result have another id."""
    seen = hashlib.sha256()
    for each in sorted(changes, key=object_key):
        labels = sorted((each.metadata.labels or {}).items())
        seen.update(msgspec.json.encode((object_key(each), labels, getattr(each, "spec", None))))
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
    if isinstance(value, (ServiceChange, ClusterChange, MisplacedService)):
        return [_plain(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def _service_changes(before: FleetState, after: FleetState) -> Iterable[ServiceChange]:
    for name in sorted({*before.replica_counts, *after.replica_counts, *after.unplaced}):
        old, new = before.replica_counts.get(name, Counter()), after.replica_counts.get(name, Counter())
        costs = before.service_rates.get(name, 0), after.service_rates.get(name, 0)
        if old != new or costs[0] != costs[1] or (name in after.unplaced and name not in before.unplaced):
            yield ServiceChange(name, dict(old), dict(new), *costs, name not in after.unplaced)


def _cluster_changes(before: FleetState, after: FleetState) -> Iterable[ClusterChange]:
    for name in sorted({*before.clusters, *after.clusters}):
        old, new = before.clusters.get(name, Counter()), after.clusters.get(name, Counter())
        if old != new:
            offer = after.offer_of.get(name) or before.offer_of[name]
            yield ClusterChange(name, offer, dict(old), dict(new))


def _budget_changes(before: FleetState, after: FleetState) -> Iterable[BudgetChange]:
    """Of budgets that are there; one that went with its pool limits nothing any more."""
    for name, budget in sorted(after.world.supply.budgets.items()):
        if budget.limit is None:
            continue
        was, will = (
            each.world.projected_spend(name, each.fleet.committed[name])
            if name in each.world.supply.budgets
            else 0
            for each in (before, after)
        )
        old = before.world.supply.budgets.get(name)
        if was != will or old is None or old.limit != budget.limit:
            old_limit = old.limit if old else None
            of_machines = _headroom(after.fleet, name), _cheapest(after.fleet, name)
            yield BudgetChange(
                name,
                str(budget.account),
                budget.limit,
                was,
                will,
                budget.alert_millionths,
                budget.is_hard,
                old_limit,
                *of_machines,
            )


def _headroom(fleet: Fleet, ledger: str) -> int | None:
    cap = fleet.commit_cap(ledger)
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


def _misplaced_services(before: FleetState, after: FleetState) -> Iterable[MisplacedService]:
    """Services that the change makes misplaced; those that were so before are not its doing."""
    for name, demand in after.world.demands.items():
        reasons, old = _misplacement_reasons(demand, after), before.world.demands.get(name)
        if reasons and (old is None or _misplacement_reasons(old, before) != reasons):
            yield MisplacedService(name, reasons, _destination(demand, after))


def _misplacement_reasons(demand: Demand, settled: FleetState) -> tuple[str, ...]:
    """Why it would not be put where it is."""
    found = find_stale_placement(demand, settled.fleet)
    return (*settled.orphaned.reasons(demand.name), *(found.reasons if found else ()))


def _destination(demand: Demand, after: FleetState) -> Mapping[PlacementKey, int] | None:
    """Everything the service has, put anew."""
    fleet = after.fleet
    with fleet.what_if():
        remove_assignments(fleet, list(fleet.assignments.get(demand.name, ())))
        placement = place(demand, fleet)
        return dict(placed_counts(fleet, demand.name)) if placement.is_complete else None


def _risks(before: FleetState, after: FleetState) -> Iterable[str]:
    for change in _budget_changes(before, after):
        alert = change.limit * change.alert_millionths // 1_000_000
        percent = f"{change.percent(change.projected_after)} % of its limit"
        if change.projected_after > change.limit and not change.was_exceeded:
            yield f"budget of {change.subject} is passed: {percent}" + (
                "" if change.hard else "; it is soft and only warns"
            )
        elif change.limit >= change.projected_after >= alert and not change.was_alerting:
            yield f"budget of {change.subject} reaches its alert: {percent}"
    known = _offers_under_pressure(before)
    yield from (
        f"{offer} is {used * 100 // whole} % full"
        for offer, (used, whole) in _offers_under_pressure(after).items()
        if offer not in known
    )
    in_pieces = set(_fragmentation_risks(before))
    yield from (each for each in _fragmentation_risks(after) if each not in in_pieces)
    yield from _over_limits(before, after)
    yield from _single_region_risks(before, after)


def _fragmentation_risks(settled: FleetState) -> Iterable[str]:
    """Data centers without room for a service that waits, though they are not full enough to overflow."""
    fleet = settled.fleet
    for name, placement in sorted(settled.unplaced.items()):
        for decision in placement.decisions[-1:]:
            for gate in (
                each
                for each in decision.reasons
                if isinstance(each, OverflowClosed) and not each.is_triggered
            ):
                row = fleet.row(gate.static)
                overflow = fleet.offers[row].overflow
                if (
                    overflow
                    and overflow.enabled
                    and any(
                        mask[row]
                        for each, mask in decision.reasons.items()
                        if isinstance(each, InsufficientCapacity)
                    )
                ):
                    used = offer_utilisation(fleet, row, includes_reserve=gate.includes_reserve)
                    yield (
                        f"{gate.static} has no room for {name} and does not overflow: {used / 10_000:g} % is in use, in pieces that are "
                        f"too small, and it overflows from {overflow.trigger_millionths / 10_000:g} %"
                    )


def _over_limits(before: FleetState, after: FleetState) -> Iterable[str]:
    """Limits that were lowered below what is in use; nothing is taken away for it, and nothing more is made."""
    known = set(_exceeded_limits(before))
    for offer, what, taken, limit in _exceeded_limits(after):
        if not any(each[:2] == (offer, what) for each in known):
            yield f"{offer} has more {what} in use ({taken:,}) than it may ({limit:,}): nothing is removed, nothing more is made"


def _exceeded_limits(settled: FleetState) -> Iterable[tuple[str, str, int, int]]:
    for row, offer in enumerate(settled.fleet.offers):
        yield from (
            (offer.name, name, taken, limit)
            for name, (taken, limit) in offer_usage(settled.fleet, row).items()
            if taken > limit
        )


def _offers_under_pressure(settled: FleetState) -> dict[str, ResourceUsage]:
    found = {
        offer.name: highest_offer_usage(settled.fleet, row) for row, offer in enumerate(settled.fleet.offers)
    }
    return {name: use for name, use in found.items() if use is not None and is_under_pressure(use)}


def _single_region_risks(before: FleetState, after: FleetState) -> Iterable[str]:
    """Services that were in several regions and are in one now."""
    for name in after.replica_counts:
        counts = [
            len(
                {each.fleet.offers[row].region for row in each.fleet.offer_rows_of(name)}
                | each.orphaned.regions(name)
            )
            for each in (before, after)
        ]
        if counts[0] > 1 and counts[1] == 1:
            yield f"{name} is left in one region"
