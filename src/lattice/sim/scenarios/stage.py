"""The world of a scenario: it does what a line of one says, and shows what became of it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec

from lattice.agent.runtimes.fake import Behaviour
from lattice.agent.host.runtime_protocol import Failure
from lattice.errors import Malformed
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.ledger_math import dollars
from lattice.scheduling.table.node_info import DRAINING_TAINT
from lattice.scheduling.cycle.profile import Binding
from lattice.sim.world.user_actions import node_class, pool, service, workload
from lattice.sim.world.machines import SimMachine
from lattice.sim.invariants.history import lives, node_of
from lattice.sim.world.servers import ServerHost, SimServer
from lattice.sim.world.store import HOST as STORE
from lattice.sim.world.users import Client
from lattice.sim.world.world import Shape, World

TRIES = 20
MOST_SERVERS = 3
RESOURCES = {
    "service": "latticeservices",
    "workload": "latticeworkloads",
    "node": "latticenodes",
    "pool": "latticepools",
}
USUAL = Behaviour(start_takes=0.3, stop_takes=0.2)
BEHAVIOURS = {
    "well": USUAL,
    "fails": Behaviour(start_fails=Failure("RUNTIME_ERROR", "it does not start")),
    "crashes": Behaviour(exits_after=1.0, exit_code=1),
}


class Stage:
    """Raises Malformed where it is told something that cannot be done."""

    def __init__(self) -> None:
        self.world = World(7, Shape(racks=0))
        self.world.tune = lambda machine: machine.ground.behaviours.update({"": USUAL})
        self.client: Client = self.world.client("ann")
        self.is_begun = False
        self._seen = 0  # events that were shown
        self._led = ""  # who was shown to lead last
        self._paused: SimServer | None = None

    def begin(self, *, racks: int = 0, servers: int = 3, binding: Binding = "optimistic") -> None:
        """The world begins: so many servers, and machines `rack-1`, `rack-2` … of 2 cores; the first command, once."""
        if self.is_begun:
            raise Malformed(
                "the world has begun", fix="take the second `world` out, or put it into a scenario of its own"
            )
        if not 1 <= servers <= MOST_SERVERS:
            raise Malformed(f"there cannot be {servers} servers", fix=f"ask for 1 to {MOST_SERVERS}")
        self.is_begun = True
        self.world.shape = replace(self.world.shape, racks=racks, servers=servers, binding=binding)
        self.world.profile = replace(self.world.profile, binding=binding)
        del self.world.hosts[servers:]

        async def begin() -> None:
            self.world.begin()
            await asyncio.sleep(4)

        self._run(begin())

    def wait(self, seconds: float) -> None:
        """So much virtual time passes."""
        self._run(asyncio.sleep(seconds))

    def home(self, name: str) -> str:
        """The node of that workload."""
        found = next((node_of(each) for each in self._all(LatticeWorkload) if each.metadata.name == name), "")
        if not found:
            raise Malformed(
                f"there is no workload {name!r} that is on a node",
                fix="wait until it is bound, or name the node itself",
            )
        return found

    def _run(self, work: Any) -> Any:
        return self.world.loop.run_until_complete(work)

    # --- what people ask for ---

    def node_class(self, name: str, *, cores: float = 1, memory: float = 2, price: str = "0.05") -> list[str]:
        """A class of machines, with its price per hour in dollars and memory in GiB."""
        return self._told(self.client.apply, "latticenodeclasses", name, node_class(cores, memory, price), "")

    def pool(self, name: str, *, classes: str = "small", budget: float = 1000, most: int = 4) -> list[str]:
        """A pool in the region of its name, of classes a,b,c, with a budget a month and so many machines at most."""
        return self._told(
            self.client.apply, "latticepools", name, pool(name, tuple(classes.split(",")), budget, most), ""
        )

    def service(
        self, name: str, *, replicas: int = 1, cores: float = 0.5, version: int = 1, **rest: str
    ) -> list[str]:
        """A service, or its change."""
        return self._told(
            self.client.apply, "latticeservices", name, service(replicas, cores, version, **_options(rest))
        )

    def workload(self, name: str, *, cpu: str = "250m", version: int = 1, **rest: str) -> list[str]:
        """A workload that is no service's, or its change."""
        return self._told(
            self.client.apply, "latticeworkloads", name, workload(cpu, version, **_options(rest))
        )

    def scale(self, name: str, count: int) -> list[str]:
        """A service is to have so many replicas."""
        return self._told(self.client.scale, name, count)

    def delete(self, kind: Literal["service", "workload", "node", "pool"], name: str) -> list[str]:
        """It is deleted."""
        return self._told(self.client.delete, RESOURCES[kind], name)

    def retry(self, name: str) -> list[str]:
        """A workload that was given up is to be tried again."""
        return self._told(self.client.retry, name)

    def cordon(self, node: str) -> list[str]:
        """Nothing new is to go to that node."""
        return self._told(self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True}})

    def uncordon(self, node: str) -> list[str]:
        """The node is as usual again, without taints too."""
        return self._told(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": False, "taints": []}}
        )

    def taint(
        self, node: str, key: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    ) -> list[str]:
        """The node has this taint."""
        return self._told(
            self.client.patch, "latticenodes", node, {"spec": {"taints": [{"key": key, "effect": effect}]}}
        )

    def drain(self, node: str) -> list[str]:
        """The node is to be emptied."""
        taint = {"key": DRAINING_TAINT, "effect": "NoSchedule"}
        return self._told(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True, "taints": [taint]}}
        )

    def _told(self, ask: Callable[..., Any], *words: Any) -> list[str]:
        """Only what was refused is worth a word; who reaches no server asks another one."""
        for _ in range(TRIES):
            self._run(ask(*words))
            last = self.world.told[-1]
            if last.outcome != "unknown":
                break
        return [] if last.outcome == "ok" else [f"{last.outcome}: {last.why}"]

    # --- faults ---

    def _host(self, name: str) -> ServerHost:
        found = (
            self.world.leader()
            if name == "leader"
            else next((each for each in self.world.hosts if each.name == name), None)
        )
        if found is None:
            known = ", ".join(each.name for each in self.world.hosts)
            raise Malformed(
                "nobody leads at present" if name == "leader" else f"there is no server {name!r}",
                fix=f"use one of {known}",
            )
        return found

    def _machine(self, name: str) -> SimMachine:
        if name not in self.world.machines:
            raise Malformed(
                f"there is no machine {name!r}",
                fix=f"use one of {', '.join(sorted(self.world.machines)) or 'none: there is none'}",
            )
        return self.world.machines[name]

    def _either(self, name: str) -> SimMachine | ServerHost:
        if name in self.world.machines:
            return self._machine(name)
        if name != "leader" and name not in {each.name for each in self.world.hosts}:
            known = [*(each.name for each in self.world.hosts), *sorted(self.world.machines)]
            raise Malformed(
                f"there is no server or machine {name!r}", fix=f"use one of leader, {', '.join(known)}"
            )
        return self._host(name)

    def kill(self, name: str) -> None:
        """A server, `leader`, or a machine's agent is killed; what runs on a machine runs on."""
        found = self._either(name)
        if isinstance(found, SimMachine):
            found.kill_agent()
        else:
            self.world.kill_server(found)

    def start(self, name: str) -> None:
        """It is started again."""
        found = self._either(name)
        if isinstance(found, SimMachine):
            found.start_agent()
        else:
            self.world.start_server(found)

    def pause(self, server: str) -> None:
        """A server, or `leader`, stands still."""
        self._paused = self._host(server).server
        if self._paused is not None:
            self.world.loop.pause(self._paused.process)

    def resume(self) -> None:
        """The one that was paused goes on."""
        if self._paused is None:
            raise Malformed("nobody was paused", fix="`pause leader`, or a server, before")
        self.world.loop.resume(self._paused.process)

    def cut(self, name: str) -> None:
        """A machine is cut off from all servers; a server, or `leader`, from the store."""
        found = self._either(name)
        others = [host.name for host in self.world.hosts] if isinstance(found, SimMachine) else [STORE]
        for other in others:
            self.world.net.cut(found.name, other)
            self.world.net.cut(other, found.name)

    def heal(self) -> None:
        """Nobody is cut off any more."""
        for src, dst in sorted(self.world.net.cuts):
            self.world.heal(src, dst)

    def power_off(self, machine: str) -> None:
        """The machine ends, and all that runs there."""
        self._machine(machine).lose_power()

    def power_on(self, machine: str) -> None:
        """It is back."""
        self._machine(machine).restore_power()

    def lose(self, machine: str) -> None:
        """The provider loses that machine of a pool."""
        self.world.cloud.lose(self._machine(machine).name)

    def runtime(self, machine: str, how: Literal["well", "fails", "crashes"]) -> None:
        """What starts there, or on `all` machines, runs well, does not start, or ends after a second."""
        for each in self.world.machines.values() if machine == "all" else [self._machine(machine)]:
            each.ground.behaviours[""] = BEHAVIOURS[how]

    def provider(self, how: Literal["answers", "away"]) -> None:
        """Whether the cloud answers."""
        self.world.cloud.provider.refusing = "" if how == "answers" else "the cloud does not answer"

    def jump(self, server: str, seconds: float) -> None:
        """The wall clock of a server, or of `leader`, is set by so much."""
        self._host(server).clock.jump(seconds)

    # --- what is there ---

    def _all(self, kind: Any) -> list[Any]:
        page = self._run(self.world.store.list(kind.resource.id))
        return [msgspec.json.decode(each.value, type=kind) for each in page.entries]

    def show_workloads(self) -> Iterator[str]:
        """Workloads: state, node, and why not."""
        for each in self._all(LatticeWorkload):
            state = each.status.actual_state + (" ready" if each.status.ready else "")
            why = next(
                (
                    one.message
                    for one in each.status.conditions
                    if one.type == "Scheduled" and one.status == "False"
                ),
                "",
            )
            reason = why if not node_of(each) else each.status.failure_reason
            yield f"{each.metadata.name}: {state}, {node_of(each) or 'no node'}{f', {reason}' if reason else ''}"

    def show_services(self) -> Iterator[str]:
        """Services: how many are ready, and what became of placing them."""
        for each in self._all(LatticeService):
            ready = each.status.health.ready if each.status.health else 0
            placed = next((one for one in each.status.conditions if one.type == "Placed"), None)
            yield f"{each.metadata.name}: {ready or 0} of {each.spec.wanted()} ready, {placed.message if placed else 'not looked at'}"

    def show_nodes(self) -> Iterator[str]:
        """Nodes: phase and how many workloads."""
        for each in self._all(LatticeNode):
            cordoned = ", cordoned" if each.spec.unschedulable else ""
            yield f"{each.metadata.name}: {each.status.phase or 'Pending'}, {each.status.workloads or 0} workloads{cordoned}"

    def show_money(self) -> Iterator[str]:
        """What is committed an hour, and the budget."""
        for each in self._all(LatticeLedger):
            yield f"{each.metadata.name}: {dollars(each.status.committed_micros)}/h of {dollars(each.spec.limit_micros or 0)}/month"

    def show_events(self, about: str = "") -> Iterator[str]:
        """Events that are new since the last time; only of that object or with that reason, if one is named."""
        page = self._run(self.world.store.list(Event.resource.id))
        fresh = sorted(
            (each for each in page.entries if each.revision > self._seen), key=lambda each: each.revision
        )
        self._seen = max((each.revision for each in fresh), default=self._seen)
        for entry in fresh:
            event = msgspec.json.decode(entry.value, type=Event)
            if about in ("", event.involved_object.name, event.reason):
                yield f"{event.reason} {event.involved_object.name}: {event.message}"

    def show_running(self) -> Iterator[str]:
        """What really runs on each machine, whatever is written anywhere."""
        for name in sorted(self.world.machines):
            copies = sorted(
                life.spec.workload for life in lives(self.world.machines[name]) if life.end == float("inf")
            )
            yield f"{name}: {', '.join(copies) or 'nothing'}"

    def show_attempts(self, workload: str) -> Iterator[str]:
        """When machines really tried to start that workload, in seconds since the first time."""
        name = f"default/{workload}"
        times = sorted(
            machine.clock.truth(at)
            for machine in self.world.machines.values()
            for at, spec, _ in machine.ground.tried
            if spec.workload == name
        )
        yield (
            f"{workload}: tried {len(times)} times, at {', '.join(f'{at - times[0]:.1f}' for at in times)} s"
            if times
            else f"{workload}: never tried"
        )

    def show_leader(self) -> Iterator[str]:
        """Whether the same server leads as the last time; which one it is is chance."""
        host = self.world.leader()
        name = host.name if host else ""
        who = (
            "nobody"
            if not name
            else "one"
            if not self._led
            else "the same one"
            if name == self._led
            else "another one"
        )
        self._led = name or self._led
        yield f"{who} leads, term {len(self.world.store.elections)}"


class Option(NamedTuple):
    """Of services, workloads or both; left out, nothing is asked for."""

    example: str
    of: tuple[str, ...]
    asks: Callable[[str], dict[str, Any]]


OPTIONS = {
    "stop": Option(
        "15s", ("service", "workload"), lambda value: {"disconnect": {"policy": "stop", "stopAfter": value}}
    ),
    "priority": Option("5", ("service", "workload"), lambda value: {"priority": whole("priority", value)}),
    "group": Option("crew:3", ("workload",), lambda value: {"group": _group(value)}),
    "state": Option("Stopped", ("workload",), lambda value: {"desiredState": value}),
    "pools": Option(
        "east", ("service",), lambda value: {"placement": {"pools": {"matchLabels": {"region": value}}}}
    ),
    "port": Option("yes", ("service",), lambda value: {"port": True}),
}


def _options(words: dict[str, str]) -> dict[str, Any]:
    return {name: value for word, given in words.items() for name, value in OPTIONS[word].asks(given).items()}


def _group(value: str) -> dict[str, Any]:
    name, colon, least = value.partition(":")
    if not name or not colon:
        raise Malformed(
            f"group={value}: a name and how many of it are needed at least", fix="write it as group=crew:3"
        )
    return {"name": name, "minMember": whole("group", least)}


def whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Malformed(
            f"{name} must be a whole number, not {value!r}", fix="write it in digits, such as 3"
        ) from error
