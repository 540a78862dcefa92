"""Agents and servers under random faults in virtual time: no duplicate instances, no lower term, and
convergence."""

import random
from dataclasses import dataclass, field

import pytest
from build.agent_world import (
    REVISION,
    ROLE,
    Leader,
    Node,
    a_node_with_key,
    a_sleeping_workload,
    an_agent_node,
    applied,
)
from build.virtual import VirtualClock

from lattice.agent.runtimes.fake import Behaviour
from lattice.store.memory import MemoryStore

SERVERS = ("a:7444", "b:7444")
NODES = ("n1", "n2", "n3")
WORKLOADS = ("w1", "w2", "w3", "w4")


@dataclass
class World:
    rng: random.Random
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)
        self.servers = {address: Leader(self.store, self.clock) for address in SERVERS}
        self.nodes: dict[str, Node] = {}
        self.homes: dict[str, str] = {}
        self.runs = dict.fromkeys(WORKLOADS, 0)
        self.terms = dict.fromkeys(NODES, 0)
        self.leading = ""

    async def begin(self) -> None:
        await self.elect()
        leader = self.servers[self.leading]
        for name in NODES:
            await leader.add(a_node_with_key(name, f"key-{name}"))
        for name in WORKLOADS:
            await leader.add(a_sleeping_workload(name))
        for name in NODES:
            self.nodes[name] = an_agent_node(self.clock, self.servers, name)
            self.nodes[name].machine.behaviours[""] = Behaviour(
                start_takes=self.rng.random() * 3, stop_takes=self.rng.random() * 10
            )
            self.nodes[name].start()

    async def elect(self) -> None:
        """Elect the next leader; the former leader learns it at once or only by its clock."""
        former = self.servers.get(self.leading)
        if former is not None and former.context is not None:
            await self.store.resign(former.context.term)
        address = self.rng.choice(SERVERS)
        term = await self.store.campaign(ROLE, address, 10_000.0)
        assert term is not None
        if former is not None:
            former.step_down(address if self.rng.random() < 0.7 else "")
        self.servers[address].leads(term)
        self.leading = address

    async def order(self) -> None:
        """Bind, restart or delete a random workload."""
        name = self.rng.choice(WORKLOADS)
        if self.rng.random() < 0.25:
            self.homes.pop(name, None)
            await self.servers[self.leading].bind(name, applied("n1", action="Delete"))
            return
        self.homes[name] = self.rng.choice(NODES)
        self.runs[name] += 1
        await self.servers[self.leading].bind(
            name, applied(self.homes[name], run=self.runs[name], revision=REVISION)
        )

    async def fault(self) -> None:
        node = self.nodes[self.rng.choice(NODES)]
        match self.rng.choice(("kill", "cut", "heal", "power", "elect", "order", "order", "order")):
            case "kill":
                await self.restart(node)
            case "cut":
                node.net.cut()
            case "heal":
                node.net.is_cut = False
            case "power":
                node.machine.lose_power()
                await self.restart(node)
            case "elect":
                await self.elect()
            case "order":
                await self.order()

    async def restart(self, node: Node) -> None:
        name = node.net.peer.node
        await node.kill()
        self.nodes[name] = an_agent_node(
            self.clock, self.servers, name, former=node, addresses=self.rng.sample(SERVERS, 2)
        )
        self.nodes[name].net.is_cut = node.net.is_cut
        self.nodes[name].start()

    def check(self) -> None:
        for name, node in self.nodes.items():
            live = [which.uid for which in node.machine.live_instances()]
            assert len(live) == len(set(live)), f"two copies on {name}"
            assert node.memory.state.term >= self.terms[name], "a lower term was obeyed"
            self.terms[name] = node.memory.state.term

    def check_end(self) -> None:
        leader = self.servers[self.leading]
        assert leader.context is not None
        assert sorted(leader.links.sessions) == list(NODES)
        for name, node in self.nodes.items():
            wanted = sorted(f"uid-{each}" for each, home in self.homes.items() if home == name)
            assert sorted(which.uid for which in node.machine.live_instances()) == wanted, name
            heard = leader.context.presence.get(name)
            assert heard is not None
            said = sorted(spoken.uid for spoken in heard.workloads.values() if spoken.state == "Running")
            assert said == wanted, name

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.kill()
        for server in self.servers.values():
            await server.close()


@pytest.mark.parametrize("seed", range(12))
async def test_agents_converge_after_random_faults(seed: int) -> None:
    world = World(random.Random(seed))
    await world.begin()
    for _ in range(30):
        await world.fault()
        await world.clock.advance(world.rng.random() * 20)
        world.check()
    for node in world.nodes.values():
        node.net.is_cut = False
    await world.clock.advance(60)
    for name in list(world.homes):  # what ended with a machine is started again by a new run
        world.runs[name] += 1
        await world.servers[world.leading].bind(name, applied(world.homes[name], run=world.runs[name]))
    await world.clock.advance(60)
    world.check()
    world.check_end()
    await world.close()
