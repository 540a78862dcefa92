"""The control service: the verbs of the REST API over gRPC, for users with a client certificate; node
certificates are denied."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import grpc.aio
import msgspec
import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID

from lattice import errors
from lattice.errors import LatticeError, Malformed, NotFound, UnknownUser
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.meta.json_body import encode
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.server.access.authentication import AUTHENTICATED_GROUP
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.grpc import control_messages as messages
from lattice.server.live.usage_tables import summarize_cluster
from lattice.server.requests.bodies import read_yaml
from lattice.server.requests.call import Call, Reply, Target, User
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.status_error import message_of
from lattice.server.resources.api import Api
from lattice.server.resources.dispatch import handle_call
from lattice.server.resources.lists import LIST_CHUNK_SIZE
from lattice.server.resources.routes import request_attributes
from lattice.server.resources.verbs import APPLY_PATCH_TYPE
from lattice.store.protocol import list_pages
from lattice.wire import control_pb2 as pb

GRPC_STATUS_CODES: dict[type[LatticeError], grpc.StatusCode] = {
    errors.Malformed: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownUser: grpc.StatusCode.UNAUTHENTICATED,
    errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Exists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.Gone: grpc.StatusCode.OUT_OF_RANGE,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooManyRequests: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Full: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
}
log = structlog.get_logger()


class ControlService:
    """The methods of the gRPC service `Control`; the method names are given by gRPC."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._workloads = api.catalog.by_id(LatticeWorkload.resource.id)
        self._nodes = api.catalog.by_id(LatticeNode.resource.id)
        self._events = api.catalog.by_id(Event.resource.id)

    async def ApplyWorkload(  # noqa: N802
        self, request: pb.ApplyWorkloadRequest, context: Any
    ) -> pb.ApplyWorkloadReply:
        async with _RequestContext(context) as rpc:
            value, _ = read_yaml(request.manifest.encode())
            if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
                raise Malformed("the manifest must be a LatticeWorkload with metadata.name", where="manifest")
            manifest = {"kind": LatticeWorkload.resource.kind, **value}
            target = self._workload_target(
                manifest["metadata"].get("namespace", ""), manifest["metadata"].get("name", "")
            )
            rpc.target = target
            query = {"fieldManager": request.field_manager or rpc.user.name}
            query |= {"force": "true"} if request.force else {}
            query |= {"dryRun": "All"} if request.dry_run else {}
            body = encode(
                manifest | {"apiVersion": manifest.get("apiVersion") or target.served.resource.api_version}
            )
            reply = await self._handle(Call("PATCH", target, rpc.user, query, body, APPLY_PATCH_TYPE))
            return pb.ApplyWorkloadReply(
                workload=messages.workload_message(_decode_body(reply)), created=reply.status == 201
            )

    async def DeleteWorkload(  # noqa: N802
        self, request: pb.DeleteWorkloadRequest, context: Any
    ) -> pb.DeleteWorkloadReply:
        async with _RequestContext(context) as rpc:
            rpc.target = target = self._workload_target(request.namespace, request.name)
            options = {"preconditions": {"uid": request.uid}} if request.uid else {}
            body = encode({"apiVersion": "v1", "kind": "DeleteOptions", **options})
            reply = await self._handle(Call("DELETE", target, rpc.user, body=body))
            return pb.DeleteWorkloadReply(gone=_decode_body(reply)["kind"] == "Status")

    async def RetryWorkload(self, request: pb.WorkloadName, context: Any) -> pb.Workload:  # noqa: N802
        async with _RequestContext(context) as rpc:
            rpc.target = target = self._workload_target(request.namespace, request.name, "retry")
            return messages.workload_message(_decode_body(await self._handle(Call("POST", target, rpc.user))))

    async def GetWorkload(self, request: pb.WorkloadName, context: Any) -> pb.Workload:  # noqa: N802
        async with _RequestContext(context) as rpc:
            rpc.target = target = self._workload_target(request.namespace, request.name)
            return messages.workload_message(_decode_body(await self._handle(Call("GET", target, rpc.user))))

    async def GetNode(self, request: pb.NodeName, context: Any) -> pb.Node:  # noqa: N802
        async with _RequestContext(context) as rpc:
            rpc.target = target = Target(self._nodes, "", _require_name(request.name))
            return messages.node_message(_decode_body(await self._handle(Call("GET", target, rpc.user))))

    async def ListWorkloads(self, request: pb.ListRequest, context: Any) -> pb.WorkloadList:  # noqa: N802
        async with _RequestContext(context) as rpc:
            page = await self._list(self._workloads, request, rpc.user)
            return pb.WorkloadList(
                workloads=map(messages.workload_message, page["items"]), **messages.page_fields(page)
            )

    async def ListNodes(self, request: pb.ListRequest, context: Any) -> pb.NodeList:  # noqa: N802
        async with _RequestContext(context) as rpc:
            page = await self._list(self._nodes, request, rpc.user)
            return pb.NodeList(nodes=map(messages.node_message, page["items"]), **messages.page_fields(page))

    async def GetClusterSummary(  # noqa: N802
        self, request: pb.ClusterSummaryRequest, context: Any
    ) -> pb.ClusterSummary:
        async with _RequestContext(context) as rpc:
            # The summary reads the store directly, so the rights of both lists are checked here.
            for served in (self._nodes, self._workloads):
                authorize(
                    rpc.user,
                    RequestAttributes("list", served.resource.group, served.resource.plural),
                    served.resource,
                )
            cluster = self.api.catalog.by_id(LatticeCluster.resource.id).key("", request.cluster)
            if request.cluster and await self.api.store.get(cluster) is None:
                raise NotFound(f'{cluster.resource} "{request.cluster}" not found')
            nodes = [node async for node in self._list_all(LatticeNode)]
            workloads = [workload async for workload in self._list_all(LatticeWorkload)]
            return messages.cluster_summary_message(
                request.cluster, await asyncio.to_thread(summarize_cluster, nodes, workloads, request.cluster)
            )

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: Any
    ) -> AsyncIterator[pb.Event]:
        async with _RequestContext(context) as rpc:
            target = Target(self._events, request.namespace)
            requirements = {"involvedObject.kind": request.kind, "involvedObject.name": request.name}
            fields = ",".join(f"{path}={value}" for path, value in requirements.items() if value)
            revision = request.resource_version
            if not revision and not request.from_the_beginning:
                revision = str(await self.api.store.revision())
            # A watch of the API ends after an hour at most; this loop continues from the last revision.
            while True:
                query = {
                    "watch": "true",
                    "allowWatchBookmarks": "true",
                    "resourceVersion": revision,
                    "fieldSelector": fields,
                }
                call = Call("GET", target, rpc.user, {name: value for name, value in query.items() if value})
                async for kind, event in _watch_events(await self._handle(call)):
                    revision = event["metadata"]["resourceVersion"]
                    if kind == "ADDED" and (not request.types or event.get("type") in request.types):
                        yield messages.event_message(event)

    def _workload_target(self, namespace: str, name: str, subresource: str = "") -> Target:
        return Target(self._workloads, namespace or DEFAULT_NAMESPACE, _require_name(name), subresource)

    async def _handle(self, call: Call) -> Reply:
        return await handle_call(
            self.api, call, request_attributes(call.method, call.target, watching="watch" in call.query)
        )

    async def _list(self, served: ServedKind, request: pb.ListRequest, user: User) -> dict[str, Any]:
        query = {
            "labelSelector": request.label_selector,
            "fieldSelector": request.field_selector,
            "limit": str(request.limit) if request.limit else "",
            "continue": request.continue_token,
        }
        query = {name: value for name, value in query.items() if value}
        target = Target(served, request.namespace if served.resource.namespaced else "")
        reply = await self._handle(Call("GET", target, user, query))
        if not isinstance(reply.body, bytes):
            reply = Reply(b"".join([piece async for piece in reply.body]), reply.status)
        return _decode_body(reply)

    async def _list_all(self, kind: type[Any]) -> AsyncIterator[Any]:
        """Yield every object of a kind, at one revision."""
        decode = msgspec.json.Decoder(kind).decode
        async for page in list_pages(self.api.store, kind.resource.id, limit=LIST_CHUNK_SIZE):
            for entry in page.entries:
                yield decode(entry.value)


class _RequestContext:
    """Authenticates the caller of one RPC and turns errors into gRPC status codes. `target` names the object
    in messages."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.user = User("")
        self.target: Target | None = None

    async def __aenter__(self) -> "_RequestContext":
        try:
            self.user = user_of_pem(self._context.auth_context().get("x509_pem_cert", [b""])[0])
        except UnknownUser as error:
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, LatticeError):
            resource = self.target.served.resource if self.target else None
            message = message_of(error, resource, self.target.name if self.target else "")
            await self._context.abort(grpc_status_code(error), message)
        # `abort` itself raises AbortError: the status is set by then.
        elif isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError | grpc.RpcError):
            log.error("request failed", exc_info=error)
            await self._context.abort(
                grpc.StatusCode.INTERNAL, "internal error; the server's log has the details"
            )


def grpc_status_code(error: LatticeError) -> grpc.StatusCode:
    """The gRPC status code of an error; UNKNOWN for an error class without a code."""
    return next(
        (code for kind, code in GRPC_STATUS_CODES.items() if isinstance(error, kind)), grpc.StatusCode.UNKNOWN
    )


def user_of_pem(pem: bytes) -> User:
    """The user of a verified client certificate, by the rule of the HTTP server: CN is the user, every O a
    group."""
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except ValueError as error:
        raise UnknownUser("the client certificate cannot be read") from error
    names = [str(name.value) for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[0]:
        raise UnknownUser(
            "the client certificate does not name a user",
            fix="use a certificate whose subject has a common name (CN)",
        )
    groups = {str(group.value) for group in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)}
    return User(names[0], frozenset(groups | {AUTHENTICATED_GROUP}))


def _require_name(name: str) -> str:
    if not name:
        raise Malformed("set the name", where="name")
    return name


def _decode_body(reply: Reply) -> dict[str, Any]:
    # Streams are joined by the caller.
    assert isinstance(reply.body, bytes)  # noqa: S101
    body: dict[str, Any] = msgspec.json.decode(reply.body)
    return body


async def _watch_events(reply: Reply) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """Yield type and object of every event of a watch. `Gone` if the watch reports an error."""
    assert not isinstance(reply.body, bytes)  # noqa: S101 - a watch is a stream
    try:
        async for lines in reply.body:
            for line in lines.splitlines():
                frame = msgspec.json.decode(line)
                if frame["type"] == "ERROR":
                    raise errors.Gone(
                        frame["object"]["message"], fix="start the watch again without a resource version"
                    )
                yield frame["type"], frame["object"]
    finally:
        await reply.body.aclose()  # type: ignore[attr-defined]
