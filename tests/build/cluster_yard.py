"""One cluster controller at work on a fake provider, and the agents' side played by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from build.offices import Scene, a, acting
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

NANO = a(
    LatticeNodeClass,
    "nano",
    spec={
        "providers": {"local": {}},
        "resources": {"cores": 1, "memoryGi": 1},
        "costPerHour": {"local": 0.01},
    },
)
POOL = a(
    LatticePool,
    "north",
    spec={
        "provider": {"type": "local", "region": "north"},
        "budget": {"maxMonthlyCost": 100},
        "nodeClasses": ["nano"],
    },
)


def a_cluster(nodes: int = 1, **spec: Any) -> LatticeCluster:
    return a(
        LatticeCluster,
        "north-001",
        spec={"pool": "north", "provider": "local", "region": "north", "nodes": {"nano": nodes}, **spec},
    )


@dataclass
class Yard:
    """One cluster controller at work, its provider, and the agents' side played by hand."""

    scene: Scene = field(default_factory=Scene)
    made: list[MachineSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = FakeProvider(self.scene.clock, "local", on_created=self.made.append)

    def mint(self, node: LatticeNode) -> tuple[str, Put]:
        uid = self.scene.uid()
        token = JoinToken(uid[:12], "0" * 32, "0" * 64)
        grant = Grant(expires="2100-01-01T00:00:00Z", node=node.metadata.name, uid=node.metadata.uid)
        secret = msgspec.convert(token_secret(token, grant), Secret)
        return f"token-of-{node.metadata.name}", put_new(secret, uid=uid, now="2026-01-01T00:00:00Z")

    async def controller(self) -> ClusterController:
        return ClusterController(await self.scene.office(), {"local": self.provider}, self.mint)

    async def joined(self, name: str) -> None:
        node = await self.node(name)
        assert node is not None
        ready = [{"type": "Ready", "status": "True"}]
        await self.scene.put(
            msgspec.structs.replace(
                node, status=msgspec.convert({"agentVersion": "1", "conditions": ready}, type(node.status))
            )
        )

    async def node(self, name: str = "north-001-nano-1") -> LatticeNode | None:
        return await self.scene.get(LatticeNode, name)

    async def cluster(self) -> LatticeCluster | None:
        return await self.scene.get(LatticeCluster, "north-001")

    async def phase(self) -> str:
        cluster = await self.cluster()
        return cluster.status.phase if cluster else "gone"

    async def wants(self, nodes: int) -> None:
        await self.scene.put(a_cluster(nodes))
        await self.scene.clock.advance(0.1)

    async def pays(self, count: int) -> None:
        lot = Lot(node_class="nano", count=count, micros=10_000)
        charge = Charge((Account(kind="LatticePool", name="north"),), "north-001", lot)
        books = LedgerCommitter(self.scene.store, self.scene.clock, new_uid=self.scene.uid)
        marker = a(LatticePool, self.scene.uid()[:8], spec={"provider": {"type": "none"}})
        await books.commit_with_charges(
            Payment([put_new(marker, uid=self.scene.uid(), now="2026-01-01T00:00:00Z")], charges=[charge])
        )

    async def paid(self) -> int:
        ledger = await self.scene.get(LatticeLedger, "pool.north")
        return 0 if ledger is None else sum(lot.count for lot in ledger.status.machines.get("north-001", ()))


@asynccontextmanager
async def running_cluster_controller() -> AsyncIterator[tuple[Yard, ClusterController]]:
    """A cluster controller with its loop, until the block ends."""
    yard = Yard()
    await yard.scene.put(NANO, POOL)
    controller = await yard.controller()
    async with acting(controller.context, controller.loop()):
        yield yard, controller


async def silent(yard: Yard, name: str) -> None:
    node = await yard.node(name)
    assert node is not None
    said = [{"type": "Ready", "status": "False", "reason": "HeartbeatMissed"}]
    await yard.scene.put(
        msgspec.structs.replace(
            node, status=msgspec.convert({"agentVersion": "1", "conditions": said}, type(node.status))
        )
    )


def a_resident(name: str, status: dict[str, Any] | None = None, **spec: Any) -> LatticeWorkload:
    """Bound to the first node, unless its status says otherwise."""
    spec = {"containers": {"main": {"command": ["true"]}}, "cluster": "north-001", **spec}
    return a(
        LatticeWorkload,
        name,
        "default",
        spec=spec,
        status=status or {"binding": {"node": "north-001-nano-1"}},
    )
