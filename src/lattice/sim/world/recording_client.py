"""API clients of the simulation: users that apply, change, scale and delete objects on any server and record
every reply."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from lattice.errors import LatticeError, NotFound, Unavailable
from lattice.server.access.authorization import ADMIN_GROUP
from lattice.server.requests.call import Call, Reply, Target, User
from lattice.server.resources.dispatch import handle_call as dispatched
from lattice.server.resources.routes import request_attributes
from lattice.server.resources.verbs import APPLY_PATCH_TYPE
from lattice.sim.world.event_loop import Process, SimLoop
from lattice.sim.world.network import AnswerCallback, Network
from lattice.sim.world.servers import ServerHost, catalog
from lattice.store.protocol import Key

MERGE_PATCH_TYPE = "application/merge-patch+json"
# Annotation that names the operation that wrote the object last.
OPERATION_ANNOTATION = "sim.lattice.dev/operation"
RESOURCE_SUFFIX = ".lattice.dev"
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """A client operation with the reply. `revision` is the revision of the returned object; times are
    simulation seconds."""

    client: str
    operation: str
    method: str
    key: Key
    started_at: float
    finished_at: float
    outcome: str  # ok, refused, unknown
    revision: int = 0
    error: str = ""
    server: str = ""
    # The request body carries the operation's name.
    carries_operation: bool = False
    was_not_found: bool = False
    # Replica count of a scale request.
    replicas: int | None = None
    # Revision that a PUT replaces.
    expected_revision: int = 0


class ClientWorld(Protocol):
    """The parts of the world that an API client uses."""

    rng: random.Random
    loop: SimLoop
    net: Network
    hosts: list[ServerHost]


class Client:
    """An API user. All clients share `log`."""

    def __init__(self, world: ClientWorld, name: str, log: list[OperationRecord]) -> None:
        self.world, self.name, self.operations = world, name, log
        self.rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
        self.process = Process(name, name)
        self.user = User(name, frozenset({ADMIN_GROUP}))
        self._count = 0

    async def apply(self, kind: str, name: str, body: Body, namespace: str = "default") -> Body | None:
        """Apply the object; returns the stored object, or None if the server rejected the request or no reply
        arrived."""
        target = _target(kind, name, namespace)
        resource = target.served.resource
        metadata = {**body.get("metadata", {}), "name": name}
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        return await self.request(
            "PATCH", target, manifest, APPLY_PATCH_TYPE, {"fieldManager": "lattice", "force": "true"}
        )

    async def create(self, kind: str, name: str, body: Body, namespace: str = "default") -> Body | None:
        target = _target(kind, "", namespace)
        resource = target.served.resource
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            **body,
        }
        return await self.request("POST", target, manifest)

    async def patch(self, kind: str, name: str, body: Body, namespace: str = "default") -> Body | None:
        return await self.request("PATCH", _target(kind, name, namespace), body, MERGE_PATCH_TYPE)

    async def put(self, kind: str, name: str, body: Body, namespace: str = "default") -> Body | None:
        """Replace the object by `body`, which carries the resourceVersion that the client read."""
        return await self.request("PUT", _target(kind, name, namespace), body)

    async def scale(self, name: str, count: int, namespace: str = "default") -> Body | None:
        target = _target("latticeservices", name, namespace, "scale")
        return await self.request("PATCH", target, {"spec": {"replicas": count}}, MERGE_PATCH_TYPE)

    async def delete(self, kind: str, name: str, namespace: str = "default") -> Body | None:
        return await self.request("DELETE", _target(kind, name, namespace))

    async def get(self, kind: str, name: str, namespace: str = "default") -> Body | None:
        return await self.request("GET", _target(kind, name, namespace))

    async def retry(self, name: str, namespace: str = "default") -> Body | None:
        return await self.request("POST", _target("latticeworkloads", name, namespace, "retry"))

    async def request(
        self,
        method: str,
        target: Target,
        body: Body | None = None,
        form: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Body | None:
        """Send the request to a random server and record the outcome; returns the reply, or None without
        success."""
        self._count += 1
        operation = f"{self.name}.{self._count}"
        # The body of a subresource has no annotations that could carry the operation.
        carries_operation = body is not None and not target.subresource
        if body is not None and carries_operation:
            body = {
                **body,
                "metadata": {**body.get("metadata", {}), "annotations": {OPERATION_ANNOTATION: operation}},
            }
        call = Call(
            method, target, self.user, query or {}, b"" if body is None else msgspec.json.encode(body), form
        )
        host = self.rng.choice(self.world.hosts)
        name = target.name or (body or {}).get("metadata", {}).get("name", "")
        key = target.served.key(target.namespace, name)
        started_at, reply, outcome, message, is_missing = self.world.loop.time(), None, "ok", "", False
        try:
            reply = await self._send(host.name, call)
        except Unavailable as error:
            # Without a reply the server may have carried out the request.
            outcome, message = "unknown", str(error)
        except LatticeError as error:
            outcome, message = (
                "refused",
                "; ".join([str(error), *(f"{cause.field}: {cause.message}" for cause in error.causes)]),
            )
            is_missing = isinstance(error, NotFound)
        revision = int((reply or {}).get("metadata", {}).get("resourceVersion", 0) or 0)
        replicas = (body or {}).get("spec", {}).get("replicas") if target.subresource == "scale" else None
        expected_revision = (
            int((body or {}).get("metadata", {}).get("resourceVersion") or 0) if method == "PUT" else 0
        )
        self.operations.append(
            OperationRecord(
                self.name,
                operation,
                method,
                key,
                started_at,
                self.world.loop.time(),
                outcome,
                revision,
                message,
                host.name,
                carries_operation=carries_operation,
                was_not_found=is_missing,
                replicas=replicas,
                expected_revision=expected_revision,
            )
        )
        return reply

    async def _send(self, host: str, call: Call) -> Body:
        world = self.world

        def serve(answer: AnswerCallback) -> None:
            server = next(server_host.server for server_host in world.hosts if server_host.name == host)
            if server is None:
                answer(None, Unavailable("no server process listens at this address", where=host))
                return
            attributes = request_attributes(call.method, call.target, watching=False)
            server.handle(f"api {self.name}", lambda: dispatched(server.api, call, attributes), answer)
            # The network may deliver a request twice, except a POST or PUT.
            if (
                call.method not in ("POST", "PUT")
                and world.net.duplicate_rate
                and world.net.rng.random() < world.net.duplicate_rate
            ):
                server.handle(
                    f"api {self.name}",
                    lambda: dispatched(server.api, call, attributes),
                    lambda result, error: None,
                )

        reply: Reply = await world.net.request(self.process, host, serve, 8.0)
        if not isinstance(reply.body, bytes):
            raise AssertionError("a single object is returned in one response")
        decoded: Body = msgspec.json.decode(reply.body)
        return decoded


def _target(kind: str, name: str, namespace: str, subresource: str = "") -> Target:
    served = catalog().by_id(kind if kind in ("namespaces", "secrets") else f"{kind}{RESOURCE_SUFFIX}")
    return Target(served, namespace if served.resource.namespaced else "", name, subresource)
