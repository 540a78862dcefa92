"""All controllers of one leader in virtual time, with a store in memory, a fake cloud, and scripted agents whose machines may
differ from their node class."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from lattice.controllers.controller_set import ControllerDependencies, ControllerSet
from lattice.controllers.garbage.collector import GarbageCollector
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import key_of, put_new, with_metadata, with_spec
from lattice.errors import Conflict
from lattice.kinds import KINDS
from lattice.kinds.constraints import Taint
from lattice.kinds.core import Event, Namespace
from lattice.kinds.join_token import AGENT_KEY_ANNOTATION, Grant
from lattice.kinds.meta.base import Kind, Metadata, path_of
from lattice.kinds.meta.object_lifecycle import mark_for_deletion
from lattice.kinds.node import NODE_FINALIZER, LatticeNode, NodeSpec
from lattice.kinds.node_class import MachineSize
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import DesiredRun, LatticeWorkload
from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods, desired_run
from lattice.placement.feed.placement_input import PricingTables
from lattice.placement.inputs.price_book import PriceBook
from lattice.presence import Heartbeat, Presence, Session, WorkloadReport
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import MachineSpec
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.leader_context import SessionRejected
from lattice.server.agents.registration import Registrar
from lattice.sim.world.clocks import SimClock
from lattice.sim.world.event_loop import SimLoop
from lattice.sim.world.servers import mint_token
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Delete, Key, Put
from lattice.wire import agent_pb2 as pb

K = TypeVar("K", bound=Kind)
# Nothing but the month of the ledgers depends on the date.
EPOCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
FOREVER = datetime(2100, 1, 1, tzinfo=UTC)
HEARTBEAT_S, NOT_READY_S, REPLACE_S = 8.0, 16.0, 24.0
TIMEOUTS = NodeTimeouts(
    heartbeat_interval=HEARTBEAT_S,
    not_ready_after=NOT_READY_S,
    replace_after=REPLACE_S,
    evictions_per_second=1.0,
    kill_grace=2.5,
    max_stop_after=REPLACE_S,
)
GRACE_PERIODS = GracePeriods(missing=6.0, start=30.0, stop=15.0, retry=RetryPolicy(1.0, 8.0, 5, 16.0))
UNSCHEDULABLE_GRACE_S = 4.0
BOOT_S, START_S = 2.0, 0.5
# The busiest second of a generated world takes about 1,200 steps.
MAX_STEPS_PER_SECOND = 20_000
# Objects whose writes are no sign that something is still going on.
UNREMARKABLE = frozenset({Event.resource.id, "secrets"})
TEST_TAINT = Taint(key="test.lattice.dev/not-in-the-class", effect="NoSchedule")


@dataclass(frozen=True)
class Lie:
    """The difference between the machines of a node class and the class."""

    memory_percent: int = 100
    has_gpus: bool = True
    runtimes: tuple[str, ...] = ("container", "process")
    is_tainted: bool = False

    @property
    def is_one(self) -> bool:
        return self != Lie()


@dataclass
class Machine:
    """A machine of the fake cloud with its scripted agent. A silent machine exists and sends nothing any more."""

    spec: MachineSpec
    lie: Lie
    session: Session | None = None
    is_silent: bool = False
    # Virtual time before which the agent does not run yet.
    boots_until: float = 0.0
    # The machine of an owner, who joined it with a token; the cloud does not know it.
    is_joined: bool = False
    sent: dict[str, DesiredRun] = field(default_factory=dict)
    applied_sequence: int = 0
    # By workload path: the run that the machine executes, and the time at which it is ready.
    started: dict[str, tuple[DesiredRun, float]] = field(default_factory=dict)
    reported: dict[str, WorkloadReport] = field(default_factory=dict)

    @property
    def peer(self) -> NodeIdentity:
        return NodeIdentity(self.spec.node, f"key-{self.spec.token}", FOREVER)

    def registration(self) -> pb.Registration:
        size = self.spec.size
        capacity = {
            "cpu": size.millicores,
            "memory": size.memory * self.lie.memory_percent // 100,
            "storage": size.storage or 100 << 30,
        }
        gpus = size.gpu // 1000 if self.lie.has_gpus else 0
        if gpus:
            capacity["gpu"] = gpus * 1000
        return pb.Registration(
            capacity=capacity,
            gpus=[pb.Gpu(model=self.spec.gpu_model or "t4", milli_free=1000) for _ in range(gpus)],
            runtimes=list(self.lie.runtimes),
            first_port=20000,
            last_port=20199,
        )


class ControlWorld:
    """The controllers of one term, and the parts of users, cloud and agents. All times are virtual."""

    def __init__(self, loop: SimLoop, seed: int = 0) -> None:
        self.loop, self.rng = loop, random.Random(seed)
        self.clock = SimClock(loop, EPOCH)
        self.store = MemoryStore(self.clock)
        self.cloud = FakeProvider(self.clock, latency_s=1.0)
        self.cloud.on_created, self.cloud.on_deleted = self._machine_created, self._machine_removed
        self.machines: dict[str, Machine] = {}
        # Every machine that was ever created, by cluster and class.
        self.created: Counter[tuple[str, str]] = Counter()
        self.created_at: list[tuple[float, str, str, str]] = []
        self.lies: dict[str, Lie] = {}
        # By node: the seconds from the creation of a machine to the first contact of its agent.
        self.boot_s: dict[str, float] = {}
        # Services whose replicas exit at once.
        self.crashing: set[str] = set()
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._registrar = Registrar(self.clock)
        self._numbers = iter(range(1, 1 << 30))

    def uid(self) -> str:
        return f"{next(self._numbers):08x}-0000-4000-8000-000000000000"

    async def start(self) -> None:
        term = await self.store.campaign("controllers", "me", 1e9)
        assert term is not None
        self.context = ControllerContext(
            self.store, self.clock, term, self.rng, Presence(self.clock), self.uid, freezes_caches=False
        )
        resource = Namespace.resource
        await self.apply(
            Namespace(api_version=resource.api_version, kind=resource.kind, metadata=Metadata(name="default"))
        )
        dependencies = ControllerDependencies(
            mint_token=self._mint_token,
            pricing_tables=lambda: PricingTables(PRICES),
            webhook_client=_NoWebhooks(),
            providers={"fake": self.cloud},
            node_timeouts=TIMEOUTS,
            grace_periods=GRACE_PERIODS,
            unschedulable_grace_s=UNSCHEDULABLE_GRACE_S,
        )
        self.controllers = ControllerSet(self.context, dependencies)
        collector = GarbageCollector(self.store, self.clock, KINDS, term, rng=self.rng)
        self.context.cache(LatticeWorkload).on_change(self._workload_changed)
        self._tasks = [
            asyncio.ensure_future(run)
            for run in (self.controllers.run(), collector.run(), self._run_agents(), self._heartbeats())
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- users ---

    async def apply(self, *objects: Kind) -> None:
        """Create objects, or replace their spec and labels, as a user does."""
        for item in objects:
            while True:
                entry = await self.store.get(key_of(item))
                if entry is None:
                    write: Any = put_new(item, uid=self.uid(), now="2026-03-10T09:00:00Z")
                else:
                    labels = dict(item.metadata.labels or {})
                    write = with_spec(entry, item.spec)  # type: ignore[attr-defined]
                    relabelled = with_metadata(
                        msgspec.structs.replace(entry, value=write.value),
                        lambda metadata, labels=labels: metadata | {"labels": labels},  # type: ignore[misc]
                    )
                    write = msgspec.structs.replace(relabelled, expect=entry.revision)
                    if write.value == entry.value:
                        break
                try:
                    await self.store.commit([write])
                except Conflict:
                    continue
                break

    async def delete(self, kind: type[Kind], name: str, namespace: str = "") -> None:
        key = Key(kind.resource.id, namespace, name)
        while (entry := await self.store.get(key)) is not None:
            finalizers = msgspec.json.decode(entry.value)["metadata"].get("finalizers")
            write: Any = Delete(key, entry.revision)
            if finalizers:
                now = self.context.timestamp
                write = with_metadata(
                    entry,
                    lambda metadata, now=now: mark_for_deletion({"metadata": metadata}, now=now)["metadata"],  # type: ignore[misc]
                )
            try:
                await self.store.commit([write])
            except Conflict:
                continue
            return

    async def change_node(self, name: str, **spec: Any) -> None:
        while (entry := await self.store.get(Key(LatticeNode.resource.id, "", name))) is not None:
            node = msgspec.json.decode(entry.value, type=LatticeNode)
            if all(getattr(node.spec, field_name) == value for field_name, value in spec.items()):
                return
            try:
                await self.store.commit([with_spec(entry, msgspec.structs.replace(node.spec, **spec))])
            except Conflict:
                continue
            return

    # --- what is stored and what exists ---

    def all(self, kind: type[K]) -> list[K]:
        return sorted(
            self.context.cache(kind).objects(), key=lambda item: (item.metadata.namespace, item.metadata.name)
        )

    def reporting_machines(self) -> list[str]:
        return sorted(name for name, machine in self.machines.items() if machine.session is not None)

    async def events(self) -> list[Event]:
        page = await self.store.list(Event.resource.id)
        return [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]

    # --- time ---

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def rest(self, quiet_s: float, limit_s: float) -> Counter[str]:
        """Wait until nothing was written for `quiet_s`; after `limit_s`, return the writes of the last `quiet_s` by key: a
        world that never comes to rest."""
        ends = self.loop.time() + limit_s
        while True:
            revision = await self.store.revision()
            await asyncio.sleep(quiet_s)
            writes = Counter(
                str(change.key)
                for kind in KINDS
                if kind.resource.id not in UNREMARKABLE
                for change in self.store.changes_after(kind.resource.id, revision)
            )
            if not writes or self.loop.time() >= ends:
                return writes

    # --- the cloud ---

    def _mint_token(self, node: LatticeNode) -> tuple[str, Put]:
        grant = Grant(expires="2099-01-01T00:00:00Z", node=node.metadata.name, uid=node.metadata.uid)
        return mint_token(self.rng, self.clock, grant)

    def _machine_created(self, spec: MachineSpec) -> None:
        machine = self.machines[spec.node] = Machine(spec, self.lies.get(spec.node_class, Lie()))
        self.created[spec.cluster, spec.node_class] += 1
        self.created_at.append((self.loop.time(), spec.cluster, spec.node_class, spec.node))
        boot_s = self.boot_s.get(spec.node, BOOT_S)
        machine.boots_until = self.loop.time() + boot_s
        self.loop.call_later(boot_s, lambda: self._mark(machine.spec.node))

    def _machine_removed(self, node: str) -> None:
        self.machines.pop(node, None)

    def lose_machine(self, node: str) -> None:
        """The machine ends by itself, and the cloud reports it."""
        if node in self.machines and self.machines[node].is_joined:
            self.silence(node)
        elif node in self.machines:
            self.cloud.end_machine(node)

    def silence(self, node: str) -> None:
        """The agent and its processes are gone for good; the cloud goes on to list the machine."""
        if node in self.machines:
            machine = self.machines[node]
            machine.is_silent = True
            if machine.session is not None:
                self.context.presence.end_session(machine.session)

    # --- machines of owners ---

    async def join_machine(self, name: str, pool: str, cores: int, memory_gib: int) -> None:
        """An owner joins a machine to the pool, at its own size."""
        stored = self.context.cache(LatticePool).get(f"/{pool}")
        if stored is None or name in self.machines:
            return
        place, resource = stored.spec.provider, LatticeNode.resource
        node = LatticeNode(
            api_version=resource.api_version,
            kind=resource.kind,
            metadata=Metadata(name=name, finalizers=(NODE_FINALIZER,)),
            spec=NodeSpec(pool=pool, provider=place.type, region=place.region, zone=place.zone),
        )
        await self.apply(node)
        size = MachineSize(cores * 1000, memory_gib << 30, 100 << 30, 0, {})
        spec = MachineSpec(name, "", place.region, place.zone, "", size, token=f"owner-{name}")
        self.machines[name] = Machine(spec, Lie(), is_joined=True)
        self._mark(name)

    async def leave(self, node: str) -> None:
        """The owner takes the machine back."""
        with suppress(SessionRejected):
            await self._registrar.leave(self.context, self.machines[node].peer)

    # --- the agents ---

    def _mark(self, node: str) -> None:
        self._dirty[node] = None
        self._wake.set()

    def _workload_changed(self, change: Change) -> None:
        cache = self.context.cache(LatticeWorkload)
        for workload in (cache.get(change.key.path), cache.previous_object):
            if workload is not None and workload.status.binding is not None:
                self._mark(workload.status.binding.node)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for name in sorted(self.machines):
                self._mark(name)

    async def _run_agents(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            names, self._dirty = list(self._dirty), {}
            for name in names:
                machine = self.machines.get(name)
                is_up = machine is not None and self.loop.time() >= machine.boots_until
                if machine is not None and is_up and not machine.is_silent:
                    try:
                        await self._contact(machine)
                    except (SessionRejected, Conflict):
                        machine.session = None

    async def _contact(self, machine: Machine) -> None:
        """One exchange of the agent with the leader: it joins if it has not, receives its assignments, and reports."""
        name, presence = machine.spec.node, self.context.presence
        if machine.session is None:
            if not await self._join(machine):
                if machine.is_joined:
                    self._machine_removed(name)
                return
            hello = pb.Hello(version="1", registration=machine.registration())
            await self._registrar.register(self.context, machine.peer, hello)
            await self.context.cache(LatticeNode).wait_for()
            machine.session, machine.sent = presence.start_session(name), {}
            presence.record_assignments(machine.session, {}, is_full_list=True)
        desired = self._desired(name)
        changed: dict[str, DesiredRun | None] = {
            path: run for path, run in desired.items() if machine.sent.get(path) != run
        }
        changed |= {path: None for path in machine.sent if path not in desired}
        if changed:
            machine.applied_sequence = presence.record_assignments(machine.session, changed)
        machine.sent = desired
        self._execute(machine)
        heartbeat = Heartbeat(
            workloads=dict(machine.reported),
            is_full_report=True,
            applied_sequence=machine.applied_sequence or 1,
        )
        if not presence.record_heartbeat(machine.session, heartbeat):
            machine.session = None

    async def _join(self, machine: Machine) -> bool:
        """Write the key of the machine into its node; False if the node is gone."""
        entry = await self.store.get(Key(LatticeNode.resource.id, "", machine.spec.node))
        if entry is None:
            return False
        key = machine.peer.key_digest
        joined = with_metadata(
            entry,
            lambda metadata: (
                metadata | {"annotations": {**metadata.get("annotations", {}), AGENT_KEY_ANNOTATION: key}}
            ),
        )
        if machine.lie.is_tainted:
            node = msgspec.json.decode(entry.value, type=LatticeNode)
            spec = msgspec.structs.replace(node.spec, taints=(*node.spec.taints, TEST_TAINT))
            tainted = with_spec(msgspec.structs.replace(entry, value=joined.value), spec)
            joined = msgspec.structs.replace(tainted, expect=entry.revision)
        await self.store.commit([joined])
        return True

    def _desired(self, name: str) -> dict[str, DesiredRun]:
        node = self.context.cache(LatticeNode).get(f"/{name}")
        desired = {}
        for workload in self.context.cache(LatticeWorkload).by_index("node", name):
            binding = workload.status.binding
            if node is None or binding is None or binding.uid not in ("", node.metadata.uid):
                continue
            run = desired_run(workload)
            if run is not None:
                desired[path_of(workload)] = run
        return desired

    def _execute(self, machine: Machine) -> None:
        """Start and stop what the assignments say, and renew the reports."""
        now, cache, reports = self.loop.time(), self.context.cache(LatticeWorkload), {}
        for path, run in machine.sent.items():
            workload = cache.get(path)
            if workload is None:
                continue
            started = machine.started.get(path)
            if run.state == "Running" and (started is None or started[0] != run):
                started = machine.started[path] = (run, now + START_S)
                self.loop.call_later(START_S + 0.01, self._mark, machine.spec.node)
            # A workload that should be stopped reports the number of its last run.
            last_run = started[0].run if started and started[0].revision == run.revision else 0
            report = WorkloadReport(workload.metadata.uid, "Stopped", run.revision, last_run)
            if run.state == "Running" and started is not None:
                is_up = now >= started[1]
                if is_up and workload.spec.service in self.crashing:
                    report = replace(
                        report, state="Failed", failure_reason="EXITED", failure_message="exit code 1"
                    )
                else:
                    report = replace(report, state="Running" if is_up else "Starting", ready=is_up)
            reports[path] = report
        machine.started = {path: run for path, run in machine.started.items() if path in machine.sent}
        machine.reported = reports


class _NoWebhooks:
    async def post(self, url: str, body: Any, timeout: float) -> None:
        return None


PRICES = PriceBook({})


@asynccontextmanager
async def control_world(*objects: Kind, seed: int = 0) -> AsyncIterator[ControlWorld]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    world = ControlWorld(loop, seed)
    await world.start()
    try:
        await world.apply(*objects)
        yield world
    finally:
        await world.stop()


def run_virtual(work: Any, seed: int = 0) -> Any:
    """Run a coroutine in virtual time, on a loop of its own."""
    loop = SimLoop(random.Random(seed), MAX_STEPS_PER_SECOND)
    try:
        result = loop.run_until_complete(work)
        assert not loop.unhandled_errors, loop.unhandled_errors[:3]
        return result
    finally:
        loop.close()


def names_of(objects: Sequence[Kind]) -> list[str]:
    return [f"{item.resource.kind}/{item.metadata.name}" for item in objects]
