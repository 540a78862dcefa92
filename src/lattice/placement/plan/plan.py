"""Compute a plan: what a change of manifests creates, grows, moves and removes, with costs, budgets and
risks."""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.kinds.service import LatticeService, service_key
from lattice.lifecycle.replica_template import workload_template
from lattice.placement.greedy.machine_choice import machine_counts
from lattice.placement.greedy.orphaned import OrphanedState, find_final_orphans, find_orphans
from lattice.placement.greedy.place import Placement, place, remove_assignments
from lattice.placement.greedy.place_all import find_stale_placement, outgrown_assignments, place_all
from lattice.placement.inputs.bill import Bill
from lattice.placement.inputs.cost_allocation import CostPart, cost_parts
from lattice.placement.model.costs import billed_machines, fleet_bill, fleet_costs
from lattice.placement.model.current_state import PlannedLayout
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import to_json_value
from lattice.placement.model.offer import NO_LIMIT
from lattice.placement.model.world import ObjectKey, World, object_key, placed_counts
from lattice.placement.plan.budget_change import BudgetChange
from lattice.placement.plan.surge import NO_SURGE, Surge, surge_of
from lattice.placement.plugins.filters.capacity import InsufficientCapacity
from lattice.placement.plugins.filters.overflow import OverflowClosed, offer_utilisation
from lattice.placement.status.fleet_status import PLACED, PlacementResult, fleet_digest, objects_to_write
from lattice.placement.status.supply_conditions import (
    ResourceUsage,
    highest_offer_usage,
    is_under_pressure,
    offer_usage,
)

# The path of a field, its previous value and its new value.
FieldChange = tuple[str, Any, Any]
# Offer, cluster and node class.
PlacementKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """A change of one object. `mark` is `+` for a new object, `-` for a deleted object, `~` for changed
    fields."""

    mark: str
    object: ObjectKey
    fields: tuple[FieldChange, ...] = ()
    # True: the template of the replicas changes, so a rollout replaces the replicas.
    is_restarted: bool = False


def manifest_changes(
    before: World, changes: Iterable[Kind], deleted: Iterable[ObjectKey], placed: Container[str] = ()
) -> Iterator[ManifestChange]:
    """Yield the changed objects by kind and name; `placed` are the services that have replicas before the
    change."""
    manifests = [ManifestChange("-", key) for key in deleted if key in before.objects]
    for changed in changes:
        previous = before.objects.get(object_key(changed))
        if previous is None:
            manifests.append(ManifestChange("+", object_key(changed)))
            continue
        fields: list[FieldChange] = []
        labels = previous.metadata.labels or {}, changed.metadata.labels or {}
        if labels[0] != labels[1]:
            fields += _diff_values("metadata.labels", *labels)
        specs = getattr(previous, "spec", None), getattr(changed, "spec", None)
        if specs[0] != specs[1]:
            fields += _diff_values("spec", *map(to_json_value, specs))
        if fields:
            is_restarted = (
                isinstance(previous, LatticeService)
                and isinstance(changed, LatticeService)
                and service_key(previous) in placed
                and workload_template(previous).revision != workload_template(changed).revision
            )
            manifests.append(ManifestChange("~", object_key(changed), tuple(fields), is_restarted))
    yield from sorted(manifests, key=lambda change: change.object)


def _diff_values(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    """Yield the differences of two JSON values, field by field inside mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield from _diff_values(f"{path}.{name}", before.get(name), after.get(name))
    else:
        yield path, before, after


@dataclass
class FleetState:
    """A world with its fleet after `converge` has placed all missing replicas that fit."""

    world: World
    fleet: Fleet
    # Placements of the services that had missing replicas.
    placements: Mapping[str, Placement]
    orphaned: OrphanedState = field(default_factory=OrphanedState)
    # The bill of the recorded machines; None: the bill is that of the trial fleet.
    recorded_bill: Bill | None = None

    @staticmethod
    def current(world: World) -> "FleetState":
        """Return the state as the objects describe it, without placing missing replicas."""
        fleet = world.build_fleet()
        return FleetState(world, fleet, {}, find_orphans(world, fleet), world.recorded_bill)

    @cached_property
    def unplaced(self) -> dict[str, Placement]:
        """The placements with missing replicas, by service."""
        return {name: placement for name, placement in self.placements.items() if not placement.is_complete}

    @cached_property
    def replica_counts(self) -> dict[str, Counter[PlacementKey]]:
        """Replicas by service, then by offer, cluster and node class, with orphaned replicas."""
        counts = {}
        for name in self.world.services:
            if name in self.fleet.assignments or name in self.orphaned.replicas:
                counts[name] = placed_counts(self.fleet, name) + self.orphaned.replica_counts(name)
        return counts

    def placed_replicas(self, service: str) -> int:
        """Count the replicas of the service that have a place, with orphaned replicas."""
        return len(self.fleet.assignments.get(service, ())) + self.orphaned.replica_counts(service).total()

    @cached_property
    def clusters(self) -> dict[str, Counter[str]]:
        """Machines by cluster, then by node class, with orphaned clusters."""
        counts = {cluster.metadata.name: Counter(cluster.spec.nodes) for cluster in self.orphaned.clusters}
        for name, cluster in self.fleet.clusters.items():
            counts[name] = machine_counts(self.fleet, cluster)
        return counts

    @cached_property
    def offer_of(self) -> dict[str, str]:
        """The offer of every cluster, with orphaned clusters."""
        offers = {cluster.metadata.name: cluster.spec.pool for cluster in self.orphaned.clusters}
        for name, cluster in self.fleet.clusters.items():
            offers[name] = self.fleet.offers[cluster.offer_row].name
        return offers

    @cached_property
    def service_rates(self) -> Mapping[str, int]:
        """Micro-dollars per hour by service: the share of the machines that its replicas use."""
        rates = dict(fleet_costs(self.fleet).services)
        for name in self.orphaned.replicas:
            rates[name] = rates.get(name, 0) + self.orphaned.service_cost(name)
        return rates

    @cached_property
    def bill(self) -> Bill:
        """The machines that are paid for: those of the record, or those of the trial fleet."""
        return self.recorded_bill or fleet_bill(self.fleet, self.orphaned.bill_lines)

    @cached_property
    def cost_parts(self) -> tuple[CostPart, ...]:
        """The parts of the bill: of services, and of machines without replicas. The parts add up to the bill."""
        if self.recorded_bill is not None:
            return tuple(cost_parts(self.world.recorded_machines.of(self.recorded_bill)))
        parts = list(cost_parts(billed_machines(self.fleet, set(self.fleet.machines.machine_type))))
        return (*parts, *self.orphaned.cost_parts)

    @cached_property
    def unpriced_services(self) -> frozenset[str]:
        """The services that use machines of unknown price."""
        if all(line.is_priced for line in self.bill.lines):
            return frozenset()
        return frozenset(part.service for part in self.cost_parts if not part.machine.is_priced)

    @cached_property
    def offer_rates(self) -> dict[str, int]:
        """Micro-dollars per hour by offer, sorted by name; offers that cost nothing are left out."""
        return {name: rate for name, rate in sorted(self.bill.offer_rates.items()) if rate}

    def resulting_world(self) -> World:
        """Return the world with all objects that the controllers would have written in this state."""
        # Clusters without replicas are gone in the resulting world.
        removed_clusters = [
            key
            for key in self.world.objects
            if key[0] == LatticeCluster.resource.kind and key[2] not in self.clusters
        ]
        state = fleet_digest(self.fleet)
        results = {
            name: PlacementResult(
                placement, PLACED if placement.is_complete else "Pending", fleet_digest=state
            )
            for name, placement in self.placements.items()
        }
        objects = [
            self.orphaned.with_orphans(resource, service_key(resource))
            if isinstance(resource, LatticeService)
            else resource
            for resource in objects_to_write(self.world, self.fleet, results)
        ]
        written = self.world.with_objects(objects, removed_clusters, with_status=True)
        return written.with_layout(PlannedLayout.of(self.fleet, self.world.layout))


def converge(world: World, *, max_decisions: int = 0, resized: Iterable[str] = ()) -> FleetState:
    """Place all missing replicas that fit, and remove surplus replicas and empty machines.

    `resized` are services with changed requests: their replicas that outgrew a machine are placed again.
    """
    fleet = world.build_fleet()
    for name in resized:
        # A rollout replaces these replicas, so they free their machines.
        for assignment in outgrown_assignments(world.demands[name], fleet):
            fleet.unassign(assignment)
    orphaned = find_final_orphans(world, fleet)
    return FleetState(
        world,
        fleet,
        place_all(
            map(orphaned.subtract_orphans, world.demands.values()), fleet, keep_decisions=max_decisions
        ),
        orphaned,
    )


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """Placements and costs (micro-dollars per hour) of one service before and after the change."""

    name: str
    placed_before: Mapping[PlacementKey, int]
    placed_after: Mapping[PlacementKey, int]
    cost_before: int
    cost_after: int
    is_placed: bool = True

    @property
    def mark(self) -> str:
        if not self.placed_before:
            return "+"
        return "-" if not self.placed_after and self.is_placed else "~"


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """The machines of one cluster by node class before and after the change."""

    name: str
    offer: str
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]

    @property
    def mark(self) -> str:
        if not self.nodes_before:
            return "+"
        return "-" if not self.nodes_after else "~"


@dataclass(frozen=True, slots=True)
class MisplacedService:
    """A service in offers that its requirements exclude; `destination` is None if no other place fits."""

    name: str
    reasons: tuple[str, ...]
    destination: Mapping[PlacementKey, int] | None


@dataclass(frozen=True)
class Plan:
    """The result of a change: the differences between two converged fleet states."""

    services: tuple[ServiceChange, ...]
    clusters: tuple[ClusterChange, ...]
    # Micro-dollars per hour by offer, before and after the change, if the two differ.
    rates: Mapping[str, tuple[int, int]]
    total: tuple[int, int]
    budgets: tuple[BudgetChange, ...]
    would_move: tuple[MisplacedService, ...]
    # Services with missing replicas after the change, also those that had missing replicas before.
    unplaced: tuple[str, ...]
    risks: tuple[str, ...]
    # The unplaced services that were unplaced before, are not in the manifests and lose no replica.
    untouched: tuple[str, ...] = ()
    # What the updates of the plan need beside the final state, until they end.
    surge: Surge = NO_SURGE
    id: str = ""
    # All changed objects, with or without an effect on the fleet.
    manifest_changes: tuple[ManifestChange, ...] = ()
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
        """Report whether all changed services are placed, no service loses a replica, and every misplaced
        service has a destination."""
        return len(self.unplaced) == len(self.untouched) and all(
            service.destination is not None for service in self.would_move
        )


def plan(
    before: World, changes: Iterable[Kind], deleted: Iterable[ObjectKey] = (), *, max_decisions: int = 1
) -> Plan:
    """Compute the plan for applying `changes` and deleting `deleted`."""
    change_list, deleted_keys = list(changes), list(deleted)
    return compare(
        *converge_both(before, change_list, deleted_keys, max_decisions=max_decisions),
        change_list,
        deleted_keys,
    )


def converge_both(
    before: World, changes: Iterable[Kind], deleted: Iterable[ObjectKey], *, max_decisions: int = 0
) -> tuple[FleetState, FleetState]:
    """Converge the world without the change and with the change.

    The state before counts as converged: actions that the controllers still had to do are not part of the
    change.
    """
    # Without this step, the plan would show pending actions as effects of the change.
    state_before = converge(before)
    world_before = state_before.resulting_world()
    world_after = world_before.with_objects(changes, deleted)
    # Replicas of services that need other machines than before are placed again.
    previous_demands = world_before.demands
    resized = [
        name
        for name, demand in world_after.demands.items()
        if name in previous_demands and previous_demands[name].machine_needs != demand.machine_needs
    ]
    return state_before, converge(world_after, max_decisions=max_decisions, resized=resized)


def compare(
    before: FleetState, after: FleetState, changes: Sequence[Kind] = (), deleted: Sequence[ObjectKey] = ()
) -> Plan:
    """Compute the plan from the states before and after the change."""
    services = []
    for name in sorted({*before.replica_counts, *after.replica_counts, *after.unplaced}):
        placed_before = before.replica_counts.get(name, Counter())
        placed_after = after.replica_counts.get(name, Counter())
        costs = before.service_rates.get(name, 0), after.service_rates.get(name, 0)
        is_newly_unplaced = name in after.unplaced and name not in before.unplaced
        if placed_before != placed_after or costs[0] != costs[1] or is_newly_unplaced:
            is_placed = name not in after.unplaced
            services.append(ServiceChange(name, dict(placed_before), dict(placed_after), *costs, is_placed))
    clusters = []
    for name in sorted({*before.clusters, *after.clusters}):
        nodes_before, nodes_after = before.clusters.get(name, Counter()), after.clusters.get(name, Counter())
        if nodes_before != nodes_after:
            offer = after.offer_of.get(name) or before.offer_of[name]
            clusters.append(ClusterChange(name, offer, dict(nodes_before), dict(nodes_after)))
    changed_services = {service_key(resource) for resource in changes if isinstance(resource, LatticeService)}
    # Services that the change does not affect, and that stay unplaced.
    untouched = [
        name
        for name in sorted({*before.unplaced} & {*after.unplaced} - changed_services)
        if after.placed_replicas(name) >= before.placed_replicas(name)
    ]
    names = sorted({*before.offer_rates, *after.offer_rates})
    rates = {name: (before.offer_rates.get(name, 0), after.offer_rates.get(name, 0)) for name in names}
    manifests = tuple(manifest_changes(before.world, changes, deleted, before.replica_counts))
    restarted = [f"{change.object[1]}/{change.object[2]}" for change in manifests if change.is_restarted]
    demands = [after.world.demands[name] for name in restarted if name in after.world.demands]
    previous_groups = {
        name: {(cluster, node_class) for _, cluster, node_class in before.replica_counts[name]}
        for name in restarted
    }
    surge = surge_of(demands, after.fleet, previous_groups)
    result = Plan(
        services=tuple(services),
        clusters=tuple(clusters),
        rates={name: pair for name, pair in rates.items() if pair[0] != pair[1]},
        total=(sum(before.offer_rates.values()), sum(after.offer_rates.values())),
        budgets=tuple(_budget_changes(before, after)),
        would_move=tuple(_misplaced_services(before, after)),
        unplaced=tuple(sorted(after.unplaced)),
        risks=(
            *_risks(before, after),
            *(f"the update of {name} waits: {text}" for name, text in surge.blocked.items()),
        ),
        untouched=tuple(untouched) if changes or deleted else (),
        surge=surge,
        manifest_changes=manifests,
        state_before=before,
        state_after=after,
    )
    return replace(result, id=plan_id(result, changes, deleted))


def plan_id(result: Plan, changes: Iterable[Kind], deleted: Iterable[ObjectKey]) -> str:
    """Hash the manifests and the result: equal manifests with a different result get a different id."""
    digest = hashlib.sha256()
    for resource in sorted(changes, key=object_key):
        # Labels count, since selectors of policies match labels.
        labels = sorted((resource.metadata.labels or {}).items())
        digest.update(msgspec.json.encode((object_key(resource), labels, getattr(resource, "spec", None))))
    hashed_values = (
        sorted(deleted),
        result.services,
        result.clusters,
        sorted(result.rates.items()),
        result.total,
        result.would_move,
        result.unplaced,
    )
    digest.update(repr(_plain(hashed_values)).encode())
    surge = result.surge
    if surge.services or surge.blocked:
        # Amounts in the reasons of blocked updates change with time alone.
        digest.update(repr(_plain((surge.machines, surge.rate, sorted(surge.blocked)))).encode())
    return f"p-{digest.hexdigest()[:16]}"


def _plain(value: object) -> object:
    """Return a value whose text is equal for equal inputs, independent of the order of mappings."""
    if isinstance(value, Mapping):
        return sorted((_plain(name), _plain(entry)) for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (ServiceChange, ClusterChange, MisplacedService)):
        return [_plain(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


def _budget_changes(before: FleetState, after: FleetState) -> Iterable[BudgetChange]:
    """Yield the changed budgets, without budgets that were deleted with their pool."""
    for name, budget in sorted(after.world.supply.budgets.items()):
        # A budget without a limit cannot be exceeded.
        if budget.limit is None:
            continue
        previous = before.world.supply.budgets.get(name)
        use_before, use_after = (_budget_use(state, name) for state in (before, after))
        if use_before != use_after or previous is None or previous.limit != budget.limit:
            cap = after.fleet.ledgers.commit_cap(name)
            headroom = max(0, cap - after.fleet.ledgers.committed[name]) if cap < NO_LIMIT else None
            machine_rates = []
            for offer in after.fleet.offers:
                if name in offer.budgets:
                    machine_rates += [kind.rate for kind in offer.types if kind.is_priced]
            yield BudgetChange(
                name,
                str(budget.account),
                budget.limit,
                use_before[0],
                use_after[0],
                use_before[1],
                use_after[1],
                budget.alert_millionths,
                budget.is_hard,
                previous.limit if previous else None,
                headroom,
                min(machine_rates, default=None),
            )


def _budget_use(state: FleetState, ledger: str) -> tuple[int, int]:
    """Return the projected spending and the use under the rule that binds; 0 for a budget that does not exist."""
    if ledger not in state.world.supply.budgets:
        return 0, 0
    status = state.world.budget_status(ledger, state.bill.ledger_rates.get(ledger, 0))
    return status.projected, status.used


def _misplaced_services(before: FleetState, after: FleetState) -> Iterable[MisplacedService]:
    """Yield services that are misplaced for other reasons than before the change. Their destination is where
    a new placement would put the replicas, or None if the replicas do not fit."""
    fleet = after.fleet
    for name, demand in after.world.demands.items():
        reasons, previous_demand = _misplacement_reasons(demand, after), before.world.demands.get(name)
        if not reasons or (
            previous_demand is not None and _misplacement_reasons(previous_demand, before) == reasons
        ):
            continue
        # The service is placed again as a trial: the plan keeps this state, so all changes are undone.
        with fleet.what_if():
            remove_assignments(fleet, list(fleet.assignments.get(name, ())))
            placement = place(demand, fleet)
            destination = dict(placed_counts(fleet, name)) if placement.is_complete else None
        yield MisplacedService(name, reasons, destination)


def _misplacement_reasons(demand: Demand, state: FleetState) -> tuple[str, ...]:
    """Return the reasons why the current offers of the service are not allowed."""
    stale = find_stale_placement(demand, state.fleet)
    return (*state.orphaned.reasons(demand.name), *(stale.reasons if stale else ()))


def _risks(before: FleetState, after: FleetState) -> Iterable[str]:
    for change in _budget_changes(before, after):
        alert = change.limit * change.alert_millionths // MILLIONTHS
        percent = f"{change.percent(change.used_after)} % of its limit"
        if change.used_after > change.limit and not change.was_exceeded:
            yield f"budget of {change.subject} is exceeded: {percent}" + (
                "" if change.hard else "; the limit is soft and does not stop purchases"
            )
        elif change.limit >= change.used_after >= alert and not change.was_alerting:
            yield f"budget of {change.subject} reaches its alert threshold: {percent}"
    under_pressure_before = _offers_under_pressure(before)
    for offer, (used, total) in _offers_under_pressure(after).items():
        if offer not in under_pressure_before:
            yield f"{offer} is {used * 100 // total} % full"
    fragmented_before = set(_fragmentation_risks(before))
    for risk in _fragmentation_risks(after):
        if risk not in fragmented_before:
            yield risk
    # The change may lower a limit below the current use; Lattice removes nothing, and adds no more machines.
    exceeded_before = {(offer, resource) for offer, resource, _, _ in _exceeded_limits(before)}
    for offer, resource, used, limit in _exceeded_limits(after):
        if (offer, resource) not in exceeded_before:
            yield (
                f"{offer} uses more {resource} ({used:,}) than its limit ({limit:,}):"
                " nothing is removed, and nothing more is created"
            )
    for name in after.replica_counts:
        regions = []
        for state in (before, after):
            fleet = state.fleet
            replica_regions = {fleet.offers[row].region for row in fleet.replicas.offer_rows(name)}
            regions.append(replica_regions | state.orphaned.regions(name))
        if len(regions[0]) > 1 and len(regions[1]) == 1:
            yield f"{name} would run in one region only"


def _fragmentation_risks(state: FleetState) -> Iterable[str]:
    """Yield data centers that reject an unplaced service but are not full enough to overflow."""
    fleet = state.fleet
    for name, placement in sorted(state.unplaced.items()):
        for decision in placement.decisions[-1:]:
            for gate in decision.reasons:
                if not isinstance(gate, OverflowClosed) or gate.is_triggered:
                    continue
                row = fleet.row(gate.static)
                overflow = fleet.offers[row].overflow
                is_short = any(
                    isinstance(reason, InsufficientCapacity) and mask[row]
                    for reason, mask in decision.reasons.items()
                )
                if overflow and overflow.enabled and is_short:
                    used = offer_utilisation(fleet, row, includes_reserve=gate.includes_reserve)
                    yield (
                        f"{gate.static} has no free capacity for {name} and does not overflow:"
                        f" {used / 10_000:g} % is in use, the free capacity is fragmented,"
                        f" and overflow begins at {overflow.trigger_millionths / 10_000:g} %"
                    )


def _exceeded_limits(state: FleetState) -> Iterable[tuple[str, str, int, int]]:
    for row, offer in enumerate(state.fleet.offers):
        for resource, (used, limit) in offer_usage(state.fleet, row).items():
            if used > limit:
                yield offer.name, resource, used, limit


def _offers_under_pressure(state: FleetState) -> dict[str, ResourceUsage]:
    usages = {}
    for row, offer in enumerate(state.fleet.offers):
        usage = highest_offer_usage(state.fleet, row)
        if usage is not None and is_under_pressure(usage):
            usages[offer.name] = usage
    return usages
