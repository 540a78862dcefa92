"""Answers in which an API server of Kubernetes was compared with Lattice, one test for every difference."""

import json
from dataclasses import replace
from typing import Any

import pytest
from build.api_world import (
    ADMIN,
    APPLY,
    JSON_PATCH,
    MERGE,
    ApiWorld,
    api_world,
    pool_manifest,
    service_manifest,
    target,
)

from lattice.app.bootstrap import bootstrap
from lattice.errors import (
    Conflict,
    Denied,
    Gone,
    Invalid,
    LatticeError,
    Malformed,
    NotFound,
    RevisionTooNew,
)
from lattice.kinds.meta.stored_encoding import pack
from lattice.server.requests.call import Call, Reply, Target
from lattice.server.requests.status_error import status_of
from lattice.server.resources import lists, subresources, verbs
from lattice.store.protocol import Key, Put

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def a_service(**spec: Any) -> ApiWorld:
    world = await api_world()
    manifest = service_manifest(**spec)
    manifest["metadata"] |= {"labels": {"app": "api"}, "finalizers": ["example.org/hold"]}
    await world.do(verbs.create, "services/default", manifest)
    return world


async def test_dry_run_of_a_create_has_no_resource_version() -> None:
    world = await api_world()
    for verb, options in ((verbs.create, {}), (verbs.apply, {"content": APPLY, "fieldManager": "flux"})):
        where = "pools" if verb is verbs.create else "pools/us-east"
        answer = await world.do(verb, where, pool_manifest(), dryRun="All", **options)
        assert "resourceVersion" not in answer["metadata"]
        assert answer["metadata"]["uid"]
    made = await world.do(verbs.create, "pools", pool_manifest())
    # The dry run of a change has the revision of the stored object.
    changed = await world.do(verbs.patch, "pools/us-east", {"metadata": {"labels": {"a": "b"}}}, content=MERGE, dryRun="All")  # fmt: skip
    assert changed["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("body", "content"),
    [
        pytest.param({"metadata": None}, MERGE, id="merge patch without metadata"),
        pytest.param({"metadata": {"name": None}}, MERGE, id="merge patch without name"),
        pytest.param([{"op": "remove", "path": "/metadata"}], JSON_PATCH, id="JSON patch removes metadata"),
        pytest.param([{"op": "remove", "path": "/metadata/name"}], JSON_PATCH, id="JSON patch removes the name"),
        pytest.param([{"op": "replace", "path": "/metadata", "value": {}}], JSON_PATCH, id="JSON patch empties metadata"),
    ],
)  # fmt: skip
async def test_patch_that_loses_the_name_is_refused(body: Any, content: str) -> None:
    world = await a_service()
    with pytest.raises(Malformed, match="undeterminable: metadata.name is missing"):
        await world.do(verbs.patch, "services/default/api", body, content=content)
    stored = await world.do(verbs.get, "services/default/api")
    assert (stored["metadata"]["labels"], stored["metadata"]["finalizers"]) == (
        {"app": "api"},
        ["example.org/hold"],
    )


@pytest.mark.parametrize(
    "metadata", [None, {}, {"name": ""}], ids=["no metadata", "empty metadata", "empty name"]
)
async def test_put_without_a_name_is_refused(metadata: Any) -> None:
    world = await a_service()
    body = service_manifest() | {"metadata": metadata}
    with pytest.raises(Malformed, match=r"metadata.name is missing"):
        await world.do(verbs.update, "services/default/api", body)


async def scale_call(world: ApiWorld, method: str, body: Any = None, **fields: Any) -> Reply:
    content = MERGE if method == "PATCH" else "application/json"
    raw = b"" if body is None else json.dumps(body).encode()
    call = Call(method, target("services/default/api/scale"), ADMIN, {}, raw, content, **fields)
    verb = subresources.get_scale if method == "GET" else subresources.put_scale
    return await verb(world.api, call)


def value_of(reply: Reply) -> Any:
    assert isinstance(reply.body, bytes)
    return json.loads(reply.body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(service_manifest(), id="a service"),
        pytest.param({"kind": "Scale", "apiVersion": "apps/v1", "spec": {"replicas": 3}}, id="another group"),
        pytest.param({"metadata": {"name": "other"}, "spec": {"replicas": 3}}, id="another name"),
    ],
)
async def test_put_of_another_kind_on_scale_changes_nothing(body: dict[str, Any]) -> None:
    world = await a_service(replicas={"min": 2})
    with pytest.raises(Malformed):
        await scale_call(world, "PUT", body)
    assert (await world.do(verbs.get, "services/default/api"))["spec"]["replicas"] == {"min": 2}


async def test_scale_without_replicas_shows_the_effective_number() -> None:
    world = await a_service()
    assert value_of(await scale_call(world, "GET"))["spec"] == {"replicas": 1}
    # `kubectl scale --current-replicas=1` compares with the number above.
    scaled = value_of(await scale_call(world, "PATCH", {"spec": {"replicas": 0}}))
    assert scaled["spec"] == {"replicas": 0}
    assert value_of(await scale_call(world, "GET"))["spec"] == {"replicas": 0}


async def test_scale_as_table_and_wanted_column() -> None:
    world = await a_service()
    table = value_of(await scale_call(world, "GET", accept=TABLE))
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "Desired",
        "Available",
        "Age",
    ]
    assert table["rows"][0]["cells"][:3] == ["api", 1, 0]
    call = Call("GET", target("services/default/api"), ADMIN, accept=TABLE)
    service = value_of(await verbs.get(world.api, call))
    wanted = [column["name"] for column in service["columnDefinitions"]].index("Wanted")
    assert service["rows"][0]["cells"][wanted] == 1


async def test_apply_with_the_uid_of_a_gone_object_creates_nothing() -> None:
    world = await api_world()
    manifest = pool_manifest()
    manifest["metadata"]["uid"] = "uid-of-yesterday"
    with pytest.raises(Conflict, match="uid mismatch"):
        await world.do(verbs.apply, "pools/us-east", manifest, content=APPLY, fieldManager="m")
    with pytest.raises(NotFound):
        await world.do(verbs.get, "pools/us-east")


async def refused(world: ApiWorld, where: str, body: dict[str, Any]) -> tuple[LatticeError, dict[str, Any]]:
    with pytest.raises(LatticeError) as raised:
        await world.do(verbs.create, where, body)
    error = raised.value
    return error, status_of(error, target(where).served.resource, error.object_name)


async def test_create_in_a_terminating_namespace_has_the_cause() -> None:
    world = await api_world()
    await world.do(
        verbs.create, "namespaces", {"metadata": {"name": "shop", "finalizers": ["example.org/x"]}}
    )
    await world.do(verbs.delete, "namespaces/shop")
    error, status = await refused(world, "services/shop", service_manifest())
    assert isinstance(error, Denied)
    assert status["details"] == {
        "name": "api",
        "group": "lattice.dev",
        "kind": "latticeservices",
        "causes": [
            {
                "reason": "NamespaceTerminating",
                "message": "namespace shop is being terminated",
                "field": "metadata.namespace",
            }
        ],
    }
    assert "because it is being terminated" in status["message"]


async def test_missing_namespace_has_the_details_of_the_namespace() -> None:
    world = await api_world()
    error, status = await refused(world, "services/shop", service_manifest())
    assert isinstance(error, NotFound)
    assert status["details"] == {"name": "shop", "kind": "namespaces"}


async def test_two_controllers_of_one_object_are_refused() -> None:
    world = await api_world()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "controller": True}
    manifest = pool_manifest()
    manifest["metadata"]["ownerReferences"] = [owner, {**owner, "name": "b", "uid": "2"}]
    with pytest.raises(Invalid) as raised:
        await world.do(verbs.create, "pools", manifest)
    assert [cause.field for cause in raised.value.causes] == ["metadata.ownerReferences"]
    manifest["metadata"]["ownerReferences"][1]["controller"] = False
    await world.do(verbs.create, "pools", manifest)


async def test_namespaces_have_the_label_with_their_name() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "namespaces", {"metadata": {"name": "shop", "labels": {"a": "b"}}})
    assert made["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "shop"}
    patched = await world.do(verbs.patch, "namespaces/shop", {"metadata": {"labels": None}}, content=MERGE)
    assert patched["metadata"]["labels"] == {"kubernetes.io/metadata.name": "shop"}
    assert (
        "kubernetes.io/metadata.name"
        in (await world.do(verbs.get, "namespaces/default"))["metadata"]["labels"]
    )


async def test_namespaces_of_an_old_store_get_the_label_at_start() -> None:
    world = await api_world()
    resource = target("namespaces/old").served.resource
    value = pack(resource, {"metadata": {"name": "old", "uid": "u"}, "status": {"phase": "Active"}})
    await world.api.store.commit([Put(Key("namespaces", "", "old"), value)])
    await bootstrap(world.api)
    labels = (await world.do(verbs.get, "namespaces/old"))["metadata"]["labels"]
    assert labels == {"kubernetes.io/metadata.name": "old"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"kind": "LatticePool", "metadata": {"name": "us-east"}}, id="the object itself"),
        pytest.param([], id="a list"),
        pytest.param({"orphanDependents": "yes"}, id="a string as a boolean"),
        pytest.param({"propagationPolicy": 3}, id="a number as a policy"),
        pytest.param({"preconditions": "uid"}, id="a string as preconditions"),
        pytest.param({"preconditions": {"uid": 7}}, id="a number as a uid"),
        pytest.param({"gracePeriodSeconds": "0"}, id="a string as a number"),
    ],
)
async def test_delete_with_a_body_of_another_kind_is_refused(body: Any) -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest())
    with pytest.raises(Malformed):
        await world.do(verbs.delete, "pools/us-east", json.dumps(body).encode())
    assert await world.do(verbs.get, "pools/us-east")


@pytest.mark.parametrize(
    ("body", "query", "field"),
    [
        ({"orphanDependents": True, "propagationPolicy": "Orphan"}, {}, "propagationPolicy"),
        (None, {"orphanDependents": "true", "propagationPolicy": "Background"}, "propagationPolicy"),
        ({"gracePeriodSeconds": -1}, {}, "gracePeriodSeconds"),
    ],
    ids=["both in the body", "both in the query", "a negative grace period"],
)
async def test_contradicting_delete_options_are_refused(body: Any, query: dict[str, str], field: str) -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest())
    with pytest.raises(Invalid) as raised:
        await world.do(verbs.delete, "pools/us-east", body, **query)
    assert [cause.field for cause in raised.value.causes] == [field]
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    await world.do(verbs.delete, "pools/us-east", options)


@pytest.mark.parametrize(
    ("secret_type", "data", "field"),
    [
        pytest.param("kubernetes.io/tls", {"tls.crt": "x"}, "data[tls.key]", id="tls without key"),
        pytest.param("kubernetes.io/tls", {"tls.crt": "x", "tls.key": "y"}, "", id="tls"),
        pytest.param("kubernetes.io/dockerconfigjson", {}, "data[.dockerconfigjson]", id="registry without file"),
        pytest.param("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{"}, "data[.dockerconfigjson]", id="registry with broken file"),
        pytest.param("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "{}"}, "", id="registry"),
        pytest.param("kubernetes.io/basic-auth", {"other": "x"}, "data.username", id="basic auth without user and password"),
        pytest.param("kubernetes.io/basic-auth", {"password": "x"}, "", id="basic auth with a password"),
        pytest.param("kubernetes.io/ssh-auth", {}, "data.ssh-privatekey", id="ssh without key"),
        pytest.param("example.org/own", {}, "", id="a type of the user"),
    ],
)  # fmt: skip
async def test_secret_of_a_type_has_the_keys_of_the_type(
    secret_type: str, data: dict[str, str], field: str
) -> None:
    world = await api_world()
    secret = {"metadata": {"name": "s"}, "type": secret_type, "stringData": data}
    if not field:
        await world.do(verbs.create, "secrets/default", secret)
        return
    with pytest.raises(Invalid) as raised:
        await world.do(verbs.create, "secrets/default", secret)
    assert [cause.field for cause in raised.value.causes] == [field]


async def test_get_at_a_future_or_malformed_revision_is_refused() -> None:
    world = await api_world()
    made = await world.do(verbs.create, "pools", pool_manifest())
    revision = int(made["metadata"]["resourceVersion"])
    assert await world.do(verbs.get, "pools/us-east", resourceVersion="1") == made
    assert await world.do(verbs.get, "pools/us-east", resourceVersion=str(revision)) == made
    with pytest.raises(RevisionTooNew, match="Too large resource version"):
        await world.do(verbs.get, "pools/us-east", resourceVersion=str(revision + 1000))
    with pytest.raises(Malformed, match="must be a whole number"):
        await world.do(verbs.get, "pools/us-east", resourceVersion="abc")


async def test_page_at_a_past_revision_shows_that_revision() -> None:
    world = await api_world()
    await world.do(verbs.create, "pools", pool_manifest("a"))
    past = (await world.do(lists.list_objects, "pools"))["metadata"]["resourceVersion"]
    await world.do(verbs.create, "pools", pool_manifest("b"))
    page = await world.do(lists.list_objects, "pools", limit="5", resourceVersion=past)
    assert [item["metadata"]["name"] for item in page["items"]] == ["a"]
    assert page["metadata"]["resourceVersion"] == past
    # Without a limit, any revision that is not older will do.
    whole = await world.do(lists.list_objects, "pools", resourceVersion=past)
    assert [item["metadata"]["name"] for item in whole["items"]] == ["a", "b"]
    assert len((await world.do(lists.list_objects, "pools", limit="5", resourceVersion="0"))["items"]) == 2


async def test_expired_continue_token_comes_with_a_token_to_go_on() -> None:
    world = await api_world()
    for name in "abc":
        await world.do(verbs.create, "pools", pool_manifest(name))
    first = await world.do(lists.list_objects, "pools", limit="1")
    await world.do(verbs.delete, "pools/b")
    await world.api.store.compact(await world.api.store.revision())
    with pytest.raises(Gone) as raised:
        await world.do(lists.list_objects, "pools", limit="1", **{"continue": first["metadata"]["continue"]})
    token = status_of(raised.value)["metadata"]["continue"]
    rest = await world.do(lists.list_objects, "pools", limit="5", **{"continue": token})
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]


async def test_pages_say_how_many_objects_follow() -> None:
    world = await api_world()
    for name in "abcde":
        await world.do(verbs.create, "pools", pool_manifest(name))
    first = (await world.do(lists.list_objects, "pools", limit="2"))["metadata"]
    second = (await world.do(lists.list_objects, "pools", limit="2", **{"continue": first["continue"]}))[
        "metadata"
    ]
    last = (await world.do(lists.list_objects, "pools", limit="2", **{"continue": second["continue"]}))[
        "metadata"
    ]
    counts = [page.get("remainingItemCount") for page in (first, second, last)]
    assert counts == [3, 1, None]
    # With a selector the number would need a scan of all objects; Kubernetes leaves it out too.
    filtered = await world.do(lists.list_objects, "pools", limit="2", fieldSelector="metadata.name!=a")
    assert "remainingItemCount" not in filtered["metadata"]


async def test_list_of_services_of_kubernetes_names_lattice_services() -> None:
    world = await api_world()
    for namespace in ("", "default"):
        call = Call("GET", Target(world.api.catalog.by_id("services"), namespace), ADMIN)
        reply = await lists.list_objects(world.api, call)
        assert value_of(reply)["items"] == []
        assert "kubectl get latticeservices" in reply.warnings[0]
    # `kubectl cluster-info` asks by label, and shows warnings.
    labelled = replace(call, query={"labelSelector": "kubernetes.io/cluster-service=true"})
    assert (await lists.list_objects(world.api, labelled)).warnings == ()
    pools = Call("GET", target("pools"), ADMIN)
    assert (await lists.list_objects(world.api, pools)).warnings == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("kubectl-client-side-apply", "lattice", id="kubectl apply, then lattice apply"),
        pytest.param("kubectl-edit", "lattice", id="kubectl edit, then lattice apply"),
        pytest.param("kubectl", "lattice", id="kubectl apply --server-side, then lattice apply"),
        pytest.param("lattice", "kubectl", id="lattice apply, then kubectl apply --server-side"),
    ],
)
async def test_kubectl_and_lattice_are_two_tools_of_one_user(first: str, second: str) -> None:
    world = await api_world()
    if first in {"kubectl", "lattice"}:
        await apply_as(world, first, 2)
    else:
        manifest = service_manifest(replicas={"min": 2})
        await world.do(verbs.create, "services/default", manifest, fieldManager=first)
    changed = await apply_as(world, second, 3)
    assert changed["spec"]["replicas"] == {"min": 3}
    assert len(changed["metadata"]["managedFields"]) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [("argocd", "lattice"), ("kubectlx", "lattice"), ("lattice", "argocd"), ("kubectl-edit", "kubectl"), ("lattice", "kubectl-edit")],
)  # fmt: skip
async def test_other_field_managers_still_conflict(first: str, second: str) -> None:
    world = await api_world()
    await apply_as(world, first, 2)
    with pytest.raises(Conflict, match=f'conflict with "{first}"'):
        await apply_as(world, second, 3)


async def apply_as(world: ApiWorld, manager: str, replicas: int) -> Any:
    manifest = service_manifest(replicas={"min": replicas})
    return await world.do(verbs.apply, "services/default/api", manifest, content=APPLY, fieldManager=manager)
