"""A cluster controller on a fake provider; the test plays the agents."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from build.control_plane import ControlPlane, running_loops
from build.objects import make_object
from lattice.controllers.runtime.object_writes import put_new
from lattice.controllers.services.clusters import ClusterController
from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Secret
from lattice.kinds.join_token import Grant, JoinToken, token_secret
from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.ledger_math import Charge
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import MachineSpec
from lattice.store.protocol import Put

NANO = make_object(
    LatticeNodeClass,
    "nano",
    spec={
        "providers": {"local": {}},
        "resources": {"cores": 1, "memoryGi": 1},
        "costPerHour": {"local": 0.01},
    },
)
POOL = make_object(
    LatticePool,
    "north",
    spec={
        "provider": {"type": "local", "region": "north"},
        "budget": {"maxMonthlyCost": 100},
        "nodeClasses": ["nano"],
    },
)


def a_cluster(nodes: int = 1, pool: str = "north", provider: str = "local", **spec: Any) -> LatticeCluster:
    """The first cluster of the pool, with so many nano nodes."""
    spec = {"pool": pool, "provider": provider, "region": "north", "nodes": {"nano": nodes}, **spec}
    return make_object(LatticeCluster, f"{pool}-001", spec=spec)


@dataclass
class ClusterWorld:
    """A cluster controller, its provider, and the agents' side played by the test."""

    plane: ControlPlane = field(default_factory=ControlPlane)
    created: list[MachineSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = FakeProvider(self.plane.clock, "local", on_created=self.created.append)

    def mint(self, node: LatticeNode) -> tuple[str, Put]:
        uid = self.plane.uid()
        token = JoinToken(uid[:12], "0" * 32, "0" * 64)
        grant = Grant(expires="2100-01-01T00:00:00Z", node=node.metadata.name, uid=node.metadata.uid)
        secret = msgspec.convert(token_secret(token, grant), Secret)
        return f"token-of-{node.metadata.name}", put_new(secret, uid=uid, now="2026-01-01T00:00:00Z")

    async def controller(self) -> ClusterController:
        return ClusterController(await self.plane.new_term(), {"local": self.provider}, self.mint)

    async def join(self, name: str) -> None:
        node = await self.node(name)
        assert node is not None
        ready = [{"type": "Ready", "status": "True"}]
        await self.plane.put(
            msgspec.structs.replace(
                node, status=msgspec.convert({"agentVersion": "1", "conditions": ready}, type(node.status))
            )
        )

    async def node(self, name: str = "north-001-nano-1") -> LatticeNode | None:
        return await self.plane.get(LatticeNode, name)

    async def cluster(self) -> LatticeCluster | None:
        return await self.plane.get(LatticeCluster, "north-001")

    async def phase(self) -> str:
        cluster = await self.cluster()
        return cluster.status.phase if cluster else "gone"

    async def scale(self, nodes: int) -> None:
        await self.plane.put(a_cluster(nodes))
        await self.plane.clock.advance(0.1)

    async def pay(self, count: int) -> None:
        lot = Lot(node_class="nano", count=count, micros=10_000)
        charge = Charge((Account(kind="LatticePool", name="north"),), "north-001", lot)
        books = LedgerCommitter(self.plane.store, self.plane.clock, new_uid=self.plane.uid)
        marker = make_object(LatticePool, self.plane.uid()[:8], spec={"provider": {"type": "none"}})
        await books.commit_with_charges(
            Payment([put_new(marker, uid=self.plane.uid(), now="2026-01-01T00:00:00Z")], charges=[charge])
        )

    async def paid(self) -> int:
        ledger = await self.plane.get(LatticeLedger, "pool.north")
        return 0 if ledger is None else sum(lot.count for lot in ledger.status.machines.get("north-001", ()))


@asynccontextmanager
async def running_cluster_controller() -> AsyncIterator[tuple[ClusterWorld, ClusterController]]:
    """A running cluster controller, until the block ends."""
    world = ClusterWorld()
    await world.plane.put(NANO, POOL)
    controller = await world.controller()
    async with running_loops(controller.context, controller.loop()):
        yield world, controller


async def miss_heartbeats(world: ClusterWorld, name: str) -> None:
    node = await world.node(name)
    assert node is not None
    conditions = [{"type": "Ready", "status": "False", "reason": "HeartbeatMissed"}]
    await world.plane.put(
        msgspec.structs.replace(
            node, status=msgspec.convert({"agentVersion": "1", "conditions": conditions}, type(node.status))
        )
    )


def a_bound_workload(name: str, status: dict[str, Any] | None = None, **spec: Any) -> LatticeWorkload:
    """A workload bound to the first node, unless `status` is given."""
    spec = {"containers": {"main": {"command": ["true"]}}, "cluster": "north-001", **spec}
    return make_object(
        LatticeWorkload,
        name,
        "default",
        spec=spec,
        status=status or {"binding": {"node": "north-001-nano-1"}},
    )
