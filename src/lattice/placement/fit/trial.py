"""Would a service fit if some objects were different? The fleet as it would be, for a moment, without making it anew."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from lattice.kinds.meta.base import Kind
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.place_all import arrange_all, groups, place_together
from lattice.placement.greedy.upper_bound import may_fit
from lattice.placement.model.edits import Change, changed
from lattice.placement.model.costs_part import share_of
from lattice.placement.model.demand import Demand, key_of, resolve
from lattice.placement.model.fleet import Fleet
from lattice.placement.explain.blockers import Failure, at_failure, reseat
from lattice.placement.model.offer import Budget, Offer
from lattice.placement.model.quotes import Quotes
from lattice.placement.greedy.machine_choice import trim
from lattice.placement.model.stand import Supplier
from lattice.placement.model.world import World, key

_rate, _is_priced = attrgetter("rate"), attrgetter("is_priced")


@dataclass(frozen=True, slots=True)
class Result:
    """It fits: micro-dollars per hour that are paid more than before, and how strongly what was measured was needed."""

    rate: int
    is_priced: bool = True
    strengths: tuple[int, ...] = ()
    service: int = 0  # micro-dollars per hour that it costs itself
    ahead: tuple[
        str, ...
    ] = ()  # of the others, those that come first and have more replicas then, in the order in which they come


@dataclass(frozen=True, slots=True)
class Shown:
    """A service that has no place, with the objects that rule it and the failure, if an offer could tell one."""

    demand: Demand
    service: LatticeService
    policies: tuple[LatticePlacementPolicy, ...]  # those that hold for it
    failure: Failure | None


class Rehearsal:
    """One service of a world, tried under changes. Services that it waits for are placed before it, as they would be.

    `others`: services that lack replicas, too. With them everything is settled as a plan does it, whoever comes first.
    `content`: services that want no more than they have.
    """

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        name: str,
        others: Collection[str] = (),
        content: Collection[str] = (),
    ) -> None:
        self.world, self.fleet, self.name, self.others, self.content = world, fleet, name, others, content
        self._beside = [
            each for each in world.objects.values() if isinstance(each, LatticeNodeClass | LatticeLedger)
        ]
        self._known: dict[frozenset[Change], Result | None] = {}

    def run(self, changes: Iterable[Change]) -> Result | None:
        made = frozenset(changes)
        if made not in self._known:
            self._known[made] = self.measure(made, ())
        return self._known[made]

    def may_do(self, changes: Iterable[Change]) -> bool:
        """At a glance; False: there is no room, however it is used."""
        if self.others:
            return True
        with self._imagined(list(changes)) as scene:
            return scene.may_be_placed()

    def measure(self, changes: Iterable[Change], gauges: Sequence[object]) -> Result | None:
        """None: it does not fit. `gauges` are asked while it stands."""
        with self._imagined(list(changes)) as scene, self.fleet.what_if():
            (paid, unpriced), before = self._bill(), self._counts()
            if not scene.may_be_placed() or not scene.is_placed():
                return None
            now = self._bill()
            strengths = tuple(gauge(self.fleet) for gauge in gauges)  # type: ignore[operator]
            own = share_of(self.fleet, self.name)
            return Result(now[0] - paid, now[1] <= unpriced, strengths, own, self._ahead(scene, before))

    def _bill(self) -> tuple[int, int]:
        """Micro-dollars per hour for all machines, and how many have no known price."""
        kinds = self.fleet.machines.kind.values()
        return sum(map(_rate, kinds)), len(kinds) - sum(map(_is_priced, kinds))

    def ahead(self, changes: Iterable[Change]) -> tuple[str, ...]:
        """As in a result, whether it fits or not."""
        made = list(changes)
        result = self.run(made)
        if result is not None:
            return result.ahead
        with self._imagined(made) as scene, self.fleet.what_if():
            before = self._counts()
            scene.is_placed()
            return self._ahead(scene, before)

    def _counts(self) -> dict[str, int]:
        return {name: len(self.fleet.seats.get(name, ())) for name in self.others}

    def _ahead(self, scene: "Scene", before: Mapping[str, int]) -> tuple[str, ...]:
        order = [each.name for group in groups(scene.demands) for each in group]
        first = (name for name in order[: order.index(self.name)] if name in before)
        return tuple(name for name in first if len(self.fleet.seats.get(name, ())) > before[name])

    def failing(self, changes: Iterable[Change]) -> Iterator[tuple["Scene", Shown]]:
        """Itself, and every service that it waits for in vain, inside the world with these changes."""
        with self._imagined(list(changes)) as scene, self.fleet.what_if():
            if not scene.is_placed():
                for name in scene.lacking:
                    if (
                        len(self.fleet.seats.get(name, ())) < scene.demands[name].replicas
                        or scene.demands[name].problem
                    ):
                        with at_failure(scene.demands[name], self.fleet) as failure:
                            yield scene, scene.shown(name, failure)

    @contextmanager
    def _imagined(self, changes: Sequence[Change]) -> Iterator["Scene"]:
        kinds = changed(self.world.objects, changes)
        offers, budgets = self._supply(kinds)
        before = [self.fleet.offers[self.fleet.row(each.name)] for each in offers]
        paid = [self.fleet.budgets[each.name] for each in budgets]
        quotes = self.fleet.table.quotes
        try:
            self.fleet.alter(offers, budgets)
            if any(_machines(old) != _machines(new) for old, new in zip(before, offers, strict=True)):
                for each in offers:
                    for kind in each.types:
                        self.fleet.type_names.setdefault(kind.name, len(self.fleet.type_names))
                self.fleet.table.quotes = Quotes(self.fleet)
            yield Scene(self, kinds)
        finally:
            self.fleet.alter(before, paid)
            self.fleet.table.quotes = quotes

    def _supply(self, kinds: Sequence[Kind]) -> tuple[list[Offer], list[Budget]]:
        """Only what comes from changed objects; what is closed for overlapping with others stays so."""
        classes = [each for each in kinds if isinstance(each, LatticeNodeClass)]
        suppliers = {
            key(each): each for each in (*self._users(classes), *kinds) if isinstance(each, Supplier)
        }
        if not suppliers:
            return [], []
        beside = {key(each): each for each in (*self._beside, *classes)}
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
        if offer.closed or not before.closed
        else replace(offer, closed=before.closed, reopen=before.reopen)
    )


def _machines(offer: Offer) -> object:
    return (offer.types, offer.limits.gpus)


class Scene:
    """The services of interest as they are under the changes: the one, and those without a place that it waits for."""

    def __init__(self, rehearsal: Rehearsal, kinds: Sequence[Kind]) -> None:
        self.fleet, self.world = rehearsal.fleet, rehearsal.world
        self.objects = {**rehearsal.world.objects, **{key(each): each for each in kinds}}
        changed_policies = {
            each.metadata.name: each for each in kinds if isinstance(each, LatticePlacementPolicy)
        }
        self.policies = tuple(
            changed_policies.get(each.metadata.name, each) for each in rehearsal.world.policies
        )
        self._services = {key_of(each): each for each in kinds if isinstance(each, LatticeService)}
        self._name, self._is_same = rehearsal.name, not changed_policies
        self.demands: dict[str, Demand] = {}
        self.lacking = list(self._closure())
        self._with_others = bool(rehearsal.others)
        if self._with_others:
            beside = [
                *rehearsal.others,
                *(each for each in self._ruled(changed_policies) if each not in rehearsal.content),
            ]
            self.demands |= {name: self._demand(name) for name in beside}

    def _ruled(self, policies: Mapping[str, LatticePlacementPolicy]) -> list[str]:
        """Services that a policy holds for which is different now."""
        changed = list(policies.values())
        return [
            name
            for name, each in self.world.services.items()
            if any(rule.spec.applies_to(each.metadata.labels or {}) for rule in changed)
        ]

    def _closure(self) -> Iterator[str]:
        waiting = [self._name]
        while waiting:
            name = waiting.pop(0)
            if name in self.demands or name not in self.world.services:
                continue
            demand = self._demand(name)
            if name == self._name or len(self.fleet.seats.get(name, ())) < demand.replicas:
                self.demands[name] = demand
                yield name
                waiting.extend(target for _, target in demand.latency_to)

    def service(self, name: str) -> LatticeService:
        return self._services.get(name) or self.world.services[name]

    def _demand(self, name: str) -> Demand:
        known = self.world.demands[name]
        if self._is_same and name not in self._services:
            return known
        return resolve(self.service(name), self.policies, known.neighbours, known.admitted)

    def may_be_placed(self) -> bool:
        """False: there is no room, and others do not make any."""
        return self._with_others or may_fit(self.demands[self._name], self.fleet)

    def is_placed(self) -> bool:
        """Everybody who can be is placed, dependencies first; is the one among them?"""
        for demand in self.demands.values():
            reseat(demand, self.fleet)
        if self._with_others:
            found = arrange_all(self.demands.values(), self.fleet).get(self._name)
            return found is None or found.is_complete
        return self._settles()

    def _settles(self) -> bool:
        """As often as it takes: machines that nobody needs any more leave room, and money."""
        before = -1
        while before != self.fleet.replicas:
            before = self.fleet.replicas
            placed = [
                each for group in groups(dict(self.demands)) for each in place_together(group, self.fleet)
            ]
            trim(self.fleet, list(self._clusters()))
            if all(each.is_complete for each in placed if each.demand.name == self._name):
                return True
        return False

    def _clusters(self) -> set[str]:
        cluster = self.fleet.machines.cluster
        return {
            cluster[seat.machine].name for name in self.demands for seat in self.fleet.seats.get(name, ())
        }

    def shown(self, name: str, failure: Failure | None) -> Shown:
        service = self.service(name)
        holding = tuple(each for each in self.policies if each.spec.applies_to(service.metadata.labels or {}))
        return Shown(self.demands[name], service, holding, failure)
