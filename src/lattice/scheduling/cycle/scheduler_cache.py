"""Which nodes are there, who is on them, and who still needs one? The table and the queue, kept in step with what is stored."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heappop, heappush

import msgspec

from lattice.engine.derived_columns import keep_last
from lattice.errors import LatticeError
from lattice.kinds.meta.json_body import encode
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.table.node_info import NodeFacts, facts_of
from lattice.lifecycle.workload import Action, Situation, decide
from lattice.scheduling.table.node_table import NodeTable, Placement
from lattice.scheduling.table.ports import chosen_of
from lattice.scheduling.cycle.two_phase import Prepared, prepared
from lattice.scheduling.cycle.queue import Queue
from lattice.scheduling.table.resource_fit import has_gpus, uncountable
from lattice.scheduling.cycle.input_checks import contradictions
from lattice.scheduling.cycle.cycle import CompositeScheduler

LEAVING = "Leaving"  # the condition of a workload that was told to make room for another
KINDS_KEPT = 1 << 12  # of asks that are read once for all that are alike


@dataclass(frozen=True, slots=True)
class Moment:
    seconds: float  # monotonic
    date: datetime


@dataclass(slots=True)
class Roster:
    """Told of each node and workload that changed, as it is now. Told the same twice it changes nothing."""

    scheduler: CompositeScheduler
    queue: Queue = field(default_factory=Queue)
    uids: dict[str, str] = field(default_factory=dict)  # of the nodes in the table
    prepared: dict[str, Prepared] = field(
        default_factory=dict
    )  # workloads whose room is taken and whose binding is not made yet
    odd: dict[str, str] = field(default_factory=dict)  # what cannot be counted, or not as it says, and why
    read: dict[str, tuple[LatticeWorkload, WorkloadAsk]] = field(
        default_factory=dict
    )  # those that wait for a node, as they were read
    _alike: dict[tuple[object, ...], WorkloadAsk] = field(default_factory=dict)
    _strays: dict[str, dict[str, None]] = field(default_factory=dict)  # workloads by a node that is not there
    _later: list[tuple[float, str]] = field(default_factory=list)

    @property
    def table(self) -> NodeTable:
        return self.scheduler.table

    def node(self, name: str, found: LatticeNode | None, now: float) -> list[str]:
        """A node is now like this, or gone. Which workloads must be looked at again?"""
        if found is None:
            return self._drop_node(name, now)
        try:
            facts = _usable(found)
            again = (
                self._drop_node(name, now)
                if self.uids.get(name, found.metadata.uid) != found.metadata.uid
                else []
            )
            before = self.table.facts[self.table.row_of[name]] if name in self.table.row_of else None
            if facts != before:
                self.table.put(facts)
        except (LatticeError, ArithmeticError) as problem:
            self.odd[f"node {name}"] = str(problem)
            return self._drop_node(name, now)
        self._note_odd(f"node {name}", "; ".join(contradictions(found.status)))
        self.uids[name] = found.metadata.uid
        for change in _changes(before, facts) if facts != before else ():
            self.queue.wake(change, now)
        return again if before else [*again, *self._strays.pop(name, ())]

    def _note_odd(self, what: str, why: str) -> None:
        if why:
            self.odd[what] = why
        else:
            self.odd.pop(what, None)

    def knows(self, node: LatticeNode) -> bool:
        """Is the node as those are told of it who choose nodes?"""
        row = self.table.row_of.get(node.metadata.name)
        return (
            row is not None
            and self.uids.get(node.metadata.name) == node.metadata.uid
            and self.table.facts[row] == _usable(node)
        )

    def _drop_node(self, name: str, now: float) -> list[str]:
        self.uids.pop(name, None)
        if name not in self.table.row_of:
            return []
        lost = self.table.drop(name)
        self.queue.wake(Change.NODE_GONE, now)
        return [placement.ask.name for placement in lost]

    def workload(self, path: str, found: LatticeWorkload | None, now: Moment) -> None:
        """A workload is now like this, or gone."""
        try:
            self._follow(path, found, now)
        except LatticeError as problem:
            self.odd[f"workload {path}"] = str(problem)
            self.queue.remove(path)

    def _follow(self, path: str, found: LatticeWorkload | None, now: Moment) -> None:
        held = prepared(found) if found and not found.status.binding else None
        self._forget_prepared(path, now, held, found.status.binding if found else None)
        if found is None:
            self._gone(path, now)
            self.queue.remove(path)
        elif found.status.binding:
            self._bound(found, found.status.binding, now)
        elif held is not None:
            self._left(path, now)
            self._prepared(path, found, held)
        else:
            self._gone(path, now)
            self._wait_or_queue(path, found, now)

    def unsettled(self) -> set[str]:
        """Groups of which somebody else has prepared members: they are neither bound nor not, so the others cannot be decided yet."""
        theirs = [path for path, held in self.prepared.items() if not self._is_ours(held)]
        return {
            there.ask.group
            for path in theirs
            if (there := self.table.placements.get(path)) and there.ask.group
        }

    def due(self, now: float) -> list[str]:
        """Those whose wait for another attempt is over."""
        over = []
        while self._later and self._later[0][0] <= now:
            over.append(heappop(self._later)[1])
        return over

    def next_at(self) -> float | None:
        """When there is something to do, if nothing changes: 0 at once, None never."""
        known = [
            when
            for when in (self.queue.next_at(), self._later[0][0] if self._later else None)
            if when is not None
        ]
        return min(known, default=None)

    def asks_as_before(self, workload: LatticeWorkload, ask: WorkloadAsk) -> bool:
        """Does it still ask for this? One that was not changed since it was read does."""
        known = self.read.get(f"{workload.metadata.namespace}/{workload.metadata.name}")
        return (known is not None and known[0] is workload and known[1] is ask) or self.ask_of(
            workload
        ) == ask

    def done(self, path: str) -> None:
        """It has its node."""
        self.read.pop(path, None)

    def ask_of(self, workload: LatticeWorkload) -> WorkloadAsk:
        """Most of many workloads ask for what others ask for: those are read once."""
        metadata = workload.metadata
        plain = msgspec.structs.replace(workload.spec, slot=0, revision="", desired_state="Running")
        key = (metadata.namespace, encode(plain), *metadata.labels.items())
        like = self._alike.get(key)
        if like is None:
            keep_last(self._alike, KINDS_KEPT)
            like = self._alike[key] = self.table.ask(workload)
        return replace(like, name=f"{like.demands.namespace}/{metadata.name}")

    def _bound(self, found: LatticeWorkload, binding: Binding, now: Moment) -> None:
        path = f"{found.metadata.namespace}/{found.metadata.name}"
        self.done(path)
        self.queue.remove(path)
        if self.uids.get(binding.node) != binding.uid:
            self._forget_bound(path)
            self._strays.setdefault(binding.node, {})[path] = None
            return
        if path in self.table.leaving.get(binding.node, ()):
            return
        ask, there = self.ask_of(found), self.table.placements.get(path)
        if there and self.table.names[there.row] == binding.node and there.ask == ask:
            was_prepared = self.prepared.pop(path, None) is not None
            if (
                there.state != "bound" and was_prepared
            ):  # else it is known; or assumed, and whoever assumes it will hear of it
                self.table.commit(path)
            return
        if self._forget_bound(path):
            self.queue.wake(Change.WORKLOAD_GONE, now.seconds)  # it may ask for less
        self._forget_prepared(path, now)
        if path in self.table.placements:
            return  # assumed elsewhere: that attempt will find out
        if is_leaving(found):
            self.table.leaving.setdefault(binding.node, {})[path] = None
        elif self._admit(path, ask, binding.node, found):
            self.table.commit(path)
            self.queue.wake(Change.WORKLOAD_ADDED, now.seconds)

    def _prepared(self, path: str, found: LatticeWorkload, held: Prepared) -> None:
        """By us, and then its room is taken already; or by another, or before a restart."""
        self.prepared[path] = held
        if path in self.table.placements or self.uids.get(held.node) != held.uid:
            return
        self.queue.remove(path)
        self._admit(path, self.ask_of(found), held.node, found)

    def _admit(self, path: str, ask: WorkloadAsk, node: str, found: LatticeWorkload) -> bool:
        row = self.table.row_of[node]
        why = uncountable(ask, self.table, row)
        told = found.status.decision.get("gpus")
        if not why and ask.demands.gpu and not told and not has_gpus(ask.demands.gpu, self.table, row):
            why = f"node {node} has not the GPUs that it is bound to"
        if why:
            self.odd[f"workload {path}"] = why
            return False
        self.odd.pop(f"workload {path}", None)
        ports = chosen_of(found.spec.containers, found.status.allocated_ports)
        if ask.demands.gpu and told:
            self.table.restore(Placement(ask, row, "assumed", tuple(told), ports))
        else:
            self.table.admit(ask, row, ports)
        return True

    def _gone(self, path: str, now: Moment) -> None:
        """It is on no node. What is only assumed is in the hand of an attempt, which will find out."""
        self.read.pop(path, None)
        self.odd.pop(f"workload {path}", None)
        self._left(path, now)

    def _left(self, path: str, now: Moment) -> None:
        """The node that it was bound to, if it was."""
        self.scheduler.departed(path)
        if self._forget_bound(path):
            self.queue.wake(Change.WORKLOAD_GONE, now.seconds)

    def _forget_bound(self, path: str) -> Placement | None:
        there = self.table.placements.get(path)
        return self.table.forget(path) if there and there.state == "bound" else None

    def _forget_prepared(
        self, path: str, now: Moment, held: Prepared | None = None, binding: Binding | None = None
    ) -> None:
        """What was prepared was given up; unless it is still, or is bound there now."""
        before = self.prepared.get(path)
        is_same = before and held and before.reservation == held.reservation
        if (
            before is None
            or is_same
            or (binding and (binding.node, binding.uid) == (before.node, before.uid))
        ):
            return
        del self.prepared[path]
        there = self.table.placements.get(path)
        if there and there.state == "assumed" and not self._is_ours(before):
            self.table.forget(path)
            self.queue.wake(Change.WORKLOAD_GONE, now.seconds)

    def _is_ours(self, held: Prepared) -> bool:
        return self.scheduler.reservations.get(held.reservation) is not None

    def _wait_or_queue(self, path: str, found: LatticeWorkload, now: Moment) -> None:
        is_wanted = found.spec.desired_state == "Running" and not found.metadata.deletion_timestamp
        if not is_wanted or (found.status.retry is not None and not self._may_start(path, found, now)):
            self.queue.remove(path)
            return
        ask = self.ask_of(found)
        if self.queue.asked(path) != ask:
            self.queue.add(ask)
            self.read[path] = (found, ask)
            if ask.group:
                self.queue.wake(Change.WORKLOAD_ADDED, now.seconds)

    def _may_start(self, path: str, found: LatticeWorkload, now: Moment) -> bool:
        """One that was tried before may have to wait, or has failed for good."""
        decision = decide(
            Situation("Running", found.spec.runs, now.date, node="None", retry=found.status.retry)
        )
        if decision.action is Action.BACKOFF_WAIT:
            heappush(self._later, (now.seconds + (decision.again or 0.0), path))
        return decision.action is Action.ASSIGN


def _usable(node: LatticeNode) -> NodeFacts:
    """One that is being deleted takes nothing new."""
    facts = facts_of(node)
    return replace(facts, cordoned=True) if node.metadata.deletion_timestamp else facts


def is_leaving(workload: LatticeWorkload) -> bool:
    return any(each.type == LEAVING and each.status == "True" for each in workload.status.conditions)


def _changes(before: NodeFacts | None, after: NodeFacts) -> Iterable[Change]:
    """What a node's change could mean to those that wait."""
    if before is None:
        yield Change.NODE_ADDED
        return
    has_more = any(amount > before.totals.get(name, 0) for name, amount in after.totals.items())
    if has_more or (before.gpus, before.ports, before.taken) != (after.gpus, after.ports, after.taken):
        yield Change.NODE_GREW
    was, now = (each.ready and not each.cordoned and not each.draining for each in (before, after))
    if was != now:
        yield Change.NODE_READY if now else Change.NODE_GONE
    if any(
        getattr(before, name) != getattr(after, name)
        for name in ("labels", "taints", "licences", "runtimes", "image", "price")
    ):
        yield Change.NODE_CHANGED
