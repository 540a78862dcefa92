"""Would a service fit if some objects were different? The fleet as it would be, for a moment, without making it anew."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService, service_key
from lattice.placement.explain.blockers import PlacementFailure, at_failure, resize_assignments
from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.greedy.place_all import latency_groups, place_all, place_group
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.costs import service_cost
from lattice.placement.model.demand import Demand, resolve_demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import ObjectChange, SupplyObject, apply_changes
from lattice.placement.model.offer import Budget, Offer
from lattice.placement.model.quotes import Quotes
from lattice.placement.model.world import World, object_key

_rate, _is_priced = attrgetter("rate"), attrgetter("is_priced")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """It fits: micro-dollars per hour that are paid more than before, and how strongly what was measured was needed."""

    rate_increase: int
    is_priced: bool = True
    strengths: tuple[int, ...] = ()
    service_rate: int = 0  # micro-dollars per hour that it costs itself
    services_ahead: tuple[
        str, ...
    ] = ()  # of the others, those that come first and have more replicas then, in the order in which they come


@dataclass(frozen=True, slots=True)
class UnplacedService:
    """A service that has no place, with the objects that rule it and the failure, if an offer could tell one."""

    demand: Demand
    service: LatticeService
    policies: tuple[LatticePlacementPolicy, ...]  # those that hold for it
    failure: PlacementFailure | None


class ServiceTrial:
    """One service of a world, tried under changes. Services that it waits for are placed before it, as they would be.

    `others`: services that lack replicas, too. With them everything is settled as a plan does it, whoever comes first.
    `content`: services that want no more than they have.
    """

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        name: str,
        waiting_services: Collection[str] = (),
        satisfied_services: Collection[str] = (),
    ) -> None:
        self.world, self.fleet, self.name, self.waiting_services, self.satisfied_services = (
            world,
            fleet,
            name,
            waiting_services,
            satisfied_services,
        )
        self._classes_and_ledgers = [
            each for each in world.objects.values() if isinstance(each, LatticeNodeClass | LatticeLedger)
        ]
        self._results: dict[frozenset[ObjectChange], TrialResult | None] = {}

    def run(self, changes: Iterable[ObjectChange]) -> TrialResult | None:
        made = frozenset(changes)
        if made not in self._results:
            self._results[made] = self.measure(made, ())
        return self._results[made]

    def may_fit(self, changes: Iterable[ObjectChange]) -> bool:
        """At a glance; False: there is no room, however it is used."""
        if self.waiting_services:
            return True
        with self._what_if(list(changes)) as scene:
            return scene.may_be_placed()

    def measure(self, changes: Iterable[ObjectChange], gauges: Sequence[object]) -> TrialResult | None:
        """None: it does not fit. `gauges` are asked while it stands."""
        with self._what_if(list(changes)) as scene, self.fleet.what_if():
            (paid, unpriced), before = self._total_rate(), self._counts()
            if not scene.may_be_placed() or not scene.try_place():
                return None
            now = self._total_rate()
            strengths = tuple(gauge(self.fleet) for gauge in gauges)  # type: ignore[operator]
            own = service_cost(self.fleet, self.name)
            return TrialResult(
                now[0] - paid, now[1] <= unpriced, strengths, own, self._services_ahead(scene, before)
            )

    def _total_rate(self) -> tuple[int, int]:
        """Micro-dollars per hour for all machines, and how many have no known price."""
        kinds = self.fleet.machines.machine_type.values()
        return sum(map(_rate, kinds)), len(kinds) - sum(map(_is_priced, kinds))

    def services_ahead(self, changes: Iterable[ObjectChange]) -> tuple[str, ...]:
        """As in a result, whether it fits or not."""
        made = list(changes)
        result = self.run(made)
        if result is not None:
            return result.services_ahead
        with self._what_if(made) as scene, self.fleet.what_if():
            before = self._counts()
            scene.try_place()
            return self._services_ahead(scene, before)

    def _counts(self) -> dict[str, int]:
        return {name: len(self.fleet.assignments.get(name, ())) for name in self.waiting_services}

    def _services_ahead(self, scene: "WhatIfScope", before: Mapping[str, int]) -> tuple[str, ...]:
        order = [each.name for group in latency_groups(scene.demands) for each in group]
        first = (name for name in order[: order.index(self.name)] if name in before)
        return tuple(name for name in first if len(self.fleet.assignments.get(name, ())) > before[name])

    def failures(self, changes: Iterable[ObjectChange]) -> Iterator[tuple["WhatIfScope", UnplacedService]]:
        """Itself, and every service that it waits for in vain, inside the world with these changes."""
        with self._what_if(list(changes)) as scene, self.fleet.what_if():
            if not scene.try_place():
                for name in scene.unplaced:
                    if (
                        len(self.fleet.assignments.get(name, ())) < scene.demands[name].replicas
                        or scene.demands[name].rule_conflict
                    ):
                        with at_failure(scene.demands[name], self.fleet) as failure:
                            yield scene, scene.unplaced_service(name, failure)

    @contextmanager
    def _what_if(self, changes: Sequence[ObjectChange]) -> Iterator["WhatIfScope"]:
        kinds = apply_changes(self.world.objects, changes)
        offers, budgets = self._supply(kinds)
        before = [self.fleet.offers[self.fleet.row(each.name)] for each in offers]
        paid = [self.fleet.budgets[each.name] for each in budgets]
        quotes = self.fleet.table.quotes
        try:
            self.fleet.replace_offers(offers, budgets)
            if any(_machines(old) != _machines(new) for old, new in zip(before, offers, strict=True)):
                for each in offers:
                    for kind in each.types:
                        self.fleet.type_ids.setdefault(kind.name, len(self.fleet.type_ids))
                self.fleet.table.quotes = Quotes(self.fleet)
            yield WhatIfScope(self, kinds)
        finally:
            self.fleet.replace_offers(before, paid)
            self.fleet.table.quotes = quotes

    def _supply(self, kinds: Sequence[Kind]) -> tuple[list[Offer], list[Budget]]:
        """Only what comes from changed objects; what is closed for overlapping with others stays so."""
        classes = [each for each in kinds if isinstance(each, LatticeNodeClass)]
        suppliers = {
            object_key(each): each
            for each in (*self._users(classes), *kinds)
            if isinstance(each, SupplyObject)
        }
        if not suppliers:
            return [], []
        beside = {object_key(each): each for each in (*self._classes_and_ledgers, *classes)}
        made = replace(self.world, objects={**beside, **suppliers}).supply
        return [_as_closed(each, self.fleet.offers[self.fleet.row(each.name)]) for each in made.offers], list(
            made.budgets.values()
        )

    def _users(self, classes: Sequence[LatticeNodeClass]) -> list[Kind]:
        """Pools take the classes that they name; clouds and data centers take whatever class is made for their provider."""
        if not classes:
            return []
        providers = {provider for each in classes for provider in each.spec.providers}
        names = {each.metadata.name for each in classes}
        pools = [
            each
            for each in self.world.objects.values()
            if isinstance(each, LatticePool) and names & set(each.spec.node_classes)
        ]
        takers = [
            each
            for each in self.world.objects.values()
            if isinstance(each, CloudInfrastructure | StaticInfrastructure)
        ]
        return [*pools, *(each for each in takers if each.spec.provider in providers)]


def _as_closed(offer: Offer, before: Offer) -> Offer:
    return (
        offer
        if offer.closed_reason or not before.closed_reason
        else replace(offer, closed_reason=before.closed_reason, reopen_hint=before.reopen_hint)
    )


def _machines(offer: Offer) -> object:
    return (offer.types, offer.limits.gpus)


class WhatIfScope:
    """The services of interest as they are under the changes: the one, and those without a place that it waits for."""

    def __init__(self, rehearsal: ServiceTrial, kinds: Sequence[Kind]) -> None:
        self.fleet, self.world = rehearsal.fleet, rehearsal.world
        self.objects = {**rehearsal.world.objects, **{object_key(each): each for each in kinds}}
        changed_policies = {
            each.metadata.name: each for each in kinds if isinstance(each, LatticePlacementPolicy)
        }
        self.policies = tuple(
            changed_policies.get(each.metadata.name, each) for each in rehearsal.world.policies
        )
        self._services = {service_key(each): each for each in kinds if isinstance(each, LatticeService)}
        self._name, self._policies_unchanged = rehearsal.name, not changed_policies
        self.demands: dict[str, Demand] = {}
        self.unplaced = list(self._unplaced_dependencies())
        self._includes_waiting = bool(rehearsal.waiting_services)
        if self._includes_waiting:
            beside = [
                *rehearsal.waiting_services,
                *(
                    each
                    for each in self._services_ruled_by(changed_policies)
                    if each not in rehearsal.satisfied_services
                ),
            ]
            self.demands |= {name: self._demand(name) for name in beside}

    def _services_ruled_by(self, policies: Mapping[str, LatticePlacementPolicy]) -> list[str]:
        """Services that a policy holds for which is different now."""
        changed = list(policies.values())
        return [
            name
            for name, each in self.world.services.items()
            if any(rule.spec.applies_to(each.metadata.labels or {}) for rule in changed)
        ]

    def _unplaced_dependencies(self) -> Iterator[str]:
        waiting = [self._name]
        while waiting:
            name = waiting.pop(0)
            if name in self.demands or name not in self.world.services:
                continue
            demand = self._demand(name)
            if name == self._name or len(self.fleet.assignments.get(name, ())) < demand.replicas:
                self.demands[name] = demand
                yield name
                waiting.extend(target for _, target in demand.latency_to)

    def service(self, name: str) -> LatticeService:
        return self._services.get(name) or self.world.services[name]

    def _demand(self, name: str) -> Demand:
        known = self.world.demands[name]
        if self._policies_unchanged and name not in self._services:
            return known
        return resolve_demand(self.service(name), self.policies, known.neighbours, known.usable_reserves)

    def may_be_placed(self) -> bool:
        """False: there is no room, and others do not make any."""
        return self._includes_waiting or may_fit(self.demands[self._name], self.fleet)

    def try_place(self) -> bool:
        """Everybody who can be is placed, dependencies first; is the one among them?"""
        for demand in self.demands.values():
            resize_assignments(demand, self.fleet)
        if self._includes_waiting:
            found = place_all(self.demands.values(), self.fleet).get(self._name)
            return found is None or found.is_complete
        return self._place_until_stable()

    def _place_until_stable(self) -> bool:
        """As often as it takes: machines that nobody needs any more leave room, and money."""
        before = -1
        while before != self.fleet.replica_count:
            before = self.fleet.replica_count
            placed = [
                each
                for group in latency_groups(dict(self.demands))
                for each in place_group(group, self.fleet)
            ]
            remove_empty_machines(self.fleet, list(self._clusters()))
            if all(each.is_complete for each in placed if each.demand.name == self._name):
                return True
        return False

    def _clusters(self) -> set[str]:
        cluster = self.fleet.machines.cluster
        return {
            cluster[seat.machine].name
            for name in self.demands
            for seat in self.fleet.assignments.get(name, ())
        }

    def unplaced_service(self, name: str, failure: PlacementFailure | None) -> UnplacedService:
        service = self.service(name)
        holding = tuple(each for each in self.policies if each.spec.applies_to(service.metadata.labels or {}))
        return UnplacedService(self.demands[name], service, holding, failure)
