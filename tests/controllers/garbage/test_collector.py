"""Garbage collection: owners, foreground, orphans, and what may go wrong."""

from build.garbage_world import START, blocking, collected, new_world, turn

from lattice.clock import format_timestamp
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER, ORPHAN_FINALIZER


async def test_an_object_goes_with_its_last_owner() -> None:
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


async def test_what_was_deleted_while_nobody_led_is_found_at_the_start() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("ConfigMap/a/owner"))
    await world.make("ConfigMap/a/y", await world.make("ConfigMap/a/x2", await world.make("ConfigMap/a/z")))
    await world.delete("ConfigMap/a/owner")
    await world.delete("ConfigMap/a/z")
    await world.collect()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/x2", "ConfigMap/a/y") == []


async def test_a_finalizer_holds_an_object_whose_owner_is_gone() -> None:
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


async def test_only_the_reference_to_the_owner_that_is_gone_is_removed() -> None:
    world = await new_world()
    stays, goes = await world.make("ConfigMap/a/stays"), await world.make("LatticePool/goes")
    await world.make("ConfigMap/a/x", stays, goes)
    async with world.collecting():
        await world.delete("LatticePool/goes")
        await world.settle()
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [stays]


async def test_an_owner_made_anew_with_another_uid_counts_as_gone() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("ConfigMap/a/owner"))
    async with world.collecting():
        await world.delete("ConfigMap/a/owner")
        await world.make("ConfigMap/a/owner")
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/owner") == ["ConfigMap/a/owner"]


async def test_an_owner_is_looked_for_in_the_namespace_of_the_object() -> None:
    world = await new_world()
    elsewhere = await world.make("ConfigMap/b/owner")
    await world.make("ConfigMap/a/x", elsewhere)
    await world.collect()
    assert await world.there("ConfigMap/a/x") == []


async def test_owners_of_unknown_kinds_and_impossible_places_are_left_alone() -> None:
    world = await new_world()
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "uid-d"}
    await world.make("ConfigMap/a/x", deployment)
    await world.make("LatticePool/p", {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "uid-c"})
    before = await world.store.revision()
    await world.collect()
    assert await world.store.revision() == before


async def test_a_namespace_whose_owner_is_gone_is_emptied_first() -> None:
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


async def test_objects_that_own_each_other_in_a_circle_stay_and_cost_nothing() -> None:
    world = await new_world()
    first = await world.make("ConfigMap/a/x")
    second = await world.make("ConfigMap/a/y", first)
    x = await world.get("ConfigMap/a/x") or {}
    x["metadata"]["ownerReferences"] = [second]
    await world.put("ConfigMap/a/x", x)
    before = await world.store.revision()
    async with world.collecting():
        await world.settle()
        assert await world.store.revision() == before
        await world.delete("ConfigMap/a/x")
        await world.settle()
    assert await world.there("ConfigMap/a/x", "ConfigMap/a/y") == []


async def test_in_the_foreground_dependents_go_first() -> None:
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


async def test_in_the_foreground_dependents_of_dependents_go_before_them() -> None:
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


async def test_a_dependent_that_does_not_block_is_not_waited_for() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", pool, finalizers=["team/clean"])
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]
    assert (await world.metadata("ConfigMap/a/x"))["deletionTimestamp"]


async def test_a_dependent_with_another_owner_stays_and_is_not_waited_for() -> None:
    world = await new_world()
    pool, other = await world.make("LatticePool/p"), await world.make("LatticePool/other")
    await world.make("ConfigMap/a/x", blocking(pool), other)
    async with world.collecting():
        await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [other]


async def test_a_circle_deleted_in_the_foreground_goes() -> None:
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


async def test_an_object_without_dependents_deleted_in_the_foreground_keeps_other_finalizers() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", finalizers=["team/clean"])
    await world.delete("ConfigMap/a/x", FOREGROUND_FINALIZER)
    await world.collect()
    assert (await world.metadata("ConfigMap/a/x"))["finalizers"] == ["team/clean"]


async def test_orphans_outlive_their_owner() -> None:
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


async def test_an_orphan_keeps_its_other_owners() -> None:
    world = await new_world()
    pool, other = await world.make("LatticePool/p"), await world.make("LatticePool/other")
    await world.make("ConfigMap/a/x", pool, other)
    await world.delete("LatticePool/p", ORPHAN_FINALIZER)
    await world.collect()
    assert (await world.metadata("ConfigMap/a/x"))["ownerReferences"] == [other]


async def test_running_twice_changes_nothing() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("Namespace/a")
    await world.make("ConfigMap/a/x", blocking(pool), finalizers=["team/clean"])
    await world.make("ConfigMap/a/y", pool, {**pool, "uid": "older"})
    await world.delete("LatticePool/p", FOREGROUND_FINALIZER)
    await world.delete("Namespace/a")
    await world.collect()
    before = await world.store.revision()
    await world.collect()
    assert await world.store.revision() == before


async def test_changes_that_concern_nobody_write_nothing() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
    async with world.collecting():
        for i in range(5):
            obj = await world.get("ConfigMap/a/x") or {}
            await world.put("ConfigMap/a/x", {**obj, "data": {"i": str(i)}})
        before = await world.store.revision()
        await world.clock.move(2000)
        assert await world.store.revision() == before


async def test_once_its_term_is_over_it_writes_nothing_and_ends() -> None:
    world = await new_world()
    await world.make(
        "ConfigMap/a/x", {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
    )
    await world.clock.move(60)
    assert await world.store.campaign("controllers", "another", 15)
    before = await world.store.revision()
    async with world.collecting() as running:
        await world.clock.move(5)
        assert running.done()
        assert running.exception() is None
    assert await world.store.revision() == before


async def test_a_store_that_does_not_answer_is_asked_again() -> None:
    world = await new_world()
    await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
    async with world.collecting():
        await world.delete("LatticePool/p")
        world.store.refusals = 8
        await world.clock.move(1)
        assert await world.there("ConfigMap/a/x") == ["ConfigMap/a/x"]
        await world.clock.move(60)
    assert await world.there("ConfigMap/a/x") == []


async def test_somebody_else_changing_an_object_delays_its_removal_and_no_other() -> None:
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


async def test_an_owner_does_not_go_before_every_orphan_has_forgotten_it() -> None:
    world = await new_world()
    pool = await world.make("LatticePool/p")
    await world.make("ConfigMap/a/x", pool)
    async with world.collecting():
        await world.delete("LatticePool/p", ORPHAN_FINALIZER)
        world.store.ahead = [lambda: world.touch("ConfigMap/a/x")] * 2
        await turn()
        assert await world.there("LatticePool/p") == ["LatticePool/p"]
        await world.settle()
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]


async def test_an_orphan_that_has_not_been_heard_of_yet_is_kept_all_the_same() -> None:
    world = await new_world()
    world.store.late = {"configmaps": 5.0}
    async with world.collecting():
        await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
        await world.delete("LatticePool/p", ORPHAN_FINALIZER)
        await world.clock.move(4)
        assert await world.there("LatticePool/p") == ["LatticePool/p"]
        await world.clock.move(20)
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["ConfigMap/a/x"]


async def test_an_owner_that_has_not_been_heard_of_yet_is_not_taken_for_gone() -> None:
    world = await new_world()
    world.store.late = {"latticepools.lattice.dev": 5.0}
    async with world.collecting():
        await world.make("ConfigMap/a/x", await world.make("LatticePool/p"))
        await world.settle()
        await world.clock.move(20)
    assert await world.there("LatticePool/p", "ConfigMap/a/x") == ["LatticePool/p", "ConfigMap/a/x"]
