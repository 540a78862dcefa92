"""The fleet as a program for the optimiser: what forbids nothing that may really be done, so that its bound holds for the fleet.

A model is a class of machines of one offer, in clusters of one set of rules, for only under equal rules do services share machines.
Machines that are not as their offer has them now are models of their own, of which there are as many as are there: of a class or at a
price that the offer no longer has, of another size than listed, without a known price, closed, too full, or with somebody on them who is
no service.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lattice.engine.table import Flags, Integers
from lattice.placement.model.machine_catalog import is_allowed
from lattice.placement.model.demand import ClusterRules, Demand, ReplicaAsk
from lattice.placement.plugins.filters.feasible import eligible
from lattice.placement.model.fleet import Cluster, Fleet
from lattice.placement.model.offer import NO_LIMIT, MachineType, Offer
from lattice.placement.plan.plan import Settled
from lattice.placement.plugins.filters.overflow import able
from lattice.placement.plugins.filters.spread import domain_of
from lattice.placement.optimise.problem import UNLIMITED, Cap, Least, Load, Model, Near, Program, Source

Vector = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """The program, and the price of machines that stay whatever it says."""

    program: Program
    staying: int


def question_of(settled: Settled, move_cost: int) -> Question:
    view = _View(settled)
    rows = {demand.name: _may_go(demand, view.fleet) for demand in view.placed}
    loads = tuple(_load(view, demand, rows, move_cost) for demand in view.placed)
    staying = {machine: view.fleet.machines.kind[machine].rate for machine in view.bare}
    held: Counter[str] = Counter()
    for machine, price in staying.items():
        cluster = view.fleet.machines.cluster[machine]
        held.update(dict.fromkeys(view.fleet.offers[cluster.row].budgets, price))
    caps = {name: view.fleet.cap(name) for name in view.fleet.budgets}
    ledgers = {name: cap - held[name] for name, cap in caps.items() if cap < NO_LIMIT}
    sources = tuple(_source(view, row) for row in range(view.fleet.table.count))
    return Question(Program(view.resources, sources, loads, ledgers), sum(staying.values()))


def class_of(model: str) -> str:
    return model.partition("@")[0].partition("#")[0]


def rules_hash(cluster: Cluster) -> str:
    return cluster.group.partition("/")[0]


@dataclass
class _Odd:
    """Machines that are not as listed, all alike."""

    name: str
    rules: str
    kind: MachineType
    size: Vector
    price: int
    closed: bool
    count: int = 0
    tenants: set[str] = field(default_factory=set)


class _View:
    """What is there, by the names that the program has for it."""

    def __init__(self, settled: Settled) -> None:
        fleet, demands = settled.fleet, settled.world.demands
        self.fleet = fleet
        self.placed = [demand for name, demand in sorted(demands.items()) if name in fleet.seats]
        self.resources = tuple(
            sorted({name for demand in self.placed for name in demand.effective_needs} | {"cpu", "memory"})
        )
        self.bare: dict[int, Counter[str]] = {}  # machine -> what those take of it who are no service
        self.taken: dict[int, Counter[str]] = {}  # machine -> what services take of it
        for name, seats in fleet.seats.items():
            for seat in seats:
                (self.taken if name in demands else self.bare).setdefault(seat.machine, Counter()).update(
                    dict(seat.needs)
                )
        self.rules: dict[str, ClusterRules] = {demand.rules.hash: demand.rules for demand in self.placed}
        self.is_one = len({*self.rules, *map(rules_hash, fleet.clusters.values())}) == 1
        self.model: dict[int, str] = {}  # of each machine
        self.there: list[Counter[str]] = [Counter() for _ in fleet.offers]
        self.odd: list[dict[str, _Odd]] = [{} for _ in fleet.offers]
        for row in range(len(fleet.offers)):
            self._survey(row)
        self._serving: dict[object, dict[str, tuple[str, ...]]] = {}

    def label(self, name: str, rules: str) -> str:
        return name if self.is_one else f"{name}@{rules}"

    def vector(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(min(amounts.get(name, 0), NO_LIMIT) for name in self.resources)

    def _survey(self, row: int) -> None:
        fleet, names = self.fleet, self.fleet.machines.names
        listed = {kind.name: kind for kind in fleet.offers[row].types if kind.is_priced}
        known: dict[object, _Odd] = {}
        for machine in sorted(fleet.on_row[row], key=lambda each: names[each]):
            kind, rules = fleet.machines.kind[machine], rules_hash(fleet.machines.cluster[machine])
            closed, size = bool(fleet.machines.column("closed")[machine]), self._room(machine)
            usual = listed.get(kind.name)
            is_listed = usual is not None and (usual.rate, self.vector(usual.size)) == (kind.rate, size)
            if is_listed and not closed and machine not in self.bare:
                self.model[machine] = self.label(kind.name, rules)
                self.there[row][self.model[machine]] += 1
                continue
            price = 0 if machine in self.bare else kind.rate
            like = (
                rules,
                kind.name,
                kind.gpu_model,
                tuple(sorted(kind.labels.items())),
                kind.taints,
                size,
                price,
                closed,
            )
            name = self.label(f"{kind.name}#{len(known)}", rules)
            odd = known.setdefault(like, _Odd(name, rules, kind, size, price, closed))
            odd.count += 1
            odd.tenants |= fleet.machines.holds[machine].keys()
            self.model[machine] = odd.name
            self.odd[row][odd.name] = odd

    def _room(self, machine: int) -> Vector:
        """For services: what others leave of it, and never less than services have."""
        size, nothing = self.fleet.machines.kind[machine].size, Counter[str]()
        others, own = self.bare.get(machine, nothing), self.taken.get(machine, nothing)
        left = {name: max(size.get(name, 0) - others[name], own[name]) for name in self.resources}
        return self.vector(left)

    @cached_property
    def useful(self) -> list[list[MachineType]]:
        """By offer: classes to make machines of."""
        return [
            useful_types(offer, self.resources, {class_of(name) for name in self.there[row]})
            for row, offer in enumerate(self.fleet.offers)
        ]

    def serving(self, demand: Demand, may: Flags) -> dict[str, tuple[str, ...]]:
        """By offer: models that replicas may run on."""
        key = (demand.machine_needs, demand.rules.hash, may.tobytes())
        if key not in self._serving:
            self._serving[key] = {
                self.fleet.offers[row].name: tuple(self._models(demand, row))
                for row in np.flatnonzero(may).tolist()
            }
        return self._serving[key]

    def _models(self, demand: Demand, row: int) -> Iterable[str]:
        quotes, rules = self.fleet.table.quotes, demand.rules.hash
        serves = quotes.serving(demand).serves[:, row]
        yield from (
            self.label(kind.name, rules)
            for kind in self.useful[row]
            if serves[self.fleet.type_names[kind.name]]
        )
        for odd in self.odd[row].values():
            if odd.rules == rules and not odd.closed and is_allowed(demand, odd.kind):
                yield odd.name

    @cached_property
    def milliseconds(self) -> Integers:
        """To each offer (row) from each (column)."""
        return np.stack([self.fleet.nearest([row]) for row in range(self.fleet.table.count)])


def useful_types(offer: Offer, resources: tuple[str, ...], there: Iterable[str] = ()) -> list[MachineType]:
    """Classes that are there, and those that no other beats: one as large in everything, alike in the rest, and not dearer.

    Where cores or memory are limited a smaller machine leaves more for others, and none is left out but what has no price.
    """
    priced, present = [kind for kind in offer.types if kind.is_priced], set(there)
    if offer.limits.milli < NO_LIMIT or offer.limits.memory < NO_LIMIT:
        return priced
    kept: list[MachineType] = []
    for kind in sorted(
        priced, key=lambda each: (each.rate, -sum(each.size.get(name, 0) for name in resources), each.name)
    ):
        alike = (
            other
            for other in kept
            if (other.labels, other.taints, other.gpu_model) == (kind.labels, kind.taints, kind.gpu_model)
        )
        if kind.name in present or not any(
            all(other.size.get(name, 0) >= kind.size.get(name, 0) for name in resources) for other in alike
        ):
            kept.append(kind)
    return sorted(kept, key=lambda each: each.name)


def _source(view: _View, row: int) -> Source:
    offer, there = view.fleet.offers[row], view.there[row]
    groups = sorted({*view.rules, *(rules_hash(each) for each in view.fleet.in_offer[row].values())})
    models = [
        Model(name, view.vector(kind.size), kind.rate, there[name])
        for rules in groups
        for kind in view.useful[row]
        if (name := view.label(kind.name, rules)) in there or rules in view.rules
    ]
    models += [Model(odd.name, odd.size, odd.price, odd.count, odd.count) for odd in view.odd[row].values()]
    limits = {"cpu": offer.limits.milli, "memory": offer.limits.memory}
    beyond = [
        sum(odd.count * max(0, odd.size[at] - odd.kind.size.get(name, 0)) for odd in view.odd[row].values())
        for at, name in enumerate(view.resources)
    ]
    most = tuple(
        limits[name] + more if limits.get(name, NO_LIMIT) < NO_LIMIT else None
        for name, more in zip(view.resources, beyond, strict=True)
    )
    nodes = (
        offer.limits.nodes
    )  # the reserved ones too: a bound must not lie above what somebody who may use them can reach
    return Source(
        offer.name,
        offer.region,
        tuple(models),
        nodes if nodes < UNLIMITED else None,
        most,
        offer.budgets,
        tuple(_least(view, row, models)),
    )


def _least(view: _View, row: int, models: Iterable[Model]) -> Iterable[Least]:
    """Machines that a cluster begins with, or one that is there has less than that."""
    offer, listed = view.fleet.offers[row], [model.name for model in models]
    for name, rules in sorted(view.rules.items()):
        here = [each for each in view.fleet.in_offer[row].values() if rules_hash(each) == name]
        fewest = [min(each.min_nodes, len(each.machines)) for each in here]
        least = min(offer.first_nodes(min(rules.min_nodes, rules.max_nodes)), *fewest, NO_LIMIT)
        if least > 1:
            yield Least(tuple(each for each in listed if view.is_one or each.endswith(f"@{name}")), least)


def _load(view: _View, demand: Demand, rows: Mapping[str, Flags], move_cost: int) -> Load:
    fleet, needs = view.fleet, demand.effective_needs
    may = rows[demand.name]
    current: Counter[tuple[str, str]] = Counter()
    for seat in fleet.seats[demand.name]:
        current[fleet.offers[fleet.machines.cluster[seat.machine].row].name, view.model[seat.machine]] += 1
    serves = dict(view.serving(demand, may))
    for offer, model in sorted(current):
        if model not in serves.get(offer, ()):
            serves[offer] = (*serves.get(offer, ()), model)
    counts = fleet.counts(demand.name)
    here = [fleet.offers[row] for row in counts]
    able_to = [fleet.offers[row] for row in np.flatnonzero(may).tolist()]
    return Load(
        name=demand.name,
        replicas=counts.total(),
        needs=tuple(needs.get(name, 0) for name in view.resources),
        serves={name: types for name, types in serves.items() if types},
        groups=tuple(
            frozenset(offer.name for offer in able_to if offer.is_in(each.value))
            for each in demand.regions
            if any(offer.is_in(each.value) for offer in here)
        ),
        min_regions=max(1, min(demand.min_regions, len({offer.region for offer in here}))),
        caps=tuple(_caps(demand, fleet, able_to)),
        near=tuple(_near(view, demand, rows)),
        current=current,
        move_cost=move_cost,
    )


def _may_go(demand: Demand, fleet: Fleet) -> Flags:
    """Where it is, and every offer it may be in; rented ones only where no data center keeps it, or one overflows to them."""
    is_waiting = any(target != demand.name and target not in fleet.seats for _, target in demand.latency_to)
    ask = ReplicaAsk(_anywhere(demand))
    may: Flags = np.zeros(fleet.table.count, np.bool_) if is_waiting else eligible(ask, fleet)
    if keepers := [] if is_waiting else able(ask, fleet):
        targets = {rule.target for row in keepers if (rule := fleet.offers[row].overflow) and rule.enabled}
        may &= np.array([offer.is_static or offer.owner in targets for offer in fleet.offers], np.bool_)
    for row in fleet.counts(demand.name):
        may[row] = True
    return may


def _anywhere(demand: Demand) -> Demand:
    """Without what depends on where others are: they may move too."""
    return replace(demand, requirements=tuple(each for each in demand.requirements if each.kind != "latency"))


def skew(demand: Demand, fleet: Fleet, key: str) -> int:
    """Replicas in the fullest domain beyond those in the emptiest that it may be in."""
    counts = {
        domain_of(fleet.offers[row], key): 0
        for row in np.flatnonzero(eligible(ReplicaAsk(demand), fleet)).tolist()
    }
    for row, count in fleet.counts(demand.name).items():
        domain = domain_of(fleet.offers[row], key)
        counts[domain] = counts.get(domain, 0) + count
    return max(counts.values(), default=0) - min(counts.values(), default=0)


def _caps(demand: Demand, fleet: Fleet, offers: Iterable[Offer]) -> Iterable[Cap]:
    """With so many domains to spread over, no one can have more than this; an uneven spread may stay as uneven as it is.

    How many there are to spread over is not known of a service that has to be near others.
    """
    if not demand.spread or demand.latency:
        return
    may = [fleet.offers[row] for row in np.flatnonzero(eligible(ReplicaAsk(demand), fleet)).tolist()]
    replicas = fleet.counts(demand.name).total()
    for each in demand.spread:
        allowed = max(each.amount, skew(demand, fleet, each.value))
        domains: dict[str, set[str]] = {}
        for offer in offers:
            domains.setdefault(domain_of(offer, each.value), set()).add(offer.name)
        count = max(1, len({domain_of(offer, each.value) for offer in may}))
        most = allowed + max(0, replicas - allowed) // count
        yield from (Cap(frozenset(names), most) for _, names in sorted(domains.items()) if most < replicas)


def _near(view: _View, demand: Demand, rows: Mapping[str, Flags]) -> Iterable[Near]:
    """Where it is too far away already, it may stay."""
    fleet, targets = view.fleet, dict(demand.latency_to)
    here, names = fleet.counts(demand.name), [offer.name for offer in fleet.offers]
    for each in demand.latency:
        target = targets[each.value]
        if target == demand.name or target not in rows:
            continue
        close = view.milliseconds <= each.amount
        others = np.flatnonzero(rows[target])
        now = fleet.rows_of(target)
        known: dict[bytes, frozenset[str]] = {}
        within = {}
        for row in np.flatnonzero(rows[demand.name]).tolist():
            if here[row] and not close[now, row].any():
                continue
            beside = close[others, row]
            within[names[row]] = known.setdefault(
                beside.tobytes(), frozenset(names[other] for other in others[beside].tolist())
            )
        yield Near(target, within)
