"""Follow the node and workload caches: keep the node table and the scheduling queue in step with the stored
objects."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Source
from lattice.controllers.scheduler.awaiting_victims import AwaitingVictims
from lattice.controllers.scheduler.binding_cycle import BindingCycle
from lattice.controllers.scheduler.disruption_budgets import DisruptionBudgets
from lattice.controllers.scheduler.unschedulable import UnschedulableReporter
from lattice.engine.tie_order import tie_rank
from lattice.kinds.meta.base import path_of
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.scheduler_cache import ClockReading, SchedulerCache
from lattice.scheduling.plugins.cluster_events import ClusterEvent as Wakes
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.workload_ask import WorkloadAsk
from lattice.store.protocol import Change, Entry

# The single key of the scheduling controller: all nodes share one table.
NODE_TABLE_KEY = "nodes"

log = structlog.get_logger()


@dataclass
class TableUpdater:
    """Update the node table with the objects that changed in the caches; our own writes, which the table
    reflects already, are skipped."""

    context: ControllerContext
    scheduler_cache: SchedulerCache
    binding_cycle: BindingCycle
    awaiting_victims: AwaitingVictims
    disruption_budgets: DisruptionBudgets
    unschedulable_reporter: UnschedulableReporter
    # Workloads whose change in the cache is older than our own last write; the table is updated when that
    # write arrives in the cache.
    _ahead_of_cache: set[str] = field(default_factory=set)
    # Nodes that a workload has left.
    _nodes_to_recount: set[str] = field(default_factory=set)
    # Nodes with a workload whose ask has changed.
    _nodes_with_changed_asks: set[str] = field(default_factory=set)
    # Problems of the scheduler cache that are already logged.
    _logged_anomalies: dict[str, str] = field(default_factory=dict)
    _is_filled: bool = False

    def __post_init__(self) -> None:
        self.changes = self.binding_cycle.changes
        self.table = self.scheduler_cache.table

    def sources(self) -> Sequence[Source]:
        """The caches whose changes wake the scheduling controller."""
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        # The services are a source so that the loop waits for their cache: without it, preemption would know
        # no disruption budgets.
        services = Source(self.context.cache(LatticeService), self.on_service_change)
        return (Source(nodes, self.on_node_change), Source(workloads, self.on_workload_change), services)

    def list_keys(self) -> Iterable[str]:
        """Mark every node and workload as changed until the table is filled; after that, the caches report
        every change."""
        if not self._is_filled:
            names = [node.metadata.name for node in self.context.cache(LatticeNode).objects()]
            names.sort(key=lambda name: tie_rank(self.table.seed, name))
            self.changes.nodes.update(dict.fromkeys(names))
            self.changes.add_workloads(
                path_of(workload) for workload in self.context.cache(LatticeWorkload).objects()
            )
        return (NODE_TABLE_KEY,)

    async def update(self) -> None:
        """Update the table from the caches. The table takes over a new revision of a node only when the
        workload cache holds every binding up to that revision."""
        nodes, workloads = self.context.cache(LatticeNode), self.context.cache(LatticeWorkload)
        entries = {name: nodes.entry(f"/{name}") for name in self.changes.pop_nodes()}
        objects = {name: nodes.get(f"/{name}") for name in entries}
        # Every binding moves its node's revision (I-12): the workload cache must have caught up with the
        # nodes.
        await workloads.wait_for(max((entry.revision for entry in entries.values() if entry), default=0))
        now = ClockReading(self.context.clock.monotonic(), self.context.clock.now())
        queue, reflected_revisions = self.scheduler_cache.queue, self.binding_cycle.binder.node_revisions
        self.binding_cycle.withdraw_stale(
            {
                name
                for name, entry in entries.items()
                if entry and entry.revision > reflected_revisions.get(name, 0)
            }
        )
        for name, entry in entries.items():
            self._apply_node_change(name, entry, objects[name], now)
        self.changes.add_workloads(self.scheduler_cache.pop_due_retries(now.monotonic))
        self._apply_workload_changes(now)
        # A victim is spared (it need not leave) if its preemptor is gone. It gets its place in the table back
        # before another workload gets the capacity. Restoring it marks further workloads as changed, so the
        # changes are applied again.
        awaited = self.awaiting_victims.awaited_victims()
        for name in self.unschedulable_reporter.spared_victims(queue, awaited):
            self.scheduler_cache.scheduler.evictions.remove_victim(name)
            self._apply_workload_change(name, now)
        self._apply_workload_changes(now)
        if self.disruption_budgets.has_eased(queue.is_awaited(Wakes.DISRUPTION_LIMITS_EASED)):
            queue.wake(Wakes.DISRUPTION_LIMITS_EASED, now.monotonic)
        # The scheduler leaves these objects out, or counts them with other than the stored amounts.
        problems = self.scheduler_cache.problems
        for subject, problem in problems.items():
            if self._logged_anomalies.get(subject) != problem:
                log.warning(
                    "object counted differently",
                    what=subject,
                    why=problem,
                )
        self._logged_anomalies = dict(problems)
        self._is_filled = True

    def pop_recounts(self) -> dict[str, int]:
        """The number of workloads on the nodes that a workload has left; a concurrent binding updates the
        count itself."""
        names = [name for name in sorted(self._nodes_to_recount) if name in self.table.row_of]
        self._nodes_to_recount.clear()
        return {name: len(self.table.placements_by_row[self.table.row_of[name]]) for name in names}

    def on_node_change(self, change: Change) -> Iterable[str]:
        name = change.key.name
        self.binding_cycle.batch_binder.on_node_cached(name, change.revision)
        # The table reflects a node write of this server already. When a running commit ends, the binding
        # cycle marks the node as changed if another writer has changed it too.
        if self.binding_cycle.is_own_node_write(name, change.revision):
            return ()
        self.changes.nodes[name] = None
        return (NODE_TABLE_KEY,)

    def on_service_change(self, change: Change) -> Iterable[str]:
        return (NODE_TABLE_KEY,) if self.disruption_budgets.note_service(change.key.path) else ()

    def on_workload_change(self, change: Change) -> Iterable[str]:
        path = change.key.path
        # When the binding ends, the binding cycle marks the workload as changed if the table must read it.
        if path in self.binding_cycle.being_bound:
            return ()
        written_revisions = self.binding_cycle.binding_store.written_revisions
        if written_revisions.get(path) == change.revision:
            del written_revisions[path]
            if path not in self._ahead_of_cache:
                return ()
            self._ahead_of_cache.discard(path)
        self.changes.workloads[path] = None
        return (NODE_TABLE_KEY,)

    def _apply_node_change(
        self, name: str, entry: Entry | None, node: LatticeNode | None, now: ClockReading
    ) -> None:
        revisions = self.binding_cycle.binder.node_revisions
        if entry is None:
            revisions.pop(name, None)
        elif revisions.get(name, 0) > entry.revision:
            # Our own newer write is still on its way to the cache.
            return
        else:
            revisions[name] = entry.revision
        previous_info = self._node_info(name)
        self.changes.add_workloads(self.scheduler_cache.update_node(name, node, now.monotonic))
        if self._node_info(name) != previous_info:
            self.changes.add_workloads(self.awaiting_victims.release_on(name))

    def _node_info(self, name: str) -> NodeInfo | None:
        return self.table.node_infos[self.table.row_of[name]] if name in self.table.row_of else None

    def _apply_workload_changes(self, now: ClockReading) -> None:
        """Update the table for changed workloads, including workloads that the update itself marks as
        changed."""
        while self.changes.workloads:
            for path in self.changes.pop_workloads():
                self._apply_workload_change(path, now)
        self.binding_cycle.withdraw_stale(self._nodes_with_changed_asks)
        self._nodes_with_changed_asks.clear()

    def _apply_workload_change(self, path: str, now: ClockReading) -> None:
        if self.binding_cycle.is_ahead_of_cache(path):
            self._ahead_of_cache.add(path)
            return
        self.binding_cycle.binding_store.written_revisions.pop(path, None)
        node, ask = self._current_node(path), self._placed_ask(path)
        workload = self.context.cache(LatticeWorkload).get(path)
        self.scheduler_cache.update_workload(path, workload, now)
        self.disruption_budgets.note_workload(workload)
        if node and self._current_node(path) != node:
            self._nodes_to_recount.add(node)
        elif node and self._placed_ask(path) is not ask:
            self._nodes_with_changed_asks.add(node)
            self.changes.add_workloads(self.awaiting_victims.release_on(node))
        if path in self.awaiting_victims.by_path and path not in self.scheduler_cache.queue:
            self.awaiting_victims.release(path)

    def _placed_ask(self, path: str) -> WorkloadAsk | None:
        """The ask of the placed workload; the same object as long as the workload asks for the same
        resources."""
        placement = self.table.placements.get(path)
        return placement.ask if placement is not None else None

    def _current_node(self, path: str) -> str:
        """The node to which the workload is bound, or which the workload leaves as a victim of preemption;
        empty if there is none."""
        placement = self.table.placements.get(path)
        if placement is not None and placement.state == "bound":
            return self.table.names[placement.row]
        return self.scheduler_cache.scheduler.evictions.node_of_victim(path)
