"""Under random faults, workloads with the policy `stop` never overlap, no run starts twice on a node, and the
fleet converges."""

import random
from contextlib import suppress

import msgspec
import pytest
from build.objects import a_workload
from build.workload_world import World, running_world

from lattice.kinds.constraints import Taint
from lattice.kinds.workload import LatticeWorkload
from lattice.store.protocol import RevisionConflict

NODES = ("n1", "n2", "n3")
STRICT = {"policy": "stop", "stopAfter": "60s"}
DEEDS = (
    *["cut", "connect", "end", "start", "drain", "undrain", "make"] * 3,
    "connect",
    "end",
    "stop",
    "revise",
    "revise",
    "lead",
    "delete",
)


async def inject_random_faults(world: World, chance: random.Random, number: int) -> None:
    agent = world.agents[chance.choice(NODES)]
    path = f"default/{chance.choice('abcd')}"
    match chance.choice(DEEDS):
        case "cut":
            agent.cut()
        case "connect" if agent.session is None:
            agent.connect()
        case "end" if agent.live:
            agent.end(chance.choice(sorted(agent.live)))
        case "stop" | "start" as what if world.is_there(path):
            state = "Stopped" if what == "stop" else "Running"
            await world.change(
                LatticeWorkload, path, lambda spec: msgspec.structs.replace(spec, desired_state=state)
            )
        case "revise" if world.is_there(path):
            await world.change(
                LatticeWorkload, path, lambda spec: msgspec.structs.replace(spec, revision=f"{number:024x}")
            )
        case "lead":
            await world.lead(f"server-{number}")
        case "drain":
            await world.set_taints(agent.name, Taint(key="lattice.dev/draining", effect="NoSchedule"))
        case "undrain":
            await world.set_taints(agent.name)
        case "delete" if world.is_there(path):
            await world.delete(LatticeWorkload, path)
        case "make" if not world.is_there(path):
            await world.add(a_workload(path.removeprefix("default/"), disconnect=STRICT))


def desired_state_of(world: World, path: str) -> str:
    workload = world.workload(path)
    return "Deleted" if workload.metadata.deletion_timestamp else workload.spec.desired_state


@pytest.mark.parametrize("seed", range(10))
async def test_random_faults_converge_without_overlap(seed: int) -> None:
    chance = random.Random(seed)

    async with running_world() as world:
        for name, delay in zip(NODES, (4, 1, 0.1), strict=True):
            await world.join(name, delay=delay)
        for name in "abcd":
            await world.add(a_workload(name, disconnect=STRICT))
        for number in range(60):
            with suppress(RevisionConflict):  # a controller was first; a user would ask again
                await inject_random_faults(world, chance, number)
            await world.run(chance.choice((0.2, 1, 5, 5, 5, 20, 60)))
        for agent in world.agents.values():
            await world.set_taints(agent.name)
            agent.cut()
            agent.connect()
        await world.run(700)
        for path in (f"default/{name}" for name in "abcd" if world.is_there(f"default/{name}")):
            runs = (
                desired_state_of(world, path) == "Running"
                and world.workload(path).status.last_action != "MarkFailed"
            )
            assert world.live(path) == ([world.node_of(path)] if runs else []), (path, world.workload(path))
            assert desired_state_of(world, path) != "Deleted"
        gone = [path for agent in world.agents.values() for path in agent.holds if not world.is_there(path)]
        assert (world.overlaps, gone) == ([], [])
        revision_before = await world.store.revision()
        await world.run(120)
        assert await world.store.revision() == revision_before
