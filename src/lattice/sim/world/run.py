"""One seed from beginning to end: a world settles in, people and faults are let loose, all faults end, and the world must come to rest."""

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
from lattice.sim.world.client import Client
from lattice.sim.world.faults import FaultInjector, FaultPlan, draw_behaviour
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.settings import KILL_GRACE_S
from lattice.sim.world.user_actions import POOL_CLASSES, POOL_LABELS, Churn, apply_supply, pool_body
from lattice.sim.world.world import World
from lattice.store.cache import Cache

SETTLED_AT_S = 8.0  # seconds until the first services are declared
FAULTS_END_S = 110.0
CACHE_COMPARE_INTERVAL_S = 6.5
REQUESTS_SETTLED_AFTER_S = 5.0  # seconds after the last fault: by then whatever people asked for has come to its end, and takes back no room that is made
RETRY_FAILED_AFTER_S = 20.0  # seconds after the last fault: what failed for good is tried once more
MAX_UNCORDON_ATTEMPTS = 10  # times
RUN_END_S = 255.0
TEXT_FIELDS = frozenset(
    {"message", "failureMessage", "decision", "schedulerDecision"}
)  # stored fields whose words are for people


@dataclass(frozen=True)
class RunDuration:
    """When the faults end, and when the run does."""

    faults_end: float = FAULTS_END_S
    run_end: float = RUN_END_S


@dataclass
class Run:
    seed: int
    fault_plan: FaultPlan
    world: World
    fault_counts: Counter[str]
    duration: RunDuration = field(default_factory=RunDuration)
    error: str = ""  # why it did not come to its end
    cache_mismatches: list[tuple[float, str]] = field(
        default_factory=list
    )  # when a leader's copy was not what it claimed to be, and how

    @property
    def digest(self) -> str:
        """Hash of the whole history: every commit with its values, and every process that a machine started or stopped."""
        return self._digest_of(lambda value: value)

    @property
    def decisions_digest(self) -> str:
        """Hash of the history without the texts for people: equal if only messages and explanations changed their words."""
        return self._digest_of(without_texts)

    def _digest_of(self, shown: Callable[[bytes], bytes]) -> str:
        mix = hashlib.sha256()
        for record in self.world.store.history:
            term = f"{record.term.role} {record.term.number} {record.term.holder}" if record.term else ""
            mix.update(f"{record.revision} {record.at!r} {record.actor} {record.origin} {term}".encode())
            for change in record.changes:
                mix.update(str(change.key).encode() + (shown(change.value) if change.value else b""))
        for machine in [*self.world.removed_machines, *self.world.machines.values()]:
            mix.update(machine.name.encode())
            for event in machine.ground.history:
                instance = event.instance_id
                mix.update(
                    f"{event.at!r} {event.action} {instance.uid} {instance.revision} {instance.container}".encode()
                )
        return mix.hexdigest()


def without_texts(value: bytes) -> bytes:
    """The stored JSON object without the fields of TEXTS, at any depth, its keys sorted."""
    return msgspec.json.encode(_strip_texts(msgspec.json.decode(value)), order="sorted")


def _strip_texts(value: Any) -> Any:
    match value:
        case dict():
            return {name: _strip_texts(field) for name, field in value.items() if name not in TEXT_FIELDS}
        case list():
            return [_strip_texts(item) for item in value]
    return value


def run_seed(seed: int, swarm: FaultPlan | None = None, span: RunDuration | None = None) -> Run:
    swarm, span = swarm or FaultPlan.from_seed(seed), span or RunDuration()
    world = World(seed, swarm.world_config)
    rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
    world.configure_machine = lambda machine: _configure_machine(machine, rng)
    nemesis = FaultInjector(world, swarm)
    run = Run(seed, swarm, world, nemesis.fault_counts, span)
    try:
        world.loop.run_until_complete(_drive(run, nemesis, rng))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        run.error = repr(error)
    return run


def _configure_machine(machine: SimMachine, rng: random.Random) -> None:
    machine.default_behaviour = machine.ground.behaviours[""] = draw_behaviour(rng)
    machine.ground.kill_delay_s = rng.choice((0.0, 1.0, KILL_GRACE_S - 0.1))


async def _drive(run: Run, nemesis: FaultInjector, rng: random.Random) -> None:
    world, swarm = run.world, run.fault_plan
    world.start()
    clients = [world.client(f"person-{number + 1}") for number in range(swarm.users)]
    await apply_supply(clients[0], rng)
    days = [
        Churn(client, random.Random(rng.getrandbits(64)), swarm.operation_interval_s)  # noqa: S311
        for client in clients
    ]
    for day in days:
        await day.apply_first_service()
    await world.sleep_until(SETTLED_AT_S)
    looking = asyncio.ensure_future(_compare_caches(run))
    busy = [asyncio.ensure_future(work) for work in (*(day.run() for day in days), nemesis.run())]
    await world.sleep_until(run.duration.faults_end)
    for each in busy:
        each.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    nemesis.heal_all()
    await world.sleep_until(run.duration.faults_end + REQUESTS_SETTLED_AFTER_S)
    await _add_capacity(clients[0])
    await world.sleep_until(run.duration.faults_end + RETRY_FAILED_AFTER_S)
    await _retry_failed(clients[0])
    await world.sleep_until(run.duration.run_end)
    looking.cancel()


async def _compare_caches(run: Run) -> None:
    """A leader's copies, with what was stored at the revision that they claim to be at."""
    world = run.world
    while True:
        await asyncio.sleep(CACHE_COMPARE_INTERVAL_S)
        host = world.leader()
        office = host.server.leadership.context if host is not None and host.server is not None else None
        for copy in office.caches if office is not None else ():
            if copy.revision and (
                words := cache_difference(copy, world.store.revisions_by_path(copy.resource, copy.revision))
            ):
                run.cache_mismatches.append(
                    (world.loop.time(), f"{words}, of which it claims to know revision {copy.revision}")
                )


def cache_difference(copy: Cache[Any], stored: Mapping[str, int]) -> str:
    """Empty if there is none; `stored`: revisions by path."""
    known = {path: entry.revision for path in stored if (entry := copy.entry(path)) is not None}
    if known == stored and len(copy) == len(stored):
        return ""
    odd = sorted(path for path in {*stored, *known} if stored.get(path) != known.get(path))[:3]
    return f"the leader's copy of {copy.resource} differs from the store: {odd or f'{len(copy)} and {len(stored)}'}"


async def _add_capacity(client: Client) -> None:
    """Whatever people still want can be had from now on."""
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
    for name in sorted(client.world.machines):
        for _ in range(MAX_UNCORDON_ATTEMPTS):  # one that never joined has no node
            if await client.patch("latticenodes", name, {"spec": {"unschedulable": False, "taints": []}}):
                break
            await asyncio.sleep(0.5)


async def _retry_until_answered(ask: Any, *words: Any) -> None:
    while await ask(*words) is None:  # noqa: ASYNC110 - asked anew each time
        await asyncio.sleep(0.5)


async def _retry_failed(client: Client) -> None:
    page = await client.world.store.list(LatticeWorkload.resource.id)
    for entry in page.entries:
        workload = msgspec.json.decode(entry.value, type=LatticeWorkload)
        if workload.status.actual_state == "Failed" or (
            workload.status.retry and workload.status.retry.attempts
        ):
            with contextlib.suppress(AssertionError):
                await client.retry(entry.key.name, entry.key.namespace)
