"""The frozen snapshot of objects, prices and latencies that placement reads, and the trial fleet built from
the snapshot."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, LedgerSpec
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import DEFAULT_PACKING_MILLIONTHS, LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService, Remediation, service_key
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import replica_shape
from lattice.lifecycle.replica_template import workload_template
from lattice.placement.affinity.index import AffinityIndex, AffinityMember, bare_members, service_member
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.inputs.bill import Bill, RecordedMachines, recorded_bill
from lattice.placement.inputs.joined_machines import joined_machines
from lattice.placement.inputs.latency import Latencies
from lattice.placement.inputs.ledger_math import (
    UNLIMITED_HEADROOM,
    BudgetStatus,
    accrue,
    budget_status,
    open_ledger,
    rate_cap,
    time_left_in_month,
)
from lattice.placement.inputs.observed_machines import placement_records
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.current_state import (
    EMPTY_LAYOUT,
    CurrentState,
    PlannedLayout,
    ReplicaAssigner,
    add_bare_workloads,
    add_cluster,
    add_joined_machines,
    restore_cluster_numbers,
)
from lattice.placement.model.demand import (
    Demand,
    MachineRefusal,
    called_services,
    latency_targets,
    resolve_demand,
)
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, Budget, Offer
from lattice.placement.model.supply import Adapters, Finding, Supply, compile_supply

OFFER_KINDS: tuple[type[Kind], ...] = (
    LatticePool,
    LatticeNodeClass,
    CloudInfrastructure,
    StaticInfrastructure,
)
SUPPLY_KINDS: tuple[type[Kind], ...] = (*OFFER_KINDS, LatticeLedger)
DEMAND_KINDS: tuple[type[Kind], ...] = (*OFFER_KINDS, LatticeService, LatticePlacementPolicy)


class DerivedValue(NamedTuple):
    """A derived value of a world by name, with the inputs that the value is computed from."""

    name: str
    kinds: tuple[type[Kind], ...]
    reads_status: bool = False
    # Whether the value also depends on the price book, the latencies or the adapters.
    reads_tables: bool = True


DERIVED_VALUES = (
    DerivedValue("services", (LatticeService,), reads_status=True, reads_tables=False),
    DerivedValue("policies", (LatticePlacementPolicy,), reads_status=True, reads_tables=False),
    DerivedValue("_callers", (LatticeService,), reads_tables=False),
    DerivedValue("_bare_members", (LatticeWorkload,), reads_tables=False),
    DerivedValue("_affinity_index", (LatticeService, LatticeWorkload), reads_tables=False),
    DerivedValue("_affinity_terms", (LatticeService, LatticeWorkload), reads_tables=False),
    DerivedValue("declared_supply", OFFER_KINDS),
    DerivedValue("latencies", OFFER_KINDS),
    DerivedValue("_reserving_offers", OFFER_KINDS),
    DerivedValue("demands", DEMAND_KINDS),
    DerivedValue("_dependants", DEMAND_KINDS),
)
# A world takes over the cached demands of the previous world only if these are at most about this many per
# service.
MAX_CACHED_DEMANDS_PER_SERVICE = 4
# The beginning of a month of 30 days, for the budgets of a world without a time.
NOMINAL_MONTH_START = datetime(2001, 4, 1, tzinfo=UTC)
# kind, namespace, name
ObjectKey = tuple[str, str, str]
K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class World:
    """A snapshot of the objects by kind, namespace and name, with the price book and the latency file.

    Derived values (supply, latencies, demands) are computed on first use and cached.
    """

    objects: Mapping[ObjectKey, Kind]
    price_book: PriceBook = field(default_factory=PriceBook.builtin)
    latency_csv: str = ""
    latency_source: str = ""
    # None: money already spent this month is not counted.
    now: datetime | None = None
    # The planned machines and the assignments of replicas to them, kept from one plan to the next.
    layout: PlannedLayout = EMPTY_LAYOUT
    # Providers with an adapter on this server, NAME or NAME=manual if the adapter creates no machines; None:
    # every provider, as planning on files assumes.
    adapters: Adapters | None = None

    @staticmethod
    def of(objects: Iterable[Kind], book: PriceBook | None = None) -> "World":
        return World({object_key(kind): kind for kind in objects}, book or PriceBook.builtin())

    def with_objects(
        self, changes: Iterable[Kind], deleted: Iterable[ObjectKey] = (), *, with_status: bool = False
    ) -> "World":
        """The world after the changed objects are applied and the deleted objects are removed.

        With `with_status` the status of a changed object is taken over, as Lattice writes status; otherwise
        the previous status stays, since users write only the spec.
        """
        absent, changed = set(deleted), list(changes)
        objects = {key: kind for key, kind in self.objects.items() if key not in absent}
        for change in changed:
            key = object_key(change)
            objects[key] = change if with_status else _with_stored_status(change, objects.get(key))
        news = [self.objects[key] for key in absent if key in self.objects]
        for change in changed:
            previous = self.objects.get(object_key(change))
            if (
                previous is None
                or previous.metadata.labels != change.metadata.labels
                or getattr(previous, "spec", None) is not getattr(change, "spec", None)
                # Budgets read the status of a ledger, so a change of status alone matters there.
                or isinstance(change, LatticeLedger)
                or placement_records(previous) != placement_records(objects[object_key(change)])
            ):
                news.append(change)
        return self._with_caches(replace(self, objects=objects), news)

    def with_layout(self, layout: PlannedLayout) -> "World":
        return self._with_caches(replace(self, layout=layout), ())

    def _with_caches(self, next_world: "World", news: Iterable[Kind]) -> "World":
        """Hand the derived values over to the next world: supply and latencies only if no supply object
        changed."""
        # A world is frozen: cached properties live in `__dict__`, and can be handed over there.
        if not any(isinstance(kind, SUPPLY_KINDS) for kind in news):
            for name in ("supply", "declared_supply", "latencies"):
                if name in self.__dict__:
                    next_world.__dict__[name] = self.__dict__[name]
        next_world.__dict__["_demand_cache"] = self._demand_cache
        return next_world

    def reuse_derived(
        self,
        previous: "World",
        changed: Mapping[type[Kind], Sequence[Kind]],
        redeclared: Collection[type[Kind]],
    ) -> None:
        """Take over the derived values of an earlier world that the changes since then do not affect.

        `changed` maps every kind of which an object changed to all present objects of that kind; `redeclared`
        names the kinds of which an object was created, deleted, or changed in more than its status.
        """
        # A world is frozen: cached properties live in `__dict__`, and can be handed over there.
        derived, previously_derived = self.__dict__, previous.__dict__
        derived["_objects_by_kind"] = {**previous._objects_by_kind, **changed}
        has_same_tables = (
            self.price_book is previous.price_book
            and (self.latency_csv, self.latency_source) == (previous.latency_csv, previous.latency_source)
            and self.adapters == previous.adapters
        )
        for name, kinds, reads_status, reads_tables in DERIVED_VALUES:
            affected_by = changed if reads_status else redeclared
            is_valid = has_same_tables or not reads_tables
            if is_valid and name in previously_derived and not any(kind in affected_by for kind in kinds):
                derived[name] = previously_derived[name]
        # Terms may refer to workloads without a service, and the demands hold the terms.
        if self._affinity_terms != previous._affinity_terms:
            derived.pop("demands", None)
            derived.pop("_dependants", None)
        demands = previous._demand_cache
        if len(demands) <= MAX_CACHED_DEMANDS_PER_SERVICE * (len(previous.services) + 100):
            derived["_demand_cache"] = demands

    @cached_property
    def _demand_cache(self) -> dict[tuple[object, ...], tuple[object, Demand]]:
        """Demands by the inputs from which they were resolved; shared with every world derived from this
        world.

        The cached value holds the inputs as well: a key contains `id()` of objects, so the objects must stay
        alive.
        """
        return {}

    @cached_property
    def _objects_by_kind(self) -> Mapping[type[Kind], Sequence[Kind]]:
        by_kind: dict[type[Kind], list[Kind]] = {}
        for obj in self.objects.values():
            by_kind.setdefault(type(obj), []).append(obj)
        return by_kind

    def of_kind(self, kind: type[K]) -> Sequence[K]:
        """The objects of one kind."""
        return cast("Sequence[K]", self._objects_by_kind.get(kind, ()))

    @cached_property
    def services(self) -> dict[str, LatticeService]:
        services = sorted(self.of_kind(LatticeService), key=service_key)
        return {
            service_key(service): service for service in services if not service.metadata.deletion_timestamp
        }

    @cached_property
    def policies(self) -> tuple[LatticePlacementPolicy, ...]:
        return tuple(self.of_kind(LatticePlacementPolicy))

    @cached_property
    def declared_supply(self) -> Supply:
        """The supply with the budgets as declared, before any spending is counted."""
        declared = [obj for kind in OFFER_KINDS for obj in self.of_kind(kind)]
        return compile_supply(declared, self.price_book, self.adapters)

    @cached_property
    def supply(self) -> Supply:
        """The supply with the spending of the month counted, if the time is known."""
        supply = self.declared_supply
        now = self.now
        if now is None:
            return supply
        budgets = {
            name: _with_spending(budget, self._ledgers_by_name.get(name), now)
            for name, budget in supply.budgets.items()
        }
        return replace(supply, budgets=budgets)

    @cached_property
    def latencies(self) -> Latencies:
        statics = self.of_kind(StaticInfrastructure)
        declared = {static.metadata.name: static.spec.network.latency_ms for static in statics}
        return Latencies.of(
            [offer.place for offer in self.declared_supply.offers],
            declared,
            self.latency_csv,
            self.latency_source,
        )

    @cached_property
    def _callers(self) -> dict[str, list[tuple[str, bool]]]:
        return callers_by_service(self.services.values())

    @cached_property
    def _bare_members(self) -> tuple[AffinityMember, ...]:
        """The workloads without a service, to which affinity terms refer by label."""
        return tuple(bare_members(self.of_kind(LatticeWorkload)))

    @cached_property
    def _affinity_index(self) -> AffinityIndex:
        members = [service_member(service) for service in self.services.values()]
        return AffinityIndex([*members, *self._bare_members])

    @cached_property
    def _affinity_terms(self) -> dict[str, tuple[AffinityTerm, ...]]:
        """The affinity terms of every service that has some or is matched by some."""
        terms = {name: self.affinity_terms(service) for name, service in self.services.items()}
        return {name: resolved for name, resolved in terms.items() if resolved}

    def affinity_terms(self, service: LatticeService) -> tuple[AffinityTerm, ...]:
        """The affinity terms of the service, and the required anti-affinity terms of others that match it."""
        return self._affinity_index.terms_for(service)

    @cached_property
    def _dependants(self) -> dict[str, list[tuple[str, int]]]:
        """By service: the services that must run near it, each with the largest round trip in milliseconds
        that it allows."""
        dependants: dict[str, list[tuple[str, int]]] = {}
        for demand in self.demands.values():
            targets = dict(demand.latency_to)
            for requirement in demand.latency:
                dependants.setdefault(targets[requirement.value], []).append(
                    (demand.name, requirement.amount)
                )
        return dependants

    @cached_property
    def _reserving_offers(self) -> list[Offer]:
        return [offer for offer in self.declared_supply.offers if offer.has_reserve]

    @cached_property
    def demands(self) -> dict[str, Demand]:
        return {name: self.demand_of(service) for name, service in self.services.items()}

    def demand_of(self, service: LatticeService) -> Demand:
        """The resolved demand of a service, cached by the identity of its inputs."""
        labels = service.metadata.labels or {}
        admitted = tuple(
            offer.name
            for offer in self._reserving_offers
            if offer.reservation and offer.reservation.admits(labels)
        )
        callers = tuple(self._callers.get(service_key(service), ()))
        refusals: tuple[MachineRefusal, ...] = ()
        if self._refusals:
            refusals = self._refusals.get(self.shape_of(service), ())
        terms = self.affinity_terms(service)
        inputs = (
            service_key(service),
            id(service.spec),
            tuple(sorted(labels.items())),
            tuple(map(id, self.policies)),
            callers,
            admitted,
            refusals,
            terms,
        )
        cached = self._demand_cache.get(inputs)
        if cached is None:
            cached = self._demand_cache[inputs] = (
                (service.spec, self.policies),
                resolve_demand(service, self.policies, callers, admitted, refusals, terms),
            )
        return cached[1]

    @cached_property
    def _refusals(self) -> dict[str, tuple[MachineRefusal, ...]]:
        """By shape: the offers and classes whose machines refused a replica of the shape, of whichever service."""
        refusals: dict[str, dict[tuple[str, str], MachineRefusal]] = {}
        for service in self.services.values():
            for record in self.valid_remediation(service) if service.status.remediation else ():
                if record.refused:
                    refusal = MachineRefusal(record.offer, record.node_class, record.need, record.have)
                    by_type = refusals.setdefault(self.shape_of(service), {})
                    by_type.setdefault((record.offer, record.node_class), refusal)
        return {shape: tuple(by_type.values()) for shape, by_type in refusals.items()}

    def shape_of(self, service: LatticeService) -> str:
        """What a replica of the service asks of a machine, as a digest."""
        shape = self._shapes.get(service_key(service))
        if shape is None:
            shape = self._shapes[service_key(service)] = replica_shape(workload_template(service))
        return shape

    @cached_property
    def _shapes(self) -> dict[str, str]:
        """By service: its shape, as far as it was asked for."""
        return {}

    def valid_remediation(self, service: LatticeService) -> tuple[Remediation, ...]:
        """The records of purchases of the service that hold: for its present shape and the present spec of the
        class. Of other records only the machines for surge replicas stay, until they are given back."""
        records = []
        for record in service.status.remediation:
            if record.shape:
                is_valid = record.shape == self.shape_of(service)
            else:
                is_valid = record.generation == service.metadata.generation
            class_generation = self.class_generation(record.node_class)
            if is_valid and record.class_generation == class_generation:
                records.append(record)
            elif record.surge_machines:
                surge = Remediation(
                    offer=record.offer,
                    node_class=record.node_class,
                    cluster=record.cluster,
                    surge_machines=record.surge_machines,
                    shape=self.shape_of(service),
                    generation=service.metadata.generation,
                    class_generation=class_generation,
                )
                records.append(surge)
        return tuple(records)

    def class_generation(self, name: str) -> int:
        node_class = self.supply.node_classes.get(name)
        return node_class.metadata.generation if node_class else 0

    def build_fleet(self) -> Fleet:
        """Build the trial fleet: clusters, machines, and replicas where the status of the services places
        them."""
        fleet = Fleet(self.supply.offers, self.supply.budgets, self.latencies, self._dependants)
        gangs: dict[str, list[Demand]] = {}
        for demand in self.demands.values():
            if demand.gang:
                gangs.setdefault(demand.gang, []).append(demand)
        fleet.gangs = gangs
        required = [
            (name, term) for name, terms in self._affinity_terms.items() for term in terms if not term.weight
        ]
        fleet.affinity_services = frozenset(
            member for name, term in required for member in (name, *term.targets)
        )
        fleet.near_targets = frozenset(
            target
            for name, term in required
            if term.key == "node" and not term.is_anti and name not in term.targets
            for target in term.targets
        )
        fleet.counted_services = frozenset(
            member for name, term in required if term.key == "node" for member in (name, *term.targets)
        )
        present = CurrentState.of(self.objects.values(), self.layout, self.supply.node_classes)
        # By occupied cluster: whether every replica in the cluster may use the reserve of the offer.
        is_reserved: dict[str, bool] = {}
        if self._reserving_offers:
            is_reserved.update(dict.fromkeys(present.clusters_with_bare_workloads, False))
            for name, service in self.services.items():
                for placement in service.status.placements:
                    is_reserved[placement.cluster] = (
                        is_reserved.get(placement.cluster, True)
                        and placement.pool in self.demands[name].usable_reserves
                    )
        for stored in sorted(self.of_kind(LatticeCluster), key=lambda cluster: cluster.metadata.name):
            add_cluster(fleet, stored, present, is_reserved.get(stored.metadata.name))
        add_joined_machines(
            fleet, joined_machines(self.of_kind(LatticeNode)), self.layout, self.supply.node_classes
        )
        restore_cluster_numbers(fleet, self.objects.values(), self.layout)
        packing = {demand.rules.hash: demand.rules.packing_millionths for demand in self.demands.values()}
        for cluster in fleet.clusters.values():
            cluster.packing_threshold = packing.get(
                cluster.group.partition("/")[0], DEFAULT_PACKING_MILLIONTHS
            )
        assigner = ReplicaAssigner(fleet, present)
        # Large replicas are assigned first: small replicas find free capacity beside large replicas, not the
        # other way round.
        for demand in sorted(
            self.demands.values(),
            key=lambda demand: (-demand.needs.get("cpu", 0), -demand.needs.get("memory", 0), demand.name),
        ):
            assigner.add_service(self.services[demand.name], demand)
        assigner.assign_bound()
        add_bare_workloads(fleet, present)
        assigner.assign_unbound()
        return fleet

    @cached_property
    def recorded_bill(self) -> Bill | None:
        """The bill of the machines that the ledgers record; None for a world without a record: files without
        ledgers, and a planned layout."""
        ledgers, clusters = self.of_kind(LatticeLedger), self.of_kind(LatticeCluster)
        if self.now is None or self.layout is not EMPTY_LAYOUT or not (ledgers or not clusters):
            return None
        return recorded_bill(ledgers, clusters)

    @property
    def recorded_machines(self) -> RecordedMachines:
        """The stored clusters, nodes and workloads, to split a recorded bill."""
        return RecordedMachines(
            {cluster.metadata.name: cluster for cluster in self.of_kind(LatticeCluster)},
            self.of_kind(LatticeNode),
            self.of_kind(LatticeWorkload),
            {node_class.metadata.name: node_class for node_class in self.of_kind(LatticeNodeClass)},
        )

    def ledger_with_rate(self, ledger: str, committed: int) -> LatticeLedger:
        """The ledger under the budget of now, with `committed` micro-dollars per hour from now on; for a world
        without a time, at the beginning of a month of 30 days."""
        budget, now = self.supply.budgets[ledger], self.budget_time
        stored = self._ledgers_by_name.get(ledger) if self.now is not None else None
        counted = accrue(open_ledger(_terms(budget), stored, now), now)
        status = msgspec.structs.replace(counted.status, committed_micros=committed)
        return msgspec.structs.replace(counted, status=status)

    def budget_status(self, ledger: str, committed: int) -> BudgetStatus:
        """The status of the budget if `committed` micro-dollars per hour are paid from now on."""
        return budget_status(self.ledger_with_rate(ledger, committed), self.budget_time)

    @property
    def budget_time(self) -> datetime:
        """The time of budgets: now, or the beginning of a month of 30 days for a world without a time."""
        return self.now or NOMINAL_MONTH_START

    @cached_property
    def _ledgers_by_name(self) -> dict[str, LatticeLedger]:
        return {ledger.metadata.name: ledger for ledger in self.of_kind(LatticeLedger)}

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return self.supply.findings


def _with_stored_status(change: Kind, previous: Kind | None) -> Kind:
    """The changed object with the status of the previous object. A record of real machines holds for one
    generation of the spec, so it stays only if the spec stays."""
    status = getattr(change, "status", None)
    if status is None:
        return change
    previous_status = type(status)() if previous is None else getattr(previous, "status", status)
    changed = msgspec.structs.replace(change, status=previous_status)
    if previous is None or not placement_records(previous):
        return changed
    if getattr(previous, "spec", None) == getattr(change, "spec", None):
        generation = previous.metadata.generation
        metadata = msgspec.structs.replace(change.metadata, generation=generation)
        return msgspec.structs.replace(changed, metadata=metadata)
    cleared: dict[str, object] = {"observed": ()}
    if isinstance(previous, LatticeService):
        # A record with a shape holds for every spec of that shape.
        cleared = {"remediation": tuple(record for record in previous.status.remediation if record.shape)}
    return msgspec.structs.replace(changed, status=msgspec.structs.replace(previous_status, **cleared))


def object_key(kind: Kind) -> ObjectKey:
    return (kind.resource.kind, kind.metadata.namespace or "", kind.metadata.name)


def _terms(budget: Budget) -> LedgerSpec:
    return LedgerSpec(
        budget=budget.account,
        limit_micros=budget.limit,
        hard=budget.is_hard,
        alert_millionths=budget.alert_millionths,
    )


def _with_spending(budget: Budget, ledger: LatticeLedger | None, now: datetime) -> Budget:
    """The budget with the spending of the month and with the largest rate that the rest of the month allows."""
    counted = open_ledger(_terms(budget), ledger, now)
    cap = rate_cap(counted, now) if budget.is_hard else UNLIMITED_HEADROOM
    # The ledger may be accrued to a moment after `now` if the clock was set back.
    until = parse_timestamp(accrue(counted, now).status.as_of)
    return replace(
        budget,
        commit_cap=NO_LIMIT if cap >= UNLIMITED_HEADROOM else cap,
        spent_this_month=budget_status(counted, now).spent,
        month_remaining=time_left_in_month(until),
    )


def placed_counts(fleet: Fleet, service: str) -> Counter[tuple[str, str, str]]:
    """Replicas of the service by offer, cluster and class."""
    machines = fleet.machines
    counts: Counter[tuple[str, str, str]] = Counter()
    for assignment in fleet.assignments.get(service, ()):
        cluster = machines.cluster[assignment.machine]
        counts[
            fleet.offers[cluster.offer_row].name, cluster.name, machines.machine_type[assignment.machine].name
        ] += 1
    return counts


def callers_by_service(services: Iterable[LatticeService]) -> dict[str, list[tuple[str, bool]]]:
    """By called service: the calling services, with whether the caller limits the latency to the service."""
    callers: dict[str, list[tuple[str, bool]]] = {}
    for service in services:
        bound = set(latency_targets(service).values())
        for called in dict.fromkeys([*called_services(service).values(), *bound]):
            callers.setdefault(called, []).append((service_key(service), called in bound))
    return callers
