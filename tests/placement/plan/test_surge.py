"""What the updates of a plan need until they end: machines, the cost at the peak and afterwards, and why an update waits."""

from typing import Any

import msgspec
import pytest
from build.affinity import near
from build.placed_worlds import a_placed_world
from build.worlds import a_class, a_pool, a_service

from lattice.cli.output.plan_tables import plan_lines
from lattice.cli.output.table_renderer import TableRenderer
from lattice.kinds.service import LatticeService
from lattice.placement.plan.plan import plan
from lattice.placement.queries.dispatch import answer_query

FULL = {"cores": 4}


def updated(service: LatticeService) -> LatticeService:
    """The service with another image."""
    container = msgspec.structs.replace(service.spec.containers["main"], image="app:2")
    return msgspec.structs.replace(
        service, spec=msgspec.structs.replace(service.spec, containers={"main": container})
    )


def planned(*services: LatticeService, change: LatticeService | None = None, **pool: Any) -> Any:
    """The plan document of updating the services, or of the change; class m has 4 cores and costs $0.20/h."""
    world = a_placed_world(a_pool(**pool), a_class("m"), a_class("big", cores=8, price=0.5), *services)
    changes = [change] if change else list(map(updated, services))
    return answer_query({"ask": "plan"}, world, changes)


@pytest.mark.parametrize(
    ("services", "machines", "peak"),
    [
        pytest.param([a_service(**FULL)], 1, 400_000, id="a full machine"),
        pytest.param([a_service(cores=2)], 0, 200_000, id="free capacity for the surge replica"),
        pytest.param(
            [a_service("a", cores=2), a_service("b", cores=2)], 1, 400_000, id="two share a machine"
        ),
        pytest.param([a_service("a", **FULL), a_service("b", **FULL)], 2, 800_000, id="two full machines"),
    ],
)
def test_plan_names_the_machines_of_an_update(
    services: list[LatticeService], machines: int, peak: int
) -> None:
    document = planned(*services)
    surge, final = document["surge"], document["total"]["after"]["hourlyMicros"]
    assert surge["services"] == [f"default/{service.metadata.name}" for service in services]
    assert sum(row["machines"] for row in surge["machines"]) == machines
    assert (surge["peak"]["hourlyMicros"], surge["blocked"]) == (peak, [])
    assert peak == final + machines * 200_000
    notes = [line for line in plan_lines(document, TableRenderer()) if "until it ends" in line]
    words = "1 node of class m in p1-001" if machines == 1 else "2 nodes of class m in p1-001"
    expected = f"The update needs {words} more until it ends: ${peak / 1e6:.2f}/h at the peak, ${final / 1e6:.2f}/h afterwards."
    assert [note.strip("•-! ") for note in notes] == ([expected] if machines else [])


def test_old_machine_of_an_update_counts_at_the_peak() -> None:
    """The new replica starts on the new machine, so no third machine is needed."""
    document = planned(a_service(cores=3), change=updated(a_service(cores=8)), classes=["m", "big"])
    assert (document["surge"]["machines"], document["total"]["after"]["hourlyMicros"]) == ([], 500_000)
    assert document["surge"]["peak"]["hourlyMicros"] == 700_000
    text = "\n".join(plan_lines(document, TableRenderer()))
    assert "Until the update ends, the old machines stay: $0.70/h at the peak, $0.50/h afterwards." in text


def test_change_without_an_update_has_no_surge() -> None:
    assert planned(a_service(**FULL), change=a_service(**FULL, replicas=2))["surge"] is None


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        pytest.param(
            {"budget": 200},
            "over budget: latticepool/p1 cannot pay for one more machine of class m: need $0.20/h, have $0.077777/h",
            id="a budget",
        ),
        pytest.param(
            {"capacity": {"maxNodes": 1}},
            "p1 is full: need 1 nodes more, have 0",
            id="a pool without a node left",
        ),
    ],
)
def test_plan_says_why_an_update_waits(pool: dict[str, Any], reason: str) -> None:
    document = planned(a_service(**FULL), **pool)
    assert document["surge"]["blocked"] == [{"name": "default/api", "reason": reason}]
    assert f"the update of default/api waits: {reason}" in document["risks"]
    assert f"the update of default/api waits: {reason}" in "\n".join(plan_lines(document, TableRenderer()))


def test_replica_that_must_share_its_machine_gets_no_empty_one() -> None:
    """The node of db has no capacity for a second replica of app, and an empty machine has no db."""
    app = a_service("app", cores=2, affinity=near("db", "node"))
    document = planned(a_service("db", cores=2), app, change=updated(app))
    (blocked,) = document["surge"]["blocked"]
    assert blocked["reason"].startswith("a replica must share its machine: ")
    assert document["surge"]["machines"] == []


def test_plan_with_another_surge_has_another_id() -> None:
    service = a_service(**FULL)
    ids = set()
    for budget in (None, 200):
        world = a_placed_world(a_pool(budget=budget), service)
        ids.add(plan(world, [updated(service)]).id)
    assert len(ids) == 2
