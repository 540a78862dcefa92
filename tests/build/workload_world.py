"""The workload and node controllers on a store in memory, in virtual time, with scripted agents."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from build.objects import a_workload, make_object
from build.virtual import VirtualClock, settle
from lattice.controllers.nodes.drift import DriftController
from lattice.controllers.nodes.eviction import EvictionController
from lattice.controllers.nodes.node_health import NodeHealthController
from lattice.controllers.nodes.workloads import WorkloadController
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop, Requeue, Source, run_all
from lattice.controllers.runtime.object_writes import put_new, with_metadata, with_spec, with_status
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.constraints import Taint
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, Kind, path_of
from lattice.kinds.meta.timestamps import format_micro_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import WORKLOAD_FINALIZER, Binding, DesiredRun, LatticeWorkload
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.workload import LIVE_STATES, Action, GracePeriods, WorkloadInput, decide, desired_run
from lattice.presence import Heartbeat, Presence, Session, Usage, WorkloadReport
from lattice.scheduling.table.node_info import node_info_of
from lattice.scheduling.table.port_allocator import allocated_ports
from lattice.store.cache import Cache
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Delete, Entry, Key

DRAIN = Taint(key="lattice.dev/draining", effect="NoSchedule")
BROKEN = Taint(key="broken", effect="NoExecute")
TIMES = NodeTimeouts()
PORTS = range(30000, 30010)
COPIES = (LatticeWorkload, LatticeNode, LatticeService, LatticeCluster, LatticePool, LatticeLedger)


def a_joining_node(name: str, capacity: dict[str, int] | None = None, **spec: Any) -> LatticeNode:
    """A node in zone a whose agent has not joined."""
    conditions = [{"type": "Ready", "status": "False", "reason": "NotJoined"}]
    return make_object(
        LatticeNode,
        name,
        spec={"zone": "a", **spec},
        status={"conditions": conditions, "capacity": capacity or {}},
    )


def a_service_with_minimum(name: str, least: int) -> LatticeService:
    spec = {"containers": {"main": {"command": ["run"]}}, "replicas": {"min": least}}
    return make_object(LatticeService, name, "default", spec=spec)


@dataclass
class Agent:
    """Carries out its orders one after the other, `delay` seconds each, and reports each. Disconnected, it
    follows the disconnect policies of its workloads."""

    name: str
    world: "World"
    fails: dict[str, list[str]] = field(
        default_factory=dict
    )  # by path: reasons with which the next starts fail
    hangs: set[str] = field(default_factory=set)  # paths that never get beyond Starting, nor stop
    usage: Usage | None = None
    # By path: the usage of a workload while it is live; the usage of the node is then their sum.
    uses: dict[str, Usage] = field(default_factory=dict)
    delay: float = 0.1
    session: Session | None = None
    holds: dict[str, WorkloadReport] = field(default_factory=dict)
    sent: dict[str, DesiredRun] = field(default_factory=dict)
    starts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    stop_after: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._orders: asyncio.Queue[tuple[int, dict[str, DesiredRun | None], bool]] = asyncio.Queue()
        self._carried = 0
        self._answered = self.world.clock.monotonic()
        self.tasks = [asyncio.create_task(item()) for item in (self._work, self._beats, self._watch)]

    def connect(self) -> None:
        self.session = self.world.presence.start_session(self.name)
        self._orders, self._carried = asyncio.Queue(), 0
        self.tasks[0].cancel()
        self.tasks[0] = asyncio.create_task(self._work())
        self.say(Heartbeat(workloads=dict(self.holds), is_full_report=True, usage=self.usage))
        self.sent = self.world.orders_of(self.name)
        number = self.world.presence.record_assignments(self.session, self.sent, is_full_list=True)
        self._orders.put_nowait((number, dict(self.sent), True))

    def cut(self) -> None:
        """Drop the connection: neither heartbeats nor orders arrive."""
        self.session = None

    def end(
        self, path: str, failure: str = "RUNTIME_ERROR", log: str = "", exit_code: int | None = None
    ) -> None:
        self._become(path, "Failed", failure_reason=failure, log=log, exit_code=exit_code)

    def finish(self, path: str) -> None:
        self._become(path, "Stopped", exit_code=0)

    def say(self, beat: Heartbeat) -> None:
        if self.session is not None and self.world.presence.record_heartbeat(
            self.session, replace(beat, applied_sequence=self._carried)
        ):
            self._answered = self.world.clock.monotonic()

    def tell(self, path: str) -> None:
        order = self.world.orders_of(self.name).get(path)
        if self.session is None or order == self.sent.get(path):
            return
        self.sent = {name: item for name, item in self.sent.items() if name != path} | (
            {path: order} if order else {}
        )
        if number := self.world.presence.record_assignments(self.session, {path: order}):
            self._orders.put_nowait((number, {path: order}, False))

    @property
    def live(self) -> set[str]:
        return {path for path, held in self.holds.items() if held.state in LIVE_STATES}

    async def _beats(self) -> None:
        while True:
            await self.world.clock.sleep(TIMES.heartbeat_interval)
            if not self.uses:
                self.say(Heartbeat(usage=self.usage))
                continue
            live = {path: self.uses[path] for path in sorted(self.live & self.uses.keys())}
            memory = sum(usage.memory for usage in live.values())
            disk = sum(usage.disk for usage in live.values())
            self.say(Heartbeat(usage=Usage(1, memory, disk), workload_usage=live))

    async def _watch(self) -> None:
        """The watchdog beside the agent: stops workloads with the policy `stop` in time."""
        while True:
            await self.world.clock.sleep(1)
            silent = self.world.clock.monotonic() - self._answered
            for path, limit in self.stop_after.items():
                if silent >= limit and path in self.live:
                    self._become(path, "Failed", failure_reason="DISCONNECTED")

    async def _work(self) -> None:
        while True:
            number, orders, is_whole = await self._orders.get()
            await self.world.clock.sleep(self.delay)
            for path in [*orders, *(path for path in self.holds if is_whole and path not in orders)]:
                self._carry_out(path, orders.get(path))
            self._carried = number
            self.say(Heartbeat(workloads=dict(self.holds), is_full_report=True))

    def _carry_out(self, path: str, order: DesiredRun | None) -> None:
        held = self.holds.get(path)
        if held is not None and order is not None and held.uid != self.world.workload(path).metadata.uid:
            held = None
        if path in self.hangs and held is not None:
            return
        if order is None:
            self.holds.pop(path, None)
        elif order.state == "Stopped":
            if held is not None and held.state in LIVE_STATES:
                self.holds[path] = replace(held, state="Stopped", ready=False)
        elif (
            held is None
            or held.revision != order.revision
            or (held.state not in LIVE_STATES and (held.run < order.run or held.state == "Stopped"))
        ):
            self._start(path, order)

    def _start(self, path: str, order: DesiredRun) -> None:
        workload = self.world.workload(path)
        self.starts[path, order.revision, order.run] += 1
        if workload.spec.disconnect.policy == "stop":
            self.stop_after[path] = workload.spec.disconnect.stop_after_ms / 1000
        self.holds[path] = WorkloadReport(workload.metadata.uid, "Starting", order.revision, order.run)
        self.world.started(path, self.name)
        if path in self.hangs:
            return
        reasons = self.fails.get(path)
        if reasons:
            self.holds[path] = replace(self.holds[path], state="Failed", failure_reason=reasons.pop(0))
        else:
            self.holds[path] = replace(self.holds[path], state="Running", ready=True)

    def _become(self, path: str, state: str, **parts: Any) -> None:
        self.holds[path] = replace(self.holds[path], state=state, ready=False, **parts)
        self.say(Heartbeat(workloads={path: self.holds[path]}))


@dataclass
class Binder:
    """Stands in for the scheduler: binds to the first node that takes any workload."""

    world: "World"
    context: ControllerContext
    name: str = "binder"

    def loop(self) -> Loop:
        copy, nodes = self.context.cache(LatticeWorkload), self.context.cache(LatticeNode)
        everything = lambda: [path_of(item) for item in copy.objects()]  # noqa: E731
        sources = (Source(copy), Source(nodes, lambda _: everything()))
        return Loop(self, self.context.clock, self.context.rng, everything, sources)

    async def reconcile(self, key: str) -> Requeue | None:
        entry, result = (
            self.context.cache(LatticeWorkload).entry(key),
            self.context.cache(LatticeWorkload).get(key),
        )
        if entry is None or result is None or result.status.binding or result.metadata.deletion_timestamp:
            return None
        asks = decide(
            WorkloadInput(
                result.spec.desired_state,
                result.spec.effective_revision,
                self.context.clock.now(),
                "None",
                retry=result.status.retry,
            )
        )
        node = self._node()
        if asks.action is not Action.ASSIGN or node is None:
            return Requeue(asks.requeue_after) if asks.requeue_after else None
        status = msgspec.structs.replace(
            result.status,
            binding=Binding(node=node.metadata.name, uid=node.metadata.uid, term=self.context.term.number),
            allocated_ports=allocated_ports(
                result.spec.containers, [port for port in PORTS if str(port) not in node.status.taken_ports]
            ),
            last_action=str(Action.ASSIGN),
            last_action_at=format_micro_time(self.context.clock.now()),
        )
        put = with_status(entry, status)
        if WORKLOAD_FINALIZER not in result.metadata.finalizers:
            held = [*result.metadata.finalizers, WORKLOAD_FINALIZER]
            put = with_metadata(
                Entry(entry.key, put.value, entry.revision), lambda metadata: metadata | {"finalizers": held}
            )
        place = self.context.cache(LatticeNode).entry(path_of(node))
        assert place is not None
        counted = msgspec.structs.replace(node.status, workloads=(node.status.workloads or 0) + 1)
        await self.context.commit([put, with_status(place, counted)])
        return None

    def _node(self) -> LatticeNode | None:
        nodes = sorted(self.context.cache(LatticeNode).objects(), key=lambda item: item.metadata.name)
        facts = [(node, node_info_of(node)) for node in nodes]
        return next(
            (
                item
                for item, seen in facts
                if seen.is_ready
                and not (seen.is_cordoned or seen.is_draining or seen.taints or seen.is_under_pressure)
                and not item.metadata.deletion_timestamp
            ),
            None,
        )


@dataclass
class World:
    clock: VirtualClock = field(default_factory=VirtualClock)
    graces: GracePeriods = field(default_factory=GracePeriods)
    agents: dict[str, Agent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)
        self._uids = (f"uid-{number}" for number in count(1))
        self._running: asyncio.Task[None] | None = None
        self.overlaps: list[tuple[str, list[str]]] = []

    async def lead(self, holder: str = "one") -> ControllerContext:
        """Begin a new term with controllers that know only what is stored."""
        await self.stop()
        term = await self.store.campaign("leader", holder, 1e9)
        assert term is not None
        self.presence = Presence(self.clock)
        self.context = ControllerContext(
            self.store, self.clock, term, random.Random(7), self.presence, lambda: next(self._uids)
        )
        self.nodes = NodeHealthController(self.context)
        self.decided = DecidedEvictions()
        self.evictions = EvictionController(self.context, self.decided)
        self.workloads = WorkloadController(self.context, self.nodes, self.decided, self.graces)
        self.drifts = DriftController(self.context)
        binder = Binder(self, self.context)
        loops = [item.loop() for item in (self.nodes, self.evictions, self.workloads, self.drifts, binder)]
        caches = [self.context.cache(kind) for kind in COPIES]
        for cache in caches:
            cache.freeze = False
        self.context.cache(LatticeWorkload).on_change(self._hear)
        self._running = asyncio.create_task(self._run(loops, caches))
        await settle()
        for agent in self.agents.values():
            if agent.session is not None:
                agent.connect()
        return self.context

    async def _run(self, loops: list[Loop], caches: Iterable[Cache[Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            awake = group.create_task(self.presence.run())
            await run_all(loops, caches)
            awake.cancel()

    async def stop(self, *, resign: bool = True) -> None:
        if self._running is None:
            return
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self._running = None
        if resign:
            await self.store.resign(self.context.term)

    async def end(self) -> None:
        await self.stop()
        for agent in self.agents.values():
            for task in agent.tasks:
                task.cancel()

    async def join(self, name: str, **parts: Any) -> Agent:
        """Add a node with a connected agent."""
        spec = {
            key: parts.pop(key) for key in ("zone", "taints", "unschedulable", "capacity") if key in parts
        }
        await self.add(a_joining_node(name, **spec))
        self.agents[name] = Agent(name, self, **parts)
        await self.run(0.5)
        self.agents[name].connect()
        await self.run(0.5)
        return self.agents[name]

    async def add(self, found: Kind) -> None:
        put = put_new(found, uid=next(self._uids), now=self.context.timestamp)
        await self.store.commit([put])

    async def run(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            await self.clock.advance(min(0.5, left))
            await settle()
            left -= 0.5

    async def entry(self, kind: type[Kind], path: str) -> Entry:
        result = await self.store.get(_key(kind, path))
        assert result is not None, f"{path} is not there"
        return result

    async def change(self, kind: Any, path: str, change: Callable[[Any], Any]) -> None:
        """Write another spec, as a user does."""
        entry = await self.entry(kind, path)
        await self.store.commit([with_spec(entry, change(msgspec.json.decode(entry.value, type=kind).spec))])

    async def cordon(self, name: str, *, on: bool = True) -> None:
        await self.change(
            LatticeNode, f"/{name}", lambda spec: msgspec.structs.replace(spec, unschedulable=on)
        )

    async def set_taints(self, name: str, *taints: Taint) -> None:
        await self.change(LatticeNode, f"/{name}", lambda spec: msgspec.structs.replace(spec, taints=taints))

    async def set_conditions(self, path: str, conditions: tuple[Condition, ...]) -> None:
        entry = await self.entry(LatticeWorkload, path)
        status = msgspec.json.decode(entry.value, type=LatticeWorkload).status
        await self.store.commit([with_status(entry, msgspec.structs.replace(status, conditions=conditions))])

    async def annotate(self, path: str, annotations: dict[str, str]) -> None:
        entry = await self.entry(LatticeWorkload, path)
        await self.store.commit(
            [with_metadata(entry, lambda metadata: metadata | {"annotations": annotations})]
        )

    async def delete(self, kind: type[Kind], path: str) -> None:
        entry = await self.entry(kind, path)
        if not msgspec.json.decode(entry.value)["metadata"].get("finalizers"):
            await self.store.commit([Delete(entry.key, entry.revision)])
            return
        await self.store.commit(
            [with_metadata(entry, lambda metadata: metadata | {"deletionTimestamp": self.context.timestamp})]
        )

    def workload(self, path: str = "default/w") -> LatticeWorkload:
        result = self.context.cache(LatticeWorkload).get(path)
        assert result is not None, f"{path} is not there"
        return result

    def is_there(self, path: str) -> bool:
        return self.context.cache(LatticeWorkload).get(path) is not None

    def node(self, name: str) -> LatticeNode:
        result = self.context.cache(LatticeNode).get(f"/{name}")
        assert result is not None, f"{name} is not there"
        return result

    def condition(self, name: str, kind: str = "Ready") -> Condition | None:
        return next(
            (condition for condition in self.node(name).status.conditions if condition.type == kind), None
        )

    def node_of(self, path: str = "default/w") -> str:
        binding = self.workload(path).status.binding
        return binding.node if binding else ""

    def attempts(self, path: str = "default/w") -> int:
        """Failed attempts that the back-off counts."""
        retry = self.workload(path).status.retry
        return (retry.attempts or 0) if retry else 0

    def live(self, path: str = "default/w") -> list[str]:
        return [name for name, agent in self.agents.items() if path in agent.live]

    def started(self, path: str, name: str) -> None:
        if len(self.live(path)) > 1:
            self.overlaps.append((path, self.live(path)))

    def orders_of(self, node: str) -> dict[str, DesiredRun]:
        results = (
            (path_of(replica), desired_run(replica))
            for replica in self.context.cache(LatticeWorkload).by_index("node", node)
        )
        return {path: order for path, order in results if order is not None}

    async def events(self, name: str = "") -> list[str]:
        page = await self.store.list(Event.resource.id)
        results = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        results.sort(key=lambda item: int(item.metadata.uid.removeprefix("uid-")))
        return [item.reason for item in results if not name or item.involved_object.name == name]

    async def event_message(self, reason: str) -> str:
        """The message of the only event with the reason."""
        page = await self.store.list(Event.resource.id)
        results = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        (message,) = [item.message for item in results if item.reason == reason]
        return message

    def _hear(self, change: Change) -> None:
        for agent in self.agents.values():
            agent.tell(change.key.path)


def _key(kind: type[Kind], path: str) -> Key:
    namespace, _, name = path.rpartition("/")
    return Key(kind.resource.id, namespace, name)


@asynccontextmanager
async def running_world(graces: GracePeriods | None = None) -> AsyncIterator[World]:
    """A world whose controllers lead until the block ends."""
    world = World(graces=graces or GracePeriods())
    await world.lead()
    try:
        yield world
    finally:
        await world.end()


async def disconnect_most_of_a_zone(world: World) -> None:
    """Disconnect all three nodes of zone a, of which a1 runs the workload; the only node of zone b stays
    connected."""
    for name in ("a1", "a2", "a3", "b1"):
        await world.join(name, zone=name[0])
    await world.add(a_workload())
    await world.run(1)
    for name in ("a1", "a2", "a3"):
        world.agents[name].cut()


async def remove_node_of_workload(world: World, policy: str) -> None:
    """Delete n1, which runs the workload; n2 has capacity for it."""
    await world.join("n1")
    await world.add(a_workload(disconnect={"policy": policy}))
    await world.run(1)
    await world.join("n2")
    await world.delete(LatticeNode, "/n1")
