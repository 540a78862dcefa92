"""A store with services in it, the controllers that place them, and hands that do what clusters, scheduling and agents would."""

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
from lattice.controllers.services.replicas import ReplicaController
from lattice.controllers.services.services import FLEET_KEY, PlacementController
from lattice.errors import Conflict
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, Kind, Metadata
from lattice.kinds.node import LatticeNode, NodeSpec, NodeStatus
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.lifecycle.replica_template import NODE_CLASS_LABEL
from lattice.presence import Presence
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Entry, Key, Put

NOW = "2026-01-01T00:00:00Z"


class Town:
    """Everything of one term, and what others would do in it."""

    def __init__(self, store: Any, clock: VirtualClock, office: ControllerContext, **services: Any) -> None:
        self.store, self.clock, self.office = store, clock, office
        self.services, self.replicas = PlacementController(office, **services), ReplicaController(office)

    async def caught_up(self) -> None:
        revision = await self.store.revision()
        for copy in self.office.caches:
            await copy.wait_for(revision)

    async def apply(self, *objects: Kind) -> None:
        """New, or with another spec: what a user does."""
        for each in objects:
            key = Key(each.resource.id, each.metadata.namespace, each.metadata.name)
            entry = await self.store.get(key)
            if entry is None:
                number = next(_numbers)
                await self.store.commit([put_new(each, uid=f"{each.metadata.name}-{number}", now=NOW)])
            else:
                await self.store.commit([with_spec(entry, each.spec)])  # type: ignore[attr-defined]
        await self.caught_up()

    async def remove(self, kind: type[Kind], name: str, namespace: str = "") -> None:
        key = Key(kind.resource.id, namespace, name)
        entry = await self.store.get(key)
        assert entry is not None
        await self.store.commit([Delete(key, entry.revision)])
        await self.caught_up()

    async def look(self, *, times: int = 20) -> None:
        """As both loops would, until neither writes any more; a clash comes round again."""
        for _ in range(times):
            before = await self.store.revision()
            try:
                await self.services.reconcile(FLEET_KEY)
                for each in sorted(
                    self.all(LatticeService), key=lambda each: -each.spec.priority
                ):  # as their places are written
                    await self.replicas.reconcile(f"default/{each.metadata.name}")
            except Conflict:
                await self.caught_up()
                continue
            await self.caught_up()
            if await self.store.revision() == before:
                return
        raise AssertionError("never done")

    def all(self, kind: type[Any]) -> list[Any]:
        return sorted(
            self.office.cache(kind).objects(), key=lambda each: (each.metadata.namespace, each.metadata.name)
        )

    def service(self, name: str = "api") -> LatticeService:
        found = self.office.cache(LatticeService).get(f"default/{name}")
        assert found is not None
        return found

    def condition(self, kind: str, name: str = "api") -> Condition | None:
        return next((each for each in self.service(name).status.conditions if each.type == kind), None)

    def workloads(self, service: str = "api") -> list[LatticeWorkload]:
        return sorted(
            self.office.cache(LatticeWorkload).by_index("service", f"default/{service}"),
            key=lambda each: each.spec.slot,
        )

    def live(self, service: str = "api") -> list[LatticeWorkload]:
        return [each for each in self.workloads(service) if not each.metadata.deletion_timestamp]

    def placed(self, name: str = "api") -> dict[tuple[str, str], int]:
        return {
            (each.cluster, each.node): each.replicas or 0 for each in self.service(name).status.placements
        }

    def machines(self) -> dict[str, dict[str, int]]:
        return {each.metadata.name: dict(each.spec.nodes) for each in self.all(LatticeCluster)}

    async def events(self, reason: str = "") -> list[Event]:
        page = await self.store.list(Event.resource.id)
        found = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        return [each for each in found if reason in ("", each.reason)]

    def paid(self) -> Counter[tuple[str, str]]:
        """Of the first ledger that pays for each cluster."""
        found: Counter[tuple[str, str]] = Counter()
        for ledger in self.all(LatticeLedger):
            for cluster, lots in ledger.status.machines.items():
                for lot in lots:
                    found[cluster, lot.node_class] = max(found[cluster, lot.node_class], lot.count)
        return found

    # --- what others do ---

    async def make_nodes(self) -> None:
        """One for each machine that is wanted, joined and ready."""
        for cluster in self.all(LatticeCluster):
            for kind, count in cluster.spec.nodes.items():
                for number in range(1, count + 1):
                    await self._make_node(cluster, kind, f"{cluster.metadata.name}-{kind}-{number}")
        await self.caught_up()

    async def _make_node(self, cluster: LatticeCluster, kind: str, name: str) -> None:
        if self.office.cache(LatticeNode).get(f"/{name}") is not None:
            return
        resource = LatticeNode.resource
        node = LatticeNode(
            api_version=resource.api_version,
            kind=resource.kind,
            metadata=Metadata(name=name, labels={NODE_CLASS_LABEL: kind}),
            spec=NodeSpec(cluster=cluster.metadata.name, pool=cluster.spec.pool, node_class=kind),
            status=NodeStatus(conditions=(Condition(type="Ready", status="True", reason="Heard"),)),
        )
        await self.store.commit([put_new(node, uid=name, now=NOW)])

    async def lose(self, name: str) -> None:
        copy = self.office.cache(LatticeNode)
        entry, node = copy.entry(f"/{name}"), copy.get(f"/{name}")
        assert entry is not None
        assert node is not None
        said = (Condition(type="Ready", status="False", reason="NodeLost"),)
        await self.store.commit([with_status(entry, msgspec.structs.replace(node.status, conditions=said))])
        await self.caught_up()

    async def change(self, workload: LatticeWorkload, **fields: Any) -> None:
        path = f"{workload.metadata.namespace}/{workload.metadata.name}"
        entry, now = (
            self.office.cache(LatticeWorkload).entry(path),
            self.office.cache(LatticeWorkload).get(path),
        )
        assert entry is not None
        assert now is not None
        await self.store.commit([with_status(entry, msgspec.structs.replace(now.status, **fields))])
        await self.caught_up()

    async def bind(self, *, per_node: int = 10**9) -> None:
        """Each to the emptiest node of its cluster and class, and ready at once."""
        await self.make_nodes()
        held = Counter(each.status.binding.node for each in self.all(LatticeWorkload) if each.status.binding)
        for each in self.all(LatticeWorkload):
            if each.status.binding or each.metadata.deletion_timestamp:
                continue
            kind = each.spec.constraints.node_selector[NODE_CLASS_LABEL]
            nodes = [
                n.metadata.name
                for n in self.all(LatticeNode)
                if (n.spec.cluster, n.spec.node_class) == (each.spec.cluster, kind)
            ]
            free = [name for name in nodes if held[name] < per_node]
            if free:
                node = min(free, key=lambda name: (held[name], name))
                held[node] += 1
                await self.change(
                    each, binding=Binding(node=node), ready=True, actual_state="Running", conditions=()
                )

    async def finish(self) -> None:
        """What is to go is gone, as is what nobody owns any more, and nodes beyond what is wanted."""
        uids = {each.metadata.uid for each in self.all(LatticeService)}
        for each in self.all(LatticeWorkload):
            if each.metadata.deletion_timestamp or any(
                owner.uid not in uids for owner in each.metadata.owner_references
            ):
                await self.remove(LatticeWorkload, each.metadata.name, each.metadata.namespace)

    async def stick(self, workload: LatticeWorkload) -> None:
        """No node takes it, from now on."""
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        said = Condition(type="Scheduled", status="False", reason="NoNodeFits", last_transition_time=now)
        await self.change(workload, conditions=(said,))


_numbers = itertools.count(1)


@asynccontextmanager
async def a_town(
    *objects: Kind, store: Any = None, clock: VirtualClock | None = None, **services: Any
) -> AsyncIterator[Town]:
    clock = clock or VirtualClock()
    store = store or MemoryStore(clock)
    term = await store.campaign("controllers", "me", 15.0)
    assert term is not None
    uids = (f"uid-{number:08}" for number in itertools.count(1))
    office = ControllerContext(
        store, clock, term, random.Random(7), Presence(clock), lambda: f"{next(uids)}-{term.number}"
    )
    feeds = [asyncio.create_task(copy.run()) for copy in office.caches]
    try:
        town = Town(store, clock, office, **services)
        await town.caught_up()
        await town.apply(*objects)
        yield town
    finally:
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)


async def contents(store: Any, *kinds: type[Kind]) -> dict[str, Any]:
    """What is stored, without what differs from one run to another: uids and times."""
    found: dict[str, Any] = {}
    for kind in kinds:
        page = await store.list(kind.resource.id)
        for entry in page.entries:
            found[str(entry.key)] = _plain(entry)
    return found


def _plain(entry: Entry) -> Any:
    value = msgspec.json.decode(entry.value)
    metadata = {
        name: each
        for name, each in value["metadata"].items()
        if name in ("name", "namespace", "labels", "finalizers")
    }
    return {"metadata": metadata, "spec": value.get("spec"), "status": value.get("status")}


def puts(objects: Iterable[Kind]) -> list[Put]:
    return [put_new(each, uid=each.metadata.name, now=NOW) for each in objects]
