"""Find out whether one service fits after changes of objects: apply the changes to the existing trial fleet,
place the service, and undo both, without building a new fleet."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService, service_key
from lattice.placement.explain.blockers import PlacementFailure, at_failure, resize_assignments
from lattice.placement.fit.join_machines import offers_with_joined
from lattice.placement.greedy.place import Placement, place
from lattice.placement.greedy.place_all import PlanRounds, RoundPolicy, incomplete, place_in_rounds
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.costs import service_cost
from lattice.placement.model.demand import Demand, resolve_demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.object_changes import ObjectChange, SupplyObject, apply_changes
from lattice.placement.model.offer import Budget, Offer
from lattice.placement.model.world import World, callers_by_service, object_key

_rate, _is_priced = attrgetter("rate"), attrgetter("is_priced")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial in which the service fits.

    `rate_increase` is in micro-dollars per hour. `strengths` holds the result of every gauge that `measure`
    received: how much of a change the placement really used, such as the used part of a raised limit.
    """

    rate_increase: int
    is_priced: bool = True
    strengths: tuple[int, ...] = ()
    # Micro-dollars per hour that the service itself costs.
    service_rate: int = 0
    # Waiting services that are placed earlier and gain replicas, in the order of placement.
    services_ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnplacedService:
    """A service that is not fully placed, with the policies that apply and the placement failure, if an offer
    rejected a replica."""

    demand: Demand
    service: LatticeService
    # Policies that apply to the service.
    policies: tuple[LatticePlacementPolicy, ...]
    failure: PlacementFailure | None


class ServiceTrial:
    """Trials of one service under changes of objects. Unplaced dependencies and the services of its gang are
    placed with it.

    `waiting_services` also lack replicas. If there are any, a trial places them too, in the order in which
    `lattice plan` places services.
    `satisfied_services` keep the replicas that they have and get no more.
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
            resource
            for resource in world.objects.values()
            if isinstance(resource, LatticeNodeClass | LatticeLedger)
        ]
        self._results: dict[frozenset[ObjectChange], TrialResult | None] = {}

    def run(self, changes: Iterable[ObjectChange]) -> TrialResult | None:
        """Return the cached result of the trial with these changes; None if the service does not fit."""
        # The order of changes does not matter for the result.
        key = frozenset(changes)
        if key not in self._results:
            self._results[key] = self.measure(key, ())
        return self._results[key]

    def may_fit(self, changes: Iterable[ObjectChange]) -> bool:
        """Return False if the upper bound proves that the service does not fit; the check places nothing."""
        # The upper bound covers one service only.
        if self.waiting_services:
            return True
        with self._what_if(list(changes)) as scope:
            return scope.may_be_placed()

    def measure(self, changes: Iterable[ObjectChange], gauges: Sequence[object]) -> TrialResult | None:
        """Place the service with these changes and call the gauges on the fleet; None if the service does not
        fit.

        A gauge is the `measure_strength` of a ChangeOption: it reads from the fleet how much of the change
        the placement used.
        """
        # `fleet.what_if` undoes the placement first; then `_what_if` restores offers and budgets.
        with self._what_if(list(changes)) as scope, self.fleet.what_if():
            (previous_rate, previous_unpriced), previous_counts = self._total_rate(), self._counts()
            if not scope.may_be_placed() or not scope.try_place():
                return None
            rate, unpriced = self._total_rate()
            strengths = tuple(gauge(self.fleet) for gauge in gauges)  # type: ignore[operator]
            service_rate = service_cost(self.fleet, self.name)
            return TrialResult(
                rate - previous_rate,
                unpriced <= previous_unpriced,
                strengths,
                service_rate,
                self._services_ahead(scope, previous_counts),
            )

    def _total_rate(self) -> tuple[int, int]:
        """Return the micro-dollars per hour of all machines, and the number of machines without a known
        price."""
        machine_types = self.fleet.machines.machine_type.values()
        return sum(map(_rate, machine_types)), len(machine_types) - sum(map(_is_priced, machine_types))

    def services_ahead(self, changes: Iterable[ObjectChange]) -> tuple[str, ...]:
        """Return `services_ahead` as in TrialResult, even if the service does not fit."""
        change_list = list(changes)
        result = self.run(change_list)
        if result is not None:
            return result.services_ahead
        with self._what_if(change_list) as scope, self.fleet.what_if():
            previous_counts = self._counts()
            scope.try_place()
            return self._services_ahead(scope, previous_counts)

    def _counts(self) -> dict[str, int]:
        return {name: len(self.fleet.assignments.get(name, ())) for name in self.waiting_services}

    def _services_ahead(self, scope: "WhatIfScope", previous_counts: Mapping[str, int]) -> tuple[str, ...]:
        """Return the waiting services that are placed before the service and gained replicas."""
        ahead: list[str] = []
        for name in scope.order:
            if name == self.name:
                break
            replicas = len(self.fleet.assignments.get(name, ()))
            if name in previous_counts and replicas > previous_counts[name]:
                ahead.append(name)
        return tuple(ahead)

    def failures(self, changes: Iterable[ObjectChange]) -> Iterator[tuple["WhatIfScope", UnplacedService]]:
        """Yield the placement failures of the service and of its unplaced dependencies, inside the scope of
        the changes."""
        with self._what_if(list(changes)) as scope, self.fleet.what_if():
            if not scope.try_place():
                # A replica that keeps a whole gang unplaced fails only beside the other replicas of the gang.
                for name in scope.unplaced:
                    if scope.demands[name].gang:
                        place(scope.demands[name], self.fleet)
                for name in scope.unplaced:
                    if (
                        len(self.fleet.assignments.get(name, ())) < scope.demands[name].replicas
                        or scope.demands[name].rule_conflict
                    ):
                        with at_failure(scope.demands[name], self.fleet) as failure:
                            yield scope, scope.unplaced_service(name, failure)

    @contextmanager
    def _what_if(self, changes: Sequence[ObjectChange]) -> Iterator["WhatIfScope"]:
        """Apply the changes to the fleet inside the context; the exit restores offers, budgets and quotes."""
        changed_objects = apply_changes(self.world.objects, changes)
        offers, budgets = self._supply(changed_objects)
        # Changes add no offer here: every compiled offer replaces a row that the fleet has.
        # All trials share one fleet, so every exit must restore the fleet.
        latencies = self.fleet.latencies
        for change in changes:
            if change.latency is not None:
                latencies = latencies.with_declared(*change.latency)
        with self.fleet.with_supply(offers, budgets), self.fleet.with_latencies(latencies):
            yield WhatIfScope(self, changed_objects)

    def _supply(self, changed_objects: Sequence[Kind]) -> tuple[list[Offer], list[Budget]]:
        """Compile the offers and budgets of changed objects only.

        An offer that is closed because of an overlap with another offer stays closed: the overlap is not
        visible here.
        """
        classes = [resource for resource in changed_objects if isinstance(resource, LatticeNodeClass)]
        suppliers = {}
        for resource in (*self._users(classes), *changed_objects):
            if isinstance(resource, SupplyObject):
                suppliers[object_key(resource)] = resource
        joined = [resource for resource in changed_objects if isinstance(resource, LatticeNode)]
        if not suppliers:
            return offers_with_joined(self.fleet, joined, ()), []
        inputs = {object_key(resource): resource for resource in (*self._classes_and_ledgers, *classes)}
        supply = replace(self.world, objects={**inputs, **suppliers}).supply
        offers = []
        for offer in supply.offers:
            previous_offer = self.fleet.offers[self.fleet.row(offer.name)]
            if previous_offer.closed_reason and not offer.closed_reason:
                offer = replace(
                    offer, closed_reason=previous_offer.closed_reason, reopen_hint=previous_offer.reopen_hint
                )
            offers.append(offer)
        return offers_with_joined(self.fleet, joined, offers), list(supply.budgets.values())

    def _users(self, classes: Sequence[LatticeNodeClass]) -> list[Kind]:
        """Return the supply objects that use the node classes.

        A pool uses the classes in its list; a cloud or a data center uses all classes of its provider.
        """
        if not classes:
            return []
        providers: set[str] = set()
        for node_class in classes:
            providers.update(node_class.spec.providers)
        names = {node_class.metadata.name for node_class in classes}
        pools: list[Kind] = []
        infrastructures: list[Kind] = []
        for resource in self.world.objects.values():
            if isinstance(resource, LatticePool) and names & set(resource.spec.node_classes):
                pools.append(resource)
            elif (
                isinstance(resource, CloudInfrastructure | StaticInfrastructure)
                and resource.spec.provider in providers
            ):
                infrastructures.append(resource)
        return [*pools, *infrastructures]


class WhatIfScope:
    """The demands of the trial under the changes: the service and its unplaced dependencies, with waiting
    services if the trial has any."""

    def __init__(self, trial: ServiceTrial, changed_objects: Sequence[Kind]) -> None:
        self.fleet, self.world = trial.fleet, trial.world
        self.objects = {
            **trial.world.objects,
            **{object_key(resource): resource for resource in changed_objects},
        }
        changed_policies = {
            resource.metadata.name: resource
            for resource in changed_objects
            if isinstance(resource, LatticePlacementPolicy)
        }
        self.policies = tuple(
            changed_policies.get(policy.metadata.name, policy) for policy in trial.world.policies
        )
        self._services = {
            service_key(resource): resource
            for resource in changed_objects
            if isinstance(resource, LatticeService)
        }
        self._name, self._policies_unchanged = trial.name, not changed_policies
        self.demands: dict[str, Demand] = {}
        # The services in the order in which `try_place` places them.
        self.order: list[str] = []
        # The service and its unplaced dependencies, breadth first.
        self.unplaced: list[str] = []
        queue = [self._name]
        while queue:
            name = queue.pop(0)
            if name in self.demands or name not in self.world.services:
                continue
            demand = self._demand(name)
            if name == self._name or len(self.fleet.assignments.get(name, ())) < demand.replicas:
                self.demands[name] = demand
                self.unplaced.append(name)
                queue.extend(target for _, target in demand.latency_to)
                for term in demand.near_terms:
                    queue.extend(term.targets)
                # A gang is placed whole or not at all.
                queue.extend(member.name for member in self.fleet.gangs.get(demand.gang, ()))
        self._includes_waiting = bool(trial.waiting_services)
        if self._includes_waiting:
            names = list(trial.waiting_services)
            # The services that the changed policies apply to.
            for name, service in self.world.services.items():
                labels = service.metadata.labels or {}
                is_affected = any(policy.spec.applies_to(labels) for policy in changed_policies.values())
                if is_affected and name not in trial.satisfied_services:
                    names.append(name)
            self.demands |= {name: self._demand(name) for name in names}

    def service(self, name: str) -> LatticeService:
        """Return the service under the changes."""
        return self._services.get(name) or self.world.services[name]

    def _demand(self, name: str) -> Demand:
        original = self.world.demands[name]
        callers = self._callers_of(name, original)
        if self._policies_unchanged and name not in self._services and callers == original.callers:
            return original
        service = self.service(name)
        return resolve_demand(
            service,
            self.policies,
            callers,
            original.usable_reserves,
            original.refusals,
            self.world.affinity_terms(service),
        )

    def _callers_of(self, name: str, original: Demand) -> tuple[tuple[str, bool], ...]:
        """The callers of the service under the changes: a changed caller may limit no latency any more, or call
        the service no more."""
        callers = dict(original.callers)
        for caller, service in self._services.items():
            callers.pop(caller, None)
            for _, is_limited in callers_by_service([service]).get(name, ()):
                callers[caller] = is_limited
        # The order of the callers is that of all services, by name.
        return tuple(sorted(callers.items()))

    def may_be_placed(self) -> bool:
        """Return False if the upper bound proves that the service does not fit; always True with waiting
        services."""
        return self._includes_waiting or may_fit(self.demands[self._name], self.fleet)

    def try_place(self) -> bool:
        """Place all demands, dependencies first, and report whether the service is complete."""
        for demand in self.demands.values():
            resize_assignments(demand, self.fleet)
        self.order = [
            demand.name for demand in ordered_demands(incomplete(self.demands, self.fleet).values())
        ]
        policy: RoundPolicy = TrialRounds(self.fleet, self._name, tuple(self.demands))
        if self._includes_waiting:
            policy = PlanRounds(self.fleet)
        placement = place_in_rounds(self.demands.values(), self.fleet, policy).get(self._name)
        # No placement means that the service has no missing replicas.
        return placement is None or placement.is_complete

    def unplaced_service(self, name: str, failure: PlacementFailure | None) -> UnplacedService:
        """Return the service under the changes with its policies and the failure."""
        service = self.service(name)
        policies = tuple(
            policy for policy in self.policies if policy.spec.applies_to(service.metadata.labels or {})
        )
        return UnplacedService(self.demands[name], service, policies, failure)


@dataclass(frozen=True, slots=True)
class TrialRounds:
    """The round policy of a trial of one service (see RoundPolicy). Surplus replicas are not removed, since a
    trial is about missing replicas. The rounds end as soon as the service is complete."""

    fleet: Fleet
    service: str
    # The service and its unplaced dependencies; only their clusters shrink.
    services: tuple[str, ...]
    removes_surplus: bool = False
    repeats_complete_services: bool = True

    def surplus_removed(self, demand: Demand, clusters: Sequence[str]) -> None:
        pass

    def group_placed(self, group: Sequence[Demand]) -> None:
        pass

    def shrinkable_clusters(self) -> Sequence[str]:
        clusters: set[str] = set()
        for name in self.services:
            clusters.update(self.fleet.replicas.clusters(name))
        return list(clusters)

    def is_done(self, placements: Mapping[str, Placement]) -> bool:
        placement = placements.get(self.service)
        return placement is None or placement.is_complete
