"""The control service over a real connection: the same validation and access as over HTTP, by the user's
certificate."""

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from build.agent_world import AUTHORITY, Leader, a_joining, a_node_with_key, a_sleeping_workload
from build.apis import an_api

from lattice.clock import SystemClock
from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import Full, Gone, LatticeError, TooManyRequests
from lattice.kinds.cluster import ClusterSpec, LatticeCluster
from lattice.kinds.meta.base import Condition, Metadata
from lattice.kinds.node import NodeSpec, NodeStatus
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION
from lattice.server.access.authorization import ADMIN_GROUP, VIEWER_GROUP
from lattice.server.access.certificate_authority import (
    CertificateKeyPair,
    ensure_server_certificate,
    new_authority,
)
from lattice.server.grpc.control_service import ControlService, grpc_status_code, user_of_pem
from lattice.server.grpc.listener import AgentListener, Tls
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore
from lattice.wire import agent_pb2_grpc as agent_rpc
from lattice.wire import control_pb2 as pb
from lattice.wire import control_pb2_grpc as rpc

clock = SystemClock()
MANIFEST = {"metadata": {"name": "job"}, "spec": {"containers": {"main": {"command": ["sleep", "60"]}}}}
CODE = grpc.StatusCode


@dataclass
class ControlWorld:
    api: Api
    leader: Leader
    port: int

    @asynccontextmanager
    async def channel(self, pair: CertificateKeyPair) -> AsyncIterator[Any]:
        credentials = grpc.ssl_channel_credentials(AUTHORITY.pem, pair.key, pair.certificate)
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials) as channel:
            yield channel

    @asynccontextmanager
    async def user(self, name: str = "ada", *groups: str) -> AsyncIterator[Any]:
        async with self.channel(
            AUTHORITY.issue_client(name, groups or (ADMIN_GROUP,), timedelta(hours=1))
        ) as channel:
            yield rpc.ControlStub(channel)


@asynccontextmanager
async def control_service(folder: Path) -> AsyncIterator[ControlWorld]:
    """A leading server that serves the control service over TLS."""
    store = MemoryStore(clock)
    leader = Leader(store, clock)
    await leader.lead()
    api = await an_api(store, clock)
    certificate, key = ensure_server_certificate(AUTHORITY, folder, ["127.0.0.1"])
    server = AgentListener(
        leader.links,
        a_joining(store, clock),
        Tls(certificate.read_bytes(), key.read_bytes(), AUTHORITY.pem),
    )
    server.control = ControlService(api)
    async with server:
        yield ControlWorld(api, leader, server.port)
    await leader.close()


async def refused(call: Awaitable[Any]) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


async def applied(stub: Any, manifest: Any = None, **rest: Any) -> pb.ApplyWorkloadReply:
    found: pb.ApplyWorkloadReply = await stub.ApplyWorkload(
        pb.ApplyWorkloadRequest(manifest=json.dumps(manifest or MANIFEST), **rest)
    )
    return found


async def test_a_workload_from_apply_to_delete(tmp_path: Path) -> None:
    async with control_service(tmp_path) as world, world.user() as stub:
        first = await applied(stub)
        assert (first.created, first.workload.namespace, first.workload.name) == (True, "default", "job")
        assert (first.workload.desired_state, first.workload.actual_state) == ("Running", "Pending")
        again = await applied(stub, {**MANIFEST, "spec": {**MANIFEST["spec"], "desiredState": "Stopped"}})
        assert (again.created, again.workload.desired_state) == (False, "Stopped")
        whole = json.loads((await stub.GetWorkload(pb.WorkloadName(name="job"))).json)
        assert whole["metadata"]["managedFields"][0]["manager"] == "ada"
        code, message = await refused(stub.RetryWorkload(pb.WorkloadName(name="job")))
        assert (code, "has desiredState Stopped" in message) == (CODE.ABORTED, True)
        await applied(stub)
        retried = await stub.RetryWorkload(pb.WorkloadName(name="job"))
        assert RETRY_REQUESTED_ANNOTATION in json.loads(retried.json)["metadata"]["annotations"]
        listed = await stub.ListWorkloads(pb.ListRequest())
        assert [workload.name for workload in listed.workloads] == ["job"]
        code, _ = await refused(stub.DeleteWorkload(pb.DeleteWorkloadRequest(name="job", uid="another")))
        assert code == CODE.ABORTED
        assert (await stub.DeleteWorkload(pb.DeleteWorkloadRequest(name="job", uid=first.workload.uid))).gone
        code, message = await refused(stub.GetWorkload(pb.WorkloadName(name="job")))
        assert (code, message) == (CODE.NOT_FOUND, 'latticeworkloads.lattice.dev "job" not found')


async def test_yaml_dry_run_writes_nothing(tmp_path: Path) -> None:
    async with control_service(tmp_path) as world:
        manifest = "metadata: {name: job}\nspec:\n  containers:\n    main: {command: [sleep, '60']}\n"
        async with world.user() as stub:
            before = await world.api.store.revision()
            reply = await stub.ApplyWorkload(
                pb.ApplyWorkloadRequest(manifest=manifest, dry_run=True, field_manager="ci")
            )
            assert reply.created
            assert await world.api.store.revision() == before


WRONG: dict[str, tuple[str, Any, str]] = {
    "nonsense": ("{", CODE.INVALID_ARGUMENT, ""),
    "no object": ("[]", CODE.INVALID_ARGUMENT, "a manifest is a mapping, got a list"),
    "no metadata": ("{}", CODE.INVALID_ARGUMENT, "must be a LatticeWorkload"),
    "no name": (json.dumps({**MANIFEST, "metadata": {}}), CODE.INVALID_ARGUMENT, "set the name"),
    "another kind": (
        json.dumps({**MANIFEST, "kind": "LatticePool"}),
        CODE.INVALID_ARGUMENT,
        "must be LatticeWorkload",
    ),
    "an unknown field": (
        json.dumps({**MANIFEST, "spec": {**MANIFEST["spec"], "colour": 1}}),
        CODE.INVALID_ARGUMENT,
        "spec.colour",
    ),
    "a wrong value": (
        json.dumps({**MANIFEST, "spec": {**MANIFEST["spec"], "slot": -1}}),
        CODE.INVALID_ARGUMENT,
        "spec.slot",
    ),
    "no such namespace": (
        json.dumps({**MANIFEST, "metadata": {"name": "job", "namespace": "x"}}),
        CODE.NOT_FOUND,
        'namespaces "x" not found',
    ),
    "owned": (
        json.dumps({**MANIFEST, "spec": {**MANIFEST["spec"], "service": "web"}}),
        CODE.PERMISSION_DENIED,
        "belongs to latticeservice web",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_invalid_apply_is_refused_without_write(case: str, tmp_path: Path) -> None:
    manifest, code, words = WRONG[case]
    async with control_service(tmp_path) as world:
        before = await world.api.store.revision()
        async with world.user() as stub:
            found, message = await refused(stub.ApplyWorkload(pb.ApplyWorkloadRequest(manifest=manifest)))
            assert (found, words in message) == (code, True), message
        assert await world.api.store.revision() == before


READS = {
    "GetWorkload": pb.WorkloadName(name="web"),
    "ListWorkloads": pb.ListRequest(),
    "GetNode": pb.NodeName(name="n1"),
    "ListNodes": pb.ListRequest(),
    "GetClusterSummary": pb.ClusterSummaryRequest(),
}
WRITES = {
    "ApplyWorkload": pb.ApplyWorkloadRequest(manifest=json.dumps(MANIFEST)),
    "DeleteWorkload": pb.DeleteWorkloadRequest(name="web"),
    "RetryWorkload": pb.WorkloadName(name="web"),
}


@pytest.mark.parametrize(
    ("user", "groups", "may_read"),
    [
        pytest.param("vic", (VIEWER_GROUP,), True, id="a viewer reads"),
        pytest.param("node:n1", ("lattice:nodes",), False, id="a node may do nothing"),
        pytest.param("eve", ("strangers",), False, id="nor has a stranger"),
    ],
)
async def test_rights_equal_those_of_the_rest_api(
    user: str, groups: tuple[str, ...], may_read: bool, tmp_path: Path
) -> None:
    async with control_service(tmp_path) as world:
        await world.leader.add(a_node_with_key("n1"))
        await world.leader.add(a_sleeping_workload())
        before = await world.api.store.revision()
        async with world.user(user, *groups) as stub:
            for name, request in WRITES.items():
                code, message = await refused(getattr(stub, name)(request))
                assert (name, code) == (name, CODE.PERMISSION_DENIED), message
            for name, request in READS.items():
                if may_read:
                    await getattr(stub, name)(request)
                else:
                    code, message = await refused(getattr(stub, name)(request))
                    assert (name, code) == (name, CODE.PERMISSION_DENIED), message
            if not may_read:
                code, _ = await refused(stub.WatchEvents(pb.WatchEventsRequest()).read())
                assert code == CODE.PERMISSION_DENIED
        assert await world.api.store.revision() == before


async def test_client_of_another_authority_is_rejected(tmp_path: Path) -> None:
    stranger, _ = new_authority()
    async with (
        control_service(tmp_path) as world,
        world.channel(stranger.issue_client("ada", [ADMIN_GROUP])) as channel,
    ):
        code, _ = await refused(rpc.ControlStub(channel).ListNodes(pb.ListRequest()))
        assert code == CODE.UNAVAILABLE


async def test_admin_certificate_opens_no_agent_session(tmp_path: Path) -> None:
    async with (
        control_service(tmp_path) as world,
        world.channel(AUTHORITY.issue_client("ada", [ADMIN_GROUP])) as channel,
    ):
        stream = agent_rpc.AgentsStub(channel).Connect()
        code, _ = await refused(stream.read())
        assert code == CODE.PERMISSION_DENIED


async def test_lists_come_in_pages_and_by_label(tmp_path: Path) -> None:
    async with control_service(tmp_path) as world:
        for number in range(5):
            node = a_node_with_key(f"n{number}", spec=NodeSpec(cluster="c1", pool="north"))
            await world.api.store.commit([put_new(node, uid=f"u{number}", now="2026-01-01T00:00:00Z")])
        async with world.user() as stub:
            first = await stub.ListNodes(pb.ListRequest(limit=3))
            rest = await stub.ListNodes(pb.ListRequest(limit=3, continue_token=first.continue_token))
            assert [each.name for each in (*first.nodes, *rest.nodes)] == [
                f"n{number}" for number in range(5)
            ]
            assert (rest.continue_token, first.nodes[0].cluster) == ("", "c1")
            assert list((await stub.ListNodes(pb.ListRequest(label_selector="a=b"))).nodes) == []
            code, _ = await refused(stub.ListNodes(pb.ListRequest(field_selector="spec.x=1")))
            assert code == CODE.INVALID_ARGUMENT


async def test_cluster_summary_counts_resources(tmp_path: Path) -> None:
    async with control_service(tmp_path) as world:
        ready = NodeStatus(
            capacity={"cpu": 4000},
            allocatable={"cpu": 3500},
            conditions=(Condition(type="Ready", status="True"),),
        )
        cluster = LatticeCluster(
            api_version="lattice.dev/v1alpha1",
            kind="LatticeCluster",
            metadata=Metadata(name="c1"),
            spec=ClusterSpec(pool="north"),
        )
        for each in (
            cluster,
            a_node_with_key("n1", spec=NodeSpec(cluster="c1"), status=ready),
            a_node_with_key("n2"),
            a_sleeping_workload(cluster="c1"),
        ):
            await world.leader.add(each)
        async with world.user() as stub:
            found = await stub.GetClusterSummary(pb.ClusterSummaryRequest(cluster="c1"))
            assert (found.nodes, found.ready_nodes, found.workloads, found.unbound_workloads) == (1, 1, 1, 1)
            assert (dict(found.allocatable), dict(found.workloads_by_state)) == (
                {"cpu": 3500},
                {"Pending": 1},
            )
            assert (await stub.GetClusterSummary(pb.ClusterSummaryRequest())).nodes == 2
            code, message = await refused(stub.GetClusterSummary(pb.ClusterSummaryRequest(cluster="c9")))
            assert (code, message) == (CODE.NOT_FOUND, 'latticeclusters.lattice.dev "c9" not found')


async def tell(world: ControlWorld, name: str, reason: str, *, warning: bool = False) -> None:
    assert world.leader.context is not None
    await world.leader.context.commit(
        [
            world.leader.context.recorder("test").event(
                a_sleeping_workload(name), reason, "as it is", warning=warning
            )
        ]
    )


async def test_events_are_streamed_as_they_occur(tmp_path: Path) -> None:
    async with control_service(tmp_path) as world:
        await tell(world, "web", "Before")
        async with world.user("vic", VIEWER_GROUP) as stub:
            everything = stub.WatchEvents(pb.WatchEventsRequest(from_the_beginning=True))
            first = await everything.read()
            assert (first.reason, first.kind, first.name, first.type) == (
                "Before",
                "LatticeWorkload",
                "web",
                "Normal",
            )
            warnings = stub.WatchEvents(
                pb.WatchEventsRequest(name="api", types=["Warning"], resource_version=first.resource_version)
            )
            await tell(world, "web", "Other", warning=True)
            await tell(world, "api", "Fine")
            await tell(world, "api", "WorkloadFailed", warning=True)
            assert [(await everything.read()).reason for _ in range(3)] == ["Other", "Fine", "WorkloadFailed"]
            assert (await warnings.read()).reason == "WorkloadFailed"
            for each in (everything, warnings):
                each.cancel()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Gone("old"), CODE.OUT_OF_RANGE),
        (TooManyRequests("many"), CODE.RESOURCE_EXHAUSTED),
        (Full("full"), CODE.RESOURCE_EXHAUSTED),
        (LatticeError("x"), CODE.UNKNOWN),
    ],
    ids=["gone", "too many", "full", "anything else"],
)
def test_errors_have_codes(error: LatticeError, code: Any) -> None:
    assert grpc_status_code(error) == code


def test_the_user_is_the_subject_of_the_certificate() -> None:
    found = user_of_pem(AUTHORITY.issue_client("ada", ["a", "b"]).certificate)
    assert (found.name, found.groups) == ("ada", {"a", "b", "system:authenticated"})
