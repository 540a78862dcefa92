"""Services find their place: as `plan` said, paid in the same commit, once, and never against what runs."""

from collections import Counter
from typing import Any

import pytest
from build.service_world import a_town
from build.virtual import VirtualClock
from build.worlds import a_class, a_policy, a_pool, a_service

from lattice.controllers.services.services import FLEET_KEY
from lattice.errors import Conflict, Fenced
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.store.memory import MemoryStore


async def test_service_is_placed_and_paid_in_one_commit() -> None:
    async with a_town(a_class(), a_pool(budget=1000), a_service(replicas=2)) as town:
        before = await town.store.revision()
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        assert await town.store.revision() == before + 1
        assert town.placed() == {("p1-001", "m"): 2}
        assert town.machines() == {"p1-001": {"m": 1}}
        assert town.paid() == Counter({("p1-001", "m"): 1})
        placed = town.condition("Placed")
        assert placed is not None
        assert (placed.status, placed.reason, placed.observed_generation) == ("True", "Placed", 1)
        status = town.service().status
        assert status.last_scheduled == "2026-01-01T00:00:00Z"
        assert status.scheduler_decision is not None
        assert status.scheduler_decision.reason == "Placed in p1"
        assert sorted(each.reason for each in await town.events()) == ["ClusterCreated", "Placed"]


async def test_placed_service_is_not_placed_again() -> None:
    async with a_town(a_class(), a_pool(), a_service(replicas=3), a_service("web")) as town:
        await town.look()
        revision = await town.store.revision()
        for _ in range(3):
            await town.services.reconcile(FLEET_KEY)
            await town.replicas.reconcile("default/api")
        assert await town.store.revision() == revision
        await town.bind()
        await town.look()
        revision = await town.store.revision()
        await town.services.reconcile(FLEET_KEY)
        assert await town.store.revision() == revision


async def test_pending_service_is_reported_once_across_leaders() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    async with a_town(
        a_class(), a_pool(budget=10), a_service(), a_service("big", cores=64), store=store, clock=clock
    ) as town:
        await town.look()
        assert len(await town.events("NotPlaced")) == 2
        before = await store.revision()
        for _ in range(3):
            clock.jump(3600)
            await town.services.reconcile(FLEET_KEY)
        assert await store.revision() == before
    async with a_town(store=store, clock=clock) as town:
        clock.jump(3600)
        await town.look()
        assert await store.revision() == before


async def test_scale_up_pays_only_for_new_machines() -> None:
    async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
        await town.look()
        await town.bind()
        await town.apply(a_service(replicas=4, cores=4))
        await town.look()
        assert town.machines() == {"p1-001": {"m": 4}}
        assert town.paid() == Counter({("p1-001", "m"): 4})
        assert "p1-001" in (await town.events("ClusterGrown"))[0].message


async def test_partial_fit_places_replicas_and_reports_the_rest() -> None:
    async with a_town(a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=3, cores=2)) as town:
        await town.look()
        assert town.placed() == {("p1-001", "m"): 2}
        placed = town.condition("Placed")
        assert placed is not None
        assert (placed.status, placed.reason) == ("False", "NotNow")
        assert placed.message.startswith("2 of 3 replicas are placed: ")
        assert len(town.workloads()) == 2
        assert [each.type for each in await town.events("NotPlaced")] == ["Warning"]
        await town.apply(a_pool(capacity={"maxNodes": 2}))
        await town.look()
        assert town.placed() == {("p1-001", "m"): 3}
        assert town.condition("Placed").status == "True"  # type: ignore[union-attr]


async def test_last_budget_goes_to_first_service_by_name() -> None:
    pool = a_pool(budget=160)  # one machine at $0.20 for 744 hours is $148.80
    async with a_town(a_class(), pool, a_service("api", cores=3), a_service("web", cores=3)) as town:
        await town.look()
        assert town.placed("api") == {("p1-001", "m"): 1}
        assert town.placed("web") == {}
        assert town.condition("Placed", "web").reason == "OverBudget"  # type: ignore[union-attr]
        assert town.paid() == Counter({("p1-001", "m"): 1})


async def test_lowered_budget_refuses_and_nothing_is_written() -> None:
    """The copy of the pool is stopped at what it was: only the store knows of the lower budget."""
    async with a_town(a_class(), a_pool(budget=1000), a_service()) as town:
        decide = town.services._decide

        async def and_then_lowered(refused: Any) -> Any:
            found = await decide(refused)
            if not refused:
                await town.apply(a_pool(budget=10))
            return found

        town.services._decide = and_then_lowered  # type: ignore[method-assign]
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        decision = town.service().status.scheduler_decision
        assert decision is not None
        assert decision.verdict == "OverBudget"
        assert decision.reason.startswith("over budget: ")
        assert "needs $0.20/h" in decision.reason
        assert town.machines() == {}
        assert town.all(LatticeLedger) == []
        assert town.placed() == {}


async def test_service_changed_during_placement_is_placed_again() -> None:
    async with a_town(a_class(), a_pool(), a_service()) as town:
        decide = town.services._decide

        async def and_then_scaled(refused: Any) -> Any:
            found = await decide(refused)
            await town.apply(a_service(replicas=2))
            return found

        town.services._decide = and_then_scaled  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="changed while its place was decided"):
            await town.services.reconcile(FLEET_KEY)
        assert town.placed() == {}
        town.services._decide = decide  # type: ignore[method-assign]
        await town.look()
        assert sum(town.placed().values()) == 2


async def test_former_leader_writes_nothing() -> None:
    async with a_town(a_class(), a_pool(), a_service()) as town:
        await town.store.campaign("controllers", "me", 15.0)
        before = await town.store.revision()
        with pytest.raises(Fenced):
            await town.services.reconcile(FLEET_KEY)
        assert await town.store.revision() == before


@pytest.mark.parametrize("hidden", ["p1", "certificate"])
async def test_running_replicas_stay_on_unsuitable_placement(hidden: str) -> None:
    pools = [
        a_pool("p1", labels={"compliance": ["gdpr"]}),
        a_pool("p2", labels={"compliance": ["gdpr"]}, capacity={"maxNodes": 0}),
    ]
    async with a_town(a_class(), *pools, a_service(replicas=2, compliance=["gdpr"])) as town:
        await town.look()
        await town.bind()
        await town.look()
        assert town.condition("PlacementStale").status == "False"  # type: ignore[union-attr]
        before = [each.metadata.uid for each in town.live()]
        if hidden == "p1":
            await town.apply(a_pool("p1"), a_pool("p2", labels={"compliance": ["gdpr"]}))
        else:
            await town.apply(a_policy(compliance=["soc2"]))
        await town.look()
        stale = town.condition("PlacementStale")
        assert stale is not None
        assert (stale.status, stale.reason) == ("True", "WouldMove")
        assert "p1" in stale.message
        assert [each.metadata.uid for each in town.live()] == before
        assert len(await town.events("PlacementStale")) == 1
        await town.apply(a_pool("p1", labels={"compliance": ["gdpr", "soc2"]}))
        await town.look()
        assert town.condition("PlacementStale").status == "False"  # type: ignore[union-attr]


async def test_missing_reference_is_reported_until_created() -> None:
    service = a_service(dependencies={"db": {"type": "service"}})
    async with a_town(a_class(), a_pool(), service) as town:
        await town.look()
        said = town.condition("ReferencesResolved")
        assert said is not None
        assert (said.status, said.reason, said.message) == (
            "False",
            "ServiceNotFound",
            "no LatticeService default/db",
        )
        await town.apply(a_service("db"))
        await town.look()
        assert town.condition("ReferencesResolved").status == "True"  # type: ignore[union-attr]


async def test_deleted_pool_keeps_running_replicas() -> None:
    async with a_town(a_class(), a_pool("p1"), a_service(replicas=2)) as town:
        await town.look()
        await town.bind()
        before = [each.metadata.uid for each in town.live()]
        await town.remove(LatticePool, "p1")
        await town.apply(a_pool("p2"))
        await town.look()
        assert town.placed() == {("p1-001", "m"): 2}
        assert [each.metadata.uid for each in town.live()] == before
        stale = town.condition("PlacementStale")
        assert stale is not None
        assert (stale.status, stale.message) == (
            "True",
            "it would not be put there today, and stays: p1: is not offered any more",
        )
        await town.apply(a_service(replicas=3))
        await town.look()
        assert town.placed() == {("p1-001", "m"): 2, ("p2-001", "m"): 1}
        await town.bind()
        await town.apply(a_service(replicas=1))
        await town.look()
        assert town.placed() == {("p2-001", "m"): 1}, "those that would not be put there go first"


async def test_refused_service_does_not_block_others() -> None:
    """Both are written together at first; then the one that is too dear is left out."""
    pools = [
        a_pool("p1", budget=1000, labels={"tier": "one"}),
        a_pool("p2", budget=1000, labels={"tier": "two"}),
    ]
    one, two = ({"matchLabels": {"tier": tier}} for tier in ("one", "two"))
    async with a_town(a_class(), *pools, a_service("api", pools=one), a_service("web", pools=two)) as town:
        decide = town.services._decide

        async def and_then_lowered(refused: Any) -> Any:
            found = await decide(refused)
            if not refused:
                await town.apply(a_pool("p1", budget=10, labels={"tier": "one"}))
            return found

        town.services._decide = and_then_lowered  # type: ignore[method-assign]
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        assert town.placed("api") == {}
        assert town.condition("Placed", "api").reason == "OverBudget"  # type: ignore[union-attr]
        assert town.placed("web") == {("p2-001", "m"): 1}
        assert town.machines() == {"p2-001": {"m": 1}}


async def test_service_of_many_clusters_is_placed_in_batches() -> None:
    clusters = {"maxNodes": 1}
    async with a_town(
        a_class(), a_pool(budget=100_000), a_policy(clusters=clusters), a_service(replicas=120, cores=4)
    ) as town:
        before = await town.store.revision()
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        assert len(town.machines()) == 120
        assert sum(town.placed().values()) == 120
        assert town.paid().total() == 120
        assert await town.store.revision() == before + 4


# --- as plan says ---
