"""One seed from beginning to end: a world settles in, people and faults are let loose, all faults end, and the world must come to rest."""

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.kinds.workload import LatticeWorkload
from lattice.sim.world.user_actions import LABELS, POOLS, Churn, pool, settle_in
from lattice.sim.world.faults import Nemesis, Swarm, usual_behaviour
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.settings import KILLING
from lattice.sim.world.users import Client
from lattice.sim.world.world import World
from lattice.store.cache import Cache

SETTLED = 8.0  # seconds until the first services are declared
FAULTS_END = 110.0
COMPARE_EVERY = 6.5
ANSWERED = 5.0  # seconds after the last fault: by then whatever people asked for has come to its end, and takes back no room that is made
RETRY_AT = 20.0  # seconds after the last fault: what failed for good is tried once more
ASKED_AGAIN = 10  # times
ENDS = 255.0


@dataclass(frozen=True)
class Span:
    """When the faults end, and when the run does."""

    faults_end: float = FAULTS_END
    ends: float = ENDS


@dataclass
class Run:
    seed: int
    swarm: Swarm
    world: World
    struck: Counter[str]
    span: Span = field(default_factory=Span)
    trouble: str = ""  # why it did not come to its end
    odd_copies: list[tuple[float, str]] = field(
        default_factory=list
    )  # when a leader's copy was not what it claimed to be, and how

    @property
    def digest(self) -> str:
        """Equal for equal runs: every commit, and everything that machines really did."""
        mix = hashlib.sha256()
        for record in self.world.store.history:
            mix.update(
                f"{record.revision} {record.at!r} {record.actor} {record.origin} {record.term}".encode()
            )
            for change in record.changes:
                mix.update(str(change.key).encode() + (change.value or b""))
        for machine in [*self.world.gone, *self.world.machines.values()]:
            mix.update(f"{machine.name} {machine.ground.history}".encode())
        return mix.hexdigest()


def run_seed(seed: int, swarm: Swarm | None = None, span: Span | None = None) -> Run:
    swarm, span = swarm or Swarm.of(seed), span or Span()
    world = World(seed, swarm.shape)
    rng = random.Random(world.rng.getrandbits(64))  # noqa: S311
    world.tune = lambda machine: _tune(machine, rng)
    nemesis = Nemesis(world, swarm)
    run = Run(seed, swarm, world, nemesis.struck, span)
    try:
        world.loop.run_until_complete(_live(run, nemesis, rng))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        run.trouble = repr(error)
    return run


def _tune(machine: SimMachine, rng: random.Random) -> None:
    machine.usual = machine.ground.behaviours[""] = usual_behaviour(rng)
    machine.ground.killing_takes = rng.choice((0.0, 1.0, KILLING - 0.1))


async def _live(run: Run, nemesis: Nemesis, rng: random.Random) -> None:
    world, swarm = run.world, run.swarm
    world.begin()
    clients = [world.client(f"person-{number + 1}") for number in range(swarm.people)]
    await settle_in(clients[0], rng)
    days = [Churn(client, random.Random(rng.getrandbits(64)), swarm.hurry) for client in clients]  # noqa: S311
    for day in days:
        await day.first_service()
    await world.until(SETTLED)
    looking = asyncio.ensure_future(_compare(run))
    busy = [asyncio.ensure_future(work) for work in (*(day.run() for day in days), nemesis.run())]
    await world.until(run.span.faults_end)
    for each in busy:
        each.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    nemesis.heal_all()
    await world.until(run.span.faults_end + ANSWERED)
    await _make_room(clients[0])
    await world.until(run.span.faults_end + RETRY_AT)
    await _retry_failed(clients[0])
    await world.until(run.span.ends)
    looking.cancel()


async def _compare(run: Run) -> None:
    """A leader's copies, with what was stored at the revision that they claim to be at."""
    world = run.world
    while True:
        await asyncio.sleep(COMPARE_EVERY)
        host = world.leader()
        office = host.server.lead.office if host is not None and host.server is not None else None
        for copy in office.copies if office is not None else ():
            if copy.revision and (
                words := difference(copy, world.store.contents(copy.resource, copy.revision))
            ):
                run.odd_copies.append(
                    (world.loop.time(), f"{words}, of which it claims to know revision {copy.revision}")
                )


def difference(copy: Cache[Any], stored: Mapping[str, int]) -> str:
    """Empty if there is none; `stored`: revisions by path."""
    known = {path: entry.revision for path in stored if (entry := copy.entry(path)) is not None}
    if known == stored and len(copy) == len(stored):
        return ""
    odd = sorted(path for path in {*stored, *known} if stored.get(path) != known.get(path))[:3]
    return f"the leader's copy of {copy.resource} differs from the store: {odd or f'{len(copy)} and {len(stored)}'}"


async def _make_room(client: Client) -> None:
    """Whatever people still want can be had from now on."""
    for name in POOLS:
        body = {
            "spec": {"budget": {"maxMonthlyCost": 900}, "capacity": {"maxNodes": 9}, "labels": LABELS[name]}
        }
        await _surely(
            client.apply, "latticepools", name, pool(name, POOLS[name], 900, labels=LABELS[name]), ""
        )
        await _surely(client.patch, "latticepools", name, body, "")
    for name in sorted(client.world.machines):
        for _ in range(ASKED_AGAIN):  # one that never joined has no node
            if await client.patch("latticenodes", name, {"spec": {"unschedulable": False, "taints": []}}):
                break
            await asyncio.sleep(0.5)


async def _surely(ask: Any, *words: Any) -> None:
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
