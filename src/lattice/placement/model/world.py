"""Everything that placement looks at, in one frozen view, and the fleet that it stands for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import MICROSECONDS_PER_HOUR, LatticeLedger, LedgerSpec
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import DEFAULT_PACKING_MILLIONTHS, LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService, service_key
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.inputs.latency import Latencies
from lattice.placement.inputs.ledger_math import (
    UNLIMITED_HEADROOM,
    accrue,
    budget_status,
    headroom,
    open_ledger,
    parse_timestamp,
    rate_per_30_days,
    time_left_in_month,
)
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.current_state import (
    EMPTY_LAYOUT,
    CurrentState,
    PlannedLayout,
    ReplicaAssigner,
    add_bare_workloads,
    add_cluster,
    restore_cluster_numbers,
)
from lattice.placement.model.demand import Demand, callers_by_service, resolve_demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, Budget, Offer
from lattice.placement.model.quotes import Quotes
from lattice.placement.model.supply import Finding, Supply, compile_supply

SUPPLY_KINDS = (LatticePool, LatticeNodeClass, CloudInfrastructure, StaticInfrastructure, LatticeLedger)
ObjectKey = tuple[str, str, str]  # kind, namespace, name


@dataclass(frozen=True)
class World:
    """`objects` by kind, namespace and name. Prices and latencies come from files beside them."""

    objects: Mapping[ObjectKey, Kind]
    price_book: PriceBook = field(default_factory=PriceBook.builtin)
    latency_csv: str = ""
    latency_source: str = ""
    now: datetime | None = None  # None: what was spent already is left out of account
    layout: PlannedLayout = EMPTY_LAYOUT  # of what was placed on paper
    adapters: frozenset[str] | None = (
        None  # providers that machines can be had from here; None: all of them, as planning on files assumes
    )

    @staticmethod
    def of(objects: Iterable[Kind], book: PriceBook | None = None) -> "World":
        return World({object_key(each): each for each in objects}, book or PriceBook.builtin())

    def with_objects(
        self, changes: Iterable[Kind], deleted: Iterable[ObjectKey] = (), *, with_status: bool = False
    ) -> "World":
        """As it would be with these objects applied, and those deleted. A user's status is ignored, Lattice's own is not."""
        absent, changed = set(deleted), list(changes)
        kept = {each: kind for each, kind in self.objects.items() if each not in absent}
        for change in changed:
            kept[object_key(change)] = (
                change if with_status else _with_previous_status(change, kept.get(object_key(change)))
            )
        gone_kinds = [self.objects[each] for each in absent if each in self.objects]
        return self._with_caches(
            replace(self, objects=kept), [*gone_kinds, *(each for each in changed if self._is_changed(each))]
        )

    def with_layout(self, layout: PlannedLayout) -> "World":
        return self._with_caches(replace(self, layout=layout), ())

    def _is_changed(self, change: Kind) -> bool:
        """Is anything but its status different?"""
        before = self.objects.get(object_key(change))
        if before is None or before.metadata.labels != change.metadata.labels:
            return True
        return getattr(before, "spec", None) is not getattr(change, "spec", None) or isinstance(
            change, LatticeLedger
        )

    def _with_caches(self, after: "World", news: Iterable[Kind]) -> "World":
        """What was derived from objects that are as they were need not be derived again."""
        if not any(isinstance(each, SUPPLY_KINDS) for each in news):
            after.__dict__.update(
                {name: self.__dict__[name] for name in ("supply", "latencies") if name in self.__dict__}
            )
        after.__dict__["_demand_cache"] = self._demand_cache
        return after

    @cached_property
    def _demand_cache(self) -> dict[tuple[object, ...], tuple[object, Demand]]:
        """Demands by what they were made from, which is kept with them; shared with the worlds that were made from this one."""
        return {}

    @cached_property
    def services(self) -> dict[str, LatticeService]:
        found = [
            each
            for each in self.objects.values()
            if isinstance(each, LatticeService) and not each.metadata.deletion_timestamp
        ]
        return {service_key(each): each for each in sorted(found, key=service_key)}

    @cached_property
    def policies(self) -> tuple[LatticePlacementPolicy, ...]:
        return tuple(each for each in self.objects.values() if isinstance(each, LatticePlacementPolicy))

    @cached_property
    def supply(self) -> Supply:
        supply = compile_supply(self.objects.values(), self.price_book, self.adapters)
        ledgers = {
            each.metadata.name: each for each in self.objects.values() if isinstance(each, LatticeLedger)
        }
        now = self.now
        if now is None:
            return supply
        prices = self._rates_by_node_group(supply)
        known = {
            name: _with_spending(budget, ledgers.get(name), now, prices)
            for name, budget in supply.budgets.items()
        }
        return replace(supply, budgets=known)

    def _rates_by_node_group(self, supply: Supply) -> dict[NodeGroupKey, int]:
        """Of machines by cluster and class, as they are today."""
        rates = {offer.name: {kind.name: kind.rate for kind in offer.types} for offer in supply.offers}
        clusters = (each for each in self.objects.values() if isinstance(each, LatticeCluster))
        return {
            (each.metadata.name, kind): rate
            for each in clusters
            for kind, rate in rates.get(each.spec.pool, {}).items()
        }

    @cached_property
    def latencies(self) -> Latencies:
        statics = (each for each in self.objects.values() if isinstance(each, StaticInfrastructure))
        declared = {each.metadata.name: each.spec.network.latency_ms for each in statics}
        return Latencies.of(
            [offer.place for offer in self.supply.offers], declared, self.latency_csv, self.latency_source
        )

    @cached_property
    def _callers(self) -> dict[str, list[str]]:
        return callers_by_service(self.services.values())

    @cached_property
    def _dependants(self) -> dict[str, list[tuple[str, int]]]:
        """Of a service: those that have to be near it, and within how many milliseconds."""
        found: dict[str, list[tuple[str, int]]] = {}
        for demand in self.demands.values():
            targets = dict(demand.latency_to)
            for each in demand.latency:
                found.setdefault(targets[each.value], []).append((demand.name, each.amount))
        return found

    @cached_property
    def _reserving_offers(self) -> list[Offer]:
        return [offer for offer in self.supply.offers if offer.reserved_nodes]

    @cached_property
    def demands(self) -> dict[str, Demand]:
        return {name: self.demand_of(service) for name, service in self.services.items()}

    def demand_of(self, service: LatticeService) -> Demand:
        labels = service.metadata.labels or {}
        admitted = tuple(
            offer.name
            for offer in self._reserving_offers
            if offer.reservation and offer.reservation.admits(labels)
        )
        calling = tuple(self._callers.get(service_key(service), ()))
        made_from = (
            service_key(service),
            id(service.spec),
            tuple(sorted(labels.items())),
            tuple(map(id, self.policies)),
            calling,
            admitted,
        )
        known = self._demand_cache.get(made_from)
        if known is None:
            known = self._demand_cache[made_from] = (
                (service.spec, self.policies),
                resolve_demand(service, self.policies, calling, admitted),
            )
        return known[1]

    def build_fleet(self) -> Fleet:
        """What is there now: clusters, their machines, and replicas where the services' status says they are."""
        fleet = Fleet(self.supply.offers, self.supply.budgets, self.latencies)
        fleet.dependants = self._dependants
        present = CurrentState.of(self.objects.values(), self.layout, self.supply.node_classes)
        made = (each for each in self.objects.values() if isinstance(each, LatticeCluster))
        kept = self._reserved_clusters(present)
        for cluster in sorted(made, key=lambda each: each.metadata.name):
            add_cluster(fleet, cluster, present, kept.get(cluster.metadata.name))
        fleet.table.quotes = Quotes(fleet)
        restore_cluster_numbers(fleet, self.objects.values(), self.layout)
        packing = {demand.rules.hash: demand.rules.packing for demand in self.demands.values()}
        for each in fleet.clusters.values():
            each.packing_threshold = packing.get(each.group.partition("/")[0], DEFAULT_PACKING_MILLIONTHS)
        seating = ReplicaAssigner(fleet, present)
        for name in sorted(self.services, key=self._size_rank):
            seating.add_service(self.services[name], self.demands[name])
        seating.assign_bound()
        add_bare_workloads(fleet, present)
        seating.assign_unbound()
        return fleet

    def _reserved_clusters(self, present: CurrentState) -> dict[str, bool]:
        """Of clusters that anybody is in: are all of them those whom the reserve there is for?"""
        if not self._reserving_offers:
            return {}
        found = dict.fromkeys(present.clusters_with_bare_workloads, False)
        for name, service in self.services.items():
            for each in service.status.placements:
                found[each.cluster] = (
                    found.get(each.cluster, True) and each.pool in self.demands[name].usable_reserves
                )
        return found

    def _size_rank(self, service: str) -> tuple[int, int, str]:
        """Small replicas find room beside large ones, not the other way round."""
        needs = self.demands[service].needs
        return (-needs.get("cpu", 0), -needs.get("memory", 0), service)

    def projected_spend(self, ledger: str, committed: int) -> int:
        """Micro-dollars of this calendar month at so much per hour from now on; without a clock, of 30 days."""
        budget = self.supply.budgets[ledger]
        if self.now is None:
            return rate_per_30_days(committed)
        left = (budget.month_remaining or time_left_in_month(self.now)) // timedelta(microseconds=1)
        return budget.spent_this_month + committed * left // MICROSECONDS_PER_HOUR

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return self.supply.findings


def object_key(kind: Kind) -> ObjectKey:
    return (kind.resource.kind, kind.metadata.namespace or "", kind.metadata.name)


def _with_previous_status(change: Kind, before: Kind | None) -> Kind:
    """Users write spec; what Lattice knows about the object stays."""
    stated = getattr(change, "status", None)
    if stated is None:
        return change
    return msgspec.structs.replace(
        change, status=type(stated)() if before is None else getattr(before, "status", stated)
    )


def _with_spending(
    budget: Budget, ledger: LatticeLedger | None, now: datetime, prices: Mapping[NodeGroupKey, int]
) -> Budget:
    """What is spent of a month leaves less for the rest of it. Machines that are there are counted at today's prices, and paid for at
    those of their day: what may still be taken is the same."""
    stated = LedgerSpec(
        budget=budget.account,
        limit_micros=budget.limit,
        hard=budget.is_hard,
        alert_millionths=budget.alert_millionths,
    )
    counted = open_ledger(stated, ledger, now)
    room = headroom(counted, now)
    lots = ((cluster, lot) for cluster, some in counted.status.machines.items() for lot in some)
    today = sum(lot.count * prices.get((cluster, lot.node_class), lot.micros) for cluster, lot in lots)
    cap = NO_LIMIT if room >= UNLIMITED_HEADROOM else room + today
    until = parse_timestamp(accrue(counted, now).status.as_of)  # later than now, if the clock was set back
    return replace(
        budget,
        commit_cap=cap,
        spent_this_month=budget_status(counted, now).spent,
        month_remaining=time_left_in_month(until),
    )


def placed_counts(fleet: Fleet, service: str) -> Counter[tuple[str, str, str]]:
    """Replicas by offer, cluster and class."""
    machines = fleet.machines
    found: Counter[tuple[str, str, str]] = Counter()
    for seat in fleet.assignments.get(service, ()):
        cluster = machines.cluster[seat.machine]
        found[
            fleet.offers[cluster.offer_row].name, cluster.name, machines.machine_type[seat.machine].name
        ] += 1
    return found
