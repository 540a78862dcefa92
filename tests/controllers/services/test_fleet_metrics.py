"""Fleet metrics: pending services with reasons, budgets, utilization of pools, and no series of deleted
objects."""

from typing import Any

import pytest
from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import a_ledger, make_object

from lattice import metrics
from lattice.controllers.services.fleet_metrics import FleetMetricsController, pending_verdict
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService

SPEC = {"containers": {"main": {"command": ["serve"]}}, "replicas": {"min": 2}}


def a_service_with_status(name: str = "web", **status: Any) -> LatticeService:
    return make_object(LatticeService, name, "default", spec=SPEC, status=status)


def refused(verdict: str, name: str = "web") -> LatticeService:
    said = [{"type": "Placed", "status": "False", "reason": "NoRoom"}]
    return a_service_with_status(
        name,
        schedulerDecision={"verdict": verdict},
        placements=[{"pool": "north", "replicas": 1}],
        conditions=said,
    )


@pytest.mark.parametrize(
    ("service", "verdict"),
    [
        pytest.param(a_service_with_status(), "Undecided", id="not placed yet"),
        pytest.param(refused("OverBudget"), "OverBudget", id="one replica is placed, the other over budget"),
        pytest.param(refused("Placed"), "", id="placed"),
        pytest.param(
            a_service_with_status(placements=[{"pool": "north", "replicas": 2}]),
            "",
            id="placed, before verdicts were written",
        ),
        pytest.param(
            make_object(
                LatticeService,
                "web",
                "default",
                meta={"deletionTimestamp": "2026-01-01T00:00:00Z"},
                spec=SPEC,
            ),
            "",
            id="terminating",
        ),
    ],
)
def test_pending_reason_of_service(service: LatticeService, verdict: str) -> None:
    assert pending_verdict(service) == verdict


def the_ledger_of_north() -> LatticeLedger:
    machines = {"north-001": [{"nodeClass": "nano", "count": 2, "micros": 50_000}]}
    as_of = {"month": "2026-01", "asOf": "2026-01-01T00:00:00.000000Z"}
    return a_ledger("north", 60_000_000, committedMicros=100_000, machines=machines, **as_of)


def value(name: str, **labels: str) -> float | None:
    found: float | None = metrics.REGISTRY.get_sample_value(name, labels)
    return found


async def test_fleet_metrics() -> None:
    plane = ControlPlane()
    pool = make_object(
        LatticePool, "north", spec={"provider": {"type": "local"}}, status={"utilization": {"nodes": 0.5}}
    )
    waiting = refused("NotNow")
    await plane.put(
        pool, the_ledger_of_north(), waiting, refused("NotNow", "api"), refused("Placed", "orders")
    )
    figures = FleetMetricsController(await plane.new_term())
    async with running_loops(figures.context, figures.loop()):
        before, *after = await revision_after(plane, [1, 60, 60])
        assert set(after) == {before}, "figures are told, not stored"
        assert value("lattice_pending_services", verdict="NotNow", reason="NoRoom") == 2
        assert value("lattice_pending_services", verdict="Placed", reason="NoRoom") is None
        assert value("lattice_pool_utilization_ratio", pool="north", resource="nodes") == 0.5
        assert value("lattice_pool_utilization_ratio", pool="north", resource="cores") is None
        assert value("lattice_budget_limit_dollars", ledger="pool.north", pool="north") == 60
        assert value("lattice_budget_committed_dollars_per_hour", ledger="pool.north", pool="north") == 0.1
        spent = value("lattice_budget_spent_dollars", ledger="pool.north", pool="north")
        await plane.clock.advance(3600)
        later = value("lattice_budget_spent_dollars", ledger="pool.north", pool="north")
        assert later == pytest.approx((spent or 0) + 0.1, abs=0.002)
        assert (value("lattice_budget_projected_dollars", ledger="pool.north", pool="north") or 0) > (
            later or 0
        )
        await plane.remove(waiting)
        await plane.remove(pool)
        await plane.clock.advance(60)
        assert value("lattice_pending_services", verdict="NotNow", reason="NoRoom") == 1
        assert value("lattice_pool_utilization_ratio", pool="north", resource="nodes") is None
    metrics.clear_leader_gauges()
    assert value("lattice_pending_services", verdict="NotNow", reason="NoRoom") is None
    assert value("lattice_budget_limit_dollars", ledger="pool.north", pool="north") is None
