"""A cluster number is never reused, even if its pool is deleted and recreated."""

import msgspec
from build.service_world import RunningFleet, running_fleet
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static

from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.services.clusters import ClusterController
from lattice.controllers.services.ledger_commit import REQUEST_PROBE
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService


async def delete_service(fleet: RunningFleet) -> None:
    """Delete the service, its cluster and its payment."""
    await fleet.remove(LatticeService, "api", "default")
    await fleet.converge()
    await fleet.finish_deletions()
    for cluster in fleet.all(LatticeCluster):
        await fleet.remove(LatticeCluster, cluster.metadata.name)


async def test_recreated_pool_continues_numbering() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.converge()
        assert list(fleet.machines()) == ["p1-001"]
        await delete_service(fleet)
        await fleet.remove(LatticePool, "p1")
        await fleet.apply(a_pool(), a_service())
        await fleet.converge()
        assert list(fleet.machines()) == ["p1-002"]


async def test_each_cloud_region_numbers_its_clusters() -> None:
    cloud = a_cloud(regions=["r1", "r2"])
    async with running_fleet(a_class(), cloud, a_service(requiredRegions=["r1"])) as fleet:
        await fleet.converge()
        await delete_service(fleet)
        await fleet.remove(CloudInfrastructure, "cloud")
        await fleet.apply(cloud, a_service(replicas=2, requiredRegions=["r1", "r2"]))
        await fleet.converge()
        assert sorted(fleet.machines()) == ["cloud-r1-002", "cloud-r2-001"]


async def remove_clusters(fleet: RunningFleet) -> None:
    """Remove unneeded clusters, as the cluster controller does."""
    clusters = ClusterController(fleet.context, {}, lambda node: (node.metadata.name, REQUEST_PROBE))
    for cluster in fleet.all(LatticeCluster):
        await clusters._remove_if_unused(cluster)
    await fleet.wait_for_caches()


async def test_recreated_data_center_continues_numbering() -> None:
    static = a_static("dc")
    async with running_fleet(a_class(), static, a_service()) as fleet:
        for number in (1, 2, 3):
            await fleet.converge()
            assert list(fleet.machines()) == [f"dc-00{number}"]
            await fleet.remove(LatticeService, "api", "default")
            for _ in range(2):
                await fleet.converge()
                await fleet.finish_deletions()
            await remove_clusters(fleet)
            assert fleet.all(LatticeCluster) == []
            await fleet.remove(StaticInfrastructure, "dc")
            await fleet.apply(static, a_service())
        (book,) = fleet.all(LatticeLedger)
        assert (book.metadata.name, book.status.last_cluster, book.status.committed_micros) == (
            "static.dc.clusters",
            3,
            0,
        )


async def reset_ledger_status(fleet: RunningFleet, **status: object) -> None:
    """Write the ledger as it was before ledgers counted clusters."""
    (book,) = fleet.all(LatticeLedger)
    entry = fleet.context.cache(LatticeLedger).entry(f"/{book.metadata.name}")
    assert entry is not None
    await fleet.store.commit(
        [with_status(entry, msgspec.structs.replace(book.status, last_cluster=0, **status))]
    )
    await fleet.wait_for_caches()


async def test_ledger_without_number_continues_after_clusters() -> None:
    async with running_fleet(a_class(), a_pool(), a_service(cores=4)) as fleet:
        await fleet.converge()
        await reset_ledger_status(fleet)
        await fleet.apply(a_service("more", cores=4, replicas=21))
        await fleet.converge()
        assert sorted(fleet.machines()) == ["p1-001", "p1-002"]
        (book,) = fleet.all(LatticeLedger)
        assert book.status.last_cluster == 2


async def test_number_is_recorded_before_cluster_is_deleted() -> None:
    async with running_fleet(a_class(), a_pool(), a_service()) as fleet:
        await fleet.converge()
        (cluster,) = fleet.all(LatticeCluster)
        clusters = ClusterController(fleet.context, {}, lambda node: (node.metadata.name, REQUEST_PROBE))
        assert clusters._is_sequence_recorded(cluster), "the ledger has it"
        await reset_ledger_status(fleet)
        assert not clusters._is_sequence_recorded(cluster), "neither the ledger nor the pool has it"
