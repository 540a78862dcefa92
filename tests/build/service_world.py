"""The placement and replica controllers on a store, and stand-ins for clusters, scheduler and agents."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from build.virtual import VirtualClock
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import put_new, with_spec, with_status
from lattice.controllers.services.placement import FLEET_KEY, PlacementController
from lattice.controllers.services.replicas import ReplicaController
from lattice.errors import Conflict
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, Kind, Metadata
from lattice.kinds.node import NODE_CLASS_LABEL, LatticeNode, NodeSpec, NodeStatus
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.presence import Presence
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Entry, Key, Put

NOW = "2026-01-01T00:00:00Z"


class RunningFleet:
    """The controllers of one term, with methods that do the work of users, clusters, scheduler and agents."""

    def __init__(self, store: Any, clock: VirtualClock, context: ControllerContext, **services: Any) -> None:
        self.store, self.clock, self.context = store, clock, context
        # What machines of a class report, by class; a class that is absent reports nothing.
        self.reports: dict[str, dict[str, int]] = {}
        self.services, self.replicas = PlacementController(context, **services), ReplicaController(context)

    async def wait_for_caches(self) -> None:
        revision = await self.store.revision()
        for copy in self.context.caches:
            await copy.wait_for(revision)

    async def apply(self, *objects: Kind) -> None:
        """Create objects, or write another spec, as a user does."""
        for item in objects:
            key = Key(item.resource.id, item.metadata.namespace, item.metadata.name)
            entry = await self.store.get(key)
            if entry is None:
                number = next(_numbers)
                await self.store.commit([put_new(item, uid=f"{item.metadata.name}-{number}", now=NOW)])
            else:
                await self.store.commit([with_spec(entry, item.spec)])  # type: ignore[attr-defined]
        await self.wait_for_caches()

    async def remove(self, kind: type[Kind], name: str, namespace: str = "") -> None:
        key = Key(kind.resource.id, namespace, name)
        entry = await self.store.get(key)
        assert entry is not None
        await self.store.commit([Delete(key, entry.revision)])
        await self.wait_for_caches()

    async def converge(self, *, times: int = 20) -> None:
        """Reconcile in the order of both loops until neither writes; a conflict is retried."""
        for _ in range(times):
            revision_before = await self.store.revision()
            try:
                await self.services.reconcile(FLEET_KEY)
                for item in sorted(
                    self.all(LatticeService), key=lambda service: -service.spec.priority
                ):  # in the order in which their placements are written
                    await self.replicas.reconcile(f"default/{item.metadata.name}")
            except Conflict:
                await self.wait_for_caches()
                continue
            await self.wait_for_caches()
            if await self.store.revision() == revision_before:
                return
        raise AssertionError("never done")

    def all(self, kind: type[Any]) -> list[Any]:
        return sorted(
            self.context.cache(kind).objects(), key=lambda item: (item.metadata.namespace, item.metadata.name)
        )

    def service(self, name: str = "api") -> LatticeService:
        result = self.context.cache(LatticeService).get(f"default/{name}")
        assert result is not None
        return result

    def condition(self, kind: str, name: str = "api") -> Condition | None:
        return next(
            (condition for condition in self.service(name).status.conditions if condition.type == kind), None
        )

    def workloads(self, service: str = "api") -> list[LatticeWorkload]:
        return sorted(
            self.context.cache(LatticeWorkload).by_index("service", f"default/{service}"),
            key=lambda item: item.spec.slot,
        )

    def live(self, service: str = "api") -> list[LatticeWorkload]:
        return [replica for replica in self.workloads(service) if not replica.metadata.deletion_timestamp]

    def placed(self, name: str = "api") -> dict[tuple[str, str], int]:
        return {
            (placement.cluster, placement.node): placement.replicas or 0
            for placement in self.service(name).status.placements
        }

    def machines(self) -> dict[str, dict[str, int]]:
        return {cluster.metadata.name: dict(cluster.spec.nodes) for cluster in self.all(LatticeCluster)}

    async def events(self, reason: str = "") -> list[Event]:
        page = await self.store.list(Event.resource.id)
        results = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        return [item for item in results if reason in ("", item.reason)]

    def paid(self) -> Counter[tuple[str, str]]:
        """Machines paid for by cluster and class, according to the first ledger that charges for each
        cluster."""
        result: Counter[tuple[str, str]] = Counter()
        for ledger in self.all(LatticeLedger):
            for cluster, lots in ledger.status.machines.items():
                for lot in lots:
                    result[cluster, lot.node_class] = max(result[cluster, lot.node_class], lot.count)
        return result

    async def make_nodes(self) -> None:
        """Create one ready node for each machine that a cluster wants."""
        for cluster in self.all(LatticeCluster):
            for kind, count in cluster.spec.nodes.items():
                for number in range(1, count + 1):
                    await self._make_node(cluster, kind, f"{cluster.metadata.name}-{kind}-{number}")
        await self.wait_for_caches()

    async def _make_node(self, cluster: LatticeCluster, kind: str, name: str) -> None:
        if self.context.cache(LatticeNode).get(f"/{name}") is not None:
            return
        resource = LatticeNode.resource
        node = LatticeNode(
            api_version=resource.api_version,
            kind=resource.kind,
            metadata=Metadata(name=name, labels={NODE_CLASS_LABEL: kind}),
            spec=NodeSpec(cluster=cluster.metadata.name, pool=cluster.spec.pool, node_class=kind),
            status=NodeStatus(
                conditions=(Condition(type="Ready", status="True", reason="Heard"),),
                allocatable=self.reports.get(kind, {}),
            ),
        )
        await self.store.commit([put_new(node, uid=name, now=NOW)])

    async def lose_node(self, name: str) -> None:
        copy = self.context.cache(LatticeNode)
        entry, node = copy.entry(f"/{name}"), copy.get(f"/{name}")
        assert entry is not None
        assert node is not None
        conditions = (Condition(type="Ready", status="False", reason="NodeLost"),)
        await self.store.commit(
            [with_status(entry, msgspec.structs.replace(node.status, conditions=conditions))]
        )
        await self.wait_for_caches()

    async def change(self, workload: LatticeWorkload, **fields: Any) -> None:
        path = f"{workload.metadata.namespace}/{workload.metadata.name}"
        entry, now = (
            self.context.cache(LatticeWorkload).entry(path),
            self.context.cache(LatticeWorkload).get(path),
        )
        assert entry is not None
        assert now is not None
        await self.store.commit([with_status(entry, msgspec.structs.replace(now.status, **fields))])
        await self.wait_for_caches()

    async def bind(self, *, per_node: int = 10**9) -> None:
        """Bind each workload to the emptiest node of its cluster and class; it is ready at once."""
        await self.make_nodes()
        held = Counter(
            replica.status.binding.node for replica in self.all(LatticeWorkload) if replica.status.binding
        )
        for workload in self.all(LatticeWorkload):
            if workload.status.binding or workload.metadata.deletion_timestamp:
                continue
            kind = workload.spec.constraints.node_selector[NODE_CLASS_LABEL]
            nodes = [
                n.metadata.name
                for n in self.all(LatticeNode)
                if (n.spec.cluster, n.spec.node_class) == (workload.spec.cluster, kind)
            ]
            free = [name for name in nodes if held[name] < per_node]
            if free:
                node = min(free, key=lambda name: (held[name], name))
                held[node] += 1
                await self.change(
                    workload, binding=Binding(node=node), ready=True, actual_state="Running", conditions=()
                )

    async def finish_deletions(self) -> None:
        """Remove terminating workloads and workloads without an owner."""
        uids = {service.metadata.uid for service in self.all(LatticeService)}
        for workload in self.all(LatticeWorkload):
            if workload.metadata.deletion_timestamp or any(
                owner.uid not in uids for owner in workload.metadata.owner_references
            ):
                await self.remove(LatticeWorkload, workload.metadata.name, workload.metadata.namespace)

    async def mark_unschedulable(self, workload: LatticeWorkload) -> None:
        """No node fits the workload from now on."""
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = Condition(type="Scheduled", status="False", reason="NoNodeFits", last_transition_time=now)
        await self.change(workload, conditions=(condition,))


_numbers = itertools.count(1)


@asynccontextmanager
async def running_fleet(
    *objects: Kind, store: Any = None, clock: VirtualClock | None = None, **services: Any
) -> AsyncIterator[RunningFleet]:
    clock = clock or VirtualClock()
    store = store or MemoryStore(clock)
    term = await store.campaign("controllers", "me", 15.0)
    assert term is not None
    uids = (f"uid-{number:08}" for number in itertools.count(1))
    context = ControllerContext(
        store, clock, term, random.Random(7), Presence(clock), lambda: f"{next(uids)}-{term.number}"
    )
    feeds = [asyncio.create_task(copy.run()) for copy in context.caches]
    try:
        fleet = RunningFleet(store, clock, context, **services)
        await fleet.wait_for_caches()
        await fleet.apply(*objects)
        yield fleet
    finally:
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)


async def contents(store: Any, *kinds: type[Kind]) -> dict[str, Any]:
    """The stored objects without uids and times, which differ between runs."""
    results: dict[str, Any] = {}
    for kind in kinds:
        page = await store.list(kind.resource.id)
        for entry in page.entries:
            results[str(entry.key)] = _plain(entry)
    return results


def _plain(entry: Entry) -> Any:
    value = msgspec.json.decode(entry.value)
    metadata = {
        name: item
        for name, item in value["metadata"].items()
        if name in ("name", "namespace", "labels", "finalizers")
    }
    return {"metadata": metadata, "spec": value.get("spec"), "status": value.get("status")}


def puts(objects: Iterable[Kind]) -> list[Put]:
    return [put_new(obj, uid=obj.metadata.name, now=NOW) for obj in objects]
