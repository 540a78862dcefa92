"""The world of a scenario: it does what a line of one says, and shows what became of it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec

from lattice.agent.host.runtime_protocol import Failure
from lattice.agent.runtimes.fake import Behaviour
from lattice.errors import Malformed
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.ledger_math import format_dollars
from lattice.scheduling.cycle.profile import BindingModeName
from lattice.sim.invariants.history import instance_runs, node_of
from lattice.sim.world.client import Client
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.servers import ServerHost, SimServer
from lattice.sim.world.store import STORE_HOST as STORE
from lattice.sim.world.user_actions import node_class_body, pool_body, service_body, workload_body
from lattice.sim.world.world import World, WorldConfig

MAX_ATTEMPTS = 20
MAX_SERVERS = 3
RESOURCES = {
    "service": "latticeservices",
    "workload": "latticeworkloads",
    "node": "latticenodes",
    "pool": "latticepools",
}
DEFAULT_BEHAVIOUR = Behaviour(start_takes=0.3, stop_takes=0.2)
BEHAVIOURS = {
    "well": DEFAULT_BEHAVIOUR,
    "fails": Behaviour(start_fails=Failure("RUNTIME_ERROR", "it does not start")),
    "crashes": Behaviour(exits_after=1.0, exit_code=1),
}


class ScenarioWorld:
    """Raises Malformed where it is told something that cannot be done."""

    def __init__(self) -> None:
        self.world = World(7, WorldConfig(racks=0))
        self.world.configure_machine = lambda machine: machine.ground.behaviours.update(
            {"": DEFAULT_BEHAVIOUR}
        )
        self.client: Client = self.world.client("ann")
        self.has_started = False
        self._last_event_revision = 0  # events that were shown
        self._last_leader = ""  # who was shown to lead last
        self._paused: SimServer | None = None

    def begin(self, *, racks: int = 0, servers: int = 3, binding: BindingModeName = "optimistic") -> None:
        """The world begins: so many servers, and machines `rack-1`, `rack-2` … of 2 cores; the first command, once."""
        if self.has_started:
            raise Malformed(
                "the world has begun", fix="take the second `world` out, or put it into a scenario of its own"
            )
        if not 1 <= servers <= MAX_SERVERS:
            raise Malformed(f"there cannot be {servers} servers", fix=f"ask for 1 to {MAX_SERVERS}")
        self.has_started = True
        self.world.config = replace(self.world.config, racks=racks, servers=servers, binding=binding)
        self.world.profile = replace(self.world.profile, binding=binding)
        del self.world.hosts[servers:]

        async def begin() -> None:
            self.world.start()
            await asyncio.sleep(4)

        self._run(begin())

    def wait(self, seconds: float) -> None:
        """So much virtual time passes."""
        self._run(asyncio.sleep(seconds))

    def node_of_workload(self, name: str) -> str:
        """The node of that workload."""
        found = next(
            (node_of(each) for each in self._list(LatticeWorkload) if each.metadata.name == name), ""
        )
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
        return self._request(
            self.client.apply, "latticenodeclasses", name, node_class_body(cores, memory, price), ""
        )

    def pool(self, name: str, *, classes: str = "small", budget: float = 1000, most: int = 4) -> list[str]:
        """A pool in the region of its name, of classes a,b,c, with a budget a month and so many machines at most."""
        return self._request(
            self.client.apply,
            "latticepools",
            name,
            pool_body(name, tuple(classes.split(",")), budget, most),
            "",
        )

    def service(
        self, name: str, *, replicas: int = 1, cores: float = 0.5, version: int = 1, **rest: str
    ) -> list[str]:
        """A service, or its change."""
        return self._request(
            self.client.apply,
            "latticeservices",
            name,
            service_body(replicas, cores, version, **_parse_options(rest)),
        )

    def workload(self, name: str, *, cpu: str = "250m", version: int = 1, **rest: str) -> list[str]:
        """A workload that is no service's, or its change."""
        return self._request(
            self.client.apply, "latticeworkloads", name, workload_body(cpu, version, **_parse_options(rest))
        )

    def scale(self, name: str, count: int) -> list[str]:
        """A service is to have so many replicas."""
        return self._request(self.client.scale, name, count)

    def delete(self, kind: Literal["service", "workload", "node", "pool"], name: str) -> list[str]:
        """It is deleted."""
        return self._request(self.client.delete, RESOURCES[kind], name)

    def retry(self, name: str) -> list[str]:
        """A workload that was given up is to be tried again."""
        return self._request(self.client.retry, name)

    def cordon(self, node: str) -> list[str]:
        """Nothing new is to go to that node."""
        return self._request(self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True}})

    def uncordon(self, node: str) -> list[str]:
        """The node is as usual again, without taints too."""
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": False, "taints": []}}
        )

    def taint(
        self, node: str, key: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    ) -> list[str]:
        """The node has this taint."""
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"taints": [{"key": key, "effect": effect}]}}
        )

    def drain(self, node: str) -> list[str]:
        """The node is to be emptied."""
        taint = {"key": DRAINING_TAINT, "effect": "NoSchedule"}
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True, "taints": [taint]}}
        )

    def _request(self, ask: Callable[..., Any], *words: Any) -> list[str]:
        """Only what was refused is worth a word; who reaches no server asks another one."""
        for _ in range(MAX_ATTEMPTS):
            self._run(ask(*words))
            last = self.world.operations[-1]
            if last.outcome != "unknown":
                break
        return [] if last.outcome == "ok" else [f"{last.outcome}: {last.error}"]

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

    def _machine_or_host(self, name: str) -> SimMachine | ServerHost:
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
        found = self._machine_or_host(name)
        if isinstance(found, SimMachine):
            found.kill_agent()
        else:
            self.world.kill_server(found)

    def start(self, name: str) -> None:
        """It is started again."""
        found = self._machine_or_host(name)
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
        found = self._machine_or_host(name)
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
        self.world.cloud.lose_machine(self._machine(machine).name)

    def runtime(self, machine: str, how: Literal["well", "fails", "crashes"]) -> None:
        """What starts there, or on `all` machines, runs well, does not start, or ends after a second."""
        for each in self.world.machines.values() if machine == "all" else [self._machine(machine)]:
            each.ground.behaviours[""] = BEHAVIOURS[how]

    def provider(self, how: Literal["answers", "away"]) -> None:
        """Whether the cloud answers."""
        self.world.cloud.provider.outage_reason = "" if how == "answers" else "the cloud does not answer"

    def jump(self, server: str, seconds: float) -> None:
        """The wall clock of a server, or of `leader`, is set by so much."""
        self._host(server).clock.jump(seconds)

    # --- what is there ---

    def _list(self, kind: Any) -> list[Any]:
        page = self._run(self.world.store.list(kind.resource.id))
        return [msgspec.json.decode(each.value, type=kind) for each in page.entries]

    def show_workloads(self) -> Iterator[str]:
        """Workloads: state, node, and why not."""
        for each in self._list(LatticeWorkload):
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
        for each in self._list(LatticeService):
            ready = each.status.health.ready if each.status.health else 0
            placed = next((one for one in each.status.conditions if one.type == "Placed"), None)
            yield f"{each.metadata.name}: {ready or 0} of {each.spec.wanted()} ready, {placed.message if placed else 'not looked at'}"

    def show_nodes(self) -> Iterator[str]:
        """Nodes: phase and how many workloads."""
        for each in self._list(LatticeNode):
            cordoned = ", cordoned" if each.spec.unschedulable else ""
            yield f"{each.metadata.name}: {each.status.phase or 'Pending'}, {each.status.workloads or 0} workloads{cordoned}"

    def show_money(self) -> Iterator[str]:
        """What is committed an hour, and the budget."""
        for each in self._list(LatticeLedger):
            yield f"{each.metadata.name}: {format_dollars(each.status.committed_micros)}/h of {format_dollars(each.spec.limit_micros or 0)}/month"

    def show_events(self, about: str = "") -> Iterator[str]:
        """Events that are new since the last time; only of that object or with that reason, if one is named."""
        page = self._run(self.world.store.list(Event.resource.id))
        fresh = sorted(
            (each for each in page.entries if each.revision > self._last_event_revision),
            key=lambda each: each.revision,
        )
        self._last_event_revision = max((each.revision for each in fresh), default=self._last_event_revision)
        for entry in fresh:
            event = msgspec.json.decode(entry.value, type=Event)
            if about in ("", event.involved_object.name, event.reason):
                yield f"{event.reason} {event.involved_object.name}: {event.message}"

    def show_running(self) -> Iterator[str]:
        """What really runs on each machine, whatever is written anywhere."""
        for name in sorted(self.world.machines):
            copies = sorted(
                life.spec.workload
                for life in instance_runs(self.world.machines[name])
                if life.end == float("inf")
            )
            yield f"{name}: {', '.join(copies) or 'nothing'}"

    def show_attempts(self, workload: str) -> Iterator[str]:
        """When machines really tried to start that workload, in seconds since the first time."""
        name = f"default/{workload}"
        times = sorted(
            machine.clock.to_sim_time(at)
            for machine in self.world.machines.values()
            for at, spec, _ in machine.ground.start_attempts
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
            if not self._last_leader
            else "the same one"
            if name == self._last_leader
            else "another one"
        )
        self._last_leader = name or self._last_leader
        yield f"{who} leads, term {len(self.world.store.elections)}"


class ScenarioOption(NamedTuple):
    """Of services, workloads or both; left out, nothing is asked for."""

    example: str
    commands: tuple[str, ...]
    to_spec: Callable[[str], dict[str, Any]]


OPTIONS = {
    "stop": ScenarioOption(
        "15s", ("service", "workload"), lambda value: {"disconnect": {"policy": "stop", "stopAfter": value}}
    ),
    "priority": ScenarioOption(
        "5", ("service", "workload"), lambda value: {"priority": parse_int("priority", value)}
    ),
    "group": ScenarioOption("crew:3", ("workload",), lambda value: {"group": _parse_group(value)}),
    "state": ScenarioOption("Stopped", ("workload",), lambda value: {"desiredState": value}),
    "pools": ScenarioOption(
        "east", ("service",), lambda value: {"placement": {"pools": {"matchLabels": {"region": value}}}}
    ),
    "port": ScenarioOption("yes", ("service",), lambda value: {"port": True}),
}


def _parse_options(words: dict[str, str]) -> dict[str, Any]:
    return {
        name: value for word, given in words.items() for name, value in OPTIONS[word].to_spec(given).items()
    }


def _parse_group(value: str) -> dict[str, Any]:
    name, colon, least = value.partition(":")
    if not name or not colon:
        raise Malformed(
            f"group={value}: a name and how many of it are needed at least", fix="write it as group=crew:3"
        )
    return {"name": name, "minMember": parse_int("group", least)}


def parse_int(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Malformed(
            f"{name} must be a whole number, not {value!r}", fix="write it in digits, such as 3"
        ) from error
