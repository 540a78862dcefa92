"""Does each node hold what it was told to hold? What it has besides is stopped, for it is not in its orders; that it was there is told."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lattice import metrics
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import path_of
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.drift import AssignedWorkload, Drift, ReportedWorkload, find_drift
from lattice.lifecycle.workload import LIVE_STATES, Report, desired_run
from lattice.lifecycle.workload_status import parse_actual_state
from lattice.presence import LastHeartbeat, PresenceChange

ORPHAN = "orphan_on_agent"


@dataclass
class DriftController:
    """LatticeNode -> an event for each difference, once. What can be mended is mended by whoever looks after the workload."""

    context: ControllerContext
    grace_s: float = (
        15.0  # seconds for which a difference may last before it is told; orphans are told at once
    )
    concurrency: Concurrency = field(default_factory=Concurrency)
    name: str = "drifts"

    def __post_init__(self) -> None:
        self._nodes = self.context.cache(LatticeNode)
        self._workloads = self.context.cache(LatticeWorkload)
        self._recorder = self.context.recorder(self.name)
        self._detected_at: dict[
            str, dict[Drift, float]
        ] = {}  # by node: when each difference was first seen, monotonic
        self._reported: dict[str, set[Drift]] = {}
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            self._list_keys,
            (Source(self._nodes, lambda _: ()),),
            self.concurrency,
        )
        self._wake = loop.wake
        self.context.presence.on_change(self._on_presence_change)
        return loop

    async def reconcile(self, key: str) -> Requeue | None:
        name = key.removeprefix("/")
        node, heard = self._nodes.get(key), self.context.presence.get(name)
        if node is None or heard is None or not heard.has_full_report or not heard.has_reported:
            self._detected_at.pop(name, None)
            self._reported.pop(name, None)
            return None
        found, now = self._detect(name, heard), self.context.clock.monotonic()
        before, told = self._detected_at.get(name, {}), self._reported.get(name, set())
        self._detected_at[name] = {each: before.get(each, now) for each in found}
        self._reported[name] = told & {*found}
        due = [
            each
            for each, since in self._detected_at[name].items()
            if each.type == ORPHAN or now - since >= self.grace_s
        ]
        news = [each for each in due if each not in told]
        if news:
            await self.context.commit_groups(
                [
                    [
                        self._recorder.event(
                            self._event_subject(each, node),
                            "DriftDetected",
                            f"{name}: {each.message}",
                            warning=True,
                        )
                    ]
                    for each in news
                ]
            )
            self._reported[name] |= {*news}
            for each in news:
                metrics.DRIFT.labels(each.type).inc()
        return Requeue(self.grace_s) if len(due) < len(found) else None

    def _list_keys(self) -> list[str]:
        return [path_of(node) for node in self._nodes.objects()]

    def _on_presence_change(self, told: PresenceChange) -> None:
        self._wake((f"/{told.node}",))

    def _detect(self, name: str, heard: LastHeartbeat) -> list[Drift]:
        presence = self.context.presence
        assigned: dict[str, AssignedWorkload] = {}
        for each in self._workloads.by_index("node", name):
            order = desired_run(each)
            path = path_of(each)
            if order is not None and presence.has_applied(name, path, order):
                assigned[path] = AssignedWorkload(each.metadata.uid, order.revision, order.state == "Running")
        held = {
            path: ReportedWorkload(
                spoken.uid, Report(parse_actual_state(spoken.state), spoken.revision, spoken.run)
            )
            for path, spoken in heard.workloads.items()
            if path in assigned or (spoken.state in LIVE_STATES and not self._is_in_transition(name, path))
        }
        return find_drift(assigned, held)

    def _is_in_transition(self, name: str, path: str) -> bool:
        """Bound here, with its order on the way; or told to go, and not gone yet."""
        workload = self._workloads.get(path)
        is_bound = (
            workload is not None
            and workload.status.binding is not None
            and workload.status.binding.node == name
        )
        return is_bound or (
            self.context.presence.was_sent(name, path)
            and not self.context.presence.has_applied(name, path, None)
        )

    def _event_subject(self, found: Drift, node: LatticeNode) -> Kind:
        return self._workloads.get(found.workload) or node
