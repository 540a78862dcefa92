"""What a data center reserves: bound by the real scheduler, others never come onto machines that are kept, and those they are kept for find them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from placement.worlds import a_service, a_static
from scheduling_world import Acting, acting
from service_world import NOW, Town, a_town, play
from store.virtual import VirtualClock

from lattice.controllers.clusters import node_object
from lattice.controllers.record import created
from lattice.kinds.base import Condition, Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

PROD = {"env": "prod"}
MACHINE = {"cpu": 4000, "memory": 16 << 30}


def a_site(nodes: int = 3, reserved: int = 1) -> Kind:
    """A data center of machines with 4 cores; so many are for production."""
    return a_static(
        "dc", nodes, 4 * nodes, f"{16 * nodes}Gi", reservation={"reserved": {"nodes": reserved}, "reservedFor": [{"labelSelector": PROD}]}
    )


@dataclass
class Site:
    town: Town
    scheduler: Acting

    async def settle(self) -> None:
        """Everybody looks, machines come and go, and what is bound runs, until there is nothing to do."""
        for _ in range(12):
            before = await self.town.store.revision()
            await self.town.look()
            await self._make_nodes()
            await self.scheduler.look()
            await self.town.caught_up()
            for each in self.town.all(LatticeWorkload):
                if each.status.binding and not each.status.ready:
                    await self.town.change(each, ready=True, actual_state="Running")
            await self.town.finish()
            if await self.town.store.revision() == before:
                return
        raise AssertionError("never done")

    async def _make_nodes(self) -> None:
        for cluster in self.town.all(LatticeCluster):
            for kind, count in cluster.spec.nodes.items():
                names = [f"{cluster.metadata.name}-{kind}-{number}" for number in range(1, count + 1)]
                known = {each.metadata.name for each in self.town.all(LatticeNode)}
                for name in [each for each in names if each not in known]:
                    await self.town.store.commit([created(a_machine(cluster, name, kind), uid=name, now=NOW)])
        wanted = {
            f"{each.metadata.name}-{kind}-{number}"
            for each in self.town.all(LatticeCluster)
            for kind, count in each.spec.nodes.items()
            for number in range(1, count + 1)
        }
        for node in self.town.all(LatticeNode):
            if node.metadata.name not in wanted and not self.on(node.metadata.name):
                await self.town.remove(LatticeNode, node.metadata.name)
        await self.town.caught_up()

    async def apply(self, *objects: Kind) -> None:
        await self.town.apply(*objects)
        await self.settle()

    def on(self, node: str) -> list[LatticeWorkload]:
        return [each for each in self.town.all(LatticeWorkload) if each.status.binding and each.status.binding.node == node]

    def running(self, service: str) -> int:
        return sum(1 for each in self.town.live(service) if each.status.binding)

    def machines_of_others(self) -> int:
        """With anybody on them whom the reserve is not for."""
        found = [self.on(each.metadata.name) for each in self.town.all(LatticeNode)]
        return sum(any((each.metadata.labels or {}).get("env") != "prod" for each in some) for some in found)


def a_machine(cluster: LatticeCluster, name: str, kind: str) -> LatticeNode:
    node = node_object(cluster, name, None, kind)
    status = msgspec.structs.replace(
        node.status, allocatable=dict(MACHINE), conditions=(Condition(type="Ready", status="True", reason="Heard"),)
    )
    return msgspec.structs.replace(node, status=status)


@asynccontextmanager
async def a_place(*objects: Kind) -> AsyncIterator[Site]:
    clock = VirtualClock()
    async with a_town(*objects, clock=clock) as town, acting(town.store, clock, role="scheduling") as scheduler:
        site = Site(town, scheduler)
        await site.settle()
        yield site


def played(script: Any, *objects: Kind) -> None:
    async def whole() -> None:
        async with a_place(*objects) as site:
            await script(site)

    play(whole)


def crit(replicas: int, cores: float = 2, name: str = "crit") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels=PROD)


def web(replicas: int, cores: float = 1, name: str = "web") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels={"env": "dev"})


def test_others_are_not_spread_over_machines_that_are_kept() -> None:
    """Ten cores of twelve are asked for. Two thirds of them are reserved for nobody: two machines, whoever is bound first."""

    async def script(site: Site) -> None:
        assert site.machines_of_others() <= 2
        await site.apply(crit(4))
        assert site.running("crit") == 4

    played(script, a_site(), crit(3), web(4))


def test_others_get_no_more_than_is_not_reserved() -> None:
    async def script(site: Site) -> None:
        await site.apply(crit(1))
        await site.apply(web(12))
        assert site.machines_of_others() <= 2
        assert site.running("web") == 8
        await site.apply(crit(2))
        assert site.running("crit") == 2

    played(script, a_site(), crit(3), web(4))
