"""Deletion of namespaces with their contents."""

from build.garbage_world import collected, new_world

from lattice.controllers.garbage.namespaces import RemainingContent, with_remaining_content
from lattice.kinds.meta.object_lifecycle import FOREGROUND_FINALIZER


async def test_namespace_is_deleted_with_its_contents() -> None:
    world = await new_world()
    before = collected("namespace")
    await world.make("Namespace/a", spec={"finalizers": ["kubernetes"]})
    await world.make("Namespace/ab")
    inside = [
        *(f"ConfigMap/a/{i}" for i in range(120)),
        "Secret/a/s",
        "Event/a/e",
        "Lease/a/l",
        "LatticeService/a/s",
    ]
    for name in [*inside, "ConfigMap/ab/x"]:
        await world.make(name)
    async with world.collecting():
        await world.delete("Namespace/a")
        await world.settle()
    assert await world.there("Namespace/a", *inside, "Namespace/ab", "ConfigMap/ab/x") == [
        "Namespace/ab",
        "ConfigMap/ab/x",
    ]
    assert collected("namespace") == before + len(inside) + 1


async def test_blocked_namespace_reports_reason_once() -> None:
    world = await new_world()
    await world.make("Namespace/a", status={"phase": "Terminating"})
    await world.make("ConfigMap/a/x", finalizers=["team/clean"])
    await world.make("Secret/a/y", finalizers=["team/clean", "team/tell"])
    await world.delete("Namespace/a")
    async with world.collecting():
        await world.settle()
        namespace = await world.get("Namespace/a") or {}
        assert namespace["status"]["phase"] == "Terminating"
        assert [
            (condition["type"], condition["status"], condition["message"])
            for condition in namespace["status"]["conditions"]
        ] == [
            ("NamespaceContentRemaining", "True", "Remaining objects: 1 configmaps, 1 secrets"),
            ("NamespaceFinalizersRemaining", "True", "Waiting for finalizers: 2 team/clean, 1 team/tell"),
        ]
        revision_before = await world.store.revision()
        await world.clock.advance(300)
        assert await world.store.revision() == revision_before
        await world.release("ConfigMap/a/x", "team/clean")
        await world.settle()
        namespace = await world.get("Namespace/a") or {}
        assert namespace["status"]["conditions"][0]["message"] == "Remaining objects: 1 secrets"
        await world.release("Secret/a/y", "team/clean")
        await world.release("Secret/a/y", "team/tell")
        await world.settle()
    assert await world.there("Namespace/a") == []


async def test_namespace_waits_for_its_own_finalizers() -> None:
    world = await new_world()
    await world.make("Namespace/a", finalizers=["team/clean"])
    await world.make("ConfigMap/a/x")
    await world.delete("Namespace/a", FOREGROUND_FINALIZER)
    async with world.collecting():
        await world.settle()
        assert await world.there("Namespace/a", "ConfigMap/a/x") == ["Namespace/a"]
        assert (await world.metadata("Namespace/a"))["finalizers"] == ["team/clean"]
        namespace = await world.get("Namespace/a") or {}
        del namespace["metadata"]["finalizers"]
        await world.put("Namespace/a", namespace)
        await world.settle()
    assert await world.there("Namespace/a") == []


async def test_event_finalizer_blocks_namespace() -> None:
    world = await new_world()
    await world.make("Namespace/a")
    await world.make("Event/a/e", finalizers=["team/clean"])
    await world.delete("Namespace/a")
    async with world.collecting():
        await world.settle()
        await world.release("Event/a/e", "team/clean")
        await world.clock.advance(31)
    assert await world.there("Namespace/a") == []


async def test_namespace_is_kept_while_its_contents_change() -> None:
    world = await new_world()
    await world.make("Namespace/a")
    await world.make("ConfigMap/a/x")
    async with world.collecting():
        await world.delete("Namespace/a")
        world.store.ahead = [lambda: world.touch("ConfigMap/a/x")] * 2
        await world.settle()
    assert [key.name for key in world.removed("configmaps", "namespaces")] == ["x", "a"]


def test_condition_time_changes_only_with_status() -> None:
    remains = RemainingContent()
    remains.resources["secrets"] = 2
    first = with_remaining_content({"metadata": {}}, remains, "t1")
    remains.resources["secrets"] = 1
    second = with_remaining_content(first, remains, "t2")
    third = with_remaining_content(second, RemainingContent(), "t3")
    conditions = [each["status"]["conditions"][0] for each in (first, second, third)]
    assert [(condition["status"], condition["lastTransitionTime"]) for condition in conditions] == [
        ("True", "t1"),
        ("True", "t1"),
        ("False", "t3"),
    ]
    assert "status" not in with_remaining_content({"metadata": {}}, RemainingContent(), "t1")
