"""How placements are written: status, clusters and money of one service in one commit, from what the copies have at that moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lattice.controllers.services.ledger_commit import Ledgers, OverBudget, Paid, Payment
from lattice.controllers.runtime.context import Office, batches
from lattice.controllers.runtime.object_writes import conditioned, created, with_spec, with_status
from lattice.errors import Conflict
from lattice.kinds.meta.base import Condition
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService, PlacedIn, ServiceStatus
from lattice.placement.greedy.orphaned import held_clusters
from lattice.placement.model.charges import charges, paid_for, releases
from lattice.placement.inputs.ledger_math import Charge
from lattice.placement.greedy.unschedulable import is_within_limits
from lattice.lifecycle.replica_template import Cell
from lattice.lifecycle.replica_state import silence
from lattice.placement.greedy.commit_stages import Decided, Stage
from lattice.placement.status.placement_conditions import PLACED_CONDITION, STALE_CONDITION, Said
from lattice.placement.status.service_status import cluster_labels, cluster_object
from lattice.store.protocol import Check, Entry, Write

MOST_CLUSTERS = 30  # in one commit: with their events, ledgers and what states the budgets they stay below a hundred operations
MOST_SERVICES = 10
NAMED = 5  # clusters named in an event
SUCCESSOR = "nothing else takes what runs on it: a machine is made in its place before it goes"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing of this was written: the budgets are the store's to judge."""

    services: tuple[str, ...]
    over: OverBudget


@dataclass(frozen=True, slots=True)
class _Machines:
    """Clusters as they are to be, and which of them are new."""

    writes: tuple[Write, ...] = ()
    charges: tuple[Charge, ...] = ()
    made: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()


class Placing:
    def __init__(self, office: Office) -> None:
        self._office = office
        self._services, self._clusters = office.copy(LatticeService), office.copy(LatticeCluster)
        self._ledgers, self._nodes = office.copy(LatticeLedger), office.copy(LatticeNode)
        self._books = Ledgers(office.store, office.clock, office.term, office.new_uid)
        self._teller = office.teller("services")
        self.too_dear: frozenset[Cell] = (
            frozenset()
        )  # where a machine was lately refused that is wanted, and that nobody pays for

    async def write(self, decided: Decided, said: Mapping[str, Said]) -> Refusal | None:
        """Those that take machines first, in the order in which they were decided; then what is left to be said."""
        written: set[str] = set()
        for stages in _together(decided.stages):
            refusal = await self._pay(decided, stages, said)
            if refusal is not None and len(stages) > 1:  # one of them is too dear: the others may not be
                refusal = await self._pay_each(decided, stages, said)
            if refusal is not None:
                return refusal
            written.update(name for stage in stages for name in stage.services)
        await self._give_up(decided)
        await self._settle_accounts(decided)  # of what is left: nobody pays for what is given up at once
        await self._relabel(decided)
        left = (self._saying(decided, name, said[name]) for name in said if name not in written)
        for batch in batches([writes for writes in left if writes]):
            await self._commit(batch)
        return None

    async def _pay_each(
        self, decided: Decided, stages: Sequence[Stage], said: Mapping[str, Said]
    ) -> Refusal | None:
        for stage in stages:
            refusal = await self._pay(decided, [stage], said)
            if refusal is not None:
                return refusal
        return None

    async def _pay(
        self, decided: Decided, stages: Sequence[Stage], said: Mapping[str, Said]
    ) -> Refusal | None:
        """In one commit, unless that is too large for any."""
        for part in _parts(stages):
            wanted = {
                name: counts for stage in part for name, counts in stage.clusters.items()
            }  # the last one has the most
            machines = self._machines(decided, wanted)
            writes = [
                write
                for stage in part
                for name in stage.services
                for write in self._saying(decided, name, said[name])
            ]
            writes += [*self._told(decided, part, machines), *machines.writes]
            if not writes:
                continue
            paid = await self._books.commit_with_charges(Payment(writes, machines.charges))
            if isinstance(paid, OverBudget):
                return Refusal(tuple(name for stage in stages for name in stage.services), paid)
            await self._caught_up(paid.revision)
        return None

    async def _commit(self, writes: Sequence[Write], checks: Sequence[Check] = ()) -> None:
        if writes:
            await self._caught_up(await self._office.commit(writes, checks))

    async def _caught_up(self, revision: int) -> None:
        """Each write is made from the one before it."""
        for copy in (self._services, self._clusters, self._ledgers):
            await copy.wait_for(revision)

    def _machines(self, decided: Decided, wanted: Mapping[str, Mapping[str, int]]) -> _Machines:
        """Never fewer than there are to be already: what goes, goes when nobody is on it."""
        paid, fleet = paid_for(self._ledgers.all()), decided.fleet
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
                    created(
                        msgspec.structs.replace(drawn, spec=spec),
                        uid=self._office.new_uid(),
                        now=self._office.now,
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
            costs += charges(fleet, cluster, counts, paid)
        return _Machines(tuple(writes), tuple(costs), tuple(made), tuple(grown))

    def _saying(self, decided: Decided, name: str, said: Said) -> list[Write]:
        """What the service's status says now, and events where that is news. Nothing, if it says so already."""
        service = decided.world.services[name]
        path = f"{service.metadata.namespace}/{service.metadata.name}"
        now, entry = self._services.get(path), self._services.entry(path)
        if now is None or entry is None or now.metadata.uid != service.metadata.uid:
            return []
        if now.metadata.generation != service.metadata.generation or _where(now.status) != _where(
            service.status
        ):
            raise Conflict(
                "changed while its place was decided", where=f"latticeservice/{name}", fix="decide again"
            )
        before, stamp = now.status, self._office.now
        status: ServiceStatus = msgspec.structs.replace(
            before,
            placements=_priced(
                before.placements, said.status.placements, is_sure=not self._is_unsure(decided, said)
            ),
            scheduler_decision=said.status.scheduler_decision,
            conditions=conditioned(before.conditions, said.conditions, stamp),
        )
        if status == before:
            return []
        if (_where(status), status.scheduler_decision) != (_where(before), before.scheduler_decision):
            status = msgspec.structs.replace(status, last_scheduled=stamp)
        return [with_status(entry, status), *self._news(now, before, status)]

    def _is_unsure(self, decided: Decided, said: Said) -> bool:
        """Where replicas are on machines is only guessed before they are bound: no reason to state other shares of the cost."""
        return any(each.cluster in decided.unsettled for each in said.status.placements)

    def _news(self, service: LatticeService, before: ServiceStatus, after: ServiceStatus) -> Iterator[Write]:
        placed, decision = _condition(after, PLACED_CONDITION), after.scheduler_decision
        if _where(before) != _where(after) and after.placements:
            where = ", ".join(
                f"{each.replicas} in {each.cluster} on {each.node}" for each in after.placements[:NAMED]
            )
            rest = len(after.placements) - NAMED
            yield self._teller.event(service, "Placed", f"{where}{f' and {rest} more' if rest > 0 else ''}")
        said_before = _condition(before, PLACED_CONDITION)
        if (
            placed
            and placed.status == "False"
            and (said_before is None or _words(said_before) != _words(placed))
        ):
            verdict = decision.verdict if decision else placed.reason
            yield self._teller.event(service, "NotPlaced", f"{verdict}: {placed.message}", warning=True)
        stale, was = _condition(after, STALE_CONDITION), _condition(before, STALE_CONDITION)
        if stale and stale.status == "True" and (was is None or _words(was) != _words(stale)):
            yield self._teller.event(service, "PlacementStale", stale.message, warning=True)

    def _told(self, decided: Decided, stages: Sequence[Stage], machines: _Machines) -> Iterator[Write]:
        """Each cluster with the first service that it is for."""
        told: set[str] = set()
        for stage in stages:
            if not stage.services:
                continue
            about = decided.world.services[stage.services[0]]
            fresh = stage.clusters.keys() - told
            told |= fresh
            for reason, names in (("ClusterCreated", machines.made), ("ClusterGrown", machines.grown)):
                if here := [name for name in names if name in fresh]:
                    yield self._teller.event(about, reason, _names(here))
            for each in decided.reliefs.get(stage.services[0], ()):
                what = f"no node of {each.cell[0]} takes {each.replicas} of its replicas"
                then = (
                    f"{each.machines} more of class {each.cell[1]} for it"
                    if each.machines
                    else "they are placed elsewhere"
                )
                yield self._teller.event(about, "NoNodeFits", f"{what}: {then}", warning=True)

    async def _settle_accounts(self, decided: Decided) -> None:
        """Machines that are to be there and that a budget does not pay for: the release of another has crossed the decision, or its
        place is still taken by one that leaves."""
        paid, fleet = paid_for(self._ledgers.all()), decided.fleet
        kinds: dict[str, list[str]] = {}
        for name, kind in decided.in_advance:
            kinds.setdefault(name, []).append(kind)
        self.too_dear = frozenset()
        for known in self._clusters.all():
            cluster, entry = (
                fleet.clusters.get(known.metadata.name),
                self._clusters.entry(f"/{known.metadata.name}"),
            )
            wanted, leaving = self._with_successors(known, kinds.get(known.metadata.name, ()))
            owed = charges(fleet, cluster, wanted, paid) if cluster and entry else ()
            if owed and entry and cluster and is_within_limits(fleet, cluster):
                writes = [self._teller.event(each, "NodeReplaced", SUCCESSOR) for _, each in leaving]
                checks = [
                    Check(entry.key, entry.revision),
                    *(Check(each.key, each.revision) for each, _ in leaving),
                ]
                answer = await self._books.commit_with_charges(Payment(writes, owed, checks=checks))
                if isinstance(answer, OverBudget):
                    self.too_dear |= {(known.metadata.name, each.lot.node_class) for each in owed}
                else:
                    await self._caught_up(answer.revision)

    def _with_successors(
        self, cluster: LatticeCluster, kinds: Iterable[str]
    ) -> tuple[dict[str, int], list[tuple[Entry, LatticeNode]]]:
        """Machines by class, of these one more than there are where one that leaves is to be replaced before it is gone; and who leaves."""
        wanted, found = dict(cluster.spec.nodes), []
        for kind in sorted(kinds):
            there = [
                each
                for each in self._nodes.by("cluster", cluster.metadata.name)
                if each.spec.node_class == kind
            ]
            leaving = [each for each in there if each.metadata.deletion_timestamp]
            first = min(leaving, key=lambda each: each.metadata.name, default=None)
            entry = self._nodes.entry(f"/{first.metadata.name}") if first else None
            if first and entry:
                wanted[kind] = max(wanted.get(kind, 0), len(there) + 1)
                found.append((entry, first))
        return wanted, found

    async def _give_up(self, decided: Decided) -> None:
        """Machines that nobody is on and nobody needs; a cluster that has none left is to begin with none."""
        wanted, offers, held = decided.wanted, decided.fleet.table.row_of, held_clusters(decided.stranded)
        for known in sorted(self._clusters.all(), key=lambda each: each.metadata.name):
            name, entry = known.metadata.name, self._clusters.entry(f"/{known.metadata.name}")
            if entry is None or name in decided.unsettled or (known.spec.pool not in offers and name in held):
                continue
            target = wanted.get(name, Counter())
            fewer = {kind: min(count, target[kind]) for kind, count in known.spec.nodes.items()}
            if fewer != known.spec.nodes:
                kept = {kind: count for kind, count in fewer.items() if count}
                spec = msgspec.structs.replace(
                    known.spec, nodes=kept, min_nodes=known.spec.min_nodes if kept else 0
                )
                words = f"{known.spec.wanted_nodes} to {spec.wanted_nodes} machines: {self._why_fewer(name)}"
                await self._commit(
                    [with_spec(entry, spec), self._teller.event(known, "ClusterShrunk", words)]
                )
            await self._take_back(name)

    async def _relabel(self, decided: Decided) -> None:
        """Whether a cluster is kept may change with who is in it, and with what its data center reserves."""
        for name, cluster in sorted(decided.fleet.clusters.items()):
            known, entry = self._clusters.get(f"/{name}"), self._clusters.entry(f"/{name}")
            labels = cluster_labels(cluster, decided.fleet, known)
            if known is not None and entry is not None and labels != known.spec.labels:
                await self._commit([with_spec(entry, msgspec.structs.replace(known.spec, labels=labels))])

    def _why_fewer(self, cluster: str) -> str:
        silent = [each.metadata.name for each in self._nodes.by("cluster", cluster) if silence(each)]
        gone = (
            f"what ran on {_names(sorted(silent))}, which is not heard of, runs elsewhere; " if silent else ""
        )
        return f"{gone}no service needs more"

    async def _take_back(self, name: str) -> None:
        """What was paid for machines that never were. Whoever makes a node has seen its cluster as it is: none comes that is not known."""
        entry, cluster = self._clusters.entry(f"/{name}"), self._clusters.get(f"/{name}")
        if entry is None or cluster is None or not self._never_made(name, cluster.spec.nodes):
            return
        await self._nodes.wait_for(entry.revision)
        await self._ledgers.wait_for(self._nodes.revision)  # who goes is paid back when its node goes
        if back := self._never_made(name, cluster.spec.nodes):
            answer = await self._books.commit_with_charges(
                Payment([], releases=back, checks=[Check(entry.key, entry.revision)])
            )
            if isinstance(answer, Paid):
                await self._caught_up(answer.revision)

    def _never_made(self, cluster: str, wanted: Mapping[str, int]) -> list[Charge]:
        """Machines that were paid for and have no node: nobody will ever confirm that they are gone."""
        nodes = self._nodes.by("cluster", cluster)
        going = Counter(each.spec.node_class for each in nodes if each.metadata.deletion_timestamp)
        staying = Counter(each.spec.node_class for each in nodes) - going
        ledgers = self._ledgers.all()
        kinds = sorted(
            {lot.node_class for ledger in ledgers for lot in ledger.status.machines.get(cluster, ())}
        )
        keep = {
            kind: max(wanted.get(kind, 0), staying[kind]) + going[kind] for kind in kinds
        }  # the successor of one that goes too
        return [each for kind in kinds for each in releases(ledgers, (cluster, kind), keep[kind])]


def _together(stages: Sequence[Stage]) -> Iterator[list[Stage]]:
    """As many as go into one commit."""
    batch: list[Stage] = []
    for stage in stages:
        clusters = {name for each in (*batch, stage) for name in each.clusters}
        services = sum(len(each.services) for each in (*batch, stage))
        if batch and (len(clusters) > MOST_CLUSTERS or services > MOST_SERVICES):
            yield batch
            batch = []
        batch.append(stage)
    if batch:
        yield batch


def _parts(stages: Sequence[Stage]) -> Iterator[list[Stage]]:
    """Small enough for one commit each. Machines come before those who use them: whoever finds them paid takes them."""
    if len(stages) > 1:
        yield list(stages)
        return
    (stage,) = stages
    names, services = sorted(stage.clusters), stage.services
    while len(names) > MOST_CLUSTERS:
        some, names = names[:MOST_CLUSTERS], names[MOST_CLUSTERS:]
        yield [Stage((), {name: stage.clusters[name] for name in some})]
    yield [Stage(services[:MOST_SERVICES], {name: stage.clusters[name] for name in names})]
    for start in range(MOST_SERVICES, len(services), MOST_SERVICES):
        yield [Stage(services[start : start + MOST_SERVICES], {})]


def _where(status: ServiceStatus) -> list[tuple[str, str, str, int | None]]:
    return sorted((each.pool, each.cluster, each.node, each.replicas) for each in status.placements)


def _priced(
    before: Sequence[PlacedIn], after: tuple[PlacedIn, ...], *, is_sure: bool
) -> tuple[PlacedIn, ...]:
    """Same counts on machines that are only guessed cost what they did."""
    known = {(each.pool, each.cluster, each.node, each.replicas): each for each in before}
    if is_sure:
        return after
    return tuple(known.get((each.pool, each.cluster, each.node, each.replicas), each) for each in after)


def _condition(status: ServiceStatus, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


def _words(condition: Condition) -> tuple[str, str, str]:
    return (condition.status, condition.reason, condition.message)


def _names(clusters: Sequence[str]) -> str:
    rest = len(clusters) - NAMED
    return ", ".join(clusters[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
