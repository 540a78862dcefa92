"""Four foreign Python clients use the server as they use Kubernetes."""

import contextlib
import json
from importlib.metadata import version

import kr8s.asyncio
import kubernetes
import kubernetes_asyncio
import lightkube
import pytest
from build.servers import running_server
from build.wire import APPLY, MERGE, service
from kr8s.asyncio.objects import ConfigMap as Kr8sConfigMap
from kr8s.asyncio.objects import new_class
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Secret
from lightkube.types import PatchType

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(60)]

KIND = ("lattice.dev", "v1alpha1", "latticeservices")
LIFE = ["ADDED", "MODIFIED", "DELETED"]
SCALED = {"spec": {"replicas": {"min": 3}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    names = ("kubernetes", "kubernetes-asyncio", "kr8s", "lightkube")
    print("; ".join(f"{name} {version(name)}" for name in names))
    with running_server(tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.fixture
def official(server):
    """The official client, of which leader election knows only the default one."""
    kubernetes.config.load_kube_config(str(server.kubeconfig))
    with kubernetes.client.ApiClient() as client:
        yield client


def labelled(name, replicas):
    """What the clients apply: the full intent of one more manager."""
    return {**service(name, replicas), "metadata": {"name": name, "labels": {"applied": "yes"}}}


def life(events, name):
    """What happened to the object of that name until it was gone; Lattice's own writes make no difference."""
    seen = []
    for kind, found in events:
        if found == name and seen[-1:] != [kind]:
            seen.append(kind)
        if seen[-1:] == ["DELETED"]:
            break
    return seen


async def life_async(events, name):
    collected = []
    async for kind, found in events:
        collected.append((kind, found))
        if (kind, found) == ("DELETED", name):
            break
    return life(collected, name)


def test_kubernetes_custom_objects(official):
    api = kubernetes.client.CustomObjectsApi(official)
    where = (*KIND[:2], "default", KIND[2])
    began = api.list_namespaced_custom_object(*where)["metadata"]["resourceVersion"]
    made = api.create_namespaced_custom_object(*where, service("official"))
    assert api.get_namespaced_custom_object(*where, "official")["metadata"]["uid"] == made["metadata"]["uid"]
    patched = api.patch_namespaced_custom_object(*where, "official", SCALED, _content_type=MERGE)
    assert (patched["spec"]["replicas"], patched["metadata"]["generation"]) == ({"min": 3, "max": 9}, 2)
    applied = api.patch_namespaced_custom_object(
        *where, "official", labelled("official", 5), field_manager="me", force=True, _content_type=APPLY
    )
    assert (applied["metadata"]["labels"], applied["spec"]["replicas"]["min"]) == ({"applied": "yes"}, 5)
    assert ("me", "Apply") in {
        (entry["manager"], entry["operation"]) for entry in applied["metadata"]["managedFields"]
    }
    assert [
        item["metadata"]["name"]
        for item in api.list_namespaced_custom_object(*where, label_selector="applied=yes")["items"]
    ] == ["official"]
    api.delete_namespaced_custom_object(*where, "official")
    with pytest.raises(kubernetes.client.ApiException) as gone:
        api.get_namespaced_custom_object(*where, "official")
    assert (gone.value.status, json.loads(gone.value.body)["reason"]) == (404, "NotFound")
    stream = kubernetes.watch.Watch().stream(
        api.list_namespaced_custom_object, *where, resource_version=began, timeout_seconds=5
    )
    assert (
        life(((event["type"], event["object"]["metadata"]["name"]) for event in stream), "official") == LIFE
    )


def test_kubernetes_watch_restarts_when_its_revision_is_gone(official):
    """The list that a 410 calls for is the client's own business: it says Expired, and users list again."""
    api = kubernetes.client.CoreV1Api(official)
    with pytest.raises(kubernetes.client.ApiException) as gone:
        list(
            kubernetes.watch.Watch().stream(api.list_namespace, resource_version="999999", timeout_seconds=1)
        )
    assert gone.value.status == 410


def test_kubernetes_core_kinds(official):
    api = kubernetes.client.CoreV1Api(official)
    api.create_namespace({"metadata": {"name": "official"}})
    assert {"default", "lattice-system", "official"} <= {
        each.metadata.name for each in api.list_namespace().items
    }
    api.create_namespaced_config_map(
        "official", kubernetes.client.V1ConfigMap(metadata={"name": "settings"}, data={"a": "1"})
    )
    assert api.patch_namespaced_config_map("settings", "official", {"data": {"b": "2"}}).data == {
        "a": "1",
        "b": "2",
    }
    secret = api.create_namespaced_secret(
        "official", {"metadata": {"name": "login"}, "stringData": {"user": "me"}}
    )
    assert (secret.data, secret.type) == ({"user": "bWU="}, "Opaque")
    about = {"kind": "ConfigMap", "name": "settings", "namespace": "official", "apiVersion": "v1"}
    api.create_namespaced_event(
        "official",
        {"metadata": {"generateName": "e-"}, "involvedObject": about, "reason": "Tried", "type": "Normal"},
    )
    found = api.list_namespaced_event(
        "official", field_selector="involvedObject.name=settings,reason=Tried"
    ).items
    assert [(event.reason, event.involved_object.kind) for event in found] == [("Tried", "ConfigMap")]
    pages = api.list_namespace(limit=1)
    assert pages.metadata._continue
    assert (
        api.list_namespace(limit=1, _continue=pages.metadata._continue).items[0].metadata.name
        != pages.items[0].metadata.name
    )
    assert api.delete_namespaced_config_map("settings", "official")["status"] == "Success"


def test_kubernetes_dynamic_client(official, tmp_path):
    client = kubernetes.dynamic.DynamicClient(official, cache_file=str(tmp_path / "discovery"))
    services = client.resources.get(api_version="lattice.dev/v1alpha1", kind="LatticeService")
    assert (services.namespaced, "lsvc" in services.short_names) == (True, True)
    began = services.get(namespace="default").metadata.resourceVersion
    services.create(body=service("dynamic"), namespace="default")
    assert (
        services.patch(body=SCALED, name="dynamic", namespace="default", content_type=MERGE).spec.replicas.min
        == 3
    )
    applied = services.server_side_apply(
        body=labelled("dynamic", 5),
        name="dynamic",
        namespace="default",
        field_manager="me",
        force_conflicts=True,
    )
    assert applied.metadata.labels.applied == "yes"
    services.delete(name="dynamic", namespace="default")
    watch = services.watch(namespace="default", resource_version=began, timeout=5)
    assert life(((event["type"], event["object"].metadata.name) for event in watch), "dynamic") == LIFE
    assert {each.metadata.name for each in client.resources.get(kind="Namespace").get().items} >= {"default"}


@pytest.mark.parametrize("lock", [ConfigMapLock, LeaseLock], ids=["by a config map", "by a lease"])
def test_kubernetes_leader_election(official, lock):
    """The first candidate wins, keeps the lock through its renewals, and the second reads the holder."""
    name = lock.__name__.lower()
    first, second = (
        LeaderElection(Config(lock(name, "default", who), 17, 15, 5, lambda: None, None))
        for who in ("one", "two")
    )
    assert first.try_acquire_or_renew()
    assert first.try_acquire_or_renew()
    assert not second.try_acquire_or_renew()
    status, record = second.election_config.lock.get(name, "default")
    assert (status, record.holder_identity) == (True, "one")


async def test_kubernetes_asyncio(server):
    async with await kubernetes_asyncio.config.new_client_from_config(str(server.kubeconfig)) as client:
        api = kubernetes_asyncio.client.CustomObjectsApi(client)
        where = (*KIND[:2], "default", KIND[2])
        began = (await api.list_namespaced_custom_object(*where))["metadata"]["resourceVersion"]
        await api.create_namespaced_custom_object(*where, service("async"))
        assert (await api.get_namespaced_custom_object(*where, "async"))["spec"]["replicas"]["min"] == 1
        patched = await api.patch_namespaced_custom_object(*where, "async", SCALED, _content_type=MERGE)
        assert patched["spec"]["replicas"] == {"min": 3, "max": 9}
        replaced = await api.patch_namespaced_custom_object(
            *where, "async", labelled("async", 5), field_manager="me", force=True, _content_type=APPLY
        )
        assert replaced["metadata"]["labels"] == {"applied": "yes"}
        await api.delete_namespaced_custom_object(*where, "async")
        watch = kubernetes_asyncio.watch.Watch()
        async with watch.stream(
            api.list_namespaced_custom_object, *where, resource_version=began, timeout_seconds=5
        ) as events:
            told = ((event["type"], event["object"]["metadata"]["name"]) async for event in events)
            assert await life_async(told, "async") == LIFE
        core = kubernetes_asyncio.client.CoreV1Api(client)
        await core.create_namespaced_config_map(
            "default", {"metadata": {"name": "async"}, "data": {"a": "1"}}
        )
        operations = [{"op": "replace", "path": "/data/a", "value": "2"}]
        assert (await core.patch_namespaced_config_map("async", "default", operations)).data == {"a": "2"}


async def test_kr8s(server):
    api = await kr8s.asyncio.api(kubeconfig=str(server.kubeconfig))
    kind = new_class("LatticeService", "lattice.dev/v1alpha1", asyncio=True, namespaced=True)
    async with api.call_api(
        "GET", version="lattice.dev/v1alpha1", url="latticeservices", namespace="default"
    ) as answer:
        began = answer.json()["metadata"]["resourceVersion"]
    made = await kind({**service("kr8s"), "metadata": {"name": "kr8s", "namespace": "default"}}, api=api)
    await made.create()
    assert await made.exists()
    await made.patch(SCALED)
    assert made.spec.replicas.min == 3
    headers = {"Content-Type": APPLY}
    url, query, body = (
        "latticeservices/kr8s",
        {"fieldManager": "me", "force": "true"},
        json.dumps(labelled("kr8s", 5)),
    )
    async with api.call_api(
        "PATCH",
        version="lattice.dev/v1alpha1",
        url=url,
        namespace="default",
        params=query,
        headers=headers,
        content=body,
    ) as answer:
        assert answer.json()["metadata"]["labels"] == {"applied": "yes"}
    assert [
        each.name
        async for each in api.get(
            "latticeservices.lattice.dev", namespace="default", label_selector="applied=yes"
        )
    ] == ["kr8s"]
    await made.refresh()
    assert made.labels == {"applied": "yes"}
    await made.delete()
    assert not await made.exists()
    async with contextlib.aclosing(
        api.async_watch("latticeservices.lattice.dev", namespace="default", since=began)
    ) as events:
        assert await life_async(((kind_, each.name) async for kind_, each in events), "kr8s") == LIFE
    settings = await Kr8sConfigMap(
        {"metadata": {"name": "kr8s", "namespace": "default"}, "data": {"a": "1"}}, api=api
    )
    await settings.create()
    assert (await Kr8sConfigMap.get("kr8s", namespace="default", api=api)).data.a == "1"
    assert await api.whoami() == "lattice-admin"
    known = await kr8s.asyncio.api(kubeconfig=str(server.mint("kara", "lattice:admins", token=True)))
    assert await known.whoami() == "kara"


def test_lightkube(server):
    config = lightkube.KubeConfig.from_file(server.kubeconfig)
    client = lightkube.Client(config=config.get(), field_manager="me")
    kind = create_namespaced_resource(*KIND[:2], "LatticeService", KIND[2])
    listed = client.list(kind, namespace="default")
    assert not [each for each in listed if each.metadata.name == "light"]
    began = listed.resourceVersion
    made = client.create(kind(**service("light")), namespace="default")
    assert client.get(kind, "light", namespace="default").metadata.uid == made.metadata.uid
    assert (
        client.patch(kind, "light", SCALED, namespace="default", patch_type=PatchType.MERGE).spec["replicas"][
            "min"
        ]
        == 3
    )
    applied = client.apply(
        kind(**labelled("light", 5)), namespace="default", field_manager="other", force=True
    )
    assert applied.metadata.labels == {"applied": "yes"}
    with pytest.raises(ApiError) as refused:
        client.patch(kind, "light", SCALED, namespace="default")
    assert refused.value.response.status_code == 415, "strategic merge is for Kubernetes' own kinds"
    client.delete(kind, "light", namespace="default")
    watch = client.watch(kind, namespace="default", resource_version=began)
    assert life(((event, each.metadata.name) for event, each in watch), "light") == LIFE
    client.create(Namespace(metadata=ObjectMeta(name="light")))
    client.create(ConfigMap(metadata=ObjectMeta(name="settings", namespace="light"), data={"a": "1"}))
    assert client.patch(ConfigMap, "settings", {"data": {"b": "2"}}, namespace="light").data == {
        "a": "1",
        "b": "2",
    }
    client.apply(Secret(metadata=ObjectMeta(name="login", namespace="light"), stringData={"user": "me"}))
    assert [each.data for each in client.list(Secret, namespace="light", chunk_size=1)] == [{"user": "bWU="}]
