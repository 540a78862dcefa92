"""The input of placement: a World after any changes equals a World built from the same objects at once, and a
change rebuilds only the derived values that read its kind."""

from dataclasses import fields
from datetime import UTC, datetime
from random import Random

import msgspec
import pytest
from build.random_worlds import random_change, random_world
from build.worlds import a_class, a_policy, a_pool, a_service
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds import LATTICE_KINDS
from lattice.kinds.meta.base import Kind
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.feed.placement_input import (
    CONFIG_KINDS,
    DECLARED_KINDS,
    KINDS_BY_RESOURCE,
    PLACEMENT_KINDS,
    SYSTEM_KINDS,
    PlacementInput,
    PricingTables,
    decode_object,
)
from lattice.placement.greedy.place_all import PlanRounds, place_one_round
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import (
    DERIVED_VALUES,
    MAX_CACHED_DEMANDS_PER_SERVICE,
    World,
    object_key,
)
from lattice.placement.status.fleet_status import fleet_digest

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TABLES = PricingTables(PriceBook({}))


def filled(*objects: Kind) -> PlacementInput:
    placement_input = PlacementInput()
    for obj in objects:
        placement_input.put(obj)
    return placement_input


def restored(obj: Kind) -> Kind:
    """The object as a new decoding of its stored value."""
    return decode_object(obj.resource.id, msgspec.json.encode(obj))


def test_user_declared_kinds_have_no_managed_hint() -> None:
    assert set(PLACEMENT_KINDS) <= set(LATTICE_KINDS)
    assert set(CONFIG_KINDS) < set(DECLARED_KINDS)
    assert {kind for kind in PLACEMENT_KINDS if not kind.resource.managed_hint} == set(DECLARED_KINDS)
    assert not set(SYSTEM_KINDS) & set(DECLARED_KINDS)
    assert tuple(KINDS_BY_RESOURCE.values()) == PLACEMENT_KINDS


@settings(max_examples=25, deadline=None)
@given(number=st.integers(0, 10_000))
def test_input_after_changes_builds_the_world_of_its_objects(number: int) -> None:
    draw, placement_input = Random(number), filled(*random_world(number).objects.values())
    world = placement_input.world(TABLES, NOW)
    for _ in range(5):
        objects = dict(world.objects)
        changes, deletions = random_change(draw.randrange(10_000), world)
        # Decoded again without a change, as the status of a stored object changes.
        changes += [restored(draw.choice(list(objects.values())))]
        for key in deletions:
            if key in objects:
                placement_input.delete(type(objects.pop(key)), key[1], key[2])
        for change in changes:
            placement_input.put(change)
            objects[object_key(change)] = change
        world, anew = placement_input.world(TABLES, NOW), World(objects, TABLES.book, now=NOW)
        assert world.objects == objects
        assert (world.services, world.policies) == (anew.services, anew.policies)
        assert world.demands == anew.demands
        assert supply_fields(world) == supply_fields(anew)
        assert placed_digest(world) == placed_digest(anew)


def supply_fields(world: World) -> list[object]:
    # Offers compare by identity.
    supply = world.supply
    offers = [{field.name: getattr(offer, field.name) for field in fields(offer)} for offer in supply.offers]
    return [offers, supply.budgets, supply.findings, supply.node_classes]


def placed_digest(world: World) -> str:
    fleet = world.build_fleet()
    place_one_round(world.demands.values(), fleet, PlanRounds(fleet))
    return fleet_digest(fleet)


def derived_values(world: World) -> dict[str, object]:
    """Compute every derived value."""
    fleet = world.build_fleet()
    place_one_round(world.demands.values(), fleet, PlanRounds(fleet))
    return {value.name: getattr(world, value.name) for value in DERIVED_VALUES}


OFFERS = {"declared_supply", "latencies", "_reserving_offers"}
DEMANDS = {"demands", "_dependants"}
AFFINITY = {"_affinity_index", "_affinity_terms"}
WORKLOAD = msgspec.convert(
    {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"containers": {"main": {"image": "app:1"}}},
    },
    LatticeWorkload,
)


@pytest.mark.parametrize(
    ("change", "rebuilt"),
    [
        pytest.param([], set(), id="no change"),
        pytest.param(
            [WORKLOAD], {"_bare_members"} | AFFINITY, id="a workload is no input of supply and demands"
        ),
        pytest.param([restored(a_pool())], set(), id="a pool decoded again without a change"),
        pytest.param([a_pool(budget=100)], OFFERS | DEMANDS, id="the budget of a pool"),
        pytest.param([restored(a_service("api"))], {"services"}, id="a service decoded again"),
        pytest.param(
            [a_service("api", replicas=3)],
            {"services", "_callers"} | DEMANDS | AFFINITY,
            id="the replicas of a service",
        ),
        pytest.param([a_policy("rules")], {"policies"} | DEMANDS, id="a new policy"),
    ],
)
def test_change_rebuilds_only_derived_values_that_read_its_kind(
    change: list[Kind], rebuilt: set[str]
) -> None:
    placement_input = filled(a_class("m"), a_pool(), a_service("api"))
    previous = derived_values(placement_input.world(TABLES, NOW))
    for obj in change:
        placement_input.put(obj)
    current = derived_values(placement_input.world(TABLES, NOW))
    assert {name for name in previous if current[name] is not previous[name]} == rebuilt


def test_other_price_book_rebuilds_supply_and_demands() -> None:
    placement_input = filled(a_class("m"), a_pool(), a_service("api"))
    previous = derived_values(placement_input.world(TABLES, NOW))
    current = derived_values(placement_input.world(PricingTables(PriceBook({})), NOW))
    assert {name for name in previous if current[name] is not previous[name]} == OFFERS | DEMANDS


def test_spending_is_counted_at_the_time_of_every_world() -> None:
    placement_input = filled(a_class("m"), a_pool(budget=100))
    later = datetime(2026, 3, 31, tzinfo=UTC)
    early, late = placement_input.world(TABLES, NOW), placement_input.world(TABLES, later)
    (first,), (second,) = early.supply.budgets.values(), late.supply.budgets.values()
    assert first.month_remaining is not None
    assert second.month_remaining is not None
    assert first.month_remaining > second.month_remaining


def test_world_does_not_change_with_the_input() -> None:
    placement_input = filled(a_class("m"), a_pool(), a_service("api"))
    world = placement_input.world(TABLES, None)
    placement_input.delete(LatticePool, "", "p1")
    placement_input.put(a_service("web"))
    assert [offer.name for offer in world.supply.offers] == ["p1"]
    assert list(world.services) == ["default/api"]
    assert list(placement_input.world(TABLES, None).services) == ["default/api", "default/web"]


def test_unused_demands_are_dropped() -> None:
    placement_input = filled(a_service("api"))
    limit = MAX_CACHED_DEMANDS_PER_SERVICE * 101
    for replicas in range(1, limit + 3):
        placement_input.put(a_service("api", replicas=replicas))
        world = placement_input.world(TABLES, None)
        assert world.demands["default/api"].replicas == replicas
        assert len(world._demand_cache) <= limit + 1
    assert len(world._demand_cache) == 1
