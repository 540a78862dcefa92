"""Write placements: one commit holds the statuses, clusters and charges of one or several commit stages,
built from the current caches. A stage that is too large for one commit takes several, the clusters first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import put_new, with_metadata, with_spec, with_status
from lattice.controllers.services.joined_nodes import claim_writes, made_nodes, release_writes
from lattice.controllers.services.ledger_commit import CommittedPayment, LedgerCommitter, OverBudget, Payment
from lattice.errors import Conflict
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, merge_conditions
from lattice.kinds.meta.object_lifecycle import mark_for_deletion
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import (
    PLACED_CONDITION,
    STALE_CONDITION,
    LatticeService,
    ServicePlacement,
    ServiceStatus,
)
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import not_ready_message
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.commit_stages import CommitStage, StagedDecision
from lattice.placement.greedy.orphaned import clusters_in_use
from lattice.placement.greedy.unschedulable import is_within_limits
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.costs import charges_due, paid_machines, releases_due
from lattice.placement.status.fleet_status import cluster_labels, cluster_object
from lattice.placement.status.placement_conditions import WOULD_MOVE, PlacementStatus
from lattice.store.commit_packing import pack_writes
from lattice.store.protocol import Check, Entry, Write

# With the services, events, ledgers and checks of budget owners, a commit of this size stays below
# MAX_COMMIT_OPERATIONS of the store.
MAX_CLUSTERS_PER_COMMIT = 30
MAX_SERVICES_PER_COMMIT = 10
MAX_NAMES_IN_EVENT = 5
REPLACEMENT_MESSAGE = (
    "No other node accepts the workloads of this node: "
    "creating a replacement machine before the node is removed"
)


@dataclass(frozen=True, slots=True)
class StageRejection:
    """The services of a commit stage that a ledger rejected.

    Nothing of the rejected commit was written. If the stage was too large for one commit, earlier commits of
    the stage stay.
    """

    services: tuple[str, ...]
    over_budget: OverBudget


@dataclass(frozen=True, slots=True)
class _MachineWrites:
    """Writes and charges of clusters, with the names of created and grown clusters."""

    writes: tuple[Write, ...] = ()
    charges: tuple[Charge, ...] = ()
    created_clusters: tuple[str, ...] = ()
    grown_clusters: tuple[str, ...] = ()


class PlacementWriter:
    """Commit the placements of a staged decision and keep the clusters paid, labelled and no larger than
    needed."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._services, self._clusters = context.cache(LatticeService), context.cache(LatticeCluster)
        self._ledgers, self._nodes = context.cache(LatticeLedger), context.cache(LatticeNode)
        self._workloads = context.cache(LatticeWorkload)
        self._ledger_committer = LedgerCommitter(context.store, context.clock, context.term, context.new_uid)
        self._recorder = context.recorder("services")
        # Node groups with an unpaid machine whose charge a ledger rejected in the last write.
        self.over_budget_groups: frozenset[NodeGroupKey] = frozenset()
        # The rejections of unpaid machines in the last write, by latticecluster/NAME.
        self.rejected_replacements: dict[str, OverBudget] = {}

    async def write(
        self, decided: StagedDecision, statuses: Mapping[str, PlacementStatus]
    ) -> StageRejection | None:
        """Commit the stages in the order of the decision, then shrink clusters, charge unpaid machines, and
        write the labels of clusters and the statuses of the other services.

        If a ledger rejects a stage, the method returns this stage and writes nothing further; earlier stages
        stay committed.
        """
        written: set[str] = set()
        for stages in _group_stages(decided.stages):
            rejection = await self._commit_stages(decided, stages, statuses)
            if rejection is not None and len(stages) > 1:
                # One of the stages is over budget: commit stage by stage, so that the stages before it pass.
                for stage in stages:
                    rejection = await self._commit_stages(decided, [stage], statuses)
                    if rejection is not None:
                        break
            if rejection is not None:
                return rejection
            for stage in stages:
                written.update(stage.services)
        await self._return_surge_machines(decided)
        await self._replace_closed_machines(decided)
        # Shrink first, so that a machine that no service needs any more is not charged.
        await self._shrink_clusters(decided)
        await self._charge_unpaid_machines(decided)
        # Update the labels: a cluster has RESERVE_LABEL while all its services may use the reserved nodes of
        # the data center.
        for name, cluster in sorted(decided.fleet.clusters.items()):
            existing, entry = self._clusters.get(f"/{name}"), self._clusters.entry(f"/{name}")
            labels = cluster_labels(cluster, decided.fleet, existing)
            if existing is not None and entry is not None and labels != existing.spec.labels:
                await self._commit([with_spec(entry, msgspec.structs.replace(existing.spec, labels=labels))])
        groups = (
            self._status_writes(decided, name, statuses[name]) for name in statuses if name not in written
        )
        for batch in pack_writes(group for group in groups if group):
            await self._commit(batch)
        return None

    async def _commit_stages(
        self, decided: StagedDecision, stages: Sequence[CommitStage], statuses: Mapping[str, PlacementStatus]
    ) -> StageRejection | None:
        """Commit stages in one commit, or in several if the stages exceed the limits of a commit."""
        for part in _split_stages(stages):
            # A later stage repeats the clusters of an earlier stage with larger counts, so the last count
            # wins.
            desired: dict[str, Mapping[str, int]] = {}
            for stage in part:
                desired.update(stage.clusters)
            machines = self._machine_writes(decided, desired)
            writes: list[Write] = []
            for stage in part:
                for name in stage.services:
                    writes += self._status_writes(decided, name, statuses[name])
            writes += [*self._stage_events(decided, part, machines), *machines.writes]
            if not writes:
                continue
            result = await self._ledger_committer.commit_with_charges(Payment(writes, machines.charges))
            if isinstance(result, OverBudget):
                return StageRejection(tuple(name for stage in stages for name in stage.services), result)
            await self._wait_for_caches(result.revision)
        return None

    async def _commit(self, writes: Sequence[Write], checks: Sequence[Check] = ()) -> None:
        if writes:
            await self._wait_for_caches(await self._context.commit(writes, checks))

    async def _wait_for_caches(self, revision: int) -> None:
        """Wait for the caches: the next write is built from the result of the previous write."""
        for cache in (self._services, self._clusters, self._ledgers, self._nodes):
            await cache.wait_for(revision)

    def _machine_writes(
        self, decided: StagedDecision, desired: Mapping[str, Mapping[str, int]]
    ) -> _MachineWrites:
        """The writes and charges that create or grow clusters to the desired counts. Counts never shrink
        here, because nodes may still run workloads."""
        paid, fleet = paid_machines(self._ledgers.objects()), decided.fleet
        writes: list[Write] = []
        charges: list[Charge] = []
        created: list[str] = []
        grown: list[str] = []
        for name in sorted(desired):
            cluster = fleet.clusters.get(name)
            if cluster is None:
                continue
            existing, entry = self._clusters.get(f"/{name}"), self._clusters.entry(f"/{name}")
            writes += claim_writes(fleet, cluster, self._nodes, self._recorder)
            counts = dict(desired[name])
            if existing is None or entry is None:
                template = cluster_object(cluster, fleet)
                spec = msgspec.structs.replace(template.spec, nodes=dict(sorted(counts.items())))
                writes.append(
                    put_new(
                        msgspec.structs.replace(template, spec=spec),
                        uid=self._context.new_uid(),
                        now=self._context.timestamp,
                    )
                )
                created.append(name)
            else:
                counts = {
                    node_class: max(counts.get(node_class, 0), existing.spec.nodes.get(node_class, 0))
                    for node_class in sorted({*counts, *existing.spec.nodes})
                }
                if counts == existing.spec.nodes:
                    continue
                writes.append(with_spec(entry, msgspec.structs.replace(existing.spec, nodes=counts)))
                grown.append(name)
            charges += charges_due(fleet, cluster, counts, paid)
        return _MachineWrites(tuple(writes), tuple(charges), tuple(created), tuple(grown))

    def _status_writes(self, decided: StagedDecision, name: str, report: PlacementStatus) -> list[Write]:
        """The write of a service's placement status, with events for changes; empty if the status is
        unchanged.

        Raises Conflict if the service changed since the decision.
        """
        service = decided.world.services[name]
        path = path_of(service)
        current, entry = self._services.get(path), self._services.entry(path)
        # The service was deleted, or created again, since the decision.
        if current is None or entry is None or current.metadata.uid != service.metadata.uid:
            return []
        if current.metadata.generation != service.metadata.generation or _placement_keys(
            current.status
        ) != _placement_keys(service.status):
            raise Conflict(
                "the service changed during its placement",
                where=f"latticeservice/{name}",
                fix="place the service again",
            )
        previous, now = current.status, self._context.timestamp
        placements = report.status.placements
        if any(placement.cluster in decided.unsettled_clusters for placement in placements):
            # Until the replicas are bound, the trial fleet can only guess their machines and the resulting
            # cost of the service. Keep stored placements, so that a different guess causes no write.
            stated = {_placement_key(placement): placement for placement in previous.placements}
            placements = tuple(stated.get(_placement_key(placement), placement) for placement in placements)
        status: ServiceStatus = msgspec.structs.replace(
            previous,
            placements=placements,
            scheduler_decision=report.status.scheduler_decision,
            remediation=report.status.remediation,
            conditions=merge_conditions(previous.conditions, report.conditions, now),
        )
        if status == previous:
            return []
        if (_placement_keys(status), status.scheduler_decision) != (
            _placement_keys(previous),
            previous.scheduler_decision,
        ):
            status = msgspec.structs.replace(status, last_scheduled=now)
        return [with_status(entry, status), *self._status_events(current, previous, status)]

    def _status_events(
        self, service: LatticeService, previous: ServiceStatus, status: ServiceStatus
    ) -> Iterator[Write]:
        placed, decision = find_condition(status.conditions, PLACED_CONDITION), status.scheduler_decision
        if _placement_keys(previous) != _placement_keys(status) and status.placements:
            summary = ", ".join(
                f"{pluralize(placement.replicas or 0, 'replica')} in cluster {placement.cluster} on class {placement.node}"
                for placement in status.placements[:MAX_NAMES_IN_EVENT]
            )
            omitted = len(status.placements) - MAX_NAMES_IN_EVENT
            if omitted > 0:
                summary += f" and {omitted} more"
            yield self._recorder.event(service, "Placed", f"Placed {summary}")
        if placed and placed.status == "False" and _is_news(placed, previous):
            verdict = decision.verdict if decision else placed.reason
            yield self._recorder.event(service, "NotPlaced", f"{verdict}: {placed.message}", warning=True)
        stale = find_condition(status.conditions, STALE_CONDITION)
        if stale and stale.status == "True" and _is_news(stale, previous):
            # Only a violated rule needs an action.
            if stale.reason == WOULD_MOVE:
                yield self._recorder.event(service, "PlacementStale", stale.message, warning=True)
            else:
                yield self._recorder.event(service, "CostsMore", stale.message)
        earlier_records = {(record.offer, record.node_class): record for record in previous.remediation}
        for record in status.remediation:
            earlier = earlier_records.get((record.offer, record.node_class))
            if record.refused and not (earlier and earlier.refused):
                shortage = f": need {record.need}, have {record.have}" if record.need else ""
                message = (
                    f"No further machine of class {record.node_class} is bought in {record.offer}: "
                    f"{record.reason}{shortage}"
                )
                yield self._recorder.event(service, "MachineRefused", message, warning=True)
            elif record.reason and not (earlier and earlier.reason == record.reason):
                shortage = f": need {record.need}, have {record.have}" if record.need else ""
                message = f"No machine is bought for a waiting replica: {record.reason}{shortage}"
                yield self._recorder.event(service, "NoMachine", message, warning=True)

    def _stage_events(
        self, decided: StagedDecision, stages: Sequence[CommitStage], machines: _MachineWrites
    ) -> Iterator[Write]:
        """Yield the events that report every created or grown cluster, on the first service that uses the
        cluster, and every remediation."""
        reported: set[str] = set()
        for stage in stages:
            if not stage.services:
                continue
            service = decided.world.services[stage.services[0]]
            fresh = stage.clusters.keys() - reported
            reported |= fresh
            for reason, verb, names in (
                ("ClusterCreated", "Created", machines.created_clusters),
                ("ClusterGrown", "Added machines to", machines.grown_clusters),
            ):
                if clusters := [name for name in names if name in fresh]:
                    yield self._recorder.event(service, reason, f"{verb} {_join_names(clusters)}")
            for remediation in decided.remediations.get(stage.services[0], ()):
                cluster, node_class = remediation.node_group
                if remediation.machines:
                    outcome = f"adding {pluralize(remediation.machines, 'node')} of class {node_class}"
                elif remediation.is_moved:
                    outcome = "placing the replicas elsewhere"
                else:
                    outcome = f"a node of class {node_class} that is being added has free capacity"
                replicas = pluralize(remediation.replicas, "replica")
                message = f"No node of cluster {cluster} accepts {replicas} of the service; {outcome}"
                yield self._recorder.event(service, "NoNodeFits", message, warning=True)

    async def _return_surge_machines(self, decided: StagedDecision) -> None:
        """Decommission machines that were bought for surge replicas of updates that have ended; the drain
        moves their replicas to the free capacity of the other machines first."""
        for returned in decided.surge_returns:
            cluster, node_class = returned.node_group
            existing, entry = self._clusters.get(f"/{cluster}"), self._clusters.entry(f"/{cluster}")
            node, node_entry = self._nodes.get(f"/{returned.node}"), self._nodes.entry(f"/{returned.node}")
            if existing is None or entry is None or node is None or node_entry is None:
                continue
            if node.metadata.deletion_timestamp:
                continue
            counts = dict(existing.spec.nodes)
            counts[node_class] = max(0, counts.get(node_class, 0) - 1)
            spec = msgspec.structs.replace(
                existing.spec, nodes={name: count for name, count in counts.items() if count}
            )
            mark = with_metadata(
                node_entry,
                lambda metadata: mark_for_deletion({"metadata": metadata}, now=self._context.timestamp)[
                    "metadata"
                ],
            )
            message = f"Decommissioning {returned.node}: the update that needed the machine has ended"
            writes = [with_spec(entry, spec), mark]
            for name in returned.services:
                service = decided.world.services[name]
                writes.append(self._recorder.event(service, "SurgeMachineReturned", message))
            await self._nodes.wait_for(await self._context.commit(writes))
            await self._clusters.wait_for(self._nodes.revision)

    async def _replace_closed_machines(self, decided: StagedDecision) -> None:
        """Decommission empty machines that are silent or cordoned if the decision counts on new machines in
        their place: the counts of the cluster are the same, so that nothing else would replace them."""
        in_use = decided.fleet.machines.row_of
        for name, desired in sorted(decided.desired_machines.items()):
            if name in decided.unsettled_clusters:
                continue
            nodes = [
                node
                for node in made_nodes(self._nodes.by_index("cluster", name))
                if not node.metadata.deletion_timestamp
            ]
            existing = Counter(node.spec.node_class for node in nodes)
            dropped: dict[str, list[LatticeNode]] = {}
            for node in sorted(nodes, key=lambda node: node.metadata.name):
                if node.metadata.name not in in_use:
                    dropped.setdefault(node.spec.node_class, []).append(node)
            for node_class, several in sorted(dropped.items()):
                # Without the machines that the cluster has beyond the desired count: it shrinks by these.
                count = len(several) - max(0, existing[node_class] - desired[node_class])
                closed = [node for node in several if not_ready_message(node) or node.spec.unschedulable]
                for node in closed[: max(0, count)]:
                    await self._decommission(node)

    async def _decommission(self, node: LatticeNode) -> None:
        entry = self._nodes.entry(f"/{node.metadata.name}")
        if entry is None:
            return
        message = f"Replacing the empty machine: {not_ready_message(node) or 'the node is cordoned'}"
        mark = with_metadata(
            entry,
            lambda metadata: mark_for_deletion({"metadata": metadata}, now=self._context.timestamp)[
                "metadata"
            ],
        )
        event = self._recorder.event(node, "NodeReplaced", message)
        await self._nodes.wait_for(await self._context.commit([mark, event]))

    async def _charge_unpaid_machines(self, decided: StagedDecision) -> None:
        """Charge desired machines that no ledger pays for.

        A ledger pays for a number of machines per class, so a desired machine is unpaid in two cases: the
        cluster controller refunded a removed machine after the decision had read the ledger, or a node that is
        being removed still uses the payment.
        """
        paid, fleet = paid_machines(self._ledgers.objects()), decided.fleet
        classes_by_cluster: dict[str, list[str]] = {}
        for name, node_class in decided.paid_in_advance:
            classes_by_cluster.setdefault(name, []).append(node_class)
        self.over_budget_groups = frozenset()
        self.rejected_replacements = {}
        for existing in self._clusters.objects():
            name = existing.metadata.name
            cluster, entry = fleet.clusters.get(name), self._clusters.entry(f"/{name}")
            desired = dict(existing.spec.nodes)
            leaving: list[tuple[Entry, LatticeNode]] = []
            # In these classes, the replacement of a leaving node is paid before the node is removed.
            for node_class in sorted(classes_by_cluster.get(name, ())):
                in_cluster = made_nodes(self._nodes.by_index("cluster", name))
                nodes = [node for node in in_cluster if node.spec.node_class == node_class]
                marked = [node for node in nodes if node.metadata.deletion_timestamp]
                first = min(marked, key=lambda node: node.metadata.name, default=None)
                leaving_entry = self._nodes.entry(f"/{first.metadata.name}") if first else None
                if first and leaving_entry:
                    desired[node_class] = max(desired.get(node_class, 0), len(nodes) + 1)
                    leaving.append((leaving_entry, first))
            charges = charges_due(fleet, cluster, desired, paid) if cluster and entry else ()
            # The pool may allow fewer machines by now: an unpaid machine beyond its limits stays unpaid
            # (I-20).
            if not (charges and entry and cluster and is_within_limits(fleet, cluster)):
                continue
            writes = [self._recorder.event(node, "NodeReplaced", REPLACEMENT_MESSAGE) for _, node in leaving]
            # The commit conflicts if another write has changed the cluster or a leaving node meanwhile.
            checks = [Check(entry.key, entry.revision)]
            checks += [Check(node_entry.key, node_entry.revision) for node_entry, _ in leaving]
            result = await self._ledger_committer.commit_with_charges(Payment(writes, charges, checks=checks))
            if isinstance(result, OverBudget):
                self.over_budget_groups |= {(name, charge.lot.node_class) for charge in charges}
                self.rejected_replacements[f"latticecluster/{name}"] = result
            else:
                await self._wait_for_caches(result.revision)

    async def _shrink_clusters(self, decided: StagedDecision) -> None:
        """Lower the machine counts of clusters to the counts that services need; an empty cluster loses its
        minimum size."""
        offers, in_use = decided.fleet.table.row_of, clusters_in_use(decided.orphaned_replicas)
        for cluster in sorted(self._clusters.objects(), key=lambda cluster: cluster.metadata.name):
            name, entry = cluster.metadata.name, self._clusters.entry(f"/{cluster.metadata.name}")
            is_orphaned_in_use = cluster.spec.pool not in offers and name in in_use
            # In an unsettled cluster, replicas may still run on machines that the decision no longer uses. A
            # cluster of a deleted pool or a withdrawn offer keeps its machines while it has replicas.
            if entry is None or name in decided.unsettled_clusters or is_orphaned_in_use:
                continue
            await self._release_joined_machines(decided, name)
            target = decided.desired_machines.get(name, Counter())
            counts = {
                node_class: min(count, target[node_class]) for node_class, count in cluster.spec.nodes.items()
            }
            if counts != cluster.spec.nodes:
                remaining = {node_class: count for node_class, count in counts.items() if count}
                spec = msgspec.structs.replace(
                    cluster.spec, nodes=remaining, min_nodes=cluster.spec.min_nodes if remaining else 0
                )
                surplus = cluster.spec.desired_nodes - spec.desired_nodes
                reason = f"no replica needs {'it' if surplus == 1 else 'them'}"
                nodes = self._nodes.by_index("cluster", name)
                if unreachable := sorted(node.metadata.name for node in nodes if not_ready_message(node)):
                    reason = (
                        f"the workloads of {_join_names(unreachable)} run elsewhere after missed heartbeats; "
                        f"{reason}"
                    )
                message = (
                    f"Removing {surplus} of {pluralize(cluster.spec.desired_nodes, 'machine')}: {reason}"
                )
                await self._commit(
                    [with_spec(entry, spec), self._recorder.event(cluster, "ClusterShrunk", message)]
                )
            await self._refund_unmade_machines(name)

    async def _release_joined_machines(self, decided: StagedDecision, cluster: str) -> None:
        """Give back the joined machines that the cluster no longer needs."""
        if not any(node.is_joined_machine for node in self._nodes.by_index("cluster", cluster)):
            return
        # A binding writes its node: with a workload cache as fresh as the node cache, no bound replica is
        # missed, and a later binding conflicts with the release.
        await self._workloads.wait_for(self._nodes.revision)
        writes = release_writes(decided.fleet, cluster, self._nodes, self._workloads, self._recorder)
        await self._commit(list(writes))

    async def _refund_unmade_machines(self, name: str) -> None:
        """Release the charges of machines that were never created.

        The cluster controller creates a node only under a check of the cluster's revision. Therefore no node
        beyond the present machine count can appear during the release.
        """
        entry, cluster = self._clusters.entry(f"/{name}"), self._clusters.get(f"/{name}")
        # Most clusters have nothing to refund: wait for newer caches only if the present caches show a refund.
        if entry is None or cluster is None or not self._unmade_machine_charges(name, cluster.spec.nodes):
            return
        # Every node that the cluster controller created for this cluster must be in the cache.
        await self._nodes.wait_for(entry.revision)
        # The charge of a leaving node is released in the commit that deletes the node, so the ledger cache
        # must be as fresh as the node cache.
        await self._ledgers.wait_for(self._nodes.revision)
        if releases := self._unmade_machine_charges(name, cluster.spec.nodes):
            result = await self._ledger_committer.commit_with_charges(
                Payment([], releases=releases, checks=[Check(entry.key, entry.revision)])
            )
            if isinstance(result, CommittedPayment):
                await self._wait_for_caches(result.revision)

    def _unmade_machine_charges(self, cluster: str, desired: Mapping[str, int]) -> list[Charge]:
        """The charges of paid machines without a node; the cluster controller would never release these
        charges."""
        nodes = made_nodes(self._nodes.by_index("cluster", cluster))
        leaving = Counter(node.spec.node_class for node in nodes if node.metadata.deletion_timestamp)
        staying = Counter(node.spec.node_class for node in nodes) - leaving
        ledgers = self._ledgers.objects()
        node_classes: set[str] = set()
        for ledger in ledgers:
            node_classes.update(lot.node_class for lot in ledger.status.machines.get(cluster, ()))
        charges: list[Charge] = []
        for node_class in sorted(node_classes):
            # A leaving node and its replacement are both paid.
            paid = max(desired.get(node_class, 0), staying[node_class]) + leaving[node_class]
            charges += releases_due(ledgers, (cluster, node_class), paid)
        return charges


def _group_stages(stages: Sequence[CommitStage]) -> Iterator[list[CommitStage]]:
    """Group stages into batches that fit into one commit."""
    batch: list[CommitStage] = []
    for stage in stages:
        clusters: set[str] = set()
        for grouped in (*batch, stage):
            clusters.update(grouped.clusters)
        services = sum(len(grouped.services) for grouped in (*batch, stage))
        if batch and (len(clusters) > MAX_CLUSTERS_PER_COMMIT or services > MAX_SERVICES_PER_COMMIT):
            yield batch
            batch = []
        batch.append(stage)
    if batch:
        yield batch


def _split_stages(stages: Sequence[CommitStage]) -> Iterator[list[CommitStage]]:
    """Split a stage that is too large for one commit.

    Clusters come before the services that use them, so that a service is written only when its machines are
    paid.
    """
    # `_group_stages` has joined only stages that fit into one commit.
    if len(stages) > 1:
        yield list(stages)
        return
    (stage,) = stages
    names, services = sorted(stage.clusters), stage.services
    while len(names) > MAX_CLUSTERS_PER_COMMIT:
        head, names = names[:MAX_CLUSTERS_PER_COMMIT], names[MAX_CLUSTERS_PER_COMMIT:]
        yield [CommitStage((), {name: stage.clusters[name] for name in head})]
    yield [CommitStage(services[:MAX_SERVICES_PER_COMMIT], {name: stage.clusters[name] for name in names})]
    for start in range(MAX_SERVICES_PER_COMMIT, len(services), MAX_SERVICES_PER_COMMIT):
        yield [CommitStage(services[start : start + MAX_SERVICES_PER_COMMIT], {})]


def _placement_keys(status: ServiceStatus) -> list[tuple[str, str, str, int | None]]:
    return sorted(map(_placement_key, status.placements))


def _placement_key(placement: ServicePlacement) -> tuple[str, str, str, int | None]:
    return (placement.pool, placement.cluster, placement.node, placement.replicas)


def _is_news(condition: Condition, previous: ServiceStatus) -> bool:
    """Whether the previous status lacks the condition, or has it with another status, reason or message."""
    stored = find_condition(previous.conditions, condition.type)
    return stored is None or (stored.status, stored.reason, stored.message) != (
        condition.status,
        condition.reason,
        condition.message,
    )


def _join_names(names: Sequence[str]) -> str:
    omitted = len(names) - MAX_NAMES_IN_EVENT
    return ", ".join(names[:MAX_NAMES_IN_EVENT]) + (f" and {omitted} more" if omitted > 0 else "")
