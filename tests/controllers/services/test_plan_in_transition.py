"""`plan` and the controller see the same fleet, also while machines are on their way and replicas are going."""

from dataclasses import replace

import msgspec
import pytest
from build.service_world import Town, a_town
from build.worlds import a_class, a_pool, a_service, made

from lattice.controllers.runtime.object_writes import with_metadata, with_status
from lattice.controllers.services.services import FLEET_KEY
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.placement.model.world import World
from lattice.placement.plan.plan import plan


async def awaited(town: Town) -> None:
    """Machines are being made: their nodes are there, and nobody has joined."""
    await town.make_nodes()
    for node in town.all(LatticeNode):
        entry = town.office.cache(LatticeNode).entry(f"/{node.metadata.name}")
        assert entry is not None
        said = (Condition(type="Ready", status="False", reason="NotJoined"),)
        await town.store.commit([with_status(entry, msgspec.structs.replace(node.status, conditions=said))])
    await town.caught_up()


async def going(town: Town) -> None:
    """A workload that belongs to nobody is to be deleted, and its node has not let go of it."""
    await town.bind()
    spec = {"containers": {"main": {"command": ["run"]}}, "requests": {"cpu": "2"}, "desiredState": "Deleted"}
    await town.apply(made(LatticeWorkload, "bare", spec, namespace="default"))
    (found,) = [each for each in town.all(LatticeWorkload) if not each.spec.service]
    await town.change(found, binding=Binding(node=town.all(LatticeNode)[0].metadata.name))


async def given_up(town: Town) -> None:
    """A node is being removed, and what is on it leaves."""
    await town.bind()
    node = town.all(LatticeNode)[0]
    entry = town.office.cache(LatticeNode).entry(f"/{node.metadata.name}")
    assert entry is not None
    mark = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["lattice.dev/machine"]}
    await town.store.commit([with_metadata(entry, lambda metadata: metadata | mark)])
    await town.caught_up()


@pytest.mark.parametrize(
    "before", [pytest.param(each, id=each.__name__) for each in (awaited, going, given_up)]
)
async def test_new_service_is_placed_as_planned_in_transition(before) -> None:  # type: ignore[no-untyped-def]

    async with a_town(a_class(cores=8, memory=64), a_pool(), a_service("api", replicas=2, cores=2)) as town:
        await town.look()
        await before(town)
        late = a_service("web", replicas=2, cores=1)
        objects = [each for copy in town.office.caches for each in copy.objects()]
        said = plan(replace(World.of(objects), now=town.clock.now()), [late])
        assert said.state_after is not None
        await town.apply(late)
        await town.services.reconcile(FLEET_KEY)
        await town.caught_up()
        placed = town.office.cache(LatticeService).get("default/web")
        assert placed is not None
        found = {(each.pool, each.cluster, each.node): each.replicas for each in placed.status.placements}
        assert found == dict(said.state_after.replica_counts["default/web"])
        assert town.machines() == {name: dict(each) for name, each in said.state_after.clusters.items()}
