"""`plan` and the controller see the same fleet, also while machines are being created and replicas are
terminating."""

from dataclasses import replace

import msgspec
import pytest
from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_pool, a_service, make_valid_object

from lattice.controllers.runtime.object_writes import with_metadata, with_status
from lattice.controllers.services.placement import FLEET_KEY
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.placement.model.world import World
from lattice.placement.plan.plan import plan


async def awaited(fleet: RunningFleet) -> None:
    """Machines are being created: their nodes exist, and no agent has joined."""
    await fleet.make_nodes()
    for node in fleet.all(LatticeNode):
        entry = fleet.context.cache(LatticeNode).entry(f"/{node.metadata.name}")
        assert entry is not None
        conditions = (Condition(type="Ready", status="False", reason="NotJoined"),)
        await fleet.store.commit(
            [with_status(entry, msgspec.structs.replace(node.status, conditions=conditions))]
        )
    await fleet.wait_for_caches()


async def going(fleet: RunningFleet) -> None:
    """A standalone workload is terminating, and its node has not released it."""
    await fleet.bind()
    spec = {"containers": {"main": {"command": ["run"]}}, "requests": {"cpu": "2"}, "desiredState": "Deleted"}
    await fleet.apply(make_valid_object(LatticeWorkload, "bare", spec, namespace="default"))
    (found,) = [replica for replica in fleet.all(LatticeWorkload) if not replica.spec.service]
    await fleet.change(found, binding=Binding(node=fleet.all(LatticeNode)[0].metadata.name))


async def given_up(fleet: RunningFleet) -> None:
    """A node is being removed, and its workloads are evicted."""
    await fleet.bind()
    node = fleet.all(LatticeNode)[0]
    entry = fleet.context.cache(LatticeNode).entry(f"/{node.metadata.name}")
    assert entry is not None
    mark = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["lattice.dev/machine"]}
    await fleet.store.commit([with_metadata(entry, lambda metadata: metadata | mark)])
    await fleet.wait_for_caches()


@pytest.mark.parametrize(
    "before", [pytest.param(each, id=each.__name__) for each in (awaited, going, given_up)]
)
async def test_new_service_is_placed_as_planned_in_transition(before) -> None:  # type: ignore[no-untyped-def]

    async with running_fleet(
        a_class(cores=8, memory=64), a_pool(), a_service("api", replicas=2, cores=2)
    ) as fleet:
        await fleet.converge()
        await before(fleet)
        late = a_service("web", replicas=2, cores=1)
        objects = [each for copy in fleet.context.caches for each in copy.objects()]
        planned = plan(replace(World.of(objects), now=fleet.clock.now()), [late])
        assert planned.state_after is not None
        await fleet.apply(late)
        await fleet.services.reconcile(FLEET_KEY)
        await fleet.wait_for_caches()
        placed = fleet.context.cache(LatticeService).get("default/web")
        assert placed is not None
        found = {
            (placement.pool, placement.cluster, placement.node): placement.replicas
            for placement in placed.status.placements
        }
        assert found == dict(planned.state_after.replica_counts["default/web"])
        assert fleet.machines() == {name: dict(each) for name, each in planned.state_after.clusters.items()}
