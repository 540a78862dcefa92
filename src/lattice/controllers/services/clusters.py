"""Cluster -> machines: asks providers for what is wanted, gives up what is not, and says what is really there.

A node's object is written before its machine is asked for, and goes after the machine is confirmed to be gone: a crash in between
leaves nothing that the next look does not see. A phase changes on what was observed, never because time has passed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import (
    merge_conditions,
    owner_reference,
    put_new,
    with_metadata,
    with_status,
)
from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.errors import Conflict, Fenced, LatticeError, NotFound, Unavailable
from lattice.kinds.cluster import RESERVE_LABEL, ClusterStatus, LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.meta.base import Metadata
from lattice.kinds.meta.object_lifecycle import mark_for_deletion
from lattice.kinds.node import LatticeNode, NodeSpec
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.machines import (
    ClusterMachines,
    ClusterNode,
    MachineSteps,
    fails_over,
    machines_to_refund,
    plan_machines,
)
from lattice.lifecycle.replica_observation import not_ready_message
from lattice.placement.inputs.ledger_math import Charge, record_cluster_number
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.supply import cloud_account, compile_supply, pool_account, static_account
from lattice.placement.status.cluster_status import (
    PROVIDER_REFUSED,
    PROVIDER_REJECTED,
    PROVIDER_UNAVAILABLE,
    PROVIDER_UNREACHABLE,
    ProviderProblem,
    status_from_nodes,
)
from lattice.providers.protocol import (
    MachineSpec,
    MachineStatus,
    Provider,
    ProvisioningRejected,
    ProvisioningUnavailable,
)
from lattice.store.cache import Cache
from lattice.store.protocol import Change, Check, Delete, Entry, Put, Write

MACHINE_FINALIZER = "lattice.dev/machine"  # finalizer of a node: its machine may still be there
PROVISIONING_POLL_S = 5.0  # seconds until machines that are on their way are looked for again
PROVIDER_RETRY_S = 15.0  # seconds until a provider that refused is asked again
PROVIDER_TIMEOUT_S = 600.0  # seconds that a provider may take
TokenMinter = Callable[
    [LatticeNode], tuple[str, Put]
]  # a one-time token for the agent of a node, and what must be stored for it


@dataclass
class ClusterController:
    """`providers` by the name that pools call them."""

    context: ControllerContext
    providers: Mapping[str, Provider]
    mint_token: TokenMinter
    endpoint: Callable[[], str] = lambda: ""  # where machines reach the control plane
    resync_s: float = 30.0
    name: str = "clusters"
    _creating: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        office = self.context
        self._clusters, self._nodes = office.cache(LatticeCluster), office.cache(LatticeNode)
        self._workloads, self._ledgers = office.cache(LatticeWorkload), office.cache(LatticeLedger)
        self._classes, self._statics = office.cache(LatticeNodeClass), office.cache(StaticInfrastructure)
        self._services = office.cache(LatticeService)
        self._recorder = office.recorder("clusters")
        self._ledger_committer = LedgerCommitter(office.store, office.clock, office.term, office.new_uid)

    def loop(self) -> Loop:
        sources = (
            Source(self._clusters, self._keys_for_cluster),
            Source(self._nodes, self._keys_for_node),
            Source(self._workloads, self._keys_for_workload),
        )
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            self._list_keys,
            sources,
            Concurrency(resync_s=self.resync_s, timeout_s=PROVIDER_TIMEOUT_S),
        )

    def _list_keys(self) -> list[str]:
        """Clusters that are gone too, as long as a node remembers them."""
        return sorted(
            {f"/{each.metadata.name}" for each in self._clusters.objects()}
            | {f"/{each.spec.cluster}" for each in self._provisioned_nodes()}
        )

    def _provisioned_nodes(self) -> list[LatticeNode]:
        return [each for each in self._nodes.objects() if each.spec.cluster]

    def _keys_for_cluster(self, change: Change) -> Sequence[str]:
        """Not when others say how it is: only what it should be is to be acted upon."""
        if change.value is None or change.previous is None:
            return (change.key.path,)
        return (
            (change.key.path,)
            if _decode_declared(change.value) != _decode_declared(change.previous.value)
            else ()
        )

    def _keys_for_node(self, change: Change) -> Sequence[str]:
        """Not when only the number of its workloads, or what it uses, is another: with thousands bound that would be all there is to do."""
        before, after = self._nodes.previous_object, self._nodes.get(change.key.path)
        node = after or before
        if (
            node is None
            or not node.spec.cluster
            or (after and before and _cluster_relevant_state(after) == _cluster_relevant_state(before))
        ):
            return ()
        return (f"/{node.spec.cluster}",)

    def _keys_for_workload(self, change: Change) -> Sequence[str]:
        """Only a node that is leaving waits for its workloads to go."""
        before = self._workloads.previous_object
        binding = before.status.binding if before else None
        node = self._nodes.get(f"/{binding.node}") if binding else None
        return (f"/{node.spec.cluster}",) if node is not None and node.metadata.deletion_timestamp else ()

    async def reconcile(self, key: str) -> Requeue | None:
        name = key.removeprefix("/")
        cluster, nodes = self._clusters.get(key), self._nodes.by_index("cluster", name)
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
            return (
                await self._report_status(cluster, [ProviderProblem(PROVIDER_UNAVAILABLE, words)])
                if cluster
                else None
            )
        try:
            listed = {each.node: each for each in await provider.list() if each.cluster == name}
        except LatticeError as error:
            return (
                await self._report_status(cluster, [ProviderProblem(PROVIDER_UNREACHABLE, str(error))])
                if cluster
                else Requeue(PROVISIONING_POLL_S)
            )
        found = self._observe_machines(name, cluster, nodes, listed)
        todo = plan_machines(name, found)
        troubles = await self._apply_steps(cluster, provider, todo, found)
        again = (
            await self._report_status(cluster, troubles, found.nodes if todo.is_empty else None)
            if cluster
            else Requeue(PROVISIONING_POLL_S)
        )
        if cluster is not None and not nodes and not listed and not cluster.spec.desired_nodes:
            await self._remove_if_unused(cluster)
        return again

    async def _relabel(self, cluster: LatticeCluster, nodes: Sequence[LatticeNode]) -> None:
        for node in nodes:
            labels, entry = node_labels(node, cluster), self._nodes.entry(f"/{node.metadata.name}")
            if entry is not None and labels != node.metadata.labels:
                write = with_metadata(entry, lambda metadata, labels=labels: metadata | {"labels": labels})  # type: ignore[misc]
                await self._nodes.wait_for(await self.context.commit([write]))

    def _observe_machines(
        self,
        name: str,
        cluster: LatticeCluster | None,
        nodes: Sequence[LatticeNode],
        listed: Mapping[str, MachineStatus],
    ) -> ClusterMachines:
        return ClusterMachines(
            desired=cluster.spec.nodes if cluster and not cluster.metadata.deletion_timestamp else {},
            nodes=[self._observe_node(each) for each in nodes],
            running={each.node for each in listed.values() if each.state != "Ended"} | self._creating,
            provider_machines=set(listed),
            paid_counts=self._paid_machines(name) or ({} if cluster and self._has_ledger(cluster) else None),
            used_names=NodeNames(self._nodes),
        )

    def _observe_node(self, node: LatticeNode) -> ClusterNode:
        is_ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        name = node.metadata.name
        here = [*self._workloads.by_index("node", name), *self._workloads.by_index("prepared", name)]
        entry = self._nodes.entry(f"/{name}")
        is_known = (
            entry is None or self._workloads.revision >= entry.revision
        )  # else somebody may have come before it was given up
        return ClusterNode(
            node.metadata.name,
            node.spec.node_class,
            has_joined=bool(node.status.agent_version),
            is_ready=is_ready,
            workloads=(len(here) if is_ready else sum(map(fails_over, here))) + (not is_known),
            is_decommissioned=bool(node.metadata.deletion_timestamp),
        )

    def _lots(self, cluster: str) -> list[tuple[LatticeLedger, Lot]]:
        return [
            (ledger, lot)
            for ledger in self._ledgers.objects()
            for lot in ledger.status.machines.get(cluster, ())
        ]

    def _paid_machines(self, cluster: str) -> dict[str, int]:
        """By class. Several budgets may pay for one machine: the least of them counts."""
        by_ledger: dict[str, dict[str, int]] = {}
        for ledger, lot in self._lots(cluster):
            counts = by_ledger.setdefault(ledger.metadata.name, {})
            counts[lot.node_class] = counts.get(lot.node_class, 0) + lot.count
        kinds = {kind for counts in by_ledger.values() for kind in counts}
        return {kind: min(counts.get(kind, 0) for counts in by_ledger.values()) for kind in kinds}

    def _has_ledger(self, cluster: LatticeCluster) -> bool:
        """Does anybody count what its machines cost? Nobody does in a data center."""
        pool, cloud = cluster.spec.pool, cluster.spec.infrastructure
        accounts = (
            [cloud_account(cloud), cloud_account(cloud, cluster.spec.region)]
            if cloud
            else [pool_account(pool)]
        )
        return pool != cloud and any(self._ledgers.get(f"/{each.ledger_name}") for each in accounts)

    async def _apply_steps(
        self, cluster: LatticeCluster | None, provider: Provider, todo: MachineSteps, found: ClusterMachines
    ) -> list[ProviderProblem]:
        """What went wrong with the provider."""
        for name in todo.decommission:
            await self._decommission(name)
        make, troubles = await self._obtainable_machines(cluster, provider, todo)
        for name, kind in make:
            if cluster is not None:
                await self._create_node(cluster, name, kind)
        starts = (*(name for name, _ in make), *todo.start)
        work = [self._start_machine(provider, name) for name in starts]
        back = machines_to_refund(todo.remove, found)
        work += [self._remove_machine(provider, name, is_paid_back=name in back) for name in todo.remove]
        work += [provider.delete(name) for name in todo.orphaned]
        ended = await asyncio.gather(*work, return_exceptions=True)
        for name, each in zip((*starts, *todo.remove, *todo.orphaned), ended, strict=True):
            if isinstance(each, Fenced | Conflict) or (
                isinstance(each, BaseException) and not isinstance(each, LatticeError)
            ):
                raise each
            if isinstance(each, LatticeError):
                troubles.append(_provider_problem(each, self._class_of(name)))
        return troubles

    async def _obtainable_machines(
        self, cluster: LatticeCluster | None, provider: Provider, todo: MachineSteps
    ) -> tuple[Sequence[tuple[str, str]], list[ProviderProblem]]:
        """Of the machines that are still to be made, those that can be had: the others get no node that would wait in vain."""
        if cluster is None or not todo.create:
            return (), []
        try:
            offered = await provider.available_capacity()
            most = (
                len(todo.create)
                if offered.max_machines is None
                else min(max(0, offered.max_machines), len(todo.create))
            )
            offered.check(cluster.spec.region, most)
        except LatticeError as error:
            return (), [_provider_problem(error)]
        try:
            offered.check(cluster.spec.region, len(todo.create))
        except ProvisioningUnavailable as error:
            return todo.create[:most], [
                _provider_problem(error, kind)
                for kind in dict.fromkeys(kind for _, kind in todo.create[most:])
            ]
        return todo.create, []

    def _class_of(self, name: str) -> str:
        node = self._nodes.get(f"/{name}")
        return node.spec.node_class if node else ""

    async def _decommission(self, name: str) -> None:
        entry = self._nodes.entry(f"/{name}")
        node = self._nodes.get(f"/{name}")
        if entry is None or node is None:
            return
        mark = with_metadata(
            entry,
            lambda metadata: mark_for_deletion({"metadata": metadata}, now=self.context.timestamp)[
                "metadata"
            ],
        )
        why = not_ready_message(node)
        words = (
            f"its cluster goes on without it: {why}"
            if why
            else "its cluster needs it no more: what runs on it leaves"
        )
        await self.context.commit([mark, self._recorder.event(node, "NodeGivenUp", words)])

    async def _create_node(self, cluster: LatticeCluster, name: str, kind: str) -> None:
        node = build_node(cluster, name, self._classes.get(f"/{kind}"), kind)
        written = put_new(node, uid=self.context.new_uid(), now=self.context.timestamp)
        told = self._recorder.event(cluster, "NodeCreating", f"node {name} of class {kind} is being made")
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
        await self._nodes.wait_for(await self.context.commit([written, told], still))

    async def _start_machine(self, provider: Provider, name: str) -> None:
        node = self._nodes.get(f"/{name}")
        if node is None or name in self._creating:
            return
        self._creating.add(name)
        try:
            size = self._size(node)
            token, stored = self.mint_token(node)
            await self.context.commit([stored])
            labels = {
                key: value
                for key, value in node.metadata.labels.items()
                if not key.startswith("lattice.dev/")
            }
            found = self._classes.get(f"/{node.spec.node_class}")
            model = found.spec.resources.gpu_model if found else ""
            spec = node.spec
            machine = MachineSpec(
                name, spec.cluster, spec.region, spec.zone, spec.node_class, size, model, labels, token
            )
            await provider.create(machine)
        finally:
            self._creating.discard(name)

    def _size(self, node: LatticeNode) -> MachineSize:
        """As its provider makes it; an owned place without classes has its capacity in equal parts."""
        kind = self._classes.get(f"/{node.spec.node_class}")
        if kind is not None and (size := kind.spec.size_on(node.spec.provider)) is not None:
            return size
        static = self._statics.get(f"/{node.spec.pool}")
        types = compile_supply([static], PriceBook.builtin()).offers[0].types if static else ()
        if found := next((each for each in types if each.name == node.spec.node_class), None):
            milli, memory, storage = (found.size.get(name, 0) for name in ("cpu", "memory", "storage"))
            return MachineSize(milli, memory, storage, 0, {})
        raise NotFound(
            f"class {node.spec.node_class} is not there for provider {node.spec.provider}",
            where=f"latticenode/{node.metadata.name}",
            fix="apply the LatticeNodeClass again, with an entry for this provider",
        )

    async def _remove_machine(self, provider: Provider, name: str, *, is_paid_back: bool) -> None:
        await provider.delete(name)
        entry, node = self._nodes.entry(f"/{name}"), self._nodes.get(f"/{name}")
        if entry is None or node is None:
            return
        others = [each for each in node.metadata.finalizers if each != MACHINE_FINALIZER]
        gone: Write = Delete(entry.key, entry.revision)
        if others:
            gone = with_metadata(entry, lambda metadata: metadata | {"finalizers": others})
        releases = self._releases(node) if is_paid_back else ()
        await self._ledger_committer.commit_with_charges(Payment(writes=[gone], releases=releases))
        self.context.presence.forget_node(name)

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

    async def _report_status(
        self,
        cluster: LatticeCluster,
        troubles: Sequence[ProviderProblem],
        seen: Sequence[ClusterNode] | None = None,
    ) -> Requeue | None:
        """Says how it is, and how soon that may be something else. `seen`: its nodes, if nothing was done to them since."""
        path = f"/{cluster.metadata.name}"
        nodes = (
            seen
            if seen is not None
            else [self._observe_node(each) for each in self._nodes.by_index("cluster", cluster.metadata.name)]
        )
        entry, current = self._clusters.entry(path), self._clusters.get(path)
        if entry is not None and current is not None:
            await self._write(entry, current, status_from_nodes(current, nodes, troubles, self.endpoint()))
        if any(each.reason == PROVIDER_UNAVAILABLE for each in troubles):
            return None
        if troubles and not cluster.metadata.deletion_timestamp:
            return Requeue(PROVIDER_RETRY_S)
        is_settled = len(nodes) == cluster.spec.desired_nodes and all(
            each.is_ready and not each.is_decommissioned for each in nodes
        )
        return (
            None if is_settled and not cluster.metadata.deletion_timestamp else Requeue(PROVISIONING_POLL_S)
        )

    async def _write(self, entry: Entry, cluster: LatticeCluster, status: ClusterStatus) -> None:
        before = cluster.status
        status = msgspec.structs.replace(
            status, conditions=merge_conditions(before.conditions, status.conditions, self.context.timestamp)
        )
        if status == before:
            return
        writes: list[Write] = [with_status(entry, status)]
        if status.phase != before.phase:
            is_bad = status.phase in ("Degraded", "Failed")
            writes.append(
                self._recorder.event(cluster, f"Cluster{status.phase}", status.message, warning=is_bad)
            )
        await self.context.commit(writes)

    async def _remove_if_unused(self, cluster: LatticeCluster) -> None:
        """Nobody is placed there, nobody is bound there; and its number is written down where it is not given twice."""
        name = cluster.metadata.name
        placed = any(
            each.cluster == name for service in self._services.objects() for each in service.status.placements
        )
        entry = self._clusters.entry(f"/{name}")
        if (
            entry is None
            or placed
            or self._workloads.by_index("cluster", name)
            or cluster.spec.min_nodes
            or self._paid_machines(name)
        ):
            return
        if not self._is_sequence_recorded(cluster):
            raise Unavailable(
                "its number is not written down yet",
                where=f"latticecluster/{name}",
                fix="it is removed as soon as it is",
            )
        told = self._recorder.event(cluster, "ClusterRemoved", "no service needs it")
        await self.context.commit([Delete(entry.key, entry.revision), told, *self._sequence_writes(cluster)])

    def _sequence_writes(self, cluster: LatticeCluster) -> list[Write]:
        """The number of one in a data center, which nobody paid for, so that it is in no ledger yet."""
        if cluster.spec.pool != cluster.spec.infrastructure:
            return []
        account = static_account(cluster.spec.pool)
        known, entry = (
            self._ledgers.get(f"/{account.ledger_name}"),
            self._ledgers.entry(f"/{account.ledger_name}"),
        )
        ledger = record_cluster_number(account, known, cluster.metadata.name, self.context.clock.now())
        if known is None or entry is None:
            return [put_new(ledger, uid=self.context.new_uid(), now=self.context.timestamp)]
        return [with_status(entry, ledger.status)] if ledger.status != known.status else []

    def _is_sequence_recorded(self, cluster: LatticeCluster) -> bool:
        """Will the place that it was made in give its number to nobody else, not even if it is made again?"""
        offer, region, number = cluster.spec.pool, cluster.spec.region, cluster_sequence(cluster)
        if offer == cluster.spec.infrastructure:
            return True  # as it goes: see `_counted`
        account = (
            pool_account(offer)
            if not cluster.spec.infrastructure
            else cloud_account(cluster.spec.infrastructure, region)
        )
        book = self._ledgers.get(f"/{account.ledger_name}")
        if book is not None and book.status.last_cluster >= number:
            return True
        pool = self.context.cache(LatticePool).get(f"/{offer}")
        cloud = self.context.cache(CloudInfrastructure).get(f"/{cluster.spec.infrastructure}")
        if pool is not None:
            return (pool.status.next_cluster_sequence or 1) > number
        return cloud is None or cloud.status.next_cluster_sequence.get(region, 1) > number


def _provider_problem(error: LatticeError, node_class: str = "") -> ProviderProblem:
    is_final = isinstance(error, ProvisioningRejected | NotFound)
    return ProviderProblem(PROVIDER_REJECTED if is_final else PROVIDER_REFUSED, str(error), node_class)


@dataclass(frozen=True, slots=True)
class NodeNames:
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


_decode_declared = msgspec.json.Decoder(_Declared).decode


def _cluster_relevant_state(node: LatticeNode) -> tuple[object, ...]:
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


def cluster_sequence(cluster: LatticeCluster) -> int:
    tail = cluster.metadata.name.rpartition("-")[2]
    return cluster.status.sequence or (int(tail) if tail.isdigit() else 0)


def node_labels(node: LatticeNode, cluster: LatticeCluster) -> dict[str, str]:
    """What it has, and whose reserve its cluster is on by now."""
    labels = {key: value for key, value in node.metadata.labels.items() if key != RESERVE_LABEL}
    return labels | {key: value for key, value in cluster.spec.labels.items() if key == RESERVE_LABEL}


def build_node(
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
            finalizers=(MACHINE_FINALIZER,),
            owner_references=(owner_reference(cluster),),
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
