"""Machines of services: created for unschedulable replicas, paid once, and released when empty."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_policy, a_pool, a_service

from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.controllers.services.placement import FLEET_KEY
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.world import World
from lattice.placement.plan.plan import plan
from lattice.store.protocol import Write


async def test_machines_are_released_only_when_empty() -> None:
    async with running_fleet(
        a_class(), a_pool(budget=10_000), a_service(replicas=3, cores=4), a_service("web", cores=4)
    ) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(a_service(replicas=1, cores=4))
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 1}
        assert fleet.machines() == {"p1-001": {"m": 4}}
        await fleet.finish_deletions()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 2}}
        assert fleet.paid() == Counter({("p1-001", "m"): 4}), "released once their removal is confirmed"


async def test_deleted_service_leaves_cluster_empty() -> None:
    async with running_fleet(
        a_class(), a_pool(), a_policy(clusters={"minNodes": 2}), a_service(replicas=2)
    ) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.remove(LatticeService, "api", "default")
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 2}}
        await fleet.finish_deletions()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {}}
        assert fleet.all(LatticeCluster)[0].spec.min_nodes == 0


async def test_machines_never_created_are_refunded() -> None:
    async with running_fleet(
        a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4), a_service("web", cores=4)
    ) as fleet:
        await fleet.converge()
        assert fleet.paid() == Counter({("p1-001", "m"): 3})
        for name in ("api", "web"):
            await fleet.remove(LatticeService, name, "default")
        await fleet.finish_deletions()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {}}
        assert fleet.paid() == Counter()
        assert fleet.all(LatticeLedger)[0].status.committed_micros == 0


async def test_machine_started_during_scale_down_is_paid() -> None:
    async with running_fleet(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as fleet:
        await fleet.converge()
        cluster = fleet.all(LatticeCluster)[0]
        commit = fleet.store.commit

        async def raced(writes: Sequence[Write], **rest: Any) -> int:
            """Just before the scale-down, a writer with an older view of the cluster creates a node."""
            if any(write.key.resource == LatticeCluster.resource.id for write in writes):
                fleet.store.commit = commit
                await fleet._make_node(cluster, "m", "p1-001-m-1")
            revision: int = await commit(writes, **rest)
            return revision

        await fleet.remove(LatticeService, "api", "default")
        await fleet.finish_deletions()
        fleet.store.commit = raced
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {}}
        assert fleet.paid() == Counter({("p1-001", "m"): 1})


async def test_terminating_machine_wanted_again_is_paid_once() -> None:
    async with running_fleet(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(a_service(replicas=1, cores=4))
        await fleet.converge()
        await fleet.finish_deletions()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}
        await fleet.apply(a_service(replicas=2, cores=4))
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 2}}
        assert fleet.paid() == Counter({("p1-001", "m"): 2})


async def test_unschedulable_replicas_get_one_more_machine() -> None:
    async with running_fleet(
        a_class(), a_pool(budget=10_000), a_service(replicas=2), unschedulable_grace_s=10.0
    ) as fleet:
        await fleet.converge()
        await fleet.bind(per_node=1)
        waiting = next(replica for replica in fleet.live() if replica.status.binding is None)
        await fleet.mark_unschedulable(waiting)
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}, "not at once"
        fleet.clock.jump(10)
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        assert fleet.machines() == {"p1-001": {"m": 2}}
        assert fleet.paid() == Counter({("p1-001", "m"): 2})
        assert (await fleet.events("NoNodeFits"))[
            0
        ].message == "No node of cluster p1-001 accepts 1 replica of the service; adding 1 node of class m"
        fleet.clock.jump(100)
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        assert fleet.machines() == {"p1-001": {"m": 2}}, "the one that was bought is still to come"
        await fleet.bind(per_node=1)
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 2}}


async def test_unschedulable_replicas_leave_full_cluster() -> None:
    async with running_fleet(
        a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=2), unschedulable_grace_s=10.0
    ) as fleet:
        await fleet.converge()
        await fleet.bind(per_node=1)
        await fleet.apply(a_pool("p2"))
        await fleet.converge()
        await fleet.mark_unschedulable(
            next(replica for replica in fleet.live() if replica.status.binding is None)
        )
        fleet.clock.jump(11)
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "m"): 1, ("p2-001", "m"): 1}
        assert Counter(replica.spec.cluster for replica in fleet.live()) == Counter(
            {"p1-001": 1, "p2-001": 1}
        )
        assert "placing the replicas elsewhere" in (await fleet.events("NoNodeFits"))[0].message


async def test_replicas_of_lost_node_get_one_more_machine() -> None:
    async with running_fleet(
        a_class(), a_pool(), a_service(replicas=2, cores=4), unschedulable_grace_s=10.0
    ) as fleet:
        await fleet.converge()
        await fleet.bind()
        lost = fleet.live()[0]
        assert lost.status.binding is not None
        await fleet.lose_node(lost.status.binding.node)
        await fleet.change(lost, binding=None, ready=False, actual_state="Pending")
        await fleet.mark_unschedulable(
            next(replica for replica in fleet.live() if replica.status.binding is None)
        )
        fleet.clock.jump(11)
        await fleet.converge(times=3)
        assert fleet.machines() == {"p1-001": {"m": 3}}
        assert [replica.metadata.name for replica in fleet.live()] == ["api-0", "api-1"], "the same replicas"
        assert fleet.placed() == {("p1-001", "m"): 2}


async def one_given_back(fleet: RunningFleet) -> None:
    """Refund one machine, as a release that races with a decision does."""
    lot, ledger = Lot(node_class="m", count=1, micros=200_000), fleet.all(LatticeLedger)[0]
    books = LedgerCommitter(fleet.store, fleet.clock, fleet.context.term)
    await books.commit_with_charges(Payment([], releases=[Charge((ledger.spec.budget,), "p1-001", lot)]))
    await fleet.wait_for_caches()


@pytest.mark.parametrize(
    ("most", "paid"),
    [pytest.param(2, 2, id="it may have both"), pytest.param(1, 1, id="it may have one by now")],
)
async def test_refunded_machine_is_paid_again_within_limit(most: int, paid: int) -> None:
    async with running_fleet(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as fleet:
        await fleet.converge()
        await one_given_back(fleet)
        assert fleet.paid() == Counter({("p1-001", "m"): 1})
        await fleet.apply(a_pool(budget=10_000, capacity={"maxNodes": most}))
        await fleet.converge()
        assert fleet.paid() == Counter({("p1-001", "m"): paid})


async def test_unpaid_machine_is_not_paid_on_release() -> None:
    async with running_fleet(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.apply(a_service(replicas=1, cores=4))
        await fleet.converge()
        await fleet.finish_deletions()
        await one_given_back(fleet)
        paid, commit = [fleet.paid()], fleet.store.commit

        async def noted(writes: Sequence[Write], **rest: Any) -> int:
            revision: int = await commit(writes, **rest)
            await fleet.wait_for_caches()
            paid.append(fleet.paid())
            return revision

        fleet.store.commit = noted
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}
        assert all(each == Counter({("p1-001", "m"): 1}) for each in paid), paid


async def test_cluster_of_deleted_pool_stays_while_in_use() -> None:
    async with running_fleet(a_class(), a_pool(budget=1000), a_service(replicas=2)) as fleet:
        await fleet.converge()
        await fleet.bind()
        await fleet.remove(LatticePool, "p1")
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}, "what runs there runs on"
        planned = plan(
            World.of(each for copy in fleet.context.caches for each in copy.objects()),
            [],
            [("LatticeService", "default", "api")],
        )
        assert planned.state_after is not None
        assert planned.state_after.clusters == {}
        await fleet.remove(LatticeService, "api", "default")
        await fleet.finish_deletions()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {}}
