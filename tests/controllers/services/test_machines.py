"""Machines of services: taken when somebody finds no room, paid for once, given up when nobody is on them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from build.service_world import Town, a_town
from build.worlds import a_class, a_policy, a_pool, a_service

from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.controllers.services.services import FLEET_KEY
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.world import World
from lattice.placement.plan.plan import plan
from lattice.store.protocol import Write


async def test_machines_are_released_only_when_empty() -> None:
    async with a_town(
        a_class(), a_pool(budget=10_000), a_service(replicas=3, cores=4), a_service("web", cores=4)
    ) as town:
        await town.look()
        await town.bind()
        await town.apply(a_service(replicas=1, cores=4))
        await town.look()
        assert town.placed() == {("p1-001", "m"): 1}
        assert town.machines() == {"p1-001": {"m": 4}}
        await town.finish()
        await town.look()
        assert town.machines() == {"p1-001": {"m": 2}}
        assert town.paid() == Counter({("p1-001", "m"): 4}), "released by whoever confirms that they are gone"


async def test_deleted_service_leaves_cluster_empty() -> None:
    async with a_town(a_class(), a_pool(), a_policy(clusters={"minNodes": 2}), a_service(replicas=2)) as town:
        await town.look()
        await town.bind()
        await town.remove(LatticeService, "api", "default")
        await town.look()
        assert town.machines() == {"p1-001": {"m": 2}}
        await town.finish()
        await town.look()
        assert town.machines() == {"p1-001": {}}
        assert town.all(LatticeCluster)[0].spec.min_nodes == 0


async def test_machines_never_created_are_refunded() -> None:
    async with a_town(
        a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4), a_service("web", cores=4)
    ) as town:
        await town.look()
        assert town.paid() == Counter({("p1-001", "m"): 3})
        for name in ("api", "web"):
            await town.remove(LatticeService, name, "default")
        await town.finish()
        await town.look()
        assert town.machines() == {"p1-001": {}}
        assert town.paid() == Counter()
        assert town.all(LatticeLedger)[0].status.committed_micros == 0


async def test_machine_started_during_scale_down_is_paid() -> None:
    async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
        await town.look()
        cluster = town.all(LatticeCluster)[0]
        commit = town.store.commit

        async def raced(writes: Sequence[Write], **rest: Any) -> int:
            """Just before it shrinks, somebody who has seen it as it was makes a node."""
            if any(each.key.resource == LatticeCluster.resource.id for each in writes):
                town.store.commit = commit
                await town._make_node(cluster, "m", "p1-001-m-1")
            revision: int = await commit(writes, **rest)
            return revision

        await town.remove(LatticeService, "api", "default")
        await town.finish()
        town.store.commit = raced
        await town.look()
        assert town.machines() == {"p1-001": {}}
        assert town.paid() == Counter({("p1-001", "m"): 1})


async def test_terminating_machine_wanted_again_is_paid_once() -> None:
    async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
        await town.look()
        await town.bind()
        await town.apply(a_service(replicas=1, cores=4))
        await town.look()
        await town.finish()
        await town.look()
        assert town.machines() == {"p1-001": {"m": 1}}
        await town.apply(a_service(replicas=2, cores=4))
        await town.look()
        assert town.machines() == {"p1-001": {"m": 2}}
        assert town.paid() == Counter({("p1-001", "m"): 2})


async def test_unschedulable_replicas_get_one_more_machine() -> None:
    async with a_town(
        a_class(), a_pool(budget=10_000), a_service(replicas=2), unschedulable_grace_s=10.0
    ) as town:
        await town.look()
        await town.bind(per_node=1)
        waiting = next(each for each in town.live() if each.status.binding is None)
        await town.stick(waiting)
        await town.look()
        assert town.machines() == {"p1-001": {"m": 1}}, "not at once"
        town.clock.jump(10)
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        assert town.machines() == {"p1-001": {"m": 2}}
        assert town.paid() == Counter({("p1-001", "m"): 2})
        assert (await town.events("NoNodeFits"))[
            0
        ].message == "no node of p1-001 takes 1 of its replicas: 1 more of class m for it"
        town.clock.jump(100)
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        assert town.machines() == {"p1-001": {"m": 2}}, "the one that was bought is still to come"
        await town.bind(per_node=1)
        await town.look()
        assert town.machines() == {"p1-001": {"m": 2}}


async def test_unschedulable_replicas_leave_full_cluster() -> None:
    async with a_town(
        a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=2), unschedulable_grace_s=10.0
    ) as town:
        await town.look()
        await town.bind(per_node=1)
        await town.apply(a_pool("p2"))
        await town.look()
        await town.stick(next(each for each in town.live() if each.status.binding is None))
        town.clock.jump(11)
        await town.look()
        assert town.placed() == {("p1-001", "m"): 1, ("p2-001", "m"): 1}
        assert Counter(each.spec.cluster for each in town.live()) == Counter({"p1-001": 1, "p2-001": 1})
        assert "they are placed elsewhere" in (await town.events("NoNodeFits"))[0].message


async def test_replicas_of_lost_node_get_one_more_machine() -> None:
    async with a_town(
        a_class(), a_pool(), a_service(replicas=2, cores=4), unschedulable_grace_s=10.0
    ) as town:
        await town.look()
        await town.bind()
        lost = town.live()[0]
        assert lost.status.binding is not None
        await town.lose(lost.status.binding.node)
        await town.change(lost, binding=None, ready=False, actual_state="Pending")
        await town.stick(next(each for each in town.live() if each.status.binding is None))
        town.clock.jump(11)
        await town.look(times=3)
        assert town.machines() == {"p1-001": {"m": 3}}
        assert [each.metadata.name for each in town.live()] == ["api-0", "api-1"], "the same replicas"
        assert town.placed() == {("p1-001", "m"): 2}


async def one_given_back(town: Town) -> None:
    """As the release of a machine that crosses a decision does."""
    lot, ledger = Lot(node_class="m", count=1, micros=200_000), town.all(LatticeLedger)[0]
    books = LedgerCommitter(town.store, town.clock, town.office.term)
    await books.commit_with_charges(Payment([], releases=[Charge((ledger.spec.budget,), "p1-001", lot)]))
    await town.caught_up()


@pytest.mark.parametrize(
    ("most", "paid"),
    [pytest.param(2, 2, id="it may have both"), pytest.param(1, 1, id="it may have one by now")],
)
async def test_refunded_machine_is_paid_again_within_limit(most: int, paid: int) -> None:
    async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
        await town.look()
        await one_given_back(town)
        assert town.paid() == Counter({("p1-001", "m"): 1})
        await town.apply(a_pool(budget=10_000, capacity={"maxNodes": most}))
        await town.look()
        assert town.paid() == Counter({("p1-001", "m"): paid})


async def test_unpaid_machine_is_not_paid_on_release() -> None:
    async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
        await town.look()
        await town.bind()
        await town.apply(a_service(replicas=1, cores=4))
        await town.look()
        await town.finish()
        await one_given_back(town)
        paid, commit = [town.paid()], town.store.commit

        async def noted(writes: Sequence[Write], **rest: Any) -> int:
            revision: int = await commit(writes, **rest)
            await town.caught_up()
            paid.append(town.paid())
            return revision

        town.store.commit = noted
        await town.look()
        assert town.machines() == {"p1-001": {"m": 1}}
        assert all(each == Counter({("p1-001", "m"): 1}) for each in paid), paid


async def test_cluster_of_deleted_pool_stays_while_in_use() -> None:
    async with a_town(a_class(), a_pool(budget=1000), a_service(replicas=2)) as town:
        await town.look()
        await town.bind()
        await town.remove(LatticePool, "p1")
        await town.look()
        assert town.machines() == {"p1-001": {"m": 1}}, "what runs there runs on"
        said = plan(
            World.of(each for copy in town.office.caches for each in copy.objects()),
            [],
            [("LatticeService", "default", "api")],
        )
        assert said.state_after is not None
        assert said.state_after.clusters == {}
        await town.remove(LatticeService, "api", "default")
        await town.finish()
        await town.look()
        assert town.machines() == {"p1-001": {}}
