"""Who must leave a node that is drained or has a mark that expels, and who may only leave once another runs elsewhere?"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from msgspec.structs import replace

from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, path_of, with_status
from lattice.controllers.services.services import GRACE
from lattice.kinds.meta.base import Condition
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_state import Patience, has_joined, is_stuck, no_room
from lattice.lifecycle.eviction import (
    DRAINED,
    STUCK,
    ages,
    drained,
    is_available,
    is_draining,
    is_leaving,
    is_marked,
    preempted,
    reasons,
    resident,
    since,
    standing,
    undrained,
)
from lattice.lifecycle.node_health import FOR_A_DRAIN, Drain, Resident, drain, driven_out
from lattice.lifecycle.retry import written
from lattice.store.protocol import Change, Write

LOOK_AGAIN = 1.0  # seconds until those that need not leave any more are known to stay
TURN = 300.0  # seconds after which a drain that nothing comes of lets another one try


class Turn(NamedTuple):
    """Whose drain one replica more is for, of several that wait for it."""

    node: str
    ends: float


@dataclass
class Departures:
    """LatticeNode -> which of its workloads must go now. Told anew from what is stored, so that a new leader goes on where it was."""

    office: Office
    pace: Pace = field(default_factory=Pace)
    grace: float = GRACE
    name: str = "departures"

    def __post_init__(self) -> None:
        self._nodes = self.office.copy(LatticeNode)
        self._workloads = self.office.copy(LatticeWorkload)
        self._services = self.office.copy(LatticeService)
        self._teller = self.office.teller("nodes")
        self._leaving: dict[str, Mapping[str, str]] = {}  # by path of the node: paths of workloads, and why
        self._down: dict[
            str, set[str]
        ] = {}  # and those of them that go because they do not run: not if they are back before they are told
        self._draining: set[str] = set()
        self._surges: dict[
            str, Mapping[str, str]
        ] = {}  # by path of the node: services, and who waits for one more of them
        self._turns: dict[str, Turn] = {}  # by service
        self._ears: list[Callable[[Iterable[str]], None]] = []
        self._surge_ears: list[Callable[[Iterable[str]], None]] = []

    def loop(self) -> Loop:
        sources = (
            Source(self._nodes, self._marked),
            Source(self._workloads, self._concerned),
            Source(self._services, self._concerned),
        )
        return Loop(self, self.office.clock, self.office.rng, self._everything, sources, self.pace)

    def on_change(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear which workloads must leave, or need not any more; must not wait."""
        self._ears.append(told)

    def on_surge(self, told: Callable[[Iterable[str]], None]) -> None:
        """Hear for which services `surges` changed, by path."""
        self._surge_ears.append(told)

    @property
    def surges(self) -> Mapping[str, str]:
        """Services, by path, that need one replica more than they want before a drain can go on, and a workload that waits for it: of
        several it is for the same node until that is through, so that what is made for it is not given up for another."""
        return {service: self._surges[turn.node][service] for service, turn in self._turns.items()}

    def why_leave(self, workload: LatticeWorkload, *, is_up: bool = False) -> str:
        """`is_up`: its node says that it is ready, which may not be stored yet."""
        binding, path = workload.status.binding, path_of(workload)
        if binding is None:
            return ""
        key = f"/{binding.node}"
        is_back = (
            path in self._down.get(key, ()) and (is_up or is_available(workload)) and not is_leaving(workload)
        )
        return ("" if is_back else self._leaving.get(key, {}).get(path, "")) or preempted(workload)

    async def reconcile(self, key: str) -> Again | None:
        entry, node = self._nodes.entry(key), self._nodes.get(key)
        if entry is None or node is None or not is_marked(node):
            self._note(key, None, {})
            return None
        now = self.office.clock.now()
        times = since(node, written(now))
        spared = {
            path for path, why in self._leaving.get(key, {}).items() if why != FOR_A_DRAIN
        }  # unless that mark is still there
        here = self._residents(node, self._told() - spared)
        expelled = driven_out(here, ages(node, times, now))
        found = self._drain(here) if is_draining(node) else None
        (self._draining.discard if found is None else self._draining.add)(key)
        self._note(
            key,
            reasons(here, expelled, found),
            {
                each.service: each.name
                for each in here
                if found and each.service in found.surge and each.name in found.held
            },
            is_stuck=found is not None and found.is_stuck,
        )
        driven = {each.name for each in expelled if each.after <= 0}
        self._down[key] = {
            each.name for each in here if each.service and not (each.is_available or each.is_leaving)
        } - driven
        status = replace(undrained(node.status), taints_since=times)
        news: list[Write] = []
        if found is not None:
            said = drained(found, len(here))
            status = replace(status, conditions=conditioned(node.status.conditions, [said], self.office.now))
            news += self._news(node, said, len(here))
        if status != node.status:
            await self.office.commit([with_status(entry, status), *news])
        later = [each.after for each in expelled if each.after > 0]
        later += (
            [TURN if found.is_stuck else max(1.0, self.grace)] if found is not None and found.surge else []
        )
        later += [LOOK_AGAIN] if found is not None and not spared <= {each.name for each in expelled} else []
        return Again(min(later)) if later else None

    def _everything(self) -> list[str]:
        return [path_of(node) for node in self._nodes.all() if is_marked(node)]

    def _marked(self, change: Change) -> Iterable[str]:
        node, path = self._nodes.get(change.key.path), change.key.path
        return (path,) if path in self._leaving or (node is not None and is_marked(node)) else ()

    def _concerned(self, change: Change) -> Iterable[str]:
        """A drain waits for replicas anywhere; other marks are about who is on the node, or has just left it."""
        if not self._leaving:
            return ()
        found = (
            self._workloads.get(change.key.path)
            if change.key.resource == LatticeWorkload.resource.id
            else None
        )
        binding = found.status.binding if found else None
        here = f"/{binding.node}" if binding else ""
        return [
            key
            for key, paths in self._leaving.items()
            if key == here or key in self._draining or change.key.path in paths
        ]

    def _residents(self, node: LatticeNode, told: Collection[str]) -> list[Resident]:
        bound = self._workloads.by("node", node.metadata.name)
        return [
            resident(each, told)
            for each in bound
            if each.status.binding and each.status.binding.uid in ("", node.metadata.uid)
        ]

    def _drain(self, here: list[Resident]) -> Drain:
        services, told, surged = {each.service for each in here if each.service}, self._told(), self.surges
        found = {
            name: standing(
                self._services.get(name), self._workloads.by("service", name), told, is_surged=name in surged
            )
            for name in services
        }
        made = drain(
            here,
            {name: dataclasses.replace(each, no_room=self._in_the_way(name)) for name, each in found.items()},
        )
        awaited = {
            name for name in made.surge if any(self._is_awaited(each) for each in self._roomless(name))
        }
        waiting = {each.name for each in here if each.name in made.held and not each.is_leaving}
        held = {
            each.name: f"{made.held[each.name]}; a machine is being made"
            for each in here
            if each.service in awaited and each.name in waiting
        }
        return dataclasses.replace(made, held={**made.held, **held})

    def _roomless(self, service: str) -> list[LatticeWorkload]:
        return [each for each in self._workloads.by("service", service) if no_room(each)]

    def _is_awaited(self, workload: LatticeWorkload) -> bool:
        """Is a machine on its way to where it waits?"""
        nodes = self._nodes.by("cluster", workload.spec.cluster)
        return any(not each.metadata.deletion_timestamp and not has_joined(each) for each in nodes)

    def _in_the_way(self, service: str) -> str:
        """Why no node takes one of its replicas, and whether its pool may have another machine. Its cluster grows for it after the
        grace: only what has waited for as long again, with no machine on its way, is stuck."""
        patience = Patience(self.office.clock.now(), timedelta(seconds=2 * self.grace))
        stuck = (
            each
            for each in self._roomless(service)
            if is_stuck(each, patience) and not self._is_awaited(each)
        )
        waiting = next(stuck, None)
        if waiting is None:
            return ""
        why, cluster = no_room(waiting), self.office.copy(LatticeCluster).get(f"/{waiting.spec.cluster}")
        pool = self.office.copy(LatticePool).get(f"/{cluster.spec.pool}") if cluster else None
        full = _full(pool) if pool else ""
        return f"{why}; {full}" if full else why

    def _news(self, node: LatticeNode, said: Condition, residents: int) -> Iterator[Write]:
        before = next((each for each in node.status.conditions if each.type == DRAINED), None)
        if said.status == "True":
            if before is None or before.status != "True":
                yield self._teller.event(node, "NodeDrained", said.message)
            return
        if before is None or before.status == "True":
            yield self._teller.event(node, "NodeDraining", f"{residents} to move elsewhere")
        if said.reason == STUCK and (before is None or before.reason != STUCK):
            yield self._teller.event(node, "NodeDrainStuck", said.message, warning=True)

    def _told(self) -> set[str]:
        """Who was found to have to leave, on whichever node; it may not be stored yet. Who is down may be back before it is told."""
        return {
            path
            for key, paths in self._leaving.items()
            for path in paths
            if path not in self._down.get(key, ())
        }

    def _note(
        self, key: str, leaving: Mapping[str, str] | None, surge: Mapping[str, str], *, is_stuck: bool = False
    ) -> None:
        before, surges, surged = self._leaving.pop(key, {}), {**self.surges}, self._surges.pop(key, {})
        self._down.pop(key, None)
        if leaving is None:
            self._draining.discard(key)
        else:
            self._leaving[key], self._surges[key] = leaving, surge
        for service in {**surged, **surge}:
            self._give_turn(service, "" if is_stuck else key)
        _tell(self._ears, {*before} ^ {*(leaving or {})})
        others = {service for service, path in self.surges.items() if surges.get(service) != path}
        _tell(self._surge_ears, {*surged} ^ {*surge} | others)

    def _give_turn(self, service: str, goes_on: str) -> None:
        """To the next node that waits for one more, when the one that had it is through, or nothing came of it for too long."""
        now, waiting = (
            self.office.clock.monotonic(),
            sorted(key for key, services in self._surges.items() if service in services),
        )
        turn = self._turns.pop(service, Turn("", now))
        if turn.node in waiting and (now < turn.ends or turn.node == goes_on):
            self._turns[service] = Turn(turn.node, now + TURN) if turn.node == goes_on else turn
        elif waiting:
            self._turns[service] = Turn(
                next((key for key in waiting if key > turn.node), waiting[0]), now + TURN
            )


def _full(pool: LatticePool) -> str:
    usage, most = pool.status.capacity, pool.spec.capacity.max_nodes
    used = usage.allocated_nodes if usage else None
    return (
        f"pool {pool.metadata.name} has {used} of {most} nodes"
        if used is not None and most is not None and used >= most
        else ""
    )


def _tell(ears: Iterable[Callable[[Iterable[str]], None]], paths: set[str]) -> None:
    if paths:
        for ear in ears:
            ear(sorted(paths))
