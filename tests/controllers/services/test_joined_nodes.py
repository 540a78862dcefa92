"""Joined machines under the real controllers: claimed by a cluster, given back when idle, never removed."""

import msgspec
from build.cluster_world import a_cluster, running_cluster_controller
from build.joined_machines import a_joined_machine, manual_adapters
from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_pool, a_service

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding

RACK = {"provider": "metal", "classes": []}


def node(fleet: RunningFleet, name: str = "box") -> LatticeNode:
    (found,) = (item for item in fleet.all(LatticeNode) if item.metadata.name == name)
    assert isinstance(found, LatticeNode)
    return found


async def run_all(fleet: RunningFleet, name: str = "box") -> None:
    for replica in fleet.workloads():
        await fleet.change(replica, binding=Binding(node=name), ready=True, actual_state="Running")
    await fleet.wait_for_caches()


async def test_placement_claims_the_machine_in_its_own_commit() -> None:
    async with running_fleet(a_pool(**RACK), a_joined_machine(), adapters=manual_adapters) as fleet:
        assert node(fleet).spec.cluster == ""
        await fleet.apply(a_service(replicas=2))
        await fleet.converge()
        claimed = node(fleet)
        assert (claimed.spec.cluster, claimed.spec.node_class) == ("p1-001", "joined-4c-16g")
        assert claimed.spec.region == "p1-1"
        assert claimed.metadata.labels["lattice.dev/node-class"] == "joined-4c-16g"
        assert fleet.placed() == {("p1-001", "joined-4c-16g"): 2}
        assert fleet.machines() == {"p1-001": {}}, "Lattice makes no machine for it"
        assert not fleet.paid()
        selectors = {
            replica.spec.constraints.node_selector["lattice.dev/node-class"] for replica in fleet.live()
        }
        assert selectors == {"joined-4c-16g"}
        assert len(await fleet.events("NodeClaimed")) == 1


async def test_idle_machine_returns_to_its_pool_for_another_service() -> None:
    async with running_fleet(
        a_pool(**RACK), a_joined_machine(), a_service(replicas=1), adapters=manual_adapters
    ) as fleet:
        await fleet.converge()
        await run_all(fleet)
        await fleet.remove(LatticeService, "api", "default")
        for replica in fleet.workloads():
            await fleet.remove(type(replica), replica.metadata.name, "default")
        await fleet.converge()
        assert (node(fleet).spec.cluster, node(fleet).spec.node_class) == ("", "")
        assert "lattice.dev/cluster" not in node(fleet).metadata.labels
        await fleet.apply(a_service("other", replicas=1))
        await fleet.converge()
        assert fleet.placed("other") == {(node(fleet).spec.cluster, "joined-4c-16g"): 1}


async def test_machine_with_a_bound_replica_is_not_given_back() -> None:
    async with running_fleet(
        a_pool(**RACK), a_joined_machine(), a_service(replicas=1), adapters=manual_adapters
    ) as fleet:
        await fleet.converge()
        await run_all(fleet)
        await fleet.remove(LatticeService, "api", "default")
        await fleet.converge()
        assert node(fleet).spec.cluster == "p1-001"


async def test_pool_mixes_joined_and_made_machines() -> None:
    async with running_fleet(
        a_class(),
        a_pool(),
        a_joined_machine(cores=2),
        a_service(replicas=4, memory=1),
        adapters=manual_adapters,
    ) as fleet:
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}
        assert fleet.placed() == {("p1-001", "joined-2c-8g"): 2, ("p1-001", "m"): 2}
        assert fleet.paid() == {("p1-001", "m"): 1}
        await fleet.make_nodes()
        await fleet.converge()
        assert fleet.machines() == {"p1-001": {"m": 1}}, "a second decision changes nothing"


async def test_machine_that_joins_late_serves_a_waiting_service() -> None:
    async with running_fleet(a_pool(**RACK), a_service(replicas=1), adapters=manual_adapters) as fleet:
        await fleet.converge()
        placed = fleet.condition("Placed")
        assert placed is not None
        assert placed.status == "False"
        assert "lattice tokens create --pool p1" in str(fleet.service().status.scheduler_decision)
        await fleet.apply(a_joined_machine())
        await fleet.converge()
        assert fleet.placed() == {("p1-001", "joined-4c-16g"): 1}


async def test_machine_joined_into_a_cluster_is_kept() -> None:
    """Bug 5 of the user study: a machine joined into a cluster that had enough was removed at once."""
    async with running_cluster_controller() as (world, _):
        box = a_joined_machine("boxr", spec={"pool": "north", "cluster": "north-001", "nodeClass": "nano"})
        await world.plane.put(a_cluster(1), box)
        await world.plane.clock.advance(20)
        assert await world.node() is not None
        await world.join("north-001-nano-1")
        await world.plane.clock.advance(20)
        kept = await world.node("boxr")
        assert kept is not None
        assert kept.metadata.deletion_timestamp is None
        assert await world.phase() == "Ready"
        cluster = await world.cluster()
        assert cluster is not None
        assert (cluster.status.nodes, cluster.status.ready_nodes) == (2, 2)
        # The owner's machine is lost: the cluster says so, and nothing is made or removed for it.
        lost = msgspec.structs.replace(
            kept.status, conditions=(Condition(type="Ready", status="False", reason="HeartbeatMissed"),)
        )
        await world.plane.put(msgspec.structs.replace(kept, status=lost))
        await world.plane.clock.advance(60)
        assert await world.node("boxr") is not None
        assert [machine.node for machine in world.created] == ["north-001-nano-1"]
        assert await world.phase() == "Degraded"
        # Nothing is desired any more: only the made machine goes.
        await world.scale(0)
        await world.plane.clock.advance(60)
        assert await world.node("boxr") is not None
        assert await world.node() is None
        assert await world.plane.get(LatticeCluster, "north-001") is not None
        assert await world.plane.get(LatticeLedger, "pool.north") is None
