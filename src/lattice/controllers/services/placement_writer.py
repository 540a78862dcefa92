"""How placements are written: status, clusters and money of one service in one commit, from what the copies have at that moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext, batch_writes
from lattice.controllers.runtime.object_writes import merge_conditions, put_new, with_spec, with_status
from lattice.controllers.services.ledger_commit import CommittedPayment, LedgerCommitter, OverBudget, Payment
from lattice.errors import Conflict
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, ServicePlacement, ServiceStatus
from lattice.lifecycle.replica_observation import not_ready_message
from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.commit_stages import CommitStage, StagedDecision
from lattice.placement.greedy.orphaned import clusters_in_use
from lattice.placement.greedy.unschedulable import is_within_limits
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.model.costs import charges_due, paid_machines, releases_due
from lattice.placement.status.placement_conditions import PLACED_CONDITION, STALE_CONDITION, PlacementStatus
from lattice.placement.status.service_status import cluster_labels, cluster_object
from lattice.store.protocol import Check, Entry, Write

MAX_CLUSTERS_PER_COMMIT = 30  # in one commit: with their events, ledgers and what states the budgets they stay below a hundred operations
MAX_SERVICES_PER_COMMIT = 10
MAX_NAMES_IN_EVENT = 5  # clusters named in an event
REPLACEMENT_MESSAGE = "nothing else takes what runs on it: a machine is made in its place before it goes"


@dataclass(frozen=True, slots=True)
class BudgetRejection:
    """Nothing of this was written: the budgets are the store's to judge."""

    services: tuple[str, ...]
    over_budget: OverBudget


@dataclass(frozen=True, slots=True)
class _MachineWrites:
    """Clusters as they are to be, and which of them are new."""

    writes: tuple[Write, ...] = ()
    charges: tuple[Charge, ...] = ()
    created_clusters: tuple[str, ...] = ()
    grown_clusters: tuple[str, ...] = ()


class PlacementWriter:
    def __init__(self, office: ControllerContext) -> None:
        self._context = office
        self._services, self._clusters = office.cache(LatticeService), office.cache(LatticeCluster)
        self._ledgers, self._nodes = office.cache(LatticeLedger), office.cache(LatticeNode)
        self._ledger_committer = LedgerCommitter(office.store, office.clock, office.term, office.new_uid)
        self._recorder = office.recorder("services")
        self.over_budget_groups: frozenset[NodeGroupKey] = (
            frozenset()
        )  # where a machine was lately refused that is wanted, and that nobody pays for

    async def write(
        self, decided: StagedDecision, said: Mapping[str, PlacementStatus]
    ) -> BudgetRejection | None:
        """Those that take machines first, in the order in which they were decided; then what is left to be said."""
        written: set[str] = set()
        for stages in _group_stages(decided.stages):
            refusal = await self._commit_stages(decided, stages, said)
            if refusal is not None and len(stages) > 1:  # one of them is too dear: the others may not be
                refusal = await self._commit_each_stage(decided, stages, said)
            if refusal is not None:
                return refusal
            written.update(name for stage in stages for name in stage.services)
        await self._shrink_clusters(decided)
        await self._charge_unpaid_machines(
            decided
        )  # of what is left: nobody pays for what is given up at once
        await self._relabel(decided)
        left = (self._status_writes(decided, name, said[name]) for name in said if name not in written)
        for batch in batch_writes([writes for writes in left if writes]):
            await self._commit(batch)
        return None

    async def _commit_each_stage(
        self, decided: StagedDecision, stages: Sequence[CommitStage], said: Mapping[str, PlacementStatus]
    ) -> BudgetRejection | None:
        for stage in stages:
            refusal = await self._commit_stages(decided, [stage], said)
            if refusal is not None:
                return refusal
        return None

    async def _commit_stages(
        self, decided: StagedDecision, stages: Sequence[CommitStage], said: Mapping[str, PlacementStatus]
    ) -> BudgetRejection | None:
        """In one commit, unless that is too large for any."""
        for part in _split_stages(stages):
            wanted = {
                name: counts for stage in part for name, counts in stage.clusters.items()
            }  # the last one has the most
            machines = self._machine_writes(decided, wanted)
            writes = [
                write
                for stage in part
                for name in stage.services
                for write in self._status_writes(decided, name, said[name])
            ]
            writes += [*self._stage_events(decided, part, machines), *machines.writes]
            if not writes:
                continue
            paid = await self._ledger_committer.commit_with_charges(Payment(writes, machines.charges))
            if isinstance(paid, OverBudget):
                return BudgetRejection(tuple(name for stage in stages for name in stage.services), paid)
            await self._wait_for_caches(paid.revision)
        return None

    async def _commit(self, writes: Sequence[Write], checks: Sequence[Check] = ()) -> None:
        if writes:
            await self._wait_for_caches(await self._context.commit(writes, checks))

    async def _wait_for_caches(self, revision: int) -> None:
        """Each write is made from the one before it."""
        for copy in (self._services, self._clusters, self._ledgers):
            await copy.wait_for(revision)

    def _machine_writes(
        self, decided: StagedDecision, wanted: Mapping[str, Mapping[str, int]]
    ) -> _MachineWrites:
        """Never fewer than there are to be already: what goes, goes when nobody is on it."""
        paid, fleet = paid_machines(self._ledgers.objects()), decided.fleet
        writes: list[Write] = []
        costs: list[Charge] = []
        made: list[str] = []
        grown: list[str] = []
        for name in sorted(wanted):
            cluster = fleet.clusters.get(name)
            if cluster is None:
                continue
            known, entry = self._clusters.get(f"/{name}"), self._clusters.entry(f"/{name}")
            counts = dict(wanted[name])
            if known is None or entry is None:
                drawn = cluster_object(cluster, fleet)
                spec = msgspec.structs.replace(drawn.spec, nodes=dict(sorted(counts.items())))
                writes.append(
                    put_new(
                        msgspec.structs.replace(drawn, spec=spec),
                        uid=self._context.new_uid(),
                        now=self._context.timestamp,
                    )
                )
                made.append(name)
            else:
                counts = {
                    kind: max(counts.get(kind, 0), known.spec.nodes.get(kind, 0))
                    for kind in sorted({*counts, *known.spec.nodes})
                }
                if counts == known.spec.nodes:
                    continue
                writes.append(with_spec(entry, msgspec.structs.replace(known.spec, nodes=counts)))
                grown.append(name)
            costs += charges_due(fleet, cluster, counts, paid)
        return _MachineWrites(tuple(writes), tuple(costs), tuple(made), tuple(grown))

    def _status_writes(self, decided: StagedDecision, name: str, said: PlacementStatus) -> list[Write]:
        """What the service's status says now, and events where that is news. Nothing, if it says so already."""
        service = decided.world.services[name]
        path = f"{service.metadata.namespace}/{service.metadata.name}"
        now, entry = self._services.get(path), self._services.entry(path)
        if now is None or entry is None or now.metadata.uid != service.metadata.uid:
            return []
        if now.metadata.generation != service.metadata.generation or _placement_keys(
            now.status
        ) != _placement_keys(service.status):
            raise Conflict(
                "changed while its place was decided", where=f"latticeservice/{name}", fix="decide again"
            )
        before, stamp = now.status, self._context.timestamp
        status: ServiceStatus = msgspec.structs.replace(
            before,
            placements=_with_stable_prices(
                before.placements,
                said.status.placements,
                is_sure=not self._is_in_unsettled_cluster(decided, said),
            ),
            scheduler_decision=said.status.scheduler_decision,
            conditions=merge_conditions(before.conditions, said.conditions, stamp),
        )
        if status == before:
            return []
        if (_placement_keys(status), status.scheduler_decision) != (
            _placement_keys(before),
            before.scheduler_decision,
        ):
            status = msgspec.structs.replace(status, last_scheduled=stamp)
        return [with_status(entry, status), *self._status_events(now, before, status)]

    def _is_in_unsettled_cluster(self, decided: StagedDecision, said: PlacementStatus) -> bool:
        """Where replicas are on machines is only guessed before they are bound: no reason to state other shares of the cost."""
        return any(each.cluster in decided.unsettled_clusters for each in said.status.placements)

    def _status_events(
        self, service: LatticeService, before: ServiceStatus, after: ServiceStatus
    ) -> Iterator[Write]:
        placed, decision = _condition(after, PLACED_CONDITION), after.scheduler_decision
        if _placement_keys(before) != _placement_keys(after) and after.placements:
            where = ", ".join(
                f"{each.replicas} in {each.cluster} on {each.node}"
                for each in after.placements[:MAX_NAMES_IN_EVENT]
            )
            rest = len(after.placements) - MAX_NAMES_IN_EVENT
            yield self._recorder.event(service, "Placed", f"{where}{f' and {rest} more' if rest > 0 else ''}")
        said_before = _condition(before, PLACED_CONDITION)
        if (
            placed
            and placed.status == "False"
            and (said_before is None or _condition_text(said_before) != _condition_text(placed))
        ):
            verdict = decision.verdict if decision else placed.reason
            yield self._recorder.event(service, "NotPlaced", f"{verdict}: {placed.message}", warning=True)
        stale, was = _condition(after, STALE_CONDITION), _condition(before, STALE_CONDITION)
        if (
            stale
            and stale.status == "True"
            and (was is None or _condition_text(was) != _condition_text(stale))
        ):
            yield self._recorder.event(service, "PlacementStale", stale.message, warning=True)

    def _stage_events(
        self, decided: StagedDecision, stages: Sequence[CommitStage], machines: _MachineWrites
    ) -> Iterator[Write]:
        """Each cluster with the first service that it is for."""
        told: set[str] = set()
        for stage in stages:
            if not stage.services:
                continue
            about = decided.world.services[stage.services[0]]
            fresh = stage.clusters.keys() - told
            told |= fresh
            for reason, names in (
                ("ClusterCreated", machines.created_clusters),
                ("ClusterGrown", machines.grown_clusters),
            ):
                if here := [name for name in names if name in fresh]:
                    yield self._recorder.event(about, reason, _join_names(here))
            for each in decided.remediations.get(stage.services[0], ()):
                what = f"no node of {each.node_group[0]} takes {each.replicas} of its replicas"
                then = (
                    f"{each.machines} more of class {each.node_group[1]} for it"
                    if each.machines
                    else "they are placed elsewhere"
                )
                yield self._recorder.event(about, "NoNodeFits", f"{what}: {then}", warning=True)

    async def _charge_unpaid_machines(self, decided: StagedDecision) -> None:
        """Machines that are to be there and that a budget does not pay for: the release of another has crossed the decision, or its
        place is still taken by one that leaves."""
        paid, fleet = paid_machines(self._ledgers.objects()), decided.fleet
        kinds: dict[str, list[str]] = {}
        for name, kind in decided.paid_in_advance:
            kinds.setdefault(name, []).append(kind)
        self.over_budget_groups = frozenset()
        for known in self._clusters.objects():
            cluster, entry = (
                fleet.clusters.get(known.metadata.name),
                self._clusters.entry(f"/{known.metadata.name}"),
            )
            wanted, leaving = self._with_replacements(known, kinds.get(known.metadata.name, ()))
            owed = charges_due(fleet, cluster, wanted, paid) if cluster and entry else ()
            if owed and entry and cluster and is_within_limits(fleet, cluster):
                writes = [
                    self._recorder.event(each, "NodeReplaced", REPLACEMENT_MESSAGE) for _, each in leaving
                ]
                checks = [
                    Check(entry.key, entry.revision),
                    *(Check(each.key, each.revision) for each, _ in leaving),
                ]
                answer = await self._ledger_committer.commit_with_charges(
                    Payment(writes, owed, checks=checks)
                )
                if isinstance(answer, OverBudget):
                    self.over_budget_groups |= {(known.metadata.name, each.lot.node_class) for each in owed}
                else:
                    await self._wait_for_caches(answer.revision)

    def _with_replacements(
        self, cluster: LatticeCluster, kinds: Iterable[str]
    ) -> tuple[dict[str, int], list[tuple[Entry, LatticeNode]]]:
        """Machines by class, of these one more than there are where one that leaves is to be replaced before it is gone; and who leaves."""
        wanted, found = dict(cluster.spec.nodes), []
        for kind in sorted(kinds):
            there = [
                each
                for each in self._nodes.by_index("cluster", cluster.metadata.name)
                if each.spec.node_class == kind
            ]
            leaving = [each for each in there if each.metadata.deletion_timestamp]
            first = min(leaving, key=lambda each: each.metadata.name, default=None)
            entry = self._nodes.entry(f"/{first.metadata.name}") if first else None
            if first and entry:
                wanted[kind] = max(wanted.get(kind, 0), len(there) + 1)
                found.append((entry, first))
        return wanted, found

    async def _shrink_clusters(self, decided: StagedDecision) -> None:
        """Machines that nobody is on and nobody needs; a cluster that has none left is to begin with none."""
        wanted, offers, held = (
            decided.desired_machines,
            decided.fleet.table.row_of,
            clusters_in_use(decided.orphaned_replicas),
        )
        for known in sorted(self._clusters.objects(), key=lambda each: each.metadata.name):
            name, entry = known.metadata.name, self._clusters.entry(f"/{known.metadata.name}")
            if (
                entry is None
                or name in decided.unsettled_clusters
                or (known.spec.pool not in offers and name in held)
            ):
                continue
            target = wanted.get(name, Counter())
            fewer = {kind: min(count, target[kind]) for kind, count in known.spec.nodes.items()}
            if fewer != known.spec.nodes:
                kept = {kind: count for kind, count in fewer.items() if count}
                spec = msgspec.structs.replace(
                    known.spec, nodes=kept, min_nodes=known.spec.min_nodes if kept else 0
                )
                words = f"{known.spec.desired_nodes} to {spec.desired_nodes} machines: {self._shrink_reason(name)}"
                await self._commit(
                    [with_spec(entry, spec), self._recorder.event(known, "ClusterShrunk", words)]
                )
            await self._refund_unmade_machines(name)

    async def _relabel(self, decided: StagedDecision) -> None:
        """Whether a cluster is kept may change with who is in it, and with what its data center reserves."""
        for name, cluster in sorted(decided.fleet.clusters.items()):
            known, entry = self._clusters.get(f"/{name}"), self._clusters.entry(f"/{name}")
            labels = cluster_labels(cluster, decided.fleet, known)
            if known is not None and entry is not None and labels != known.spec.labels:
                await self._commit([with_spec(entry, msgspec.structs.replace(known.spec, labels=labels))])

    def _shrink_reason(self, cluster: str) -> str:
        silent = [
            each.metadata.name for each in self._nodes.by_index("cluster", cluster) if not_ready_message(each)
        ]
        gone = (
            f"what ran on {_join_names(sorted(silent))}, which is not heard of, runs elsewhere; "
            if silent
            else ""
        )
        return f"{gone}no service needs more"

    async def _refund_unmade_machines(self, name: str) -> None:
        """What was paid for machines that never were. Whoever makes a node has seen its cluster as it is: none comes that is not known."""
        entry, cluster = self._clusters.entry(f"/{name}"), self._clusters.get(f"/{name}")
        if entry is None or cluster is None or not self._unmade_machine_charges(name, cluster.spec.nodes):
            return
        await self._nodes.wait_for(entry.revision)
        await self._ledgers.wait_for(self._nodes.revision)  # who goes is paid back when its node goes
        if back := self._unmade_machine_charges(name, cluster.spec.nodes):
            answer = await self._ledger_committer.commit_with_charges(
                Payment([], releases=back, checks=[Check(entry.key, entry.revision)])
            )
            if isinstance(answer, CommittedPayment):
                await self._wait_for_caches(answer.revision)

    def _unmade_machine_charges(self, cluster: str, wanted: Mapping[str, int]) -> list[Charge]:
        """Machines that were paid for and have no node: nobody will ever confirm that they are gone."""
        nodes = self._nodes.by_index("cluster", cluster)
        going = Counter(each.spec.node_class for each in nodes if each.metadata.deletion_timestamp)
        staying = Counter(each.spec.node_class for each in nodes) - going
        ledgers = self._ledgers.objects()
        kinds = sorted(
            {lot.node_class for ledger in ledgers for lot in ledger.status.machines.get(cluster, ())}
        )
        keep = {
            kind: max(wanted.get(kind, 0), staying[kind]) + going[kind] for kind in kinds
        }  # the successor of one that goes too
        return [each for kind in kinds for each in releases_due(ledgers, (cluster, kind), keep[kind])]


def _group_stages(stages: Sequence[CommitStage]) -> Iterator[list[CommitStage]]:
    """As many as go into one commit."""
    batch: list[CommitStage] = []
    for stage in stages:
        clusters = {name for each in (*batch, stage) for name in each.clusters}
        services = sum(len(each.services) for each in (*batch, stage))
        if batch and (len(clusters) > MAX_CLUSTERS_PER_COMMIT or services > MAX_SERVICES_PER_COMMIT):
            yield batch
            batch = []
        batch.append(stage)
    if batch:
        yield batch


def _split_stages(stages: Sequence[CommitStage]) -> Iterator[list[CommitStage]]:
    """Small enough for one commit each. Machines come before those who use them: whoever finds them paid takes them."""
    if len(stages) > 1:
        yield list(stages)
        return
    (stage,) = stages
    names, services = sorted(stage.clusters), stage.services
    while len(names) > MAX_CLUSTERS_PER_COMMIT:
        some, names = names[:MAX_CLUSTERS_PER_COMMIT], names[MAX_CLUSTERS_PER_COMMIT:]
        yield [CommitStage((), {name: stage.clusters[name] for name in some})]
    yield [CommitStage(services[:MAX_SERVICES_PER_COMMIT], {name: stage.clusters[name] for name in names})]
    for start in range(MAX_SERVICES_PER_COMMIT, len(services), MAX_SERVICES_PER_COMMIT):
        yield [CommitStage(services[start : start + MAX_SERVICES_PER_COMMIT], {})]


def _placement_keys(status: ServiceStatus) -> list[tuple[str, str, str, int | None]]:
    return sorted((each.pool, each.cluster, each.node, each.replicas) for each in status.placements)


def _with_stable_prices(
    before: Sequence[ServicePlacement], after: tuple[ServicePlacement, ...], *, is_sure: bool
) -> tuple[ServicePlacement, ...]:
    """Same counts on machines that are only guessed cost what they did."""
    known = {(each.pool, each.cluster, each.node, each.replicas): each for each in before}
    if is_sure:
        return after
    return tuple(known.get((each.pool, each.cluster, each.node, each.replicas), each) for each in after)


def _condition(status: ServiceStatus, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


def _condition_text(condition: Condition) -> tuple[str, str, str]:
    return (condition.status, condition.reason, condition.message)


def _join_names(clusters: Sequence[str]) -> str:
    rest = len(clusters) - MAX_NAMES_IN_EVENT
    return ", ".join(clusters[:MAX_NAMES_IN_EVENT]) + (f" and {rest} more" if rest > 0 else "")
