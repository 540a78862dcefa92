"""The verbs of the API as plain functions on a store in memory: no HTTP, no clock, no randomness."""

import json
from pathlib import Path
from typing import Any

import pytest
from build.api_world import (
    ADMIN,
    APPLY,
    CATALOG,
    JSON_PATCH,
    MERGE,
    SYSTEM,
    api_world,
    pool_manifest,
    service_manifest,
    target,
)

from lattice.errors import (
    Cause,
    Conflict,
    Denied,
    Exists,
    Invalid,
    LatticeError,
    Malformed,
    NotFound,
    UnsupportedMediaType,
)
from lattice.kinds import LATTICE_KINDS
from lattice.kinds.meta import yaml_manifest as manifest
from lattice.server.requests.call import Call
from lattice.server.resources import admission, lists, verbs, watch
from lattice.server.resources import subresources as scale


async def test_create_sets_uid_generation_and_managed_fields() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    assert made["metadata"]["uid"].startswith("uid-")
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert made["metadata"]["managedFields"][0]["manager"] == "pytest"
    assert made == await world.do(verbs.get, "pools/us-east")


async def test_a_printed_status_is_accepted_and_ignored() -> None:
    world = await api_world()
    made = await world.do(
        verbs.create,
        "pools",
        pool_manifest() | {"status": {"phase": "Ready", "nonsense": 1}},
        fieldValidation="Strict",
    )
    assert "phase" not in made["status"]
    assert "nonsense" not in made["status"]


async def test_a_new_service_is_shown_as_not_yet_placed() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "services/default", service_manifest())
    assert made["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("where", "manifest"),
    [
        pytest.param("services/default", service_manifest(), id="service"),
        pytest.param("pools", pool_manifest(), id="pool"),
    ],
)
async def test_new_object_is_not_ready_for_clients_of_kstatus(where: str, manifest: dict[str, Any]) -> None:
    world = await api_world()
    made = await world.do(verbs.create, where, manifest)
    # Flux and Helm wait while observedGeneration is behind or Ready is not True.
    assert made["status"]["observedGeneration"] == 0 < made["metadata"]["generation"]
    assert made["status"]["conditions"] == [
        {
            "type": "Ready",
            "status": "Unknown",
            "reason": "Pending",
            "message": "no controller has observed the object yet",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]


def test_every_kind_that_users_create_begins_pending() -> None:
    # Controllers create these kinds, together with their first status.
    created_by_controllers = {"LatticeCluster", "LatticeNode", "LatticeAgreement", "LatticeLedger"}
    with_status = {
        kind.resource.id for kind in LATTICE_KINDS if kind.resource.kind not in created_by_controllers
    }
    assert with_status == admission.BORN_PENDING


@pytest.mark.parametrize(
    ("verb", "where", "body", "error", "said"),
    [
        pytest.param(verbs.create, "pools", pool_manifest(capacity={"maxNodes": -5}), Invalid, "spec.capacity.maxNodes: Invalid value: -5", id="a number out of range"),
        pytest.param(verbs.create, "pools", pool_manifest(name="Bad_Name"), Invalid, "metadata.name", id="a bad name"),
        pytest.param(verbs.create, "pools", pool_manifest() | {"kind": "LatticeNode"}, Invalid, "must be LatticePool", id="another kind"),
        pytest.param(verbs.create, "pools", pool_manifest() | {"apiVersion": "v2"}, Invalid, "must be lattice.dev/v1alpha1", id="another version"),
        pytest.param(verbs.create, "pools", {"metadata": {}}, Malformed, "'Kind' is missing", id="no kind"),
        pytest.param(verbs.create, "pools", b"", Malformed, "the body is empty", id="no body"),
        pytest.param(verbs.create, "pools", b'{"a": NaN}', Malformed, "NaN", id="not a number"),
        pytest.param(verbs.create, "pools", b"[" * 100_000, Malformed, "deep", id="nested a hundred thousand deep"),
        pytest.param(verbs.create, "services/nowhere", service_manifest(), NotFound, 'namespaces "nowhere" not found', id="a missing namespace"),
        pytest.param(verbs.get, "pools/none", None, NotFound, 'latticepools.lattice.dev "none" not found', id="a missing object"),
        pytest.param(verbs.delete, "namespaces/default", None, Denied, "must not be deleted", id="a protected namespace"),
    ],
)  # fmt: skip
async def test_rejections_say_why_and_write_nothing(
    verb: Any, where: str, body: Any, error: type[LatticeError], said: str
) -> None:
    world = await api_world()
    before = await world.api.store.revision()
    with pytest.raises(error) as caught:
        await world.do(verb, where, body)
    told = f"{caught.value} {' '.join(map(str, caught.value.causes))}"
    assert said in told
    assert await world.api.store.revision() == before


async def test_creating_twice_is_refused_but_validated_first() -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest())
    with pytest.raises(Exists):
        await world.do(verbs.create, "pools", pool_manifest())
    with pytest.raises(Invalid):
        await world.do(verbs.create, "pools", pool_manifest(capacity={"maxNodes": -5}))


async def test_unknown_fields_are_refused_warned_of_or_dropped() -> None:
    world = await api_world()
    odd = pool_manifest(colour="red")
    with pytest.raises(Malformed, match='unknown field "spec.colour"'):
        await world.do(verbs.create, "pools", odd, fieldValidation="Strict")
    reply = await verbs.create(world.api, Call("POST", target("pools"), ADMIN, {}, json.dumps(odd).encode()))
    assert reply.warnings == ('unknown field "spec.colour"',)
    assert "colour" not in json.loads(reply.body)["spec"]


async def test_apply_reports_unknown_fields_with_other_errors() -> None:
    world = await api_world()
    with pytest.raises(Invalid) as caught:
        await world.do(
            verbs.patch,
            "pools/x",
            pool_manifest("x", colour="red", capacity={"maxNodes": "many"}),
            content=APPLY,
            fieldManager="me",
        )
    assert {cause.field for cause in caught.value.causes} == {"spec.colour", "spec.capacity.maxNodes"}


async def test_apply_creates_then_settles_then_prunes() -> None:
    world = await api_world()
    first = await world.do(
        verbs.patch, "pools/x", pool_manifest("x", nodeClasses=["small"]), content=APPLY, fieldManager="me"
    )
    again = await world.do(
        verbs.patch, "pools/x", pool_manifest("x", nodeClasses=["small"]), content=APPLY, fieldManager="me"
    )
    assert again == first
    less = await world.do(verbs.patch, "pools/x", pool_manifest("x"), content=APPLY, fieldManager="me")
    assert "nodeClasses" not in less["spec"]
    assert less["metadata"]["generation"] == 2


async def test_apply_conflicts_with_other_owner_unless_forced() -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest("x", capacity={"maxNodes": 5}))
    other = pool_manifest("x", capacity={"maxNodes": 7})
    with pytest.raises(Conflict) as caught:
        await world.do(verbs.patch, "pools/x", other, content=APPLY, fieldManager="me")
    assert [cause.field for cause in caught.value.causes] == [".spec.capacity.maxNodes"]
    forced = await world.do(verbs.patch, "pools/x", other, content=APPLY, fieldManager="me", force="true")
    assert forced["spec"]["capacity"]["maxNodes"] == 7


async def test_a_write_that_changes_nothing_makes_no_revision() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    before = await world.api.store.revision()
    assert (await world.do(verbs.update, "pools/us-east", made))["metadata"]["resourceVersion"] == made[
        "metadata"
    ]["resourceVersion"]
    await world.do(verbs.patch, "pools/us-east", {"metadata": {"labels": None}}, content=MERGE)
    assert await world.api.store.revision() == before


async def test_an_update_needs_the_revision_it_was_made_from() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    await world.do(verbs.patch, "pools/us-east", {"spec": {"capacity": {"maxNodes": 3}}}, content=MERGE)
    with pytest.raises(Conflict, match="the object has been modified"):
        await world.do(verbs.update, "pools/us-east", made)
    del made["metadata"]["resourceVersion"]
    with pytest.raises(Invalid):
        await world.do(verbs.update, "pools/us-east", made)


async def test_status_and_spec_are_written_separately() -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest())
    change = {"spec": {"capacity": {"maxNodes": 9}}, "status": {"phase": "Ready"}}
    by_status = await world.do(verbs.patch, "pools/us-east/status", change, content=MERGE, user=SYSTEM)
    assert by_status["status"]["phase"] == "Ready"
    assert "capacity" not in by_status["spec"]
    assert by_status["metadata"]["generation"] == 1
    by_main = await world.do(
        verbs.patch, "pools/us-east", change | {"status": {"phase": "Gone"}}, content=MERGE
    )
    assert by_main["status"] == by_status["status"]
    assert by_main["metadata"]["generation"] == 2


async def test_patches_by_kind() -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest())
    operations = [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "test", "path": "/metadata/labels/a", "value": "b"},
    ]
    assert (await world.do(verbs.patch, "pools/us-east", operations, content=JSON_PATCH))["metadata"][
        "labels"
    ] == {"a": "b"}
    with pytest.raises(UnsupportedMediaType, match="unknown format"):
        await world.do(verbs.patch, "pools/us-east", {}, content="application/strategic-merge-patch+json")
    with pytest.raises(Invalid, match=r"uid|is invalid|another object"):
        await world.do(verbs.patch, "pools/us-east", {"metadata": {"uid": "other"}}, content=MERGE)


async def test_dry_runs_validate_and_write_nothing() -> None:
    world = await api_world()
    before = await world.api.store.revision()
    made = await world.do(verbs.create, "pools", pool_manifest(), dryRun="All")
    assert made["metadata"]["name"] == "us-east"
    assert await world.api.store.revision() == before
    await world.do(verbs.create, "pools", pool_manifest())
    with pytest.raises(Exists):
        await world.do(verbs.create, "pools", pool_manifest(), dryRun="All")
    after = await world.api.store.revision()
    await world.do(verbs.delete, "pools/us-east", dryRun="All")
    assert await world.api.store.revision() == after


async def test_finalizers_hold_an_object_until_they_are_gone() -> None:
    world = await api_world()
    held = pool_manifest()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await world.do(verbs.create, "pools", held)
    marked = await world.do(verbs.delete, "pools/us-east")
    assert marked["metadata"]["deletionTimestamp"]
    with pytest.raises(Invalid, match="finalizers"):
        await world.do(
            verbs.patch,
            "pools/us-east",
            {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}},
            content=MERGE,
        )
    await world.do(verbs.patch, "pools/us-east", {"metadata": {"finalizers": []}}, content=MERGE)
    with pytest.raises(NotFound):
        await world.do(verbs.get, "pools/us-east")


async def test_terminating_namespace_takes_no_new_objects() -> None:
    world = await api_world()
    await world.do(
        verbs.create,
        "namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
    )
    await world.do(verbs.create, "services/shop", service_manifest())
    await world.do(verbs.delete, "namespaces/shop")
    with pytest.raises(Denied, match="being terminated"):
        await world.do(verbs.create, "services/shop", service_manifest("late"))
    labelled = await world.do(
        verbs.patch, "namespaces/shop", {"metadata": {"labels": {"a": "b"}}}, content=MERGE
    )
    assert labelled["status"]["phase"] == "Terminating"
    assert (await world.do(verbs.get, "namespaces/shop"))["metadata"]["labels"]["a"] == "b"


async def test_system_namespaces_and_secrets_cannot_be_deleted() -> None:
    world = await api_world()
    before = await world.api.store.revision()
    with pytest.raises(Denied, match="must not be deleted"):
        await world.do(lists.delete_collection, "namespaces")
    with pytest.raises(Denied, match="must not be deleted"):
        await world.do(verbs.delete, "secrets/lattice-system/lattice-ca")
    with pytest.raises(Denied, match="must not be deleted"):
        await world.do(lists.delete_collection, "secrets/lattice-system")
    assert await world.api.store.revision() == before


async def test_malformed_owner_references_are_reported() -> None:
    world = await api_world()
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": "w", "ownerReferences": 5},
    }
    with pytest.raises(Invalid) as caught:
        await world.do(
            verbs.create,
            "workloads/default",
            body | {"spec": {"containers": {"main": {"command": ["true"]}}}},
        )
    assert [cause.field for cause in caught.value.causes] == ["metadata.ownerReferences"]


async def test_strategic_merge_is_for_core_kinds_only() -> None:
    world = await api_world()
    strategic = "application/strategic-merge-patch+json"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "a"},
    }
    await world.do(verbs.create, "leases/default", lease)
    changed = await world.do(
        verbs.patch, "leases/default/l", {"spec": {"holderIdentity": "b"}}, content=strategic
    )
    assert changed["spec"]["holderIdentity"] == "b"
    await world.do(verbs.create, "services/default", service_manifest(replicas={"min": 1, "max": 3}))
    with pytest.raises(UnsupportedMediaType):
        await world.do(
            scale.put_scale, "services/default/api/scale", {"spec": {"replicas": 2}}, content=strategic
        )


async def test_long_list_is_chunked_and_equal_in_every_form() -> None:
    world = await api_world()
    names = [f"pool-{number:03}" for number in range(620)]
    for name in names:
        await world.do(verbs.create, "pools", pool_manifest(name))
    for accept in (
        "application/json",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
    ):
        reply = await lists.list_objects(world.api, Call("GET", target("pools"), ADMIN, accept=accept))
        assert not isinstance(reply.body, bytes)
        pieces = [piece async for piece in reply.body]
        assert len(pieces) > 2
        document = json.loads(b"".join(pieces))
        items = document.get("items") or [row["object"] for row in document["rows"]]
        assert [each["metadata"]["name"] for each in items] == names
    with pytest.raises(LatticeError, match="lists are available as JSON"):
        await lists.list_objects(world.api, Call("GET", target("pools"), ADMIN, accept="application/yaml"))


async def test_owned_workloads_are_changed_by_service_only() -> None:
    world = await api_world()
    body = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": "api-0"},
    }
    bare = body | {"spec": {"containers": {"main": {"command": ["true"]}}}}
    owned = body | {"spec": {"containers": {"main": {"command": ["true"]}}, "service": "api"}}
    with pytest.raises(Denied, match="belongs to latticeservice api"):
        await world.do(verbs.create, "workloads/default", owned)
    await world.do(verbs.create, "workloads/default", bare)
    with pytest.raises(Denied):
        await world.do(verbs.patch, "workloads/default/api-0", {"spec": {"service": "api"}}, content=MERGE)
    await world.do(
        verbs.patch, "workloads/default/api-0", {"spec": {"service": "api"}}, content=MERGE, user=SYSTEM
    )
    with pytest.raises(Denied):
        await world.do(verbs.delete, "workloads/default/api-0")


async def test_scale_moves_one_number_and_never_above_max() -> None:
    world = await api_world()
    await world.do(verbs.create, "services/default", service_manifest(replicas={"min": 1, "max": 3}))
    path, body = "services/default/api/scale", {"spec": {"replicas": 2}}
    tried = await world.do(scale.put_scale, path, body, content=MERGE, dryRun="All")
    moved = await world.do(scale.put_scale, path, body, content=MERGE)
    assert int(tried["metadata"]["resourceVersion"]) < int(moved["metadata"]["resourceVersion"])
    assert (moved["spec"], tried["spec"]) == (body["spec"], body["spec"])
    assert (await world.do(verbs.get, "services/default/api"))["spec"]["replicas"] == {"min": 2, "max": 3}
    with pytest.raises(Invalid):
        await world.do(scale.put_scale, path, {"spec": {"replicas": 9}}, content=MERGE)


async def test_concurrent_scale_returns_what_was_written() -> None:
    world = await api_world()
    await world.do(verbs.create, "services/default", service_manifest(replicas={"min": 1, "max": 9}))
    commit, path = world.api.store.commit, "services/default/api/scale"
    rival = world.other_server()

    async def with_another(*words: Any, **more: Any) -> int:
        world.api.store.commit = commit  # type: ignore[method-assign]
        revision = await commit(*words, **more)
        await rival.do(scale.put_scale, path, {"spec": {"replicas": 7}}, content=MERGE)
        return revision

    world.api.store.commit = with_another  # type: ignore[method-assign]
    told = await world.do(scale.put_scale, path, {"spec": {"replicas": 2}}, content=MERGE)
    now = await world.do(scale.get_scale, path)
    assert (told["spec"]["replicas"], now["spec"]["replicas"]) == (2, 7)


async def test_lists_page_at_one_revision_while_writes_go_on() -> None:
    world = await api_world()
    for name in "abcde":
        await world.do(verbs.create, "pools", pool_manifest(name))
    first = await world.do(lists.list_objects, "pools", limit="2")
    await world.do(verbs.delete, "pools/d")
    await world.do(verbs.create, "pools", pool_manifest("cc"))
    token = {"continue": first["metadata"]["continue"]}
    rest = await world.do(lists.list_objects, "pools", limit="9", **token)
    assert [each["metadata"]["name"] for each in first["items"] + rest["items"]] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    with pytest.raises(Malformed, match="continue"):
        await world.do(lists.list_objects, "pools", **{"continue": "rubbish"})


async def test_lists_select_by_label_and_field() -> None:
    world = await api_world()
    for name, tier in (("a", "gold"), ("b", "tin"), ("c", "gold")):
        body = pool_manifest(name)
        body["metadata"]["labels"] = {"tier": tier}
        await world.do(verbs.create, "pools", body)

    async def names(**query: str) -> list[str]:
        return [
            each["metadata"]["name"]
            for each in (await world.do(lists.list_objects, "pools", **query))["items"]
        ]

    assert await names(labelSelector="tier=gold") == ["a", "c"]
    assert await names(labelSelector="tier=gold", limit="1") == ["a"]
    assert await names(fieldSelector="metadata.name=b") == ["b"]
    assert await names(fieldSelector="metadata.name!=b") == ["a", "c"]
    with pytest.raises(Malformed, match="field label not supported: spec.x"):
        await names(fieldSelector="spec.x=1")


async def test_a_watch_sees_objects_enter_and_leave_its_selector() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest("a"))
    since = made["metadata"]["resourceVersion"]
    for value in ("gold", "gold2", "tin"):
        await world.do(
            verbs.patch,
            "pools/a",
            {"metadata": {"labels": {"tier": value.rstrip("2"), "n": value}}},
            content=MERGE,
        )
    await world.do(verbs.delete, "pools/a")
    reply = await watch.watch_objects(
        world.api,
        Call(
            "GET",
            target("pools"),
            ADMIN,
            {"watch": "1", "resourceVersion": since, "labelSelector": "tier=gold", "timeoutSeconds": "1"},
        ),
    )
    pieces = reply.body
    seen: list[dict[str, Any]] = []
    async for piece in pieces:  # type: ignore[union-attr]
        seen += [json.loads(line) for line in piece.splitlines()]
        if len(seen) >= 3:
            break
    await pieces.aclose()  # type: ignore[union-attr]
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert revisions == sorted(set(revisions))
    assert seen[2]["object"]["metadata"]["labels"]["tier"] == "gold"


async def test_seed_manifests_apply_in_any_order() -> None:
    folder = Path(__file__).parents[3] / "examples"
    documents = [
        found
        for path in sorted(folder.rglob("*.yaml"))
        for found in manifest.load_documents(path.read_bytes(), str(path))
    ]

    assert len(documents) > 30
    world = await api_world()
    for order in (documents, documents[::-1]):
        for document in order:
            served = next(each for each in CATALOG if each.resource.kind == document.value["kind"])
            metadata = document.value["metadata"]
            namespace = metadata.get("namespace", "default") if served.resource.namespaced else ""
            where = "/".join(filter(None, (served.resource.plural, namespace, metadata["name"])))
            raw = json.dumps(document.value, default=float).encode()
            applied = await world.do(
                verbs.patch,
                where,
                raw,
                content=APPLY,
                fieldManager="lattice",
                force="true",
                fieldValidation="Strict",
            )
            assert applied["metadata"]["name"] == metadata["name"]


def test_causes_read_well() -> None:
    assert str(Cause("spec.x", "is wrong")) == "spec.x: is wrong"
