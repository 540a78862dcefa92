"""Two binders on one store: in each mode, each tie-breaker chooses its nodes, and no workload is bound twice."""

import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from build.objects import a_node, a_workload
from build.scheduling_world import RunningScheduler, World, running_scheduler

from lattice.clock import SystemClock
from lattice.engine.tie_order import tie_rank
from lattice.scheduling.cycle.binder import BindingMode
from lattice.scheduling.cycle.profile import ProfileSpec, parse_profile
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.scheduling.cycle.tie_break import WEIGHTED_RANDOM_CANDIDATES, TieBreaker
from lattice.store.protocol import Store
from tests.contract.conftest import opened

SEED = 3
SIZES = {"n1": 4000, "n2": 8000, "n3": 4000, "n4": 16000}
CPU = 400
ORDER = sorted(SIZES, key=lambda name: tie_rank(SEED, name))
LIKED = ORDER[2]
LIKES = {
    "node": {
        "preferred": [
            {
                "weight": 1,
                "term": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]},
            }
        ]
    }
}


@dataclass
class Oracle:
    """The nodes that one binder must choose, in order, when all nodes score equally, given the bindings so
    far."""

    breaker: TieBreaker
    bound: "Counter[str]"
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))
    turn: int = -1

    def choose(self, count: int) -> list[str]:
        mine = Counter(self.bound)
        chosen = []
        for _ in range(count):
            chosen.append(self._next(mine))
            mine[chosen[-1]] += 1
        return chosen

    def _next(self, mine: "Counter[str]") -> str:
        match self.breaker:
            case TieBreaker.FIXED:
                return ORDER[0]
            case TieBreaker.RANDOM:
                return ORDER[int(self.dice.random() * len(ORDER))]
            case TieBreaker.LEAST_LOADED:
                return min(ORDER, key=lambda name: mine[name] * CPU / SIZES[name])
            case TieBreaker.ROUND_ROBIN:
                self.turn = (self.turn + 1) % len(ORDER)
                return ORDER[self.turn]
            case TieBreaker.WEIGHTED_RANDOM:
                return ORDER[:WEIGHTED_RANDOM_CANDIDATES][
                    int(self.dice.random() * WEIGHTED_RANDOM_CANDIDATES)
                ]
            case TieBreaker.AFFINITY:
                return LIKED


def profile(mode: BindingMode, breaker: TieBreaker) -> ProfileSpec:
    """A scheduling profile whose scores are equal for these workloads."""
    return parse_profile(
        {
            "name": "ties",
            "scores": {"GpuFragmentation": 1},
            "tieBreaker": breaker.value,
            "binding": mode.value,
            "seed": SEED,
        }
    )


async def add(world: World, *names: str) -> None:
    for name in names:
        await world.add(a_workload(name, CPU, constraints={"affinity": LIKES}))


async def race(world: World, winner: RunningScheduler, loser: RunningScheduler) -> None:
    """Both have decided about the same workloads before either writes."""
    decided = []
    for each in (winner, loser):
        await each.caught_up()
        await each.controller._apply_changes()
        decided.append(each.controller._decide())
    for each, cycle in zip((winner, loser), decided, strict=True):
        assert cycle is not None
        await each.controller._bind_cycle(cycle)


async def story(store: Store, mode: BindingMode, breaker: TieBreaker) -> None:
    world, clock = World(store, SystemClock()), SystemClock()
    for name, cpu in SIZES.items():
        await world.add(a_node(name, cpu, labels={"disk": "fast" if name == LIKED else "slow"}))
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(running_scheduler(store, clock, profile(mode, breaker), role))
            for role in ("one", "two")
        ]
        bound: Counter[str] = Counter()
        oracles = {id(one): Oracle(breaker, bound), id(two): Oracle(breaker, bound)}
        known: dict[str, str] = {}
        for number, (winner, loser) in enumerate(((one, two), (two, one), (one, two))):
            names = [f"w{number}{each}" for each in range(3)]
            await add(world, *names)
            must = dict(zip(names, oracles[id(winner)].choose(3), strict=True))
            oracles[id(loser)].choose(3)  # it chooses, too, in vain
            await race(world, winner, loser)
            known |= must
            bound.update(must.values())
            assert await world.bindings() == known
            for each in (one, two):  # both see what happened, and have nothing to add
                await each.run_cycle()
        assert await world.bindings() == known
        assert {name: (await world.node(name)).status.workloads or 0 for name in SIZES} == {
            name: bound[name] for name in SIZES
        }
        assert not any([reservation_record(await world.workload(name)) for name in known])
        told = Counter(reason for reason, _ in await world.events())
        failed = told["BindingFailed"] + sum(
            each.controller.bind_failure_reporter.queued_count for each in (one, two)
        )
        assert (told["WorkloadScheduled"], failed, told["BindingFailed"] > 0) == (9, 9, True), (
            "each attempt ends in one event"
        )


@pytest.mark.parametrize("breaker", list(TieBreaker))
@pytest.mark.parametrize("mode", list(BindingMode))
@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
async def test_rival_binders_in_each_mode_and_tie_breaker(
    kind: str, mode: BindingMode, breaker: TieBreaker, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("etcd") if kind == "etcd" else None
    async with opened(kind, tmp_path, server) as store:
        await story(store, mode, breaker)


def test_the_tie_breakers_choose_differently() -> None:
    """Otherwise the other tests could not distinguish the tie-breakers."""
    chosen = {breaker: Oracle(breaker, Counter()).choose(9) for breaker in TieBreaker}
    assert len(set(map(tuple, chosen.values()))) == len(TieBreaker)
