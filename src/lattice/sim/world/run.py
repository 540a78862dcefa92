"""Run a seed from start to end: the world settles, users and faults act, faults end, and the world must
converge."""

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.kinds.workload import LatticeWorkload
from lattice.sim.world.faults import FaultInjector, FaultPlan, draw_behaviour
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.recording_client import Client
from lattice.sim.world.settings import KILL_GRACE_S
from lattice.sim.world.user_actions import (
    NODE_CLASSES,
    POOL_CLASSES,
    POOL_LABELS,
    Churn,
    apply_supply,
    node_class_body,
    pool_body,
)
from lattice.sim.world.world import World
from lattice.store.cache import Cache

# Simulation time at which users and faults start.
SETTLED_AT_S = 8.0
FAULTS_END_S = 110.0
CACHE_COMPARE_INTERVAL_S = 6.5
# Time after the last fault at which capacity is added. By then every request of a user has ended, so no
# request can undo the addition.
REQUESTS_SETTLED_AFTER_S = 5.0
# Time after the last fault at which workloads that used up their attempts are retried once.
RETRY_FAILED_AFTER_S = 20.0
MAX_UNCORDON_ATTEMPTS = 10
RUN_END_S = 255.0
# Stored fields with texts for users.
TEXT_FIELDS = frozenset({"message", "failureMessage", "decision", "schedulerDecision"})


@dataclass(frozen=True)
class RunDuration:
    """Simulation times, in seconds, at which the faults and the run end."""

    faults_end: float = FAULTS_END_S
    run_end: float = RUN_END_S


@dataclass
class Run:
    """A finished or failed run of a seed; input of the checker."""

    seed: int
    fault_plan: FaultPlan
    world: World
    fault_counts: Counter[str]
    duration: RunDuration = field(default_factory=RunDuration)
    # The exception that ended the run early.
    error: str = ""
    # Simulation time and difference of every cache that did not equal the store.
    cache_mismatches: list[tuple[float, str]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Hash of the history: every commit with its values, and every start and stop of an instance."""
        return self._digest_of(lambda value: value)

    @property
    def decisions_digest(self) -> str:
        """Hash of the history without texts for users; equal if only messages and explanations differ."""
        return self._digest_of(without_texts)

    def _digest_of(self, transform: Callable[[bytes], bytes]) -> str:
        digest = hashlib.sha256()
        for record in self.world.store.history:
            term = f"{record.term.role} {record.term.number} {record.term.holder}" if record.term else ""
            digest.update(f"{record.revision} {record.at!r} {record.actor} {record.origin} {term}".encode())
            for change in record.changes:
                digest.update(str(change.key).encode() + (transform(change.value) if change.value else b""))
        for machine in [*self.world.removed_machines, *self.world.machines.values()]:
            digest.update(machine.name.encode())
            for event in machine.ground.history:
                instance = event.instance_id
                entry = f"{event.at!r} {event.action} {instance.uid} {instance.revision} {instance.container}"
                digest.update(entry.encode())
        return digest.hexdigest()


def without_texts(value: bytes) -> bytes:
    """The stored JSON object without TEXT_FIELDS at any depth, with sorted keys."""
    return msgspec.json.encode(_strip_texts(msgspec.json.decode(value)), order="sorted")


def _strip_texts(value: Any) -> Any:
    match value:
        case dict():
            return {name: _strip_texts(field) for name, field in value.items() if name not in TEXT_FIELDS}
        case list():
            return [_strip_texts(item) for item in value]
    return value


def run_seed(seed: int, fault_plan: FaultPlan | None = None, duration: RunDuration | None = None) -> Run:
    """Run a seed to its end; an exception of the run becomes `Run.error`."""
    fault_plan, duration = fault_plan or FaultPlan.from_seed(seed), duration or RunDuration()
    world = World(seed, fault_plan.world_config)
    rng = random.Random(world.rng.getrandbits(64))  # noqa: S311

    def configure_machine(machine: SimMachine) -> None:
        machine.default_behaviour = machine.ground.behaviours[""] = draw_behaviour(rng)
        # The longest delay is just below the grace that the rules allow for a kill.
        machine.ground.kill_delay_s = rng.choice((0.0, 1.0, KILL_GRACE_S - 0.1))

    world.configure_machine = configure_machine
    injector = FaultInjector(world, fault_plan)
    run = Run(seed, fault_plan, world, injector.fault_counts, duration)
    try:
        world.loop.run_until_complete(_drive(run, injector, rng))
    except Exception as error:  # noqa: BLE001 - every exception is a finding
        run.error = repr(error)
    return run


async def _drive(run: Run, injector: FaultInjector, rng: random.Random) -> None:
    world, fault_plan = run.world, run.fault_plan
    world.start()
    clients = [world.client(f"person-{number + 1}") for number in range(fault_plan.users)]
    await apply_supply(world, clients[0], rng)
    churns = [
        Churn(world, client, random.Random(rng.getrandbits(64)), fault_plan.operation_interval_s)  # noqa: S311
        for client in clients
    ]
    for churn in churns:
        await churn.apply_service()
    await world.sleep_until(SETTLED_AT_S)
    cache_check = asyncio.ensure_future(_compare_caches(run))
    tasks = [asyncio.ensure_future(work) for work in (*(churn.run() for churn in churns), injector.run())]
    await world.sleep_until(run.duration.faults_end)
    for task in tasks:
        task.cancel()
    # Wait for the cancelled tasks before the faults are healed.
    await asyncio.gather(*tasks, return_exceptions=True)
    injector.heal_all()
    await world.sleep_until(run.duration.faults_end + REQUESTS_SETTLED_AFTER_S)
    await _restore_classes(world, clients[0], injector.changed_classes)
    await _add_capacity(world, clients[0])
    await world.sleep_until(run.duration.faults_end + RETRY_FAILED_AFTER_S)
    # Workloads that used up their attempts are retried once.
    page = await world.store.list(LatticeWorkload.resource.id)
    for entry in page.entries:
        status = msgspec.json.decode(entry.value, type=LatticeWorkload).status
        if status.actual_state == "Failed" or (status.retry and status.retry.attempts):
            # The workload may have been deleted after the list was read.
            with contextlib.suppress(AssertionError):
                await clients[0].retry(entry.key.name, entry.key.namespace)
    await world.sleep_until(run.duration.run_end)
    cache_check.cancel()


async def _compare_caches(run: Run) -> None:
    """Compare the leader's caches with the stored state at the claimed revision (I-06), periodically."""
    world = run.world
    while True:
        await asyncio.sleep(CACHE_COMPARE_INTERVAL_S)
        host = world.leader()
        context = host.server.leadership.context if host is not None and host.server is not None else None
        for cache in context.caches if context is not None else ():
            if not cache.revision:
                continue
            stored = world.store.revisions_by_path(cache.resource, cache.revision)
            if difference := cache_difference(cache, stored):
                message = f"{difference}, while the cache claims revision {cache.revision}"
                run.cache_mismatches.append((world.loop.time(), message))


def cache_difference(cache: Cache[Any], stored: Mapping[str, int]) -> str:
    """The difference between a cache and the stored revisions by path; empty if equal."""
    cached = {path: entry.revision for path in stored if (entry := cache.entry(path)) is not None}
    if cached == stored and len(cache) == len(stored):
        return ""
    different = sorted(path for path in {*stored, *cached} if stored.get(path) != cached.get(path))[:3]
    detail = different or f"{len(cache)} and {len(stored)}"
    return f"the leader's cache of {cache.resource} differs from the store: {detail}"


async def _add_capacity(world: World, client: Client) -> None:
    """Raise budgets and limits and uncordon nodes, so that every desired workload can run (I-32)."""
    for name in POOL_CLASSES:
        body = {
            "spec": {
                "budget": {"maxMonthlyCost": 900},
                "capacity": {"maxNodes": 9},
                "labels": POOL_LABELS[name],
            }
        }
        await _retry_until_answered(
            client.apply,
            "latticepools",
            name,
            pool_body(name, POOL_CLASSES[name], 900, labels=POOL_LABELS[name]),
            "",
        )
        await _retry_until_answered(client.patch, "latticepools", name, body, "")
    for name in sorted(world.machines):
        # A machine that never joined has no node, so the attempts are limited.
        for _ in range(MAX_UNCORDON_ATTEMPTS):
            if await client.patch("latticenodes", name, {"spec": {"unschedulable": False, "taints": []}}):
                break
            await asyncio.sleep(0.5)


async def _restore_classes(world: World, client: Client, names: set[str]) -> None:
    """Apply the classes that faults have changed with another label, as a repair by a user does, so that
    what earlier machines offered no longer counts."""
    for name in sorted(names):
        body = node_class_body(*NODE_CLASSES[name], {"size": name, "repaired": "yes"})
        await _retry_until_answered(client.apply, "latticenodeclasses", name, body, "")


async def _retry_until_answered(request: Any, *arguments: Any) -> None:
    while await request(*arguments) is None:  # noqa: ASYNC110 - asked anew each time
        await asyncio.sleep(0.5)
