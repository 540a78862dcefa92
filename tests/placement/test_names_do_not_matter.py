"""The names of services, pools and classes decide nothing: under other names the same world costs the same."""

import os
from collections.abc import Sequence

import msgspec
from build.property_settings import LONG
from build.renaming import permutation, renamed
from build.world_histories import worlds_at_start
from build.worlds import a_class, a_pool, a_service
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, converge

EXAMPLES = settings(
    max_examples=int(os.environ.get("EXAMPLES", "10000" if LONG else "50")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Ties between equals may go either way.
TIE_SHARE = 0.01


def planned(objects: Sequence[Kind]) -> FleetState:
    return converge(World.of(objects, PriceBook({})))


def total(state: FleetState) -> int:
    return sum(state.offer_rates.values())


def unplaced(state: FleetState) -> int:
    return sum(demand.replicas - state.placed_replicas(name) for name, demand in state.world.demands.items())


def names_of(objects: Sequence[Kind], kind: type[Kind]) -> list[str]:
    return sorted(item.metadata.name for item in objects if isinstance(item, kind))


def are_unequal(objects: Sequence[Kind]) -> bool:
    """No two services ask for the same."""
    asked = [msgspec.json.encode(item.spec) for item in objects if isinstance(item, LatticeService)]
    return len({*asked}) == len(asked)


@EXAMPLES
@given(objects=worlds_at_start(), data=st.data())
def test_names_of_services_change_nothing(objects: tuple[Kind, ...], data: st.DataObject) -> None:
    names = names_of(objects, LatticeService)
    services = permutation(names, data.draw(st.permutations(names)))
    note(str([item.metadata.name for item in objects]))
    before, after = planned(objects), planned(renamed(objects, services, {}, {}))
    assert unplaced(after) == unplaced(before)
    if are_unequal(objects):
        assert total(after) == total(before)
    else:
        assert abs(total(after) - total(before)) <= TIE_SHARE * total(before)


@EXAMPLES
@given(objects=worlds_at_start(), data=st.data())
def test_names_of_supply_change_little(objects: tuple[Kind, ...], data: st.DataObject) -> None:
    pool_names, class_names = names_of(objects, LatticePool), names_of(objects, LatticeNodeClass)
    pools = permutation(pool_names, data.draw(st.permutations(pool_names)))
    classes = permutation(class_names, data.draw(st.permutations(class_names)))
    before, after = planned(objects), planned(renamed(objects, {}, pools, classes))
    assert unplaced(after) == unplaced(before)
    assert abs(total(after) - total(before)) <= TIE_SHARE * total(before)


def test_name_of_a_caller_does_not_decide_its_pool() -> None:
    """The caller of a dependency without maxMs is placed where it is cheap, whatever its name."""
    bills = set()
    for caller in ("app", "zapp"):
        objects = [
            a_class("m", price=0.2),
            a_class("dear", price=0.9),
            a_pool("p1", classes=["dear"], labels={"tier": "db"}),
            a_pool("p2", classes=["m"]),
            a_service("db", pools={"matchLabels": {"tier": "db"}}, cores=1),
            a_service(caller, cores=4, dependencies={"db": {"type": "service", "direction": "outbound"}}),
        ]
        bills.add(total(planned(objects)))
    assert len(bills) == 1
