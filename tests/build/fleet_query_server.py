"""A server that answers fleet queries without HTTP: a store in memory and a real query process."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lattice.app.bootstrap import bootstrap
from lattice.clock import SystemClock
from lattice.kinds import KINDS
from lattice.kinds.meta.json_body import encode
from lattice.placement.feed.placement_input import PLACEMENT_KINDS
from lattice.placement.model.world import World
from lattice.server.fleet_queries.apply_plan import apply_plan
from lattice.server.fleet_queries.dry_run import target_of
from lattice.server.fleet_queries.query_schema import APPLY_QUERY
from lattice.server.fleet_queries.service import FleetQueryService, QueryProcess
from lattice.server.requests.call import Call, User
from lattice.server.requests.catalog import Catalog
from lattice.server.resources import verbs
from lattice.server.resources.api import Api
from lattice.store.memory import MemoryStore

ADMIN, VIEWER = User("ann", frozenset({"lattice:admins"})), User("vic", frozenset({"lattice:viewers"}))
STRANGER = User("eve", frozenset({"system:authenticated"}))
CATALOG = Catalog(KINDS)
SEED_000 = Path(__file__).parents[2] / "examples" / "worlds" / "seed-000"
DECODERS = {kind.resource.id: msgspec.json.Decoder(kind) for kind in PLACEMENT_KINDS}


def manifests() -> list[Any]:
    return [
        document
        for path in sorted(SEED_000.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def a_service_manifest(name: str = "web", **spec: Any) -> dict[str, Any]:
    body = {
        "containers": {"main": {"image": "nginx"}},
        "placement": {"resources": {"cores": 1, "memoryGi": 1}},
        **spec,
    }
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": name},
        "spec": body,
    }


class Server:
    """The parts of a server, without HTTP."""

    def __init__(self, limit: float) -> None:
        clock, uids = SystemClock(), itertools.count(1)
        self.store = MemoryStore(clock)
        self.api = Api(self.store, CATALOG, clock, lambda: f"uid-{next(uids)}", lambda: "x")
        self.fleet = FleetQueryService(self.api, QueryProcess(), limit)

    async def apply(self, value: dict[str, Any]) -> None:
        query = {"fieldManager": "lattice"}
        await verbs.apply(
            self.api,
            Call(
                "PATCH",
                target_of(CATALOG, value, "default"),
                ADMIN,
                query,
                encode(value),
                verbs.APPLY_PATCH_TYPE,
            ),
        )

    async def ask(self, ask: str, user: User = VIEWER, **question: Any) -> tuple[int, Any]:
        self.fleet.admit(user, ask)
        body = encode(question)
        reply = await (
            apply_plan(self.fleet, user, body) if ask == APPLY_QUERY else self.fleet.answer(user, ask, body)
        )
        output = (
            reply.body if isinstance(reply.body, bytes) else b"".join([piece async for piece in reply.body])
        )
        return reply.status, json.loads(output)

    async def begun(self, ask: str, **question: Any) -> "asyncio.Task[tuple[int, Any]]":
        """A query that was sent to the stopped process."""
        pid = self.fleet.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        task = asyncio.create_task(self.ask(ask, ADMIN, **question))
        await settle_queries()
        return task

    async def world(self) -> World:
        results = [(await self.store.list(decoder)).entries for decoder in DECODERS]
        world = World.of(
            DECODERS[entry.key.resource].decode(entry.value) for entries in results for entry in entries
        )
        return replace(world, now=datetime.now(UTC))


async def settle_queries() -> None:
    """Run the event loop until every task waits for the query process."""
    for _ in range(200):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def a_server(limit: float = 30) -> AsyncIterator[Server]:
    """A server whose store holds the world of seed 000."""
    server = Server(limit)
    await bootstrap(server.api)
    for manifest in manifests():
        await server.apply(manifest)
    try:
        yield server
    finally:
        await server.fleet.close()


def is_alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()
