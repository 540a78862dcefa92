"""Services are placed as planned, paid once in the same commit, and never at the expense of running replicas."""

from collections import Counter
from typing import Any

import pytest
from build.service_world import running_fleet
from build.virtual import VirtualClock
from build.worlds import a_class, a_policy, a_pool, a_service

from lattice.controllers.services.placement import FLEET_KEY
from lattice.errors import Conflict, Fenced
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.store.memory import MemoryStore


async def test_service_is_placed_and_paid_in_one_commit() -> None:
    async with running_fleet(a_class(), a_pool(budget=1000), a_service(replicas=2)) as fleet:
        revision_before = await fleet.store.revision()
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        assert await fleet.store.revision() == revision_before + 1
        assert fleet.placed() == {("p1-001", "m"): 2}
        assert fleet.machines() == {"p1-001": {"m": 1}}
        assert fleet.paid() == Counter({("p1-001", "m"): 1})
        placed = fleet.condition("Placed")
        assert placed is not None
        assert (placed.status, placed.reason, placed.observed_generation) == ("True", "Placed", 1)
        status = fleet.service().status
        assert status.last_scheduled == "2026-01-01T00:00:00Z"
        assert status.scheduler_decision is not None
        assert status.scheduler_decision.reason == "Placed in p1"
        assert sorted(event.reason for event in await fleet.events()) == ["ClusterCreated", "Placed"]


async def test_placed_service_is_not_placed_again() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(replicas=3), a_service("web")) as fleet:
        await fleet.converge()
        revision = await fleet.store.revision()
        for _ in range(3):
            await fleet.services.reconcile(FLEET_KEY)
            await fleet.replicas.reconcile("default/api")
        assert await fleet.store.revision() == revision
        await fleet.bind()
        await fleet.converge()
        revision = await fleet.store.revision()
        await fleet.services.reconcile(FLEET_KEY)
        assert await fleet.store.revision() == revision


async def test_pending_service_is_reported_once_across_leaders() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    async with running_fleet(
        a_class(), a_pool(budget=10), a_service(), a_service("big", cores=64), store=store, clock=clock
    ) as fleet:
        await fleet.converge()
        assert len(await fleet.events("NotPlaced")) == 2
        revision_before = await store.revision()
        for _ in range(3):
            clock.jump(3600)
            await fleet.services.reconcile(FLEET_KEY)
        assert await store.revision() == revision_before
    async with running_fleet(store=store, clock=clock) as fleet:
        clock.jump(3600)
        await fleet.converge()
        assert await store.revision() == revision_before


async def test_scale_up_pays_only_for_new_machines() -> None:
    async with running_fleet(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(a_service(replicas=4, cores=4))
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 4}}
        assert fleet.paid() == Counter({("p1-001", "m"): 4})
        assert "p1-001" in (await fleet.events("ClusterGrown"))[0].message


async def test_partial_fit_places_replicas_and_reports_the_rest() -> None:
    async with running_fleet(
        a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=3, cores=2)
    ) as fleet:
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 2}
        placed = fleet.condition("Placed")
        assert placed is not None
        assert (placed.status, placed.reason) == ("False", "NotNow")
        assert placed.message.startswith("2 of 3 replicas are placed: ")
        assert len(fleet.workloads()) == 2
        assert [event.type for event in await fleet.events("NotPlaced")] == ["Warning"]
        await fleet.apply(a_pool(capacity={"maxNodes": 2}))
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 3}
        assert fleet.condition("Placed").status == "True"  # type: ignore[union-attr]


async def test_last_budget_goes_to_first_service_by_name() -> None:
    pool = a_pool(budget=160)  # one machine at $0.20 for 744 hours is $148.80
    async with running_fleet(a_class(), pool, a_service("api", cores=3), a_service("web", cores=3)) as fleet:
        await fleet.converge()
        assert fleet.placed("api") == {("p1-001", "m"): 1}
        assert fleet.placed("web") == {}
        assert fleet.condition("Placed", "web").reason == "OverBudget"  # type: ignore[union-attr]


async def test_decision_follows_a_scale_down() -> None:
    pool = a_pool(budget=160)  # one machine at $0.20 for 744 hours is $148.80
    async with running_fleet(a_class(), pool, a_service(cores=3, replicas=2)) as fleet:
        for replicas, verdict in ((2, "OverBudget"), (1, "Placed"), (2, "OverBudget"), (0, "Placed")):
            await fleet.apply(a_service(cores=3, replicas=replicas))
            await fleet.converge()
            decision = fleet.service().status.scheduler_decision
            assert decision is not None
            assert decision.verdict == verdict
            assert ("replica 2 of 2" in decision.reason) == (verdict == "OverBudget")
        assert fleet.paid() == Counter({("p1-001", "m"): 1})


async def test_lowered_budget_refuses_and_nothing_is_written() -> None:
    """The cache of the pool is stopped at the former budget: only the store has the lower one."""
    async with running_fleet(a_class(), a_pool(budget=1000), a_service()) as fleet:
        decide = fleet.services._decide

        async def and_then_lowered(refused: Any) -> Any:
            found = await decide(refused)
            if not refused:
                await fleet.apply(a_pool(budget=10))
            return found

        fleet.services._decide = and_then_lowered  # type: ignore[method-assign]
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        decision = fleet.service().status.scheduler_decision
        assert decision is not None
        assert decision.verdict == "OverBudget"
        assert decision.reason.startswith("over budget: ")
        assert "needs $0.20/h" in decision.reason
        assert fleet.machines() == {}
        (ledger,) = fleet.all(LatticeLedger)
        assert ledger.status.machines == {}
        assert [refusal.service for refusal in ledger.status.refused] == ["default/api"]
        assert fleet.placed() == {}


async def test_service_changed_during_placement_is_placed_again() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        decide = fleet.services._decide

        async def and_then_scaled(refused: Any) -> Any:
            found = await decide(refused)
            await fleet.apply(a_service(replicas=2))
            return found

        fleet.services._decide = and_then_scaled  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="the service changed during its placement"):
            await fleet.services.reconcile(FLEET_KEY)
        assert fleet.placed() == {}
        fleet.services._decide = decide  # type: ignore[method-assign]
        await fleet.converge()
        assert sum(fleet.placed().values()) == 2


async def test_former_leader_writes_nothing() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.store.campaign("controllers", "me", 15.0)
        revision_before = await fleet.store.revision()
        with pytest.raises(Fenced):
            await fleet.services.reconcile(FLEET_KEY)
        assert await fleet.store.revision() == revision_before


@pytest.mark.parametrize("hidden", ["p1", "compliance"])
async def test_running_replicas_stay_on_unsuitable_placement(hidden: str) -> None:
    pools = [
        a_pool("p1", labels={"compliance": ["gdpr"]}),
        a_pool("p2", labels={"compliance": ["gdpr"]}, capacity={"maxNodes": 0}),
    ]
    async with running_fleet(a_class(), *pools, a_service(replicas=2, compliance=["gdpr"])) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.converge()
        assert fleet.condition("PlacementStale").status == "False"  # type: ignore[union-attr]
        before = [replica.metadata.uid for replica in fleet.live()]
        if hidden == "p1":
            await fleet.apply(a_pool("p1"), a_pool("p2", labels={"compliance": ["gdpr"]}))
        else:
            await fleet.apply(a_policy(compliance=["soc2"]))
        await fleet.converge()
        stale = fleet.condition("PlacementStale")
        assert stale is not None
        assert (stale.status, stale.reason) == ("True", "WouldMove")
        assert "p1" in stale.message
        assert [replica.metadata.uid for replica in fleet.live()] == before
        assert len(await fleet.events("PlacementStale")) == 1
        await fleet.apply(a_pool("p1", labels={"compliance": ["gdpr", "soc2"]}))
        await fleet.converge()
        assert fleet.condition("PlacementStale").status == "False"  # type: ignore[union-attr]


async def test_missing_reference_is_reported_until_created() -> None:
    service = a_service(dependencies={"db": {"type": "service"}})
    async with running_fleet(a_class(), a_pool(), service) as fleet:
        await fleet.converge()
        condition = fleet.condition("ReferencesResolved")
        assert condition is not None
        assert (condition.status, condition.reason, condition.message) == (
            "False",
            "ServiceNotFound",
            "LatticeService default/db not found",
        )
        await fleet.apply(a_service("db"))
        await fleet.converge()
        assert fleet.condition("ReferencesResolved").status == "True"  # type: ignore[union-attr]


async def test_deleted_pool_keeps_running_replicas() -> None:
    async with running_fleet(a_class(), a_pool("p1"), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        before = [replica.metadata.uid for replica in fleet.live()]
        await fleet.remove(LatticePool, "p1")
        await fleet.apply(a_pool("p2"))
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 2}
        assert [replica.metadata.uid for replica in fleet.live()] == before
        stale = fleet.condition("PlacementStale")
        assert stale is not None
        assert (stale.status, stale.message) == (
            "True",
            "running replicas stay, although a new placement would not put them there: p1 is no longer offered",
        )
        await fleet.apply(a_service(replicas=3))
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 2, ("p2-001", "m"): 1}
        await fleet.bind()
        await fleet.apply(a_service(replicas=1))
        await fleet.converge()
        assert fleet.placed() == {("p2-001", "m"): 1}, "those that would not be put there go first"


async def test_refused_service_does_not_block_others() -> None:
    """Both are written in one commit at first; then the service over budget is left out."""
    pools = [
        a_pool("p1", budget=1000, labels={"tier": "one"}),
        a_pool("p2", budget=1000, labels={"tier": "two"}),
    ]
    one, two = ({"matchLabels": {"tier": tier}} for tier in ("one", "two"))
    async with running_fleet(
        a_class(), *pools, a_service("api", pools=one), a_service("web", pools=two)
    ) as fleet:
        decide = fleet.services._decide

        async def and_then_lowered(refused: Any) -> Any:
            found = await decide(refused)
            if not refused:
                await fleet.apply(a_pool("p1", budget=10, labels={"tier": "one"}))
            return found

        fleet.services._decide = and_then_lowered  # type: ignore[method-assign]
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        assert fleet.placed("api") == {}
        assert fleet.condition("Placed", "api").reason == "OverBudget"  # type: ignore[union-attr]
        assert fleet.placed("web") == {("p2-001", "m"): 1}
        assert fleet.machines() == {"p2-001": {"m": 1}}


async def test_service_of_many_clusters_is_placed_in_batches() -> None:
    clusters = {"maxNodes": 1}
    async with running_fleet(
        a_class(), a_pool(budget=100_000), a_policy(clusters=clusters), a_service(replicas=120, cores=4)
    ) as fleet:
        revision_before = await fleet.store.revision()
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        assert len(fleet.machines()) == 120
        assert sum(fleet.placed().values()) == 120
        assert fleet.paid().total() == 120
        assert await fleet.store.revision() == revision_before + 4
