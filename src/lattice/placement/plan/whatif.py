"""What if a pool is lost, prices rise, or a certificate is withdrawn: who moves where, who is left without, and for how much?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import msgspec

from lattice.errors import Invalid, NotFound
from lattice.kinds.meta.base import Kind
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.placement.greedy.place_all import arrange_all, misplaced
from lattice.placement.model.costs_part import run_rate
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet, Seat
from lattice.placement.plan.plan import Plan, Settled, Where, compare, settle
from lattice.placement.greedy.machine_choice import trim
from lattice.placement.model.stand import Supplier, supplier
from lattice.placement.model.world import Key, World, key, placed_counts


@dataclass(frozen=True, slots=True)
class Event:
    """What happens. `lose`: offers, or objects with all of theirs; `drop`: certificates of offers; `price`: a factor in millionths."""

    lose: tuple[str, ...] = ()
    drop: tuple[tuple[str, str], ...] = ()
    price: int = 1_000_000


def whatif(world: World, event: Event) -> Plan:
    """As a fresh plan of the world without what is lost, in which services go from where they may not be any more."""
    return happening(settle(world), event)


def happening(before: Settled, event: Event) -> Plan:
    return compare(before, after(before, event))


def after(before: Settled, event: Event) -> Settled:
    """Unlike a change that somebody plans, a loss does not ask: misplaced replicas are put elsewhere."""
    world = happened(before.applied(), event)
    fleet = world.fleet()
    Ties.of(before, world).leave(fleet, fleet.seats)
    demands = map(before.adrift.fewer, world.demands.values())
    return Settled(world, fleet, arrange_all(demands, fleet, keep=1), before.adrift)


@dataclass(frozen=True, slots=True)
class Ties:
    """Who has to go when others did."""

    demands: Mapping[str, Demand]
    dependants: Mapping[str, list[str]]  # of a service: those that have to be near it
    strays: frozenset[
        tuple[str, str]
    ]  # service and offer: should not have been there before; what happens is no reason to move it

    @staticmethod
    def of(before: Settled, world: World) -> "Ties":
        dependants: dict[str, list[str]] = {}
        for demand in world.demands.values():
            for _, target in demand.latency_to:
                dependants.setdefault(target, []).append(demand.name)
        fleet, demands = before.fleet, before.world.demands
        strays = {
            (name, _offer(fleet, seat)) for name in before.where for seat in misplaced(demands[name], fleet)
        }
        return Ties(
            {name: before.adrift.fewer(each) for name, each in world.demands.items()},
            dependants,
            frozenset(strays),
        )

    def leave(self, fleet: Fleet, looking: Iterable[str]) -> set[str]:
        """Of these services, replicas where they may not be any more go, and then those that had to be near them. Answers whose did."""
        left: set[str] = set()
        seen = {name for name in looking if name in self.demands}
        while seen:
            gone = {name for name in sorted(seen) if self._unseat(self.demands[name], fleet)}
            left |= gone
            seen = {name for each in gone for name in self.dependants.get(each, ())}
        if left:
            trim(fleet, list(fleet.clusters))
        return left

    def _unseat(self, demand: Demand, fleet: Fleet) -> bool:
        leaving = [
            seat for seat in misplaced(demand, fleet) if (demand.name, _offer(fleet, seat)) not in self.strays
        ]
        for seat in leaving:
            fleet.unseat(seat)
        return bool(leaving)


def _offer(fleet: Fleet, seat: Seat) -> str:
    return fleet.offers[fleet.machines.cluster[seat.machine].row].name


def happened(world: World, event: Event) -> World:
    """The world after it."""
    changed, gone = lost(world, event.lose)
    without = world.having(changed, gone, with_status=True)
    for offer, certificate in event.drop:
        without = without.having([without_certificate(without, offer, certificate)], with_status=True)
    return replace(without, book=without.book.scaled(event.price)) if event.price != 1_000_000 else without


def lost(world: World, names: Iterable[str]) -> tuple[list[Kind], list[Key]]:
    """Objects that go, and clouds that lose a region."""
    changed: dict[Key, Kind] = {}
    gone: list[Key] = []
    for name in names:
        at, region = behind(world, name)
        found = changed.get(at, world.objects[at])
        if region and isinstance(found, CloudInfrastructure):
            changed[at] = _without_region(found, region)
        else:
            gone.append(at)
    return [each for at, each in changed.items() if at not in gone], gone


def behind(world: World, name: str) -> tuple[Key, str]:
    """What an offer of exactly this name comes from, and its region of a cloud; without such an offer, the whole cloud of this name."""
    offer = next((each for each in world.supply.offers if each.name == name), None)
    if offer is not None:
        return key(supplier(offer, world.objects)), offer.place.region if offer.kind == "cloud" else ""
    cloud = (CloudInfrastructure.resource.kind, "", name)
    if cloud not in world.objects:
        raise NotFound(
            f"no pool, region or infrastructure {name}",
            fix=f"there are {', '.join(offer_names(world)) or 'none'}",
        )
    return cloud, ""


def _without_region(cloud: CloudInfrastructure, region: str) -> CloudInfrastructure:
    regions = {each: stated for each, stated in cloud.spec.regions.items() if each != region}
    return msgspec.structs.replace(cloud, spec=msgspec.structs.replace(cloud.spec, regions=regions))


def offer_names(world: World) -> list[str]:
    return [offer.name for offer in world.supply.offers]


def without_certificate(world: World, offer: str, certificate: str) -> Kind:
    """The object behind an offer, without one of its certificates, in upper or lower case."""
    if offer not in offer_names(world):
        raise NotFound(
            f"no pool or region {offer}", fix=f"there are {', '.join(offer_names(world)) or 'none'}"
        )
    at, region = behind(world, offer)
    found = cast("Supplier", world.objects[at])
    held = next(each.compliance for each in world.supply.offers if each.name == offer)
    if certificate.lower() not in held:
        raise Invalid(
            f"{offer} does not have {certificate}", fix=f"it has {', '.join(sorted(held)) or 'none'}"
        )
    return _without(found, region, certificate.lower())


def _without(found: Supplier, region: str, certificate: str) -> Kind:
    def kept(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(word for word in words if word.lower() != certificate)

    replaced = msgspec.structs.replace
    if isinstance(found, LatticePool):
        labels = {**found.spec.labels, "compliance": list(kept(found.spec.compliance))}
        return replaced(found, spec=replaced(found.spec, labels=labels))
    if isinstance(found, StaticInfrastructure):
        return replaced(found, spec=replaced(found.spec, compliance=kept(found.spec.compliance)))
    own = replaced(found.spec.regions[region], compliance=kept(found.spec.compliance_of(region)))
    return replaced(found, spec=replaced(found.spec, regions={**found.spec.regions, region: own}))


@dataclass(frozen=True, slots=True)
class Loss:
    """What losing one offer would do. Micro-dollars per hour."""

    offer: str
    moved: Mapping[str, Mapping[Where, int]]
    left_without: tuple[str, ...]
    cost: int


def losses(settled: Settled) -> list[Loss]:
    """The same for each offer in turn, on one fleet: for a drill of all of them."""
    ties = Ties.of(settled, settled.world)
    return [_loss(settled, ties, offer) for offer in sorted(each.name for each in settled.fleet.offers)]


def _loss(settled: Settled, ties: Ties, offer: str) -> Loss:
    fleet, waiting = settled.fleet, settled.unplaced
    with fleet.what_if():
        hit = _close(fleet, fleet.row(offer))
        hit |= ties.leave(fleet, {name for each in hit for name in (each, *ties.dependants.get(each, ()))})
        affected = {*hit, *waiting} & ties.demands.keys()
        placements = arrange_all((ties.demands[name] for name in affected), fleet)
        without = tuple(
            name for name in sorted(affected) if name in placements and not placements[name].is_complete
        )
        moved = {name: dict(placed_counts(fleet, name)) for name in sorted(affected) if name not in without}
        cost = sum(run_rate(fleet).values()) + sum(settled.adrift.rates.values())
        return Loss(offer, moved, tuple(name for name in without if name not in waiting), cost)


def _close(fleet: Fleet, row: int) -> set[str]:
    """Everything in it is gone, and nothing new may come. Answers the services that were there."""
    hit: set[str] = set()
    for name in list(fleet.in_offer[row]):
        for machine in list(fleet.clusters[name].machines):
            services = list(fleet.machines.holds[machine])
            hit.update(services)
            for seat in [
                each for service in services for each in fleet.seats[service] if each.machine == machine
            ]:
                fleet.unseat(seat)
            fleet.drop_machine(machine)
        fleet.drop_cluster(name)
    fleet.close(row)
    return hit
