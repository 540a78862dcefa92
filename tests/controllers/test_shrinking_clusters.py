"""A cluster that is to have fewer machines while one more is being made for it."""

from typing import Any

from cluster_yard import Yard, a_cluster, play

from lattice.controllers.clusters import Clusters
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode


def test_no_node_is_made_for_a_machine_that_nobody_wants_by_now() -> None:
    async def story(yard: Yard, controller: Clusters) -> None:
        asked, offers = [], yard.provider.offers

        async def meanwhile() -> Any:
            if not asked:
                asked.append(True)
                await yard.scene.put(a_cluster(1))
                await controller.office.copy(LatticeCluster).wait_for(await yard.scene.store.revision())
            return await offers()

        yard.provider.offers = meanwhile  # type: ignore[method-assign]
        await yard.pays(2)
        await yard.wants(2)
        names = []
        for _ in range(30):
            await yard.scene.clock.advance(0.5)
            names += [each.metadata.name for each in await yard.scene.all(LatticeNode)]
        assert asked
        assert set(names) == {"north-001-nano-1"}

    play(story)
