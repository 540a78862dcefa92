"""A workload on a silent node reports what it waits for: a timeout, a zone outage, its eviction turn, or the
end of a removed machine."""

import msgspec
from build.objects import a_workload
from build.workload_world import World, disconnect_most_of_a_zone, remove_node_of_workload, running_world

from lattice.kinds.core import Event


def why(world: World, name: str = "default/w") -> str:
    (ready,) = [
        condition for condition in world.workload(name).status.conditions if condition.type == "Ready"
    ]
    assert (ready.status, ready.reason) == ("False", "Unknown")
    return ready.message


async def test_workload_waits_for_node_then_for_zone() -> None:
    async with running_world() as world:
        await disconnect_most_of_a_zone(world)
        await world.run(60)
        assert why(world) == "No heartbeat from the node; failover starts 120 s after the last heartbeat"
        await world.run(90)
        assert (
            why(world)
            == "No heartbeat from the node; failover in zone a is halted until more of its nodes send heartbeats, because most nodes of the zone are silent"
        )
        revision_before = await world.store.revision()
        await world.run(300)
        assert await world.store.revision() == revision_before, "it is said once"


async def test_workload_waits_for_eviction_turn() -> None:
    async with running_world() as world:
        for name in ("n1", "n2"):
            await world.join(name)
            await world.add(a_workload(f"on-{name}"))
            await world.run(1)
            await world.cordon(name)
        for name in ("n3", "n4", "n5"):
            await world.join(name)
        assert sorted(world.node_of(f"default/on-{name}") for name in ("n1", "n2")) == ["n1", "n2"]
        for name in ("n1", "n2"):
            world.agents[name].cut()
        await world.run(122)
        (left,) = [
            f"on-{name}"
            for name in ("n1", "n2")
            if world.workload(f"default/on-{name}").status.actual_state == "Unknown"
        ]
        assert (
            why(world, f"default/{left}")
            == "No heartbeat from the node; failover in zone a is limited to 0.1 nodes per second"
        )
        await world.run(15)
        assert world.workload(f"default/{left}").status.actual_state == "Running"
        entries = (await world.store.list(Event.resource.id)).entries
        events = [msgspec.json.decode(entry.value, type=Event) for entry in entries]
        moved = {event.message for event in events if event.reason == "Rescheduled"}
        assert moved == {
            "No heartbeat from the node for 120 s; if the node returns, Lattice stops the surplus copy"
        }


async def test_workload_waits_until_removed_machine_has_stopped() -> None:
    async with running_world() as world:
        await remove_node_of_workload(world, "stop")
        await world.run(10)
        assert why(world) == "No heartbeat from the node; the node was removed and may still run the workload"
        await world.run(120)
        assert world.node_of() == "n2"
