"""Does each node hold what it was told to hold? What it has besides is stopped, for it is not in its orders; that it was there is told."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lattice import metrics
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import path_of
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import Heard, Told
from lattice.lifecycle.drift import Assigned, Drift, Held, drift
from lattice.lifecycle.workload import LIVE, Report
from lattice.lifecycle.workload_status import reported
from lattice.lifecycle.orders import wanted

ORPHAN = "orphan_on_agent"


@dataclass
class Drifts:
    """LatticeNode -> an event for each difference, once. What can be mended is mended by whoever looks after the workload."""

    office: Office
    patience: float = (
        15.0  # seconds for which a difference may last before it is told; orphans are told at once
    )
    pace: Pace = field(default_factory=Pace)
    name: str = "drifts"

    def __post_init__(self) -> None:
        self._nodes = self.office.copy(LatticeNode)
        self._workloads = self.office.copy(LatticeWorkload)
        self._teller = self.office.teller(self.name)
        self._since: dict[
            str, dict[Drift, float]
        ] = {}  # by node: when each difference was first seen, monotonic
        self._told: dict[str, set[Drift]] = {}
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.office.clock,
            self.office.rng,
            self._everything,
            (Source(self._nodes, lambda _: ()),),
            self.pace,
        )
        self._wake = loop.wake
        self.office.presence.on_change(self._hear)
        return loop

    async def reconcile(self, key: str) -> Again | None:
        name = key.removeprefix("/")
        node, heard = self._nodes.get(key), self.office.presence.get(name)
        if node is None or heard is None or not heard.is_complete or not heard.has_spoken:
            self._since.pop(name, None)
            self._told.pop(name, None)
            return None
        found, now = self._find(name, heard), self.office.clock.monotonic()
        before, told = self._since.get(name, {}), self._told.get(name, set())
        self._since[name] = {each: before.get(each, now) for each in found}
        self._told[name] = told & {*found}
        due = [
            each
            for each, since in self._since[name].items()
            if each.type == ORPHAN or now - since >= self.patience
        ]
        news = [each for each in due if each not in told]
        if news:
            await self.office.commit_each(
                [
                    [
                        self._teller.event(
                            self._about(each, node), "DriftDetected", f"{name}: {each.message}", warning=True
                        )
                    ]
                    for each in news
                ]
            )
            self._told[name] |= {*news}
            for each in news:
                metrics.DRIFT.labels(each.type).inc()
        return Again(self.patience) if len(due) < len(found) else None

    def _everything(self) -> list[str]:
        return [path_of(node) for node in self._nodes.all()]

    def _hear(self, told: Told) -> None:
        self._wake((f"/{told.node}",))

    def _find(self, name: str, heard: Heard) -> list[Drift]:
        presence = self.office.presence
        assigned: dict[str, Assigned] = {}
        for each in self._workloads.by("node", name):
            order = wanted(each)
            path = path_of(each)
            if order is not None and presence.knows(name, path, order):
                assigned[path] = Assigned(each.metadata.uid, order.revision, order.state == "Running")
        held = {
            path: Held(spoken.uid, Report(reported(spoken.state), spoken.revision, spoken.run))
            for path, spoken in heard.workloads.items()
            if path in assigned or (spoken.state in LIVE and not self._is_going(name, path))
        }
        return drift(assigned, held)

    def _is_going(self, name: str, path: str) -> bool:
        """Bound here, with its order on the way; or told to go, and not gone yet."""
        workload = self._workloads.get(path)
        is_bound = (
            workload is not None
            and workload.status.binding is not None
            and workload.status.binding.node == name
        )
        return is_bound or (
            self.office.presence.was_told(name, path) and not self.office.presence.knows(name, path, None)
        )

    def _about(self, found: Drift, node: LatticeNode) -> Kind:
        return self._workloads.get(found.workload) or node
