"""Garbage collection by owner references: background, foreground and orphan deletion, and faults."""

from build.garbage_world import START, blocking, collected, new_world, settle

from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from lattice.kinds.meta.timestamps import format_timestamp


async def test_object_is_deleted_with_its_last_owner() -> None:
    world = await new_world()
    before = collected("owner")
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", pool)
    await world.make("ConfigMap/a/free")
    async with world.collecting():
        await world.settle()
        assert await world.there("ConfigMap/a/x") == ["ConfigMap/a/x"]
        await world.delete("LatticePool/p")
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/free") == ["ConfigMap/a/free"]
    assert collected("owner") == before + 1


async def test_deletions_without_a_leader_are_found_at_start() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("ConfigMap/a/owner"))
    await world.make("ConfigMap/a/y", await world.make("ConfigMap/a/x2", await world.make("ConfigMap/a/z")))
    await world.delete("ConfigMap/a/owner")
    await world.delete("ConfigMap/a/z")
    await world.collect()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/x2", "ConfigMap/a/y") == []


async def test_finalizer_holds_object_whose_owner_is_gone() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("ConfigMap/a/owner"), finalizers=["team/clean"])
    await world.delete("ConfigMap/a/owner")
    async with world.collecting():
        await world.settle()
        metadata = await world.metadata("ConfigMap/a/x")
        assert metadata["deletionTimestamp"] == format_timestamp(START)
        assert metadata["finalizers"] == ["team/clean"]
        await world.release("ConfigMap/a/x", "team/clean")
        await world.settle()
    assert await world.there("ConfigMap/a/x") == []


async def test_only_reference_to_missing_owner_is_removed() -> None:
    world = await new_world()
    stays, goes = await world.make("ConfigMap/a/stays"), await world.make("LatticePool/goes")
    await world.make("ConfigMap/a/x", stays, goes)
    async with world.collecting():
        await world.delete("LatticePool/goes")
        await world.settle()
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [stays]


async def test_recreated_owner_with_another_uid_counts_as_missing() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("ConfigMap/a/owner"))
    async with world.collecting():
        await world.delete("ConfigMap/a/owner")
        await world.make("ConfigMap/a/owner")
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/owner") == ["ConfigMap/a/owner"]


async def test_owner_is_resolved_in_namespace_of_dependent() -> None:
    world = await new_world()
    elsewhere = await world.make("ConfigMap/b/owner")
    await world.make("ConfigMap/a/x", elsewhere)
    await world.collect()
    assert await world.there("ConfigMap/a/x") == []


async def test_unknown_and_cross_namespace_owners_are_ignored() -> None:
    world = await new_world()
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "uid-d"}
    await world.make("ConfigMap/a/x", deployment)
    await world.make("LatticePool/p", {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "uid-c"})
    revision_before = await world.store.revision()
    await world.collect()
    assert await world.store.revision() == revision_before


async def test_namespace_with_missing_owner_is_emptied_first() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("Namespace/a", pool, status={"phase": "Active"})
    await world.make("ConfigMap/a/x", finalizers=["team/clean"])
    async with world.collecting():
        await world.delete("LatticePool/p")
        await world.settle()
        assert (await world.get("Namespace/a") or {})["status"]["phase"] == "Terminating"
        await world.release("ConfigMap/a/x", "team/clean")
        await world.settle()
    assert await world.there("Namespace/a", "ConfigMap/a/x") == []


async def test_ownership_cycle_stays_and_causes_no_writes() -> None:
    world = await new_world()
    first = await world.make("ConfigMap/a/x")
    second = await world.make("ConfigMap/a/y", first)
    x = await world.get("ConfigMap/a/x") or {}
    x["metadata"]["ownerReferences"] = [second]
    await world.put("ConfigMap/a/x", x)
    revision_before = await world.store.revision()
    async with world.collecting():
        await world.settle()
        assert await world.store.revision() == revision_before
        await world.delete("ConfigMap/a/x")
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/y") == []


async def test_foreground_deletion_removes_dependents_first() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", blocking(pool), finalizers=["team/clean"])
    await world.make("ConfigMap/a/y", blocking(pool))
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
        assert await world.there("LatticePool/p", "ConfigMap/a/x", "ConfigMap/a/y") == [
            "LatticePool/p",
            "ConfigMap/a/x",
        ]
        await world.release("ConfigMap/a/x", "team/clean")
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == []


async def test_foreground_deletion_is_transitive() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    middle = await world.make("ConfigMap/a/middle", blocking(pool))
    await world.make("Secret/a/leaf", blocking(middle), finalizers=["team/clean"])
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
        assert (await world.metadata("ConfigMap/a/middle"))["finalizers"] == [FOREGROUND_FINALIZER]
        await world.release("Secret/a/leaf", "team/clean")
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/middle", "Secret/a/leaf") == []


async def test_foreground_ignores_non_blocking_dependent() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", pool, finalizers=["team/clean"])
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]
    assert (await world.metadata("ConfigMap/a/x"))["deletionTimestamp"]


async def test_foreground_keeps_dependent_with_another_owner() -> None:
    world = await new_world()
    pool, other = await world.make("LatticePool/p"), await world.make("LatticePool/other")
    await world.make("ConfigMap/a/x", blocking(pool), other)
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [other]


async def test_foreground_deletion_removes_cycle() -> None:
    world = await new_world()
    first = await world.make("ConfigMap/a/x")
    second = await world.make("ConfigMap/a/y", blocking(first))
    x = await world.get("ConfigMap/a/x") or {}
    x["metadata"]["ownerReferences"] = [blocking(second)]
    await world.put("ConfigMap/a/x", x)
    async with world.collecting():
        await world.delete("ConfigMap/a/x", FOREGROUND_FINALIZER)
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/y") == []


async def test_foreground_deletion_keeps_other_finalizers() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", finalizers=["team/clean"])
    await world.delete("ConfigMap/a/x", FOREGROUND_FINALIZER)
    await world.collect()
    assert (await world.metadata("ConfigMap/a/x"))["finalizers"] == ["team/clean"]


async def test_orphans_outlive_owner() -> None:
    world = await new_world()
    before = collected("orphan")
    pool = await world.make("LatticePool/p")
    names = [f"ConfigMap/a/x{i}" for i in range(150)]
    for name in names:
        await world.make(name, pool)
    async with world.collecting():
        await world.delete("LatticePool/p", ORPHAN_FINALIZER)
        await world.settle()
    assert await world.there("LatticePool/p", *names) == names
    assert "ownerReferences" not in await world.metadata(names[0])
    assert collected("orphan") == before + 1


async def test_orphan_keeps_other_owners() -> None:
    world = await new_world()
    pool, other = await world.make("LatticePool/p"), await world.make("LatticePool/other")
    await world.make("ConfigMap/a/x", pool, other)
    await world.delete("LatticePool/p", ORPHAN_FINALIZER)
    await world.collect()
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [other]


async def test_second_run_changes_nothing() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("Namespace/a")
    await world.make("ConfigMap/a/x", blocking(pool), finalizers=["team/clean"])
    await world.make("ConfigMap/a/y", pool, {**pool, "uid": "older"})
    await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
    await world.delete("Namespace/a")
    await world.collect()
    revision_before = await world.store.revision()
    await world.collect()
    assert await world.store.revision() == revision_before


async def test_unrelated_changes_cause_no_writes() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
    async with world.collecting():
        for i in range(5):
            obj = await world.get("ConfigMap/a/x") or {}
            await world.put("ConfigMap/a/x", {**obj, "data": {"i": str(i)}})
        revision_before = await world.store.revision()
        await world.clock.advance(2000)
        assert await world.store.revision() == revision_before


async def test_fenced_collector_writes_nothing_and_ends() -> None:
    world = await new_world()
    await world.make(
        "ConfigMap/a/x", {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
    )
    await world.clock.advance(60)
    assert await world.store.campaign("controllers", "another", 15)
    revision_before = await world.store.revision()
    async with world.collecting() as running:
        await world.clock.advance(5)
        assert running.done()
        assert running.exception() is None
    assert await world.store.revision() == revision_before


async def test_unavailable_store_is_retried() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
    async with world.collecting():
        await world.delete("LatticePool/p")
        world.store.refusals = 8
        await world.clock.advance(1)
        assert await world.there("ConfigMap/a/x") == ["ConfigMap/a/x"]
        await world.clock.advance(60)
    assert await world.there("ConfigMap/a/x") == []


async def test_conflict_delays_removal_of_that_object_only() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    names = [f"ConfigMap/a/{i}" for i in range(5)]
    for name in names:
        await world.make(name, pool)
    async with world.collecting():
        await world.delete("LatticePool/p")
        world.store.ahead = [lambda: world.touch("ConfigMap/a/3")]
        await world.settle()
    assert [key.name for key in world.removed("configmaps")] == ["0", "1", "2", "4", "3"]


async def test_owner_stays_until_all_orphans_are_released() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", pool)
    async with world.collecting():
        await world.delete("LatticePool/p", ORPHAN_FINALIZER)
        world.store.ahead = [lambda: world.touch("ConfigMap/a/x")] * 2
        await settle()
        assert await world.there("LatticePool/p") == ["LatticePool/p"]
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]


async def test_orphan_missing_from_cache_is_kept() -> None:
    world = await new_world()
    world.store.late = {"configmaps": 5.0}
    async with world.collecting():
        await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
        await world.delete("LatticePool/p", ORPHAN_FINALIZER)
        await world.clock.advance(4)
        assert await world.there("LatticePool/p") == ["LatticePool/p"]
        await world.clock.advance(20)
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]


async def test_owner_missing_from_cache_is_not_taken_for_deleted() -> None:
    world = await new_world()
    world.store.late = {"latticepools.lattice.dev": 5.0}
    async with world.collecting():
        await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
        await world.settle()
        await world.clock.advance(20)
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["LatticePool/p", "ConfigMap/a/x"]
