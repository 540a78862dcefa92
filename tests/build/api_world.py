"""An API over an empty store in memory, and manifests to send to it."""

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from build.virtual import VirtualClock
from lattice.app.bootstrap import bootstrap
from lattice.kinds import SERVED_KINDS
from lattice.server.requests.call import Call, Reply, Target, User
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore

CATALOG = Catalog(SERVED_KINDS)
ADMIN = User("ann", frozenset({"lattice:admins"}))
SYSTEM = User("robot", frozenset({"lattice:system"}))
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ApiWorld:
    """An API on an empty store; `do` runs a verb and reads its answer."""

    def __init__(self) -> None:
        clock = VirtualClock()
        uids, suffixes = itertools.count(1), itertools.count(1)
        self.api = Api(
            MemoryStore(clock), CATALOG, clock, lambda: f"uid-{next(uids)}", lambda: f"{next(suffixes):05}"
        )

    def other_server(self) -> "ApiWorld":
        """Another server on the same store: it shares no memory with this one."""
        other = ApiWorld()
        other.api = replace(self.api)
        return other

    async def do(
        self,
        verb: Callable[[Api, Call], Awaitable[Reply]],
        where: str,
        body: Any = None,
        *,
        user: User = ADMIN,
        content: str = "application/json",
        **query: str,
    ) -> Any:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        reply = await verb(
            self.api, Call("POST", target(where), user, query, raw, content, user_agent="pytest/1")
        )
        if isinstance(reply.body, bytes):
            return json.loads(reply.body)
        return [json.loads(line) for line in (b"".join([piece async for piece in reply.body])).splitlines()]


def target(where: str) -> Target:
    """`pools/us-east`, `services/shop/api/status`: kind, or resource id, namespace if it has one, name, part."""
    plural, *rest = where.split("/")
    results = {item.resource.plural: item for item in reversed(list(CATALOG))}
    served = CATALOG.by_id(plural) if "." in plural else results.get(f"lattice{plural}") or results[plural]
    namespace = rest.pop(0) if served.resource.namespaced and rest else ""
    return Target(served, namespace, *rest)


def pool_manifest(name: str = "us-east", **spec: Any) -> dict[str, Any]:
    whole = {"provider": {"type": "aws", "region": "us-east-1"}, **spec}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticePool",
        "metadata": {"name": name},
        "spec": whole,
    }


def service_manifest(name: str = "api", **spec: Any) -> dict[str, Any]:
    whole = {"containers": {"main": {"image": "api:v1"}}, **spec}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": name},
        "spec": whole,
    }


async def api_world() -> ApiWorld:
    world = ApiWorld()
    await bootstrap(world.api)
    return world
