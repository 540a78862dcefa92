"""Cluster -> machines: asks providers for what is wanted, gives up what is not, and says what is really there.

A node's object is written before its machine is asked for, and goes after the machine is confirmed to be gone: a crash in between
leaves nothing that the next look does not see. A phase changes on what was observed, never because time has passed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.services.ledger_commit import Ledgers, Payment
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import (
    conditioned,
    created,
    owned_by,
    with_metadata,
    with_status,
)
from lattice.errors import Conflict, Fenced, LatticeError, NotFound, Unavailable
from lattice.kinds.meta.base import Metadata
from lattice.kinds.cluster import RESERVE_LABEL, ClusterStatus, LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.meta.object_rules import doomed
from lattice.kinds.node import LatticeNode, NodeSpec
from lattice.kinds.node_class import LatticeNodeClass, Size
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.status.cluster_status import REFUSED, REJECTED, UNAVAILABLE, UNREACHABLE, Trouble, said
from lattice.lifecycle.machines import Machines, NodeSeen, Steps, leaves_by_itself, paid_back, steps
from lattice.placement.inputs.ledger_math import Charge, counting
from lattice.placement.inputs.price_book import PriceBook
from lattice.lifecycle.replica_state import silence
from lattice.placement.model.supply import cloud_account, compile_supply, pool_account, static_account
from lattice.providers.protocol import Found, Machine, Provider, Refused, Rejected
from lattice.store.cache import Cache
from lattice.store.protocol import Change, Check, Delete, Entry, Put, Write

MACHINE = "lattice.dev/machine"  # finalizer of a node: its machine may still be there
UNDER_WAY = 5.0  # seconds until machines that are on their way are looked for again
ASK_AGAIN = 15.0  # seconds until a provider that refused is asked again
PATIENCE = 600.0  # seconds that a provider may take
Mint = Callable[
    [LatticeNode], tuple[str, Put]
]  # a one-time token for the agent of a node, and what must be stored for it


@dataclass
class Clusters:
    """`providers` by the name that pools call them."""

    office: Office
    providers: Mapping[str, Provider]
    mint: Mint
    endpoint: Callable[[], str] = lambda: ""  # where machines reach the control plane
    resync: float = 30.0
    name: str = "clusters"
    _making: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        office = self.office
        self._clusters, self._nodes = office.copy(LatticeCluster), office.copy(LatticeNode)
        self._workloads, self._ledgers = office.copy(LatticeWorkload), office.copy(LatticeLedger)
        self._classes, self._statics = office.copy(LatticeNodeClass), office.copy(StaticInfrastructure)
        self._services = office.copy(LatticeService)
        self._teller = office.teller("clusters")
        self._books = Ledgers(office.store, office.clock, office.term, office.new_uid)

    def loop(self) -> Loop:
        sources = (
            Source(self._clusters, self._of_cluster),
            Source(self._nodes, self._of_node),
            Source(self._workloads, self._of_workload),
        )
        return Loop(
            self,
            self.office.clock,
            self.office.rng,
            self._everything,
            sources,
            Pace(resync=self.resync, patience=PATIENCE),
        )

    def _everything(self) -> list[str]:
        """Clusters that are gone too, as long as a node remembers them."""
        return sorted(
            {f"/{each.metadata.name}" for each in self._clusters.all()}
            | {f"/{each.spec.cluster}" for each in self._made()}
        )

    def _made(self) -> list[LatticeNode]:
        return [each for each in self._nodes.all() if each.spec.cluster]

    def _of_cluster(self, change: Change) -> Sequence[str]:
        """Not when others say how it is: only what it should be is to be acted upon."""
        if change.value is None or change.previous is None:
            return (change.key.path,)
        return (change.key.path,) if _declared(change.value) != _declared(change.previous.value) else ()

    def _of_node(self, change: Change) -> Sequence[str]:
        """Not when only the number of its workloads, or what it uses, is another: with thousands bound that would be all there is to do."""
        before, after = self._nodes.before, self._nodes.get(change.key.path)
        node = after or before
        if node is None or not node.spec.cluster or (after and before and _gist(after) == _gist(before)):
            return ()
        return (f"/{node.spec.cluster}",)

    def _of_workload(self, change: Change) -> Sequence[str]:
        """Only a node that is leaving waits for its workloads to go."""
        before = self._workloads.before
        binding = before.status.binding if before else None
        node = self._nodes.get(f"/{binding.node}") if binding else None
        return (f"/{node.spec.cluster}",) if node is not None and node.metadata.deletion_timestamp else ()

    async def reconcile(self, key: str) -> Again | None:
        name = key.removeprefix("/")
        cluster, nodes = self._clusters.get(key), self._nodes.by("cluster", name)
        if cluster is None and not nodes:
            return None
        await self._ledgers.wait_for(
            max(self._clusters.revision, self._nodes.revision)
        )  # what is wanted is paid for, what is gone is not
        if cluster is not None:
            await self._relabel(cluster, nodes)
        provider = self.providers.get(cluster.spec.provider if cluster else nodes[0].spec.provider)
        if provider is None:
            words = (
                f"no adapter here makes machines of provider {cluster.spec.provider or 'unnamed'}"
                if cluster
                else ""
            )
            return await self._tell(cluster, [Trouble(UNAVAILABLE, words)]) if cluster else None
        try:
            listed = {each.node: each for each in await provider.list() if each.cluster == name}
        except LatticeError as error:
            return (
                await self._tell(cluster, [Trouble(UNREACHABLE, str(error))]) if cluster else Again(UNDER_WAY)
            )
        found = self._found(name, cluster, nodes, listed)
        todo = steps(name, found)
        troubles = await self._take(cluster, provider, todo, found)
        again = (
            await self._tell(cluster, troubles, found.nodes if todo.is_none else None)
            if cluster
            else Again(UNDER_WAY)
        )
        if cluster is not None and not nodes and not listed and not cluster.spec.wanted_nodes:
            await self._remove_if_unused(cluster)
        return again

    async def _relabel(self, cluster: LatticeCluster, nodes: Sequence[LatticeNode]) -> None:
        for node in nodes:
            labels, entry = labels_of(node, cluster), self._nodes.entry(f"/{node.metadata.name}")
            if entry is not None and labels != node.metadata.labels:
                write = with_metadata(entry, lambda metadata, labels=labels: metadata | {"labels": labels})  # type: ignore[misc]
                await self._nodes.wait_for(await self.office.commit([write]))

    def _found(
        self,
        name: str,
        cluster: LatticeCluster | None,
        nodes: Sequence[LatticeNode],
        listed: Mapping[str, Found],
    ) -> Machines:
        return Machines(
            wanted=cluster.spec.nodes if cluster and not cluster.metadata.deletion_timestamp else {},
            nodes=[self._seen(each) for each in nodes],
            running={each.node for each in listed.values() if each.state != "Ended"} | self._making,
            known=set(listed),
            paid=self._paid(name) or ({} if cluster and self._is_paid_for(cluster) else None),
            others=Named(self._nodes),
        )

    def _seen(self, node: LatticeNode) -> NodeSeen:
        is_ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        name = node.metadata.name
        here = [*self._workloads.by("node", name), *self._workloads.by("prepared", name)]
        entry = self._nodes.entry(f"/{name}")
        is_known = (
            entry is None or self._workloads.revision >= entry.revision
        )  # else somebody may have come before it was given up
        return NodeSeen(
            node.metadata.name,
            node.spec.node_class,
            has_joined=bool(node.status.agent_version),
            is_ready=is_ready,
            workloads=(len(here) if is_ready else sum(map(leaves_by_itself, here))) + (not is_known),
            is_leaving=bool(node.metadata.deletion_timestamp),
        )

    def _lots(self, cluster: str) -> list[tuple[LatticeLedger, Lot]]:
        return [
            (ledger, lot) for ledger in self._ledgers.all() for lot in ledger.status.machines.get(cluster, ())
        ]

    def _paid(self, cluster: str) -> dict[str, int]:
        """By class. Several budgets may pay for one machine: the least of them counts."""
        by_ledger: dict[str, dict[str, int]] = {}
        for ledger, lot in self._lots(cluster):
            counts = by_ledger.setdefault(ledger.metadata.name, {})
            counts[lot.node_class] = counts.get(lot.node_class, 0) + lot.count
        kinds = {kind for counts in by_ledger.values() for kind in counts}
        return {kind: min(counts.get(kind, 0) for counts in by_ledger.values()) for kind in kinds}

    def _is_paid_for(self, cluster: LatticeCluster) -> bool:
        """Does anybody count what its machines cost? Nobody does in a data center."""
        pool, cloud = cluster.spec.pool, cluster.spec.infrastructure
        accounts = (
            [cloud_account(cloud), cloud_account(cloud, cluster.spec.region)]
            if cloud
            else [pool_account(pool)]
        )
        return pool != cloud and any(self._ledgers.get(f"/{each.ledger}") for each in accounts)

    async def _take(
        self, cluster: LatticeCluster | None, provider: Provider, todo: Steps, found: Machines
    ) -> list[Trouble]:
        """What went wrong with the provider."""
        for name in todo.give_up:
            await self._give_up(name)
        make, troubles = await self._offered(cluster, provider, todo)
        for name, kind in make:
            if cluster is not None:
                await self._make_node(cluster, name, kind)
        starts = (*(name for name, _ in make), *todo.start)
        work = [self._start(provider, name) for name in starts]
        back = paid_back(todo.remove, found)
        work += [self._remove(provider, name, is_paid_back=name in back) for name in todo.remove]
        work += [provider.delete(name) for name in todo.stray]
        ended = await asyncio.gather(*work, return_exceptions=True)
        for name, each in zip((*starts, *todo.remove, *todo.stray), ended, strict=True):
            if isinstance(each, Fenced | Conflict) or (
                isinstance(each, BaseException) and not isinstance(each, LatticeError)
            ):
                raise each
            if isinstance(each, LatticeError):
                troubles.append(_trouble(each, self._class_of(name)))
        return troubles

    async def _offered(
        self, cluster: LatticeCluster | None, provider: Provider, todo: Steps
    ) -> tuple[Sequence[tuple[str, str]], list[Trouble]]:
        """Of the machines that are still to be made, those that can be had: the others get no node that would wait in vain."""
        if cluster is None or not todo.make:
            return (), []
        try:
            offered = await provider.offers()
            most = (
                len(todo.make) if offered.machines is None else min(max(0, offered.machines), len(todo.make))
            )
            offered.check(cluster.spec.region, most)
        except LatticeError as error:
            return (), [_trouble(error)]
        try:
            offered.check(cluster.spec.region, len(todo.make))
        except Refused as error:
            return todo.make[:most], [
                _trouble(error, kind) for kind in dict.fromkeys(kind for _, kind in todo.make[most:])
            ]
        return todo.make, []

    def _class_of(self, name: str) -> str:
        node = self._nodes.get(f"/{name}")
        return node.spec.node_class if node else ""

    async def _give_up(self, name: str) -> None:
        entry = self._nodes.entry(f"/{name}")
        node = self._nodes.get(f"/{name}")
        if entry is None or node is None:
            return
        mark = with_metadata(
            entry, lambda metadata: doomed({"metadata": metadata}, now=self.office.now)["metadata"]
        )
        why = silence(node)
        words = (
            f"its cluster goes on without it: {why}"
            if why
            else "its cluster needs it no more: what runs on it leaves"
        )
        await self.office.commit([mark, self._teller.event(node, "NodeGivenUp", words)])

    async def _make_node(self, cluster: LatticeCluster, name: str, kind: str) -> None:
        node = node_object(cluster, name, self._classes.get(f"/{kind}"), kind)
        written = created(node, uid=self.office.new_uid(), now=self.office.now)
        told = self._teller.event(cluster, "NodeCreating", f"node {name} of class {kind} is being made")
        now, entry = (
            self._clusters.get(f"/{cluster.metadata.name}"),
            self._clusters.entry(f"/{cluster.metadata.name}"),
        )
        if now is None or now.spec != cluster.spec:
            raise Conflict(
                "other machines are wanted by now",
                where=f"latticecluster/{cluster.metadata.name}",
                fix="look again",
            )
        still = (
            [] if entry is None else [Check(entry.key, entry.revision)]
        )  # whoever wants fewer by now is heard first
        await self._nodes.wait_for(await self.office.commit([written, told], still))

    async def _start(self, provider: Provider, name: str) -> None:
        node = self._nodes.get(f"/{name}")
        if node is None or name in self._making:
            return
        self._making.add(name)
        try:
            size = self._size(node)
            token, stored = self.mint(node)
            await self.office.commit([stored])
            labels = {
                key: value
                for key, value in node.metadata.labels.items()
                if not key.startswith("lattice.dev/")
            }
            found = self._classes.get(f"/{node.spec.node_class}")
            model = found.spec.resources.gpu_model if found else ""
            spec = node.spec
            machine = Machine(
                name, spec.cluster, spec.region, spec.zone, spec.node_class, size, model, labels, token
            )
            await provider.create(machine)
        finally:
            self._making.discard(name)

    def _size(self, node: LatticeNode) -> Size:
        """As its provider makes it; an owned place without classes has its capacity in equal parts."""
        kind = self._classes.get(f"/{node.spec.node_class}")
        if kind is not None and (size := kind.spec.size_on(node.spec.provider)) is not None:
            return size
        static = self._statics.get(f"/{node.spec.pool}")
        types = compile_supply([static], PriceBook.builtin()).offers[0].types if static else ()
        if found := next((each for each in types if each.name == node.spec.node_class), None):
            milli, memory, storage = (found.size.get(name, 0) for name in ("cpu", "memory", "storage"))
            return Size(milli, memory, storage, 0, {})
        raise NotFound(
            f"class {node.spec.node_class} is not there for provider {node.spec.provider}",
            where=f"latticenode/{node.metadata.name}",
            fix="apply the LatticeNodeClass again, with an entry for this provider",
        )

    async def _remove(self, provider: Provider, name: str, *, is_paid_back: bool) -> None:
        await provider.delete(name)
        entry, node = self._nodes.entry(f"/{name}"), self._nodes.get(f"/{name}")
        if entry is None or node is None:
            return
        others = [each for each in node.metadata.finalizers if each != MACHINE]
        gone: Write = Delete(entry.key, entry.revision)
        if others:
            gone = with_metadata(entry, lambda metadata: metadata | {"finalizers": others})
        releases = self._releases(node) if is_paid_back else ()
        await self._books.commit_with_charges(Payment(writes=[gone], releases=releases))
        self.office.presence.forget(name)

    def _releases(self, node: LatticeNode) -> tuple[Charge, ...]:
        """One machine less, in every budget that pays for it, at the price that it was taken for."""
        held: dict[int, list[LatticeLedger]] = {}
        for ledger, lot in self._lots(node.spec.cluster):
            if lot.node_class == node.spec.node_class:
                held.setdefault(lot.micros, []).append(ledger)
        if not held:
            return ()
        micros = max(held)  # the dearest first: what stays is what costs least
        accounts = tuple(each.spec.budget for each in held[micros])
        return (
            Charge(accounts, node.spec.cluster, Lot(node_class=node.spec.node_class, count=1, micros=micros)),
        )

    async def _tell(
        self, cluster: LatticeCluster, troubles: Sequence[Trouble], seen: Sequence[NodeSeen] | None = None
    ) -> Again | None:
        """Says how it is, and how soon that may be something else. `seen`: its nodes, if nothing was done to them since."""
        path = f"/{cluster.metadata.name}"
        nodes = (
            seen
            if seen is not None
            else [self._seen(each) for each in self._nodes.by("cluster", cluster.metadata.name)]
        )
        entry, current = self._clusters.entry(path), self._clusters.get(path)
        if entry is not None and current is not None:
            await self._write(entry, current, said(current, nodes, troubles, self.endpoint()))
        if any(each.reason == UNAVAILABLE for each in troubles):
            return None
        if troubles and not cluster.metadata.deletion_timestamp:
            return Again(ASK_AGAIN)
        is_settled = len(nodes) == cluster.spec.wanted_nodes and all(
            each.is_ready and not each.is_leaving for each in nodes
        )
        return None if is_settled and not cluster.metadata.deletion_timestamp else Again(UNDER_WAY)

    async def _write(self, entry: Entry, cluster: LatticeCluster, status: ClusterStatus) -> None:
        before = cluster.status
        status = msgspec.structs.replace(
            status, conditions=conditioned(before.conditions, status.conditions, self.office.now)
        )
        if status == before:
            return
        writes: list[Write] = [with_status(entry, status)]
        if status.phase != before.phase:
            is_bad = status.phase in ("Degraded", "Failed")
            writes.append(
                self._teller.event(cluster, f"Cluster{status.phase}", status.message, warning=is_bad)
            )
        await self.office.commit(writes)

    async def _remove_if_unused(self, cluster: LatticeCluster) -> None:
        """Nobody is placed there, nobody is bound there; and its number is written down where it is not given twice."""
        name = cluster.metadata.name
        placed = any(
            each.cluster == name for service in self._services.all() for each in service.status.placements
        )
        entry = self._clusters.entry(f"/{name}")
        if (
            entry is None
            or placed
            or self._workloads.by("cluster", name)
            or cluster.spec.min_nodes
            or self._paid(name)
        ):
            return
        if not self._is_counted(cluster):
            raise Unavailable(
                "its number is not written down yet",
                where=f"latticecluster/{name}",
                fix="it is removed as soon as it is",
            )
        told = self._teller.event(cluster, "ClusterRemoved", "no service needs it")
        await self.office.commit([Delete(entry.key, entry.revision), told, *self._counted(cluster)])

    def _counted(self, cluster: LatticeCluster) -> list[Write]:
        """The number of one in a data center, which nobody paid for, so that it is in no ledger yet."""
        if cluster.spec.pool != cluster.spec.infrastructure:
            return []
        account = static_account(cluster.spec.pool)
        known, entry = self._ledgers.get(f"/{account.ledger}"), self._ledgers.entry(f"/{account.ledger}")
        ledger = counting(account, known, cluster.metadata.name, self.office.clock.now())
        if known is None or entry is None:
            return [created(ledger, uid=self.office.new_uid(), now=self.office.now)]
        return [with_status(entry, ledger.status)] if ledger.status != known.status else []

    def _is_counted(self, cluster: LatticeCluster) -> bool:
        """Will the place that it was made in give its number to nobody else, not even if it is made again?"""
        offer, region, number = cluster.spec.pool, cluster.spec.region, number_of(cluster)
        if offer == cluster.spec.infrastructure:
            return True  # as it goes: see `_counted`
        account = (
            pool_account(offer)
            if not cluster.spec.infrastructure
            else cloud_account(cluster.spec.infrastructure, region)
        )
        book = self._ledgers.get(f"/{account.ledger}")
        if book is not None and book.status.last_cluster >= number:
            return True
        pool = self.office.copy(LatticePool).get(f"/{offer}")
        cloud = self.office.copy(CloudInfrastructure).get(f"/{cluster.spec.infrastructure}")
        if pool is not None:
            return (pool.status.next_cluster_sequence or 1) > number
        return cloud is None or cloud.status.next_cluster_sequence.get(region, 1) > number


def _trouble(error: LatticeError, node_class: str = "") -> Trouble:
    is_final = isinstance(error, Rejected | NotFound)
    return Trouble(REJECTED if is_final else REFUSED, str(error), node_class)


@dataclass(frozen=True, slots=True)
class Named:
    """The names that nodes have, whosever they are."""

    nodes: Cache[LatticeNode]

    def __contains__(self, name: object) -> bool:
        return self.nodes.get(f"/{name}") is not None


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None


class _Declared(msgspec.Struct, gc=False):
    """A cluster without what is said of it."""

    metadata: _Metadata
    spec: msgspec.Raw


_declared = msgspec.json.Decoder(_Declared).decode


def _gist(node: LatticeNode) -> tuple[object, ...]:
    """What of a node its cluster goes by."""
    ready = next((each.status for each in node.status.conditions if each.type == "Ready"), "")
    return (
        node.metadata.uid,
        node.metadata.deletion_timestamp,
        node.metadata.finalizers,
        node.spec,
        node.status.agent_version,
        ready,
    )


def number_of(cluster: LatticeCluster) -> int:
    tail = cluster.metadata.name.rpartition("-")[2]
    return cluster.status.sequence or (int(tail) if tail.isdigit() else 0)


def labels_of(node: LatticeNode, cluster: LatticeCluster) -> dict[str, str]:
    """What it has, and whose reserve its cluster is on by now."""
    labels = {key: value for key, value in node.metadata.labels.items() if key != RESERVE_LABEL}
    return labels | {key: value for key, value in cluster.spec.labels.items() if key == RESERVE_LABEL}


def node_object(
    cluster: LatticeCluster, name: str, kind: LatticeNodeClass | None, class_name: str
) -> LatticeNode:
    """Before its agent has joined."""
    spec, resource = cluster.spec, LatticeNode.resource
    labels = {
        **(kind.spec.labels if kind else {}),
        **spec.labels,
        "lattice.dev/cluster": cluster.metadata.name,
        "lattice.dev/node-class": class_name,
        "lattice.dev/region": spec.region,
        "lattice.dev/zone": spec.zone,
    }
    return LatticeNode(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(
            name=name,
            labels={key: value for key, value in labels.items() if value},
            finalizers=(MACHINE,),
            owner_references=(owned_by(cluster),),
        ),
        spec=NodeSpec(
            cluster=cluster.metadata.name,
            pool=spec.pool,
            provider=spec.provider,
            region=spec.region,
            zone=spec.zone,
            node_class=class_name,
            taints=kind.spec.taints if kind else (),
        ),
    )
