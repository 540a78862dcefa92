"""Detect drift between the workloads assigned to a node and the workloads that the agent reports.

The controller only reports drift. The agent stops a workload that is not assigned, and the workload
controller repairs every other drift.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.kinds.meta.base import path_of
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.drift import AssignedWorkload, Drift, ReportedWorkload, find_drift
from lattice.lifecycle.workload import LIVE_STATES, Report, desired_run
from lattice.lifecycle.workload_status import parse_actual_state
from lattice.presence import LastHeartbeat

ORPHAN = "orphan_on_agent"


@dataclass
class DriftController:
    """Record an event for every drift of a node, once; the key is `/` and the node's name."""

    context: ControllerContext
    # Seconds before a drift is reported; an orphaned workload is reported at once.
    grace_s: float = 15.0
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "drifts"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder(self.name)
        # By node and drift: the monotonic time at which the drift was detected first.
        self._detected_at: dict[str, dict[Drift, float]] = {}
        self._reported: dict[str, set[Drift]] = {}
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [path_of(node) for node in self._nodes.objects()],
            # Heartbeats wake the controller, not changes of the stored node.
            (Source(self._nodes, lambda _: ()),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(lambda change: self._wake((f"/{change.node}",)))
        return loop

    async def reconcile(self, key: str) -> Requeue | None:
        name = key.removeprefix("/")
        node, heartbeat = self._nodes.get(key), self.context.presence.get(name)
        # An incomplete report must not look like missing workloads.
        if node is None or heartbeat is None or not heartbeat.has_full_report or not heartbeat.has_reported:
            self._detected_at.pop(name, None)
            self._reported.pop(name, None)
            return None
        drifts, now = self._detect(name, heartbeat), self.context.clock.monotonic()
        previous, reported = self._detected_at.get(name, {}), self._reported.get(name, set())
        self._detected_at[name] = {drift: previous.get(drift, now) for drift in drifts}
        self._reported[name] = reported & {*drifts}
        due = [
            drift
            for drift, since in self._detected_at[name].items()
            if drift.type == ORPHAN or now - since >= self.grace_s
        ]
        unreported = [drift for drift in due if drift not in reported]
        if unreported:
            groups = []
            for drift in unreported:
                subject = self._workloads.get(drift.workload) or node
                message = f"Node {name}, workload {drift.workload}: {drift.message}"
                groups.append([self._recorder.event(subject, "DriftDetected", message, warning=True)])
            await self.context.commit_groups(groups)
            # Only after the commit: a drift whose event was not written is reported again.
            self._reported[name] |= {*unreported}
            for drift in unreported:
                metrics.DRIFT.labels(drift.type).inc()
        return Requeue(self.grace_s) if len(due) < len(drifts) else None

    def _detect(self, name: str, heartbeat: LastHeartbeat) -> list[Drift]:
        presence = self.context.presence
        assigned: dict[str, AssignedWorkload] = {}
        for workload in self._workloads.by_index("node", name):
            run = desired_run(workload)
            path = path_of(workload)
            # An assignment that the agent has not confirmed yet is on its way to the agent, and is no drift.
            if run is not None and presence.has_applied(name, path, run):
                assigned[path] = AssignedWorkload(workload.metadata.uid, run.revision, run.state == "Running")
        reported: dict[str, ReportedWorkload] = {}
        for path, report in heartbeat.workloads.items():
            stored = self._workloads.get(path)
            binding = stored.status.binding if stored else None
            # The workload is bound to this node and its assignment is on the way to the agent, or the
            # workload is no longer assigned and the agent has not confirmed that yet.
            is_in_transition = (binding is not None and binding.node == name) or (
                presence.was_sent(name, path) and not presence.has_applied(name, path, None)
            )
            if path in assigned or (report.state in LIVE_STATES and not is_in_transition):
                observed = Report(parse_actual_state(report.state), report.revision, report.run)
                reported[path] = ReportedWorkload(report.uid, observed)
        return find_drift(assigned, reported)
