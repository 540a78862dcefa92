"""Reconcile the machines of clusters: create nodes and machines, decommission and remove nodes, and report
the status of clusters.

The controller writes a node before the provider creates its machine, and deletes the node after the provider
confirms that the machine is gone. A crash in between leaves no machine that the next reconcile misses. The
phase of a cluster depends on observations only, never on elapsed time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import (
    put_new,
    with_metadata,
    with_status,
)
from lattice.controllers.services.cluster_nodes import MACHINE_FINALIZER, NodeNames, build_node, node_labels
from lattice.controllers.services.joined_nodes import made_nodes, with_joined_machines
from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.errors import Conflict, Fenced, LatticeError, NotFound, Unavailable
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.meta.conditions import READY_CONDITION, find_condition, is_true, merge_conditions
from lattice.kinds.meta.object_lifecycle import mark_for_deletion
from lattice.kinds.node import LatticeNode
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
from lattice.placement.model.supply import (
    cloud_account,
    compile_supply,
    no_adapter_message,
    pool_account,
    static_account,
)
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
    ProvisioningFailed,
    ProvisioningRejected,
)
from lattice.store.protocol import Change, Check, Delete, Put, Write

# Machines that are being created are polled at this interval.
PROVISIONING_POLL_S = 5.0
# Delay before a cluster is reconciled again after any problem of its provider except a missing adapter, which
# is not retried.
PROVIDER_RETRY_S = 15.0
# The longest time for the provider calls of one reconcile.
PROVIDER_TIMEOUT_S = 600.0
# Returns a one-time join token for the agent of a node, and the write that stores the token.
TokenMinter = Callable[[LatticeNode], tuple[str, Put]]


@dataclass
class ClusterController:
    """Reconcile the machines of a cluster; the key is `/` and the cluster's name. `providers` maps the
    provider names of pools to adapters."""

    context: ControllerContext
    providers: Mapping[str, Provider]
    mint_token: TokenMinter
    # The address at which machines reach the control plane.
    endpoint: Callable[[], str] = lambda: ""
    resync_s: float = 30.0
    name: str = "clusters"
    # Nodes for which a call that creates the machine is in progress; the provider may not list the machine
    # yet.
    _creating: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        context = self.context
        self._clusters, self._nodes = context.cache(LatticeCluster), context.cache(LatticeNode)
        self._workloads, self._ledgers = context.cache(LatticeWorkload), context.cache(LatticeLedger)
        self._classes, self._statics = context.cache(LatticeNodeClass), context.cache(StaticInfrastructure)
        self._services = context.cache(LatticeService)
        self._recorder = context.recorder("clusters")
        self._ledger_committer = LedgerCommitter(context.store, context.clock, context.term, context.new_uid)

    def loop(self) -> Loop:
        sources = (
            Source(self._clusters, self.keys_for_cluster),
            Source(self._nodes, self.keys_for_node),
            Source(self._workloads, self.keys_for_workload),
        )
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            self.list_keys,
            sources,
            Concurrency(resync_s=self.resync_s, timeout_s=PROVIDER_TIMEOUT_S),
        )

    def list_keys(self) -> list[str]:
        """All clusters, and deleted clusters that still have a node."""
        keys = {f"/{cluster.metadata.name}" for cluster in self._clusters.objects()}
        keys |= {f"/{node.spec.cluster}" for node in self._nodes.objects() if node.spec.cluster}
        return sorted(keys)

    def keys_for_cluster(self, change: Change) -> Sequence[str]:
        """Wake the cluster only if its spec or deletion mark changed: the status needs no action."""
        if change.value is None or change.previous is None:
            return (change.key.path,)
        if _decode_declared(change.value) != _decode_declared(change.previous.value):
            return (change.key.path,)
        return ()

    def keys_for_node(self, change: Change) -> Sequence[str]:
        """Wake the cluster of a node, unless only usage or workload count changed: with thousands of bound
        workloads such changes are frequent."""
        previous, current = self._nodes.previous_object, self._nodes.get(change.key.path)
        node = current or previous
        if (
            node is None
            or not node.spec.cluster
            or (
                current and previous and _cluster_relevant_state(current) == _cluster_relevant_state(previous)
            )
        ):
            return ()
        return (f"/{node.spec.cluster}",)

    def keys_for_workload(self, change: Change) -> Sequence[str]:
        """Wake the cluster of a decommissioned node, which waits for its workloads to stop."""
        previous = self._workloads.previous_object
        binding = previous.status.binding if previous else None
        node = self._nodes.get(f"/{binding.node}") if binding else None
        return (f"/{node.spec.cluster}",) if node is not None and node.metadata.deletion_timestamp else ()

    async def reconcile(self, key: str) -> Requeue | None:
        name = key.removeprefix("/")
        cluster, in_cluster = self._clusters.get(key), self._nodes.by_index("cluster", name)
        # The owner of a joined machine makes and removes it: Lattice only counts it in the status.
        nodes = made_nodes(in_cluster)
        if cluster is None and not nodes:
            return None
        # The ledger cache must be as fresh as the cluster and node caches: only then does it show the desired
        # machines as paid, and the removed machines as no longer paid.
        await self._ledgers.wait_for(max(self._clusters.revision, self._nodes.revision))
        if cluster is not None:
            for node in in_cluster:
                entry, labels = self._nodes.entry(f"/{node.metadata.name}"), node_labels(node, cluster)
                if entry is not None and labels != node.metadata.labels:
                    write = with_metadata(
                        entry,
                        lambda metadata, labels=labels: metadata | {"labels": labels},  # type: ignore[misc]
                    )
                    await self._nodes.wait_for(await self.context.commit([write]))
        provider = self.providers.get(cluster.spec.provider if cluster else nodes[0].spec.provider)
        if provider is None:
            if cluster is None:
                return None
            message = no_adapter_message(cluster.spec.provider)
            return await self._report_status(cluster, [ProviderProblem(PROVIDER_UNAVAILABLE, message)])
        try:
            listed = {machine.node: machine for machine in await provider.list() if machine.cluster == name}
        except LatticeError as error:
            if cluster is None:
                return Requeue(PROVISIONING_POLL_S)
            return await self._report_status(cluster, [ProviderProblem(PROVIDER_UNREACHABLE, str(error))])
        observed = self._observe_machines(name, cluster, nodes, listed)
        steps = plan_machines(name, observed)
        problems = await self._apply_steps(cluster, provider, steps, observed)
        if cluster is None:
            return Requeue(PROVISIONING_POLL_S)
        requeue = await self._report_status(cluster, problems, observed.nodes if steps.is_empty else None)
        if not in_cluster and not listed and not cluster.spec.desired_nodes:
            await self._remove_if_unused(cluster)
        return requeue

    def _observe_machines(
        self,
        name: str,
        cluster: LatticeCluster | None,
        nodes: Sequence[LatticeNode],
        listed: Mapping[str, MachineStatus],
    ) -> ClusterMachines:
        has_ledger = False
        # Clusters of a data center have no ledger that counts their cost.
        if cluster and cluster.spec.pool != cluster.spec.infrastructure:
            cloud = cluster.spec.infrastructure
            accounts = [pool_account(cluster.spec.pool)]
            if cloud:
                accounts = [cloud_account(cloud), cloud_account(cloud, cluster.spec.region)]
            has_ledger = any(self._ledgers.get(f"/{account.ledger_name}") for account in accounts)
        return ClusterMachines(
            desired=cluster.spec.nodes if cluster and not cluster.metadata.deletion_timestamp else {},
            nodes=[self._observe_node(node) for node in nodes],
            running={machine.node for machine in listed.values() if machine.state != "Ended"}
            | self._creating,
            provider_machines=set(listed),
            paid_counts=self._paid_machines(name) or ({} if has_ledger else None),
            used_names=NodeNames(self._nodes),
        )

    def _observe_node(self, node: LatticeNode) -> ClusterNode:
        is_ready = is_true(node.status.conditions, READY_CONDITION)
        name = node.metadata.name
        workloads = [*self._workloads.by_index("node", name), *self._workloads.by_index("prepared", name)]
        entry = self._nodes.entry(f"/{name}")
        # A workload cache older than the node may miss a workload that was bound before the decommission:
        # count one workload more until the cache has caught up (I-27).
        is_current = entry is None or self._workloads.revision >= entry.revision
        return ClusterNode(
            node.metadata.name,
            node.spec.node_class,
            has_joined=bool(node.status.agent_version),
            is_ready=is_ready,
            workloads=(len(workloads) if is_ready else sum(map(fails_over, workloads))) + (not is_current),
            is_decommissioned=bool(node.metadata.deletion_timestamp),
        )

    def _lots(self, cluster: str) -> list[tuple[LatticeLedger, Lot]]:
        """The lots of a cluster, each with the ledger that pays. A lot is a number of machines of one class
        that a ledger pays at one price."""
        lots: list[tuple[LatticeLedger, Lot]] = []
        for ledger in self._ledgers.objects():
            lots += [(ledger, lot) for lot in ledger.status.machines.get(cluster, ())]
        return lots

    def _paid_machines(self, cluster: str) -> dict[str, int]:
        """The number of paid machines by class; if several ledgers pay for a machine, the smallest count
        applies."""
        by_ledger: dict[str, dict[str, int]] = {}
        for ledger, lot in self._lots(cluster):
            counts = by_ledger.setdefault(ledger.metadata.name, {})
            counts[lot.node_class] = counts.get(lot.node_class, 0) + lot.count
        node_classes: set[str] = set().union(*by_ledger.values())
        return {
            node_class: min(counts.get(node_class, 0) for counts in by_ledger.values())
            for node_class in node_classes
        }

    async def _apply_steps(
        self,
        cluster: LatticeCluster | None,
        provider: Provider,
        steps: MachineSteps,
        observed: ClusterMachines,
    ) -> list[ProviderProblem]:
        """Carry out the steps of a plan and return the problems of the provider."""
        for name in steps.decommission:
            entry, node = self._nodes.entry(f"/{name}"), self._nodes.get(f"/{name}")
            if entry is None or node is None:
                continue
            reason = not_ready_message(node) or "the cluster no longer needs the machine"
            event = self._recorder.event(node, "NodeGivenUp", f"Decommissioning the node: {reason}")
            # The eviction controller evicts the workloads of the marked node before its machine is removed.
            mark = with_metadata(
                entry,
                lambda metadata: mark_for_deletion({"metadata": metadata}, now=self.context.timestamp)[
                    "metadata"
                ],
            )
            await self.context.commit([mark, event])
        obtainable, problems = await self._obtainable_machines(cluster, provider, steps)
        for name, node_class in obtainable:
            if cluster is not None:
                await self._create_node(cluster, name, node_class)
        starts = (*(name for name, _ in obtainable), *steps.start)
        calls = [self._start_machine(provider, name) for name in starts]
        refunded = machines_to_refund(steps.remove, observed)
        calls += [
            self._remove_machine(provider, name, is_paid_back=name in refunded) for name in steps.remove
        ]
        calls += [provider.delete(name) for name in steps.orphaned]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for name, result in zip((*starts, *steps.remove, *steps.orphaned), results, strict=True):
            # A fenced or conflicting write is no problem of the provider: the loop handles both.
            if isinstance(result, Fenced | Conflict) or (
                isinstance(result, BaseException) and not isinstance(result, LatticeError)
            ):
                raise result
            if isinstance(result, LatticeError):
                node = self._nodes.get(f"/{name}")
                problems.append(_provider_problem(result, node.spec.node_class if node else ""))
        return problems

    async def _obtainable_machines(
        self, cluster: LatticeCluster | None, provider: Provider, steps: MachineSteps
    ) -> tuple[Sequence[tuple[str, str]], list[ProviderProblem]]:
        """The machines of `steps.create` that the provider has capacity for, and the problems of the provider.
        The other machines get no node, because the node would wait in vain."""
        if cluster is None or not steps.create:
            return (), []
        try:
            capacity = await provider.available_capacity()
            max_machines = len(steps.create)
            if capacity.max_machines is not None:
                max_machines = min(max(0, capacity.max_machines), max_machines)
            capacity.check(cluster.spec.region, max_machines)
        except LatticeError as error:
            return (), [_provider_problem(error)]
        try:
            capacity.check(cluster.spec.region, len(steps.create))
        except ProvisioningFailed as error:
            return steps.create[:max_machines], [
                _provider_problem(error, node_class)
                for node_class in dict.fromkeys(node_class for _, node_class in steps.create[max_machines:])
            ]
        return steps.create, []

    async def _create_node(self, cluster: LatticeCluster, name: str, node_class: str) -> None:
        """Write the node of a new machine; raise Conflict if the cluster changed since the plan."""
        node = build_node(cluster, name, self._classes.get(f"/{node_class}"), node_class)
        write = put_new(node, uid=self.context.new_uid(), now=self.context.timestamp)
        event = self._recorder.event(cluster, "NodeCreating", f"Creating node {name} of class {node_class}")
        path = f"/{cluster.metadata.name}"
        current, entry = self._clusters.get(path), self._clusters.entry(path)
        if current is None or current.spec != cluster.spec:
            raise Conflict(
                "the desired machines of the cluster have changed",
                where=f"latticecluster/{cluster.metadata.name}",
                fix="read the cluster again and retry",
            )
        # A concurrent write that lowers the machine count must win over this commit.
        checks = [] if entry is None else [Check(entry.key, entry.revision)]
        await self._nodes.wait_for(await self.context.commit([write, event], checks))

    async def _start_machine(self, provider: Provider, name: str) -> None:
        """Mint a join token and create the machine of a node, unless another call is creating the machine."""
        node = self._nodes.get(f"/{name}")
        if node is None or name in self._creating:
            return
        # During the provider call the plan counts the machine as running, so no second create starts.
        self._creating.add(name)
        try:
            spec, node_class = node.spec, self._classes.get(f"/{node.spec.node_class}")
            size = node_class.spec.size_on(spec.provider) if node_class else None
            if size is None:
                # The class is missing or has no size for this provider. In a data center, the size is that of
                # the machine type that has the name of the node class, among the types that the
                # StaticInfrastructure offers.
                static = self._statics.get(f"/{spec.pool}")
                types = compile_supply([static], PriceBook.builtin()).offers[0].types if static else ()
                machine_type = next((offered for offered in types if offered.name == spec.node_class), None)
                if machine_type is None:
                    raise NotFound(
                        f"LatticeNodeClass {spec.node_class} has no entry for provider {spec.provider}",
                        where=f"latticenode/{name}",
                        fix="apply the LatticeNodeClass again, with an entry for this provider",
                    )
                get = machine_type.size.get
                size = MachineSize(get("cpu", 0), get("memory", 0), get("storage", 0), 0, {})
            token, token_write = self.mint_token(node)
            # The token must be stored before the machine exists, or the agent could not join.
            writes: list[Write] = [token_write]
            if node.status.agent_version:
                message = "The machine had ended: starting it, and its agent, again"
                writes.append(self._recorder.event(node, "MachineRestarted", message))
            await self.context.commit(writes)
            labels = {
                key: value
                for key, value in node.metadata.labels.items()
                if not key.startswith("lattice.dev/")
            }
            gpu_model = node_class.spec.resources.gpu_model if node_class else ""
            machine = MachineSpec(
                name, spec.cluster, spec.region, spec.zone, spec.node_class, size, gpu_model, labels, token
            )
            await provider.create(machine)
        finally:
            self._creating.discard(name)

    async def _remove_machine(self, provider: Provider, name: str, *, is_paid_back: bool) -> None:
        """Delete the machine, then commit the deletion of the node: a ledger pays for a machine until the
        machine is gone (I-22).

        With `is_paid_back`, the same commit also releases the charge for one machine of the class. The charge
        is released at the highest price of the lots for the class, in every ledger with a lot at that price.
        Without `is_paid_back` the charge stays, and the replacement machine uses it.
        """
        await provider.delete(name)
        entry, node = self._nodes.entry(f"/{name}"), self._nodes.get(f"/{name}")
        if entry is None or node is None:
            return
        finalizers = [finalizer for finalizer in node.metadata.finalizers if finalizer != MACHINE_FINALIZER]
        write: Write = Delete(entry.key, entry.revision)
        if finalizers:
            write = with_metadata(entry, lambda metadata: metadata | {"finalizers": finalizers})
        releases: list[Charge] = []
        ledgers_by_price: dict[int, list[LatticeLedger]] = {}
        for ledger, lot in self._lots(node.spec.cluster):
            if lot.node_class == node.spec.node_class:
                ledgers_by_price.setdefault(lot.micros, []).append(ledger)
        if is_paid_back and ledgers_by_price:
            # Release the lot with the highest price first, so that the cheapest machines stay.
            micros = max(ledgers_by_price)
            accounts = tuple(ledger.spec.budget for ledger in ledgers_by_price[micros])
            released = Lot(node_class=node.spec.node_class, count=1, micros=micros)
            releases.append(Charge(accounts, node.spec.cluster, released))
        await self._ledger_committer.commit_with_charges(Payment(writes=[write], releases=releases))
        # A later node of the same name must not inherit the heartbeats.
        self.context.presence.forget_node(name)

    async def _report_status(
        self,
        cluster: LatticeCluster,
        problems: Sequence[ProviderProblem],
        observed: Sequence[ClusterNode] | None = None,
    ) -> Requeue | None:
        """Write the status of the cluster and return when to poll again.

        `observed` holds the nodes that the plan saw; None if a step has changed the nodes.
        """
        path = f"/{cluster.metadata.name}"
        in_cluster = self._nodes.by_index("cluster", cluster.metadata.name)
        nodes = observed
        if nodes is None:
            nodes = [self._observe_node(node) for node in made_nodes(in_cluster)]
        entry, current = self._clusters.entry(path), self._clusters.get(path)
        if entry is not None and current is not None:
            joined = [self._observe_node(node) for node in in_cluster if node.is_joined_machine]
            counted = with_joined_machines(current, joined)
            status = status_from_nodes(counted, [*nodes, *joined], problems, self.endpoint())
            conditions = merge_conditions(
                current.status.conditions, status.conditions, self.context.timestamp
            )
            status = msgspec.structs.replace(status, conditions=conditions)
            writes: list[Write] = []
            if status != current.status:
                writes.append(with_status(entry, status))
            if status.phase != current.status.phase:
                is_bad = status.phase in ("Degraded", "Failed")
                writes.append(
                    self._recorder.event(current, f"Cluster{status.phase}", status.message, warning=is_bad)
                )
            if writes:
                await self.context.commit(writes)
        # Without an adapter no retry can succeed; a restart with other settings resyncs the cluster.
        if any(problem.reason == PROVIDER_UNAVAILABLE for problem in problems):
            return None
        if problems and not cluster.metadata.deletion_timestamp:
            return Requeue(PROVIDER_RETRY_S)
        is_settled = len(nodes) == cluster.spec.desired_nodes and all(
            node.is_ready and not node.is_decommissioned for node in nodes
        )
        if is_settled and not cluster.metadata.deletion_timestamp:
            return None
        return Requeue(PROVISIONING_POLL_S)

    async def _remove_if_unused(self, cluster: LatticeCluster) -> None:
        """Delete the cluster if it has no placements, no workloads, no paid machines and no minimum size.

        The number of the cluster must be recorded first, so that no later cluster gets the same number.
        """
        name = cluster.metadata.name
        if (entry := self._clusters.entry(f"/{name}")) is not None:
            # The commit that created the cluster may have placed replicas there and claimed joined machines.
            await self._services.wait_for(entry.revision)
            await self._nodes.wait_for(entry.revision)
        if self._nodes.by_index("cluster", name):
            return
        # `any` ends at the first placement in the cluster: a large fleet has many services.
        is_placed = any(
            placement.cluster == name
            for service in self._services.objects()
            for placement in service.status.placements
        )
        entry = self._clusters.entry(f"/{name}")
        if (
            entry is None
            or is_placed
            or self._workloads.by_index("cluster", name)
            or cluster.spec.min_nodes
            or self._paid_machines(name)
        ):
            return
        if not self._is_sequence_recorded(cluster):
            raise Unavailable(
                "the number of the cluster is not recorded yet",
                where=f"latticecluster/{name}",
                fix="wait until Lattice has recorded the number",
            )
        event = self._recorder.event(cluster, "ClusterRemoved", "No service needs the cluster")
        await self.context.commit([Delete(entry.key, entry.revision), event, *self._sequence_writes(cluster)])

    def _sequence_writes(self, cluster: LatticeCluster) -> list[Write]:
        """The writes that record the number of a deleted data-center cluster. No ledger pays for such a
        cluster, but a ledger keeps the last number."""
        if cluster.spec.pool != cluster.spec.infrastructure:
            return []
        account = static_account(cluster.spec.pool)
        path = f"/{account.ledger_name}"
        existing, entry = self._ledgers.get(path), self._ledgers.entry(path)
        ledger = record_cluster_number(account, existing, cluster.metadata.name, self.context.clock.now())
        if existing is None or entry is None:
            return [put_new(ledger, uid=self.context.new_uid(), now=self.context.timestamp)]
        return [with_status(entry, ledger.status)] if ledger.status != existing.status else []

    def _is_sequence_recorded(self, cluster: LatticeCluster) -> bool:
        """Whether the number of the cluster is recorded, so that no later cluster gets the number, even if
        the pool is created again."""
        offer, region, number = cluster.spec.pool, cluster.spec.region, cluster_sequence(cluster)
        if offer == cluster.spec.infrastructure:
            # The deletion itself records the number: see `_sequence_writes`.
            return True
        account = (
            pool_account(offer)
            if not cluster.spec.infrastructure
            else cloud_account(cluster.spec.infrastructure, region)
        )
        ledger = self._ledgers.get(f"/{account.ledger_name}")
        if ledger is not None and ledger.status.last_cluster >= number:
            return True
        pool = self.context.cache(LatticePool).get(f"/{offer}")
        cloud = self.context.cache(CloudInfrastructure).get(f"/{cluster.spec.infrastructure}")
        if pool is not None:
            return (pool.status.next_cluster_sequence or 1) > number
        return cloud is None or cloud.status.next_cluster_sequence.get(region, 1) > number


def _provider_problem(error: LatticeError, node_class: str = "") -> ProviderProblem:
    is_final = isinstance(error, ProvisioningRejected | NotFound)
    return ProviderProblem(PROVIDER_REJECTED if is_final else PROVIDER_REFUSED, str(error), node_class)


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None


class _Declared(msgspec.Struct, gc=False):
    """A cluster without its status."""

    metadata: _Metadata
    spec: msgspec.Raw


_decode_declared = msgspec.json.Decoder(_Declared).decode


def _cluster_relevant_state(node: LatticeNode) -> tuple[object, ...]:
    """The fields of a node that the cluster controller acts on."""
    ready = find_condition(node.status.conditions, READY_CONDITION)
    return (
        node.metadata.uid,
        node.metadata.deletion_timestamp,
        node.metadata.finalizers,
        node.spec,
        node.status.agent_version,
        ready.status if ready is not None else "",
    )


def cluster_sequence(cluster: LatticeCluster) -> int:
    """The number of a cluster, from the status or from the suffix of the name; 0 if neither has a number."""
    tail = cluster.metadata.name.rpartition("-")[2]
    return cluster.status.sequence or (int(tail) if tail.isdigit() else 0)
