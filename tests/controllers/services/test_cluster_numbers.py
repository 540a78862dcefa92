"""A number that a cluster had is never given again, though its pool be deleted and made again."""

import msgspec
from build.service_world import Town, a_town
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static

from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.services.clusters import ClusterController
from lattice.controllers.services.ledger_commit import REQUEST_PROBE
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService


async def emptied(town: Town) -> None:
    """The service is gone, and with it its cluster and what was paid for."""
    await town.remove(LatticeService, "api", "default")
    await town.look()
    await town.finish()
    for each in town.all(LatticeCluster):
        await town.remove(LatticeCluster, each.metadata.name)


async def test_recreated_pool_continues_numbering() -> None:
    async with a_town(a_class(), a_pool(), a_service()) as town:
        await town.look()
        assert list(town.machines()) == ["p1-001"]
        await emptied(town)
        await town.remove(LatticePool, "p1")
        await town.apply(a_pool(), a_service())
        await town.look()
        assert list(town.machines()) == ["p1-002"]


async def test_each_cloud_region_numbers_its_clusters() -> None:
    cloud = a_cloud(regions=["r1", "r2"])
    async with a_town(a_class(), cloud, a_service(requiredRegions=["r1"])) as town:
        await town.look()
        await emptied(town)
        await town.remove(CloudInfrastructure, "cloud")
        await town.apply(cloud, a_service(replicas=2, requiredRegions=["r1", "r2"]))
        await town.look()
        assert sorted(town.machines()) == ["cloud-r1-002", "cloud-r2-001"]


async def removed(town: Town) -> None:
    """Its clusters, as the controller does it once nobody needs them."""
    clusters = ClusterController(town.office, {}, lambda node: (node.metadata.name, REQUEST_PROBE))
    for each in town.all(LatticeCluster):
        await clusters._remove_if_unused(each)
    await town.caught_up()


async def test_recreated_data_center_continues_numbering() -> None:
    static = a_static("dc")
    async with a_town(a_class(), static, a_service()) as town:
        for number in (1, 2, 3):
            await town.look()
            assert list(town.machines()) == [f"dc-00{number}"]
            await town.remove(LatticeService, "api", "default")
            for _ in range(2):
                await town.look()
                await town.finish()
            await removed(town)
            assert town.all(LatticeCluster) == []
            await town.remove(StaticInfrastructure, "dc")
            await town.apply(static, a_service())
        (book,) = town.all(LatticeLedger)
        assert (book.metadata.name, book.status.last_cluster, book.status.committed_micros) == (
            "static.dc.clusters",
            3,
            0,
        )


async def forget(town: Town, **status: object) -> None:
    """As it was written before ledgers counted clusters."""
    (book,) = town.all(LatticeLedger)
    entry = town.office.cache(LatticeLedger).entry(f"/{book.metadata.name}")
    assert entry is not None
    await town.store.commit(
        [with_status(entry, msgspec.structs.replace(book.status, last_cluster=0, **status))]
    )
    await town.caught_up()


async def test_ledger_without_number_continues_after_clusters() -> None:
    async with a_town(a_class(), a_pool(), a_service(cores=4)) as town:
        await town.look()
        await forget(town)
        await town.apply(a_service("more", cores=4, replicas=21))
        await town.look()
        assert sorted(town.machines()) == ["p1-001", "p1-002"]
        (book,) = town.all(LatticeLedger)
        assert book.status.last_cluster == 2


async def test_number_is_recorded_before_cluster_is_deleted() -> None:
    async with a_town(a_class(), a_pool(), a_service()) as town:
        await town.look()
        (cluster,) = town.all(LatticeCluster)
        clusters = ClusterController(town.office, {}, lambda node: (node.metadata.name, REQUEST_PROBE))
        assert clusters._is_sequence_recorded(cluster), "the ledger has it"
        await forget(town)
        assert not clusters._is_sequence_recorded(cluster), "neither the ledger nor the pool has it"
