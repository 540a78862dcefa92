"""Affinity between services: which offers, clusters and machines placement chooses, and what it buys."""

from itertools import combinations

import pytest
from build.affinity import apart, near, preferred
from build.objects import a_workload
from build.placed_worlds import a_placed_world
from build.worlds import a_class, a_pool, a_service, a_world
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.service import LatticeService
from lattice.placement.greedy.affinity import broken_terms
from lattice.placement.greedy.place_all import find_stale_placement, place_all
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plan.plan import converge
from lattice.placement.plugins.filters.affinity import Affinity

# Two regions of one provider, of which the cheap one wins without affinity.
POOLS = (
    a_pool("cheap", region="eu-1", classes=["small"], labels={"region": "eu-1"}),
    a_pool("dear", region="us-1", classes=["big"], labels={"region": "us-1"}),
)
CLASSES = (a_class("small", cores=2, memory=8, price=0.1), a_class("big", cores=4, memory=8, price=1))


def placed(
    *services: LatticeService, pools: tuple = POOLS
) -> tuple[Fleet, dict[str, list[tuple[str, str, str]]]]:
    """The fleet with the services placed, and the offer, cluster and machine of each replica, by service."""
    world = a_world(*pools, *CLASSES, *services)
    fleet = world.build_fleet()
    place_all(world.demands.values(), fleet)
    spots: dict[str, list[tuple[str, str, str]]] = {}
    for name in world.services:
        spots[name.partition("/")[2]] = []
        for assignment in fleet.assignments.get(name, ()):
            cluster = fleet.machines.cluster[assignment.machine]
            offer = fleet.offers[cluster.offer_row].name
            spots[name.partition("/")[2]].append(
                (offer, cluster.name, fleet.machines.names[assignment.machine])
            )
        if spots[name.partition("/")[2]]:
            assert broken_terms(world.demands[name], fleet) == []
    return fleet, spots


def test_service_follows_the_service_that_it_must_be_near() -> None:
    """The name of the service sorts before its target, and the cheap pool would win."""
    target = a_service("db", pools={"matchLabels": {"region": "us-1"}})
    _, spots = placed(a_service("app", affinity=near("db", "region")), target)
    assert {offer for offer, _, _ in spots["app"]} == {"dear"}


def test_excluded_service_leaves_the_region() -> None:
    """The excluded service states nothing itself: the term of the other service counts for both."""
    _, spots = placed(a_service("app", priority=1, affinity=apart("batch", key="region")), a_service("batch"))
    assert ({offer for offer, _, _ in spots["app"]}, {offer for offer, _, _ in spots["batch"]}) == (
        {"cheap"},
        {"dear"},
    )


@pytest.mark.parametrize("affinity", [apart("b"), apart("b", key="cluster")], ids=["machine", "cluster"])
def test_services_that_exclude_one_another_share_no_machine(affinity: dict) -> None:
    """Both would fit on one machine."""
    fleet, spots = placed(a_service("a", cores=0.5, affinity=affinity), a_service("b", cores=0.5))
    assert not {machine for *_, machine in spots["a"]} & {machine for *_, machine in spots["b"]}
    assert len(fleet.machines.cluster) == 2


def test_bare_workload_keeps_a_service_away() -> None:
    term = {"selector": {"matchLabels": {"lattice.dev/service": "a"}}, "topologyKey": "node"}
    workload = a_workload("w", constraints={"affinity": {"antiWorkload": {"required": [term]}}})
    world = a_world(*POOLS, *CLASSES, a_service("a"), workload)
    assert [term.targets for term in world.demands["default/a"].repelling_terms] == [("workload/default/w",)]


def test_anti_affinity_to_itself_puts_one_replica_on_a_machine() -> None:
    fleet, _ = placed(a_service("a", replicas=3, cores=0.5, affinity=apart("a")))
    assert len(fleet.machines.cluster) == 3


def test_first_replica_of_a_service_near_itself_is_placed() -> None:
    _, spots = placed(a_service("a", replicas=2, affinity=near("a", "node")))
    assert len(spots["a"]) == 2
    assert len({machine for *_, machine in spots["a"]}) == 1


def test_machines_hold_replicas_that_must_share_them() -> None:
    """One replica of db fills half of a small machine; placed alone, two would fill one machine."""
    fleet, spots = placed(
        a_service("db", replicas=3, cores=1),
        a_service("app", replicas=3, cores=1, affinity=near("db", "node")),
    )
    assert len(spots["app"]) == len(spots["db"]) == 3
    assert len(fleet.machines.cluster) == 3


def test_room_for_a_neighbour_does_not_make_a_spread_uneven() -> None:
    """Only the machines of the dear region are large enough for both, but db must be in both regions."""
    spread = [{"topologyKey": "region", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    _, spots = placed(
        a_service("db", replicas=4, cores=2, spread=spread),
        a_service("app", replicas=2, cores=1, affinity=near("db", "node")),
    )
    assert sorted(offer for offer, _, _ in spots["db"]) == ["cheap", "cheap", "dear", "dear"]


def test_replicas_share_a_machine_as_far_as_they_fit() -> None:
    """The only machine has three cores for two replicas of db and two of app."""
    pools = (a_pool("p", classes=["m"], capacity={"maxNodes": 1}), a_class(cores=3))
    _, spots = placed(
        a_service("db", replicas=2), a_service("app", replicas=2, affinity=near("db", "node")), pools=pools
    )
    assert {name: len(replicas) for name, replicas in spots.items()} == {"db": 2, "app": 1}


def test_shared_machine_is_apart_from_what_either_excludes() -> None:
    """Alone, c would fill the machines of a and b, which its neighbour d must not use."""
    services = (
        a_service("a", cores=0.5, affinity=apart("d")),
        a_service("b", replicas=3, cores=1, affinity=apart("a", "d")),
        a_service("c", replicas=3, cores=0.5),
        a_service("d", replicas=3, cores=1, affinity=near("c", "node")),
    )
    _, spots = placed(*services, pools=(a_pool("p", classes=["small", "big"]),))
    assert len(spots["d"]) == 3


def test_services_near_each_other_are_placed_together() -> None:
    _, spots = placed(
        a_service("a", affinity=near("b", "region")), a_service("b", affinity=near("a", "region"))
    )
    assert {offer for offer, _, _ in spots["a"]} == {offer for offer, _, _ in spots["b"]} == {"cheap"}


def test_preferred_affinity_beats_the_price() -> None:
    target = a_service("db", pools={"matchLabels": {"region": "us-1"}})
    _, spots = placed(target, a_service("app", affinity=preferred("db", "region")))
    assert {offer for offer, _, _ in spots["app"]} == {"dear"}


def test_service_near_an_undefined_service_waits() -> None:
    world = a_world(*POOLS, *CLASSES, a_service("app", affinity=near("db", "zone")))
    placement = place_all(world.demands.values(), world.build_fleet())["default/app"]
    reasons = [reason.summary() for reason in placement.decisions[-1].reasons]
    assert "waiting for service db, which is not placed" in reasons


KEYS = ("region", "provider", "pool", "cluster", "node")
NAMES = ("a", "b", "c")


@st.composite
def affinities(draw: st.DrawFn) -> dict:
    """Up to one term of each kind."""
    stated = {}
    for kind in ("workload", "antiWorkload"):
        if draw(st.integers(0, 3)) == 0:
            term = {"service": draw(st.sampled_from(NAMES)), "topologyKey": draw(st.sampled_from(KEYS))}
            stated[kind] = {"required": [term]}
    return stated


@st.composite
def services(draw: st.DrawFn) -> list[LatticeService]:
    return [
        a_service(
            name,
            replicas=draw(st.integers(1, 3)),
            cores=draw(st.sampled_from([0.5, 1, 2])),
            priority=draw(st.integers(0, 1)),
            affinity=draw(affinities()),
        )
        for name in NAMES
    ]


def is_near(fleet: Fleet, key: str, one: int, other: int) -> bool:
    first, second = (fleet.machines.cluster[machine] for machine in (one, other))
    offers = fleet.offers[first.offer_row], fleet.offers[second.offer_row]
    match key:
        case "node":
            return one == other
        case "cluster":
            return first is second
        case "region":
            return offers[0].place.region == offers[1].place.region
        case "provider":
            return offers[0].place.provider == offers[1].place.provider
    return offers[0] is offers[1]


@settings(max_examples=150, deadline=None)
@given(stated=services())
def test_placed_replicas_meet_every_term_of_every_service(stated: list[LatticeService]) -> None:
    world = a_world(*POOLS, *CLASSES, *stated)
    fleet = world.build_fleet()
    place_all(world.demands.values(), fleet)
    machines = [
        (name, assignment.machine)
        for name, assignments in fleet.assignments.items()
        for assignment in assignments
    ]
    for service in stated:
        name, affinity = f"default/{service.metadata.name}", service.spec.affinity
        assert affinity is not None
        for term in affinity.anti_workload.required:
            for (one, machine), (other, another) in combinations(machines, 2):
                pair = {one, other} if one != other else {one}
                if pair == {name, f"default/{term.service}"}:
                    assert not is_near(fleet, term.topology_key, machine, another)
        for term in affinity.workload.required:
            for index, (one, machine) in enumerate(machines):
                targets = [
                    another
                    for position, (other, another) in enumerate(machines)
                    if other == f"default/{term.service}" and position != index
                ]
                is_alone = term.service == service.metadata.name and not targets
                if one == name and not is_alone:
                    assert any(is_near(fleet, term.topology_key, machine, target) for target in targets)


@settings(max_examples=150, deadline=None)
@given(stated=services(), asking=st.sampled_from(NAMES))
def test_filter_agrees_with_the_obvious_loop_over_offers(stated: list[LatticeService], asking: str) -> None:
    world = a_world(*POOLS, *CLASSES, *stated)
    fleet, name = world.build_fleet(), f"default/{asking}"
    demands = [demand for other, demand in world.demands.items() if other != name]
    place_all(demands, fleet)
    rejected = [False] * len(fleet.offers)
    for mask in Affinity().filter(ReplicaAsk(world.demands[name]), fleet.table).values():
        rejected = [before or bool(now) for before, now in zip(rejected, mask, strict=True)]

    def same(key: str, one: int, other: int) -> bool:
        first, second = fleet.offers[one].place, fleet.offers[other].place
        if key in ("region", "provider"):
            return getattr(first, key) == getattr(second, key)
        return one == other

    for row in range(len(fleet.offers)):
        expected = False
        for service in stated:
            owner, affinity = f"default/{service.metadata.name}", service.spec.affinity
            assert affinity is not None
            for term in affinity.anti_workload.required:
                target = f"default/{term.service}"
                if name not in (owner, target) or term.topology_key in ("cluster", "node"):
                    continue
                other = target if owner == name else owner
                expected |= any(same(term.topology_key, row, at) for at in fleet.replicas.offer_rows(other))
            for term in affinity.workload.required if owner == name else ():
                rows = fleet.replicas.offer_rows(f"default/{term.service}")
                if term.service != asking:
                    expected |= not any(same(term.topology_key, row, at) for at in rows)
        assert rejected[row] == expected


def test_service_whose_neighbour_moved_is_stale_and_stays() -> None:
    world = a_placed_world(*POOLS, *CLASSES, a_service("db"), a_service("app", affinity=near("db", "pool")))
    moved = a_service("db", pools={"matchLabels": {"region": "us-1"}})
    after = converge(world.with_objects([moved], with_status=True))
    stale = find_stale_placement(after.world.demands["default/app"], after.fleet)
    assert [offer for offer, *_ in after.replica_counts["default/db"]] == ["dear"]
    assert [offer for offer, *_ in after.replica_counts["default/app"]] == ["cheap"]
    assert stale is not None
    assert any("service db in the same pool" in reason for reason in stale.reasons)
