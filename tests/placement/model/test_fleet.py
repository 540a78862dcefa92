"""Tests of the trial fleet: one journal undoes the changes of all parts, and `with_supply` restores the
supply."""

from build.worlds import a_class, a_pool, a_service, a_world, arranged

from lattice.placement.greedy.machine_choice import remove_empty_machines
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet

API = "default/api"


def figures(fleet: Fleet) -> tuple[object, ...]:
    """A figure of every part of the fleet."""
    row = fleet.row("p1")
    return (
        {name: [fleet.machines.names[machine] for machine in item.machines] for name, item in fleet.clusters.items()},
        int(fleet.table.free(fleet.table.resource_index["nodes"])[row]),
        dict(+fleet.ledgers.committed),
        int(fleet.ledgers.headroom_by_offer[row]),
        fleet.inventory.unreserved_nodes_used[row],
        dict(fleet.replicas.by_offer(API)),
        fleet.replicas.count(API),
        bool(fleet.table.column("lost")[row]),
    )  # fmt: skip


def test_undo_covers_every_part() -> None:
    """Nested: the inner trial removes what the outer trial has."""
    fleet = arranged(a_world(a_pool(budget=10_000), a_service(replicas=5)))
    placed = figures(fleet)
    with fleet.what_if():
        for assignment in list(fleet.assignments[API]):
            fleet.unassign(assignment)
        with fleet.attempt():
            remove_empty_machines(fleet, list(fleet.clusters))
            fleet.mark_lost(fleet.row("p1"))
            assert fleet.clusters == {}
        assert figures(fleet) != placed
        assert fleet.clusters
    assert figures(fleet) == placed


def test_with_supply_restores_offers_budgets_and_quotes() -> None:
    """Inside the context a new class of the pool has a price; outside the pool does not have the class."""
    classes = a_class("m", cores=4), a_class("tiny", cores=2, price=0.01)
    world = a_world(*classes, a_pool(budget=10_000), a_service())
    fleet, ask = world.build_fleet(), ReplicaAsk(world.demands[API])
    row, quotes = fleet.row("p1"), fleet.quotes
    price, offer, headroom = (
        int(fleet.quotes.quote_for(ask).rate[row]),
        fleet.offers[row],
        fleet.ledgers.headroom(row),
    )
    changed = a_world(*classes, a_pool(budget=20_000, classes=["m", "tiny"]), a_service()).supply
    with fleet.with_supply(changed.offers, list(changed.budgets.values())):
        assert fleet.quotes.catalog.type_names == ["m", "tiny"]
        assert 0 < int(fleet.quotes.quote_for(ask).rate[row]) < price
        assert fleet.ledgers.headroom(row) > headroom
    assert fleet.quotes is quotes
    assert fleet.offers[row] is offer
    assert fleet.ledgers.headroom(row) == headroom
    assert int(fleet.quotes.quote_for(ask).rate[row]) == price


def test_machines_of_a_trial_do_not_count_as_unpriced() -> None:
    """Only a machine that runs already makes the headroom of its budget unknown."""
    fleet = arranged(a_world(a_class(price=None), a_pool(), a_service()))
    assert fleet.machines.machine_type
    assert not fleet.ledgers.unpriced_machines
    assert fleet.quotes.has_unknown_prices
