"""With one scheduler or two, under any order of events, no revision overcommits a node or allocates a port
twice."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from build.objects import a_node, a_workload
from build.property_settings import LONG
from build.scheduling_world import RunningScheduler, World, key_of, running_scheduler
from build.virtual import VirtualClock, settle
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lattice.errors import Conflict
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.binder import BindingMode
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, BindingModeName, ProfileSpec
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Change, Check, Entry, Key, Term, Write

NODES = {"n1": 1000, "n2": 1500}
PORTS = (30000, 30003)  # four to choose from

SCHEDULERS: dict[str, list[int]] = {"neither": [], "a": [0], "b": [1], "both": [0, 1]}
STEPS = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from([500, 1000]), st.integers(0, 2)),
            st.tuples(st.just("add"), st.just(500), st.just(1)),
            st.tuples(st.just("group"), st.integers(2, 4), st.just(0)),
            st.tuples(st.sampled_from(["delete", "unbind", "touch"]), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("replace node"), st.sampled_from([1, 2]), st.just(0)),
            st.tuples(st.just("wait"), st.sampled_from([1, 40]), st.just(0)),
        ),
        st.sampled_from([*SCHEDULERS, "both"]),
    ),
    min_size=12,
    max_size=24,
)


class SlowStore(MemoryStore):
    """A store whose reads and commits take time, during which other writers act and caches move."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        super().__init__(clock)
        self._rng = random.Random(seed)

    async def _pass(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)

    async def get(self, key: Key) -> Entry | None:
        await self._pass()
        return await super().get(key)

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        await self._pass()
        revision = await super().commit(writes, checks=checks, fence=fence, request_id=request_id)
        await self._pass()
        return revision


def profile(mode: BindingMode) -> ProfileSpec:
    spec = PRESETS[DEFAULT_PROFILE]
    binding: BindingModeName = mode.value
    return ProfileSpec(spec.name, spec.scores, binding=binding)


class RivalSchedulers:
    """A store, two independent schedulers, and all other writers."""

    def __init__(self, clock: VirtualClock, mode: BindingMode, seed: int) -> None:
        self.clock, self.mode, self.rng = clock, mode, random.Random(seed)
        self.world = World(SlowStore(clock, seed), clock)
        self.sides: list[RunningScheduler] = []
        self.stacks: list[AsyncExitStack] = []
        self.names: list[str] = []

    async def begin(self) -> None:
        for name, cpu in NODES.items():
            await self.world.add(a_node(name, cpu, ports=PORTS))
        for role in ("a", "b"):
            await self._enter(role)

    async def _enter(self, role: str) -> None:
        stack = AsyncExitStack()
        self.sides.append(
            await stack.enter_async_context(
                running_scheduler(self.world.store, self.clock, profile(self.mode), role)
            )
        )
        self.stacks.append(stack)

    async def end(self) -> None:
        for stack in self.stacks:
            await stack.aclose()

    async def step(self, what: str, first: int, second: int) -> None:
        match what:
            case "add":
                await self._add(
                    a_workload(
                        f"w{len(self.names)}", first, ports=tuple(f"p{number}" for number in range(second))
                    )
                )
            case "group":
                group = {"name": f"g{len(self.names)}", "minMember": first}
                for _ in range(first):
                    await self._add(a_workload(f"w{len(self.names)}", 500, group=group))
            case "delete" | "unbind" | "touch":
                await self._to_workload(what, first)
            case "restart":
                await self.stacks[first].aclose()
                stack = AsyncExitStack()
                self.sides[first] = await stack.enter_async_context(
                    running_scheduler(self.world.store, self.clock, profile(self.mode), "ab"[first])
                )
                self.stacks[first] = stack
            case "replace node":
                await self.world.delete(LatticeNode, f"n{first}")
                await self.world.add(a_node(f"n{first}", NODES[f"n{first}"], ports=PORTS))
            case "wait":
                await self.clock.advance(first)

    async def _add(self, workload: LatticeWorkload) -> None:
        await self.world.add(workload)
        self.names.append(workload.metadata.name)

    async def _to_workload(self, what: str, number: int) -> None:
        if (
            number >= len(self.names)
            or await self.world.store.get(key_of(LatticeWorkload, self.names[number])) is None
        ):
            return
        name = self.names[number]
        if what == "delete":
            await self.world.delete(LatticeWorkload, name)
        elif what == "unbind":
            found = await self.world.workload(name)
            if found.status.binding:
                await self.world.set_status(
                    LatticeWorkload, name, binding=None, allocated_ports={}, decision={}
                )
        else:
            await self.world.set_status(LatticeWorkload, name, last_log=f"{await self.world.revision()}")

    async def run_cycles(self, sides: list[int]) -> None:
        """Run the schedulers nearly at once: their caches may lag, and move while they decide."""
        looking = []
        for side in sides:
            for _ in range(self.rng.randrange(20)):
                await asyncio.sleep(0)
            looking.append(asyncio.create_task(self.sides[side].controller.reconcile("nodes")))
        for _ in range(200):
            if all(task.done() for task in looking):
                break
            await self.clock.advance(0.02)
        for answer in await asyncio.gather(*looking, return_exceptions=True):
            assert answer is None or not isinstance(answer, BaseException) or isinstance(answer, Conflict), (
                answer
            )


async def history(store: MemoryStore) -> list[Change]:
    found = []
    for kind in (LatticeNode, LatticeWorkload):
        watch = await store.watch(kind.resource.id, 0)
        while watch.progress < await store.revision():
            found += [change for batch in await watch.next(timeout=1) for change in batch.changes]
        watch.close()
    return sorted(found, key=lambda change: change.revision)


def check(changes: list[Change]) -> None:
    """Replay every commit with a reader that shares no code with the scheduler."""
    nodes: dict[str, tuple[str, int]] = {}
    bound: dict[str, tuple[str, str, int, tuple[int, ...]]] = {}
    for change in changes:
        path = change.key.path
        if change.key.resource == LatticeNode.resource.id:
            nodes.pop(path, None)
            if change.value:
                node = msgspec.json.decode(change.value)
                nodes[path] = (node["metadata"]["uid"], node["status"]["allocatable"]["cpu"])
        else:
            bound.pop(path, None)
            if change.value and (now := _where(msgspec.json.decode(change.value))):
                bound[path] = now
        _check_moment(nodes, bound, change.revision)


def _where(workload: dict[str, Any]) -> tuple[str, str, int, tuple[int, ...]] | None:
    status = workload.get("status", {})
    held = status.get("binding") or status.get("reservation")
    if not held:
        return None
    cpu = int(workload["spec"]["containers"]["main"]["resources"]["requests"]["cpu"].removesuffix("m"))
    return f"/{held['node']}", held["uid"], cpu, tuple(status.get("allocatedPorts", {}).values())


def _check_moment(
    nodes: dict[str, tuple[str, int]], bound: dict[str, tuple[str, str, int, tuple[int, ...]]], revision: int
) -> None:
    taken: dict[str, int] = defaultdict(int)
    ports: dict[str, list[int]] = defaultdict(list)
    for node, uid, cpu, numbers in bound.values():
        if node in nodes and nodes[node][0] == uid:
            taken[node] += cpu
            ports[node] += numbers
    for node, amount in taken.items():
        assert amount <= nodes[node][1], (
            f"revision {revision}: {amount} of {nodes[node][1]} milli-cores of {node}"
        )
    for node, numbers in ports.items():
        assert len(set(numbers)) == len(numbers), f"revision {revision}: {sorted(numbers)} on {node}"


# The other one binds to the node after this one has decided on it and before it writes; by then it has heard of that.
CROSSED = [
    (("add", 500, 0), "b"),
    *[(("add", 500, number), "neither") for number in (1, 0)],
    (("add", 500, 0), "both"),
    *[(("add", 500, 0), "neither")] * 3,
    (("add", 500, 0), "a"),
    (("add", 500, 0), "both"),
    (("group", 4, 0), "both"),
    (("add", 500, 0), "both"),
    (("restart", 0, 0), "both"),
    (("add", 500, 1), "a"),
    (("delete", 0, 0), "both"),
    (("wait", 1, 0), "neither"),
    (("delete", 3, 0), "both"),
]


@pytest.mark.parametrize("mode", list(BindingMode))
@settings(max_examples=600 if LONG else 20, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
@example(steps=CROSSED, seed=0)
@example(steps=CROSSED, seed=16)
async def test_rival_schedulers_never_overcommit(
    mode: BindingMode, steps: list[tuple[tuple[str, int, int], str]], seed: int
) -> None:
    rivals = RivalSchedulers(VirtualClock(), mode, seed)
    await rivals.begin()
    for step, schedulers in steps:
        await rivals.step(*step)
        await rivals.run_cycles(SCHEDULERS[schedulers])
    store = rivals.world.store
    assert isinstance(store, MemoryStore)
    check(await history(store))
    await rivals.end()
    await settle()
