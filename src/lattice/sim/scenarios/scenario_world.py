"""The world of a scenario: executes the commands of a scenario and shows the resulting state."""

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
from lattice.kinds.meta.conditions import find_condition, find_false
from lattice.kinds.meta.quantity import format_dollars
from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.service import PLACED_CONDITION, LatticeService
from lattice.kinds.workload import SCHEDULED_CONDITION, LatticeWorkload
from lattice.scheduling.cycle.profile import BindingModeName
from lattice.sim.invariants.history import instance_runs, node_of
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.recording_client import Client
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
    "fails": Behaviour(start_fails=Failure("RUNTIME_ERROR", "the start failed")),
    "crashes": Behaviour(exits_after=1.0, exit_code=1),
}


class ScenarioWorld:
    """A simulated world that scenario commands drive. Raises Malformed for a command that cannot be executed.

    The parameter names of commands are part of the scenario language.
    """

    def __init__(self) -> None:
        self.world = World(7, WorldConfig(racks=0))
        self.world.configure_machine = lambda machine: machine.ground.behaviours.update(
            {"": DEFAULT_BEHAVIOUR}
        )
        self.client: Client = self.world.client("ann")
        self.has_started = False
        # Revision of the newest event that `show events` has printed.
        self._last_event_revision = 0
        # Leader that `show leader` printed last.
        self._last_leader = ""
        self._paused: SimServer | None = None

    def begin(self, *, racks: int = 0, servers: int = 3, binding: BindingModeName = "optimistic") -> None:
        """Starts the world with `servers` servers and machines `rack-1`, `rack-2` … of 2 cores; the first
        command of a scenario, once."""
        if self.has_started:
            raise Malformed(
                "the world already exists",
                fix="remove the second `world`, or move the command to a separate scenario",
            )
        if not 1 <= servers <= MAX_SERVERS:
            raise Malformed(f"{servers} servers are not possible", fix=f"use 1 to {MAX_SERVERS} servers")
        self.has_started = True
        self.world.config = replace(self.world.config, racks=racks, servers=servers, binding=binding)
        self.world.profile = replace(self.world.profile, binding=binding)
        del self.world.hosts[servers:]

        async def begin() -> None:
            self.world.start()
            await asyncio.sleep(4)

        self._run(begin())

    def wait(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self._run(asyncio.sleep(seconds))

    def node_of_workload(self, name: str) -> str:
        """The node to which the workload is bound."""
        node = next(
            (node_of(workload) for workload in self._list(LatticeWorkload) if workload.metadata.name == name),
            "",
        )
        if not node:
            raise Malformed(
                f"no workload {name!r} is bound to a node",
                fix="wait until the workload is bound, or name the node",
            )
        return node

    def _run(self, work: Any) -> Any:
        return self.world.loop.run_until_complete(work)

    def node_class(self, name: str, *, cores: float = 1, memory: float = 2, price: str = "0.05") -> list[str]:
        """Applies a node class with a price per hour in dollars and memory in GiB."""
        return self._request(
            self.client.apply, "latticenodeclasses", name, node_class_body(cores, memory, price), ""
        )

    def pool(self, name: str, *, classes: str = "small", budget: float = 1000, most: int = 4) -> list[str]:
        """Applies a pool in the region of the same name, with classes a,b,c, a monthly budget and a limit of
        machines."""
        return self._request(
            self.client.apply,
            "latticepools",
            name,
            pool_body(name, tuple(classes.split(",")), budget, most),
            "",
        )

    def service(
        self, name: str, *, replicas: int = 1, cores: float = 0.5, version: int = 1, **options: str
    ) -> list[str]:
        """Creates or changes a service."""
        return self._request(
            self.client.apply,
            "latticeservices",
            name,
            service_body(replicas, cores, version, **_parse_options(options)),
        )

    def workload(self, name: str, *, cpu: str = "250m", version: int = 1, **options: str) -> list[str]:
        """Creates or changes a workload without a service."""
        return self._request(
            self.client.apply,
            "latticeworkloads",
            name,
            workload_body(cpu, version, **_parse_options(options)),
        )

    def scale(self, name: str, count: int) -> list[str]:
        """Sets the replica count of a service."""
        return self._request(self.client.scale, name, count)

    def delete(self, kind: Literal["service", "workload", "node", "pool"], name: str) -> list[str]:
        """Deletes the object."""
        return self._request(self.client.delete, RESOURCES[kind], name)

    def retry(self, name: str) -> list[str]:
        """Retries a workload that has used up its start attempts."""
        return self._request(self.client.retry, name)

    def cordon(self, node: str) -> list[str]:
        """Cordons the node."""
        return self._request(self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True}})

    def uncordon(self, node: str) -> list[str]:
        """Uncordons the node and removes its taints."""
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": False, "taints": []}}
        )

    def taint(
        self, node: str, key: str, effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    ) -> list[str]:
        """Taints the node."""
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"taints": [{"key": key, "effect": effect}]}}
        )

    def drain(self, node: str) -> list[str]:
        """Drains the node."""
        taint = {"key": DRAINING_TAINT, "effect": "NoSchedule"}
        return self._request(
            self.client.patch, "latticenodes", node, {"spec": {"unschedulable": True, "taints": [taint]}}
        )

    def _request(self, send: Callable[..., Any], *arguments: Any) -> list[str]:
        """Send a request and return the rejection, if any; without a reply, send the request to another
        server."""
        for _ in range(MAX_ATTEMPTS):
            self._run(send(*arguments))
            operation = self.world.operations[-1]
            if operation.outcome != "unknown":
                break
        return [] if operation.outcome == "ok" else [f"{operation.outcome}: {operation.error}"]

    def _host(self, name: str) -> ServerHost:
        host = (
            self.world.leader()
            if name == "leader"
            else next((candidate for candidate in self.world.hosts if candidate.name == name), None)
        )
        if host is None:
            names = ", ".join(candidate.name for candidate in self.world.hosts)
            raise Malformed(
                "no server is leader at present" if name == "leader" else f"no server {name!r} exists",
                fix=f"use one of {names}",
            )
        return host

    def _machine(self, name: str) -> SimMachine:
        if name not in self.world.machines:
            names = ", ".join(sorted(self.world.machines))
            raise Malformed(
                f"no machine {name!r} exists",
                fix=f"use one of {names}" if names else "begin the scenario with `world racks=1`",
            )
        return self.world.machines[name]

    def _machine_or_host(self, name: str) -> SimMachine | ServerHost:
        if name in self.world.machines:
            return self._machine(name)
        if name != "leader" and name not in {host.name for host in self.world.hosts}:
            names = [*(host.name for host in self.world.hosts), *sorted(self.world.machines)]
            raise Malformed(
                f"no server or machine {name!r} exists", fix=f"use one of leader, {', '.join(names)}"
            )
        return self._host(name)

    def kill(self, name: str) -> None:
        """Kills a server, `leader`, or the agent of a machine; workloads on the machine continue to run."""
        target = self._machine_or_host(name)
        if isinstance(target, SimMachine):
            target.kill_agent()
        else:
            self.world.kill_server(target)

    def start(self, name: str) -> None:
        """Starts the killed server or agent again."""
        target = self._machine_or_host(name)
        if isinstance(target, SimMachine):
            target.start_agent()
        else:
            self.world.start_server(target)

    def pause(self, server: str) -> None:
        """Pauses a server, or `leader`."""
        self._paused = self._host(server).server
        if self._paused is not None:
            self.world.loop.pause(self._paused.process)

    def resume(self) -> None:
        """Resumes the paused server."""
        if self._paused is None:
            raise Malformed("no server is paused", fix="first run `pause leader`, or pause another server")
        self.world.loop.resume(self._paused.process)

    def cut(self, name: str) -> None:
        """Cuts a machine off from all servers; cuts a server, or `leader`, off from the store."""
        target = self._machine_or_host(name)
        peers = [host.name for host in self.world.hosts] if isinstance(target, SimMachine) else [STORE]
        for peer in peers:
            self.world.net.cut(target.name, peer)
            self.world.net.cut(peer, target.name)

    def heal(self) -> None:
        """Heals all cuts of the network."""
        for src, dst in sorted(self.world.net.cuts):
            self.world.heal(src, dst)

    def power_off(self, machine: str) -> None:
        """Powers the machine off, with all its workloads."""
        self._machine(machine).lose_power()

    def power_on(self, machine: str) -> None:
        """Powers the machine on."""
        self._machine(machine).restore_power()

    def lose(self, machine: str) -> None:
        """Lets the provider lose the machine of a pool."""
        self.world.cloud.lose_machine(self._machine(machine).name)

    def runtime(self, machine: str, behaviour: Literal["well", "fails", "crashes"]) -> None:
        """Sets how workloads on the machine, or on `all` machines, behave: run well, fail to start, or exit
        after a second."""
        for target in self.world.machines.values() if machine == "all" else [self._machine(machine)]:
            target.ground.behaviours[""] = BEHAVIOURS[behaviour]

    def provider(self, availability: Literal["answers", "away"]) -> None:
        """Sets whether the provider answers requests."""
        self.world.cloud.provider.outage_reason = (
            "" if availability == "answers" else "the cloud API does not respond"
        )

    def jump(self, server: str, seconds: float) -> None:
        """Sets the wall clock of a server, or of `leader`, forward by seconds."""
        self._host(server).clock.jump(seconds)

    def _list(self, kind: Any) -> list[Any]:
        page = self._run(self.world.store.list(kind.resource.id))
        return [msgspec.json.decode(entry.value, type=kind) for entry in page.entries]

    def show_workloads(self) -> Iterator[str]:
        """Workloads with state, node, and the reason of a failure or of a missing node."""
        for workload in self._list(LatticeWorkload):
            status = workload.status
            state = status.actual_state + (" ready" if status.ready else "")
            unscheduled = find_false(status.conditions, SCHEDULED_CONDITION)
            reason = status.failure_reason
            if not node_of(workload):
                reason = unscheduled.message if unscheduled else ""
            suffix = f", {reason}" if reason else ""
            yield f"{workload.metadata.name}: {state}, {node_of(workload) or 'no node'}{suffix}"

    def show_services(self) -> Iterator[str]:
        """Services with ready replicas and the result of placement."""
        for service in self._list(LatticeService):
            ready = service.status.health.ready if service.status.health else 0
            placed = find_condition(service.status.conditions, PLACED_CONDITION)
            message = placed.message if placed else "not evaluated yet"
            yield f"{service.metadata.name}: {ready or 0} of {service.spec.desired_replicas()} ready, {message}"

    def show_nodes(self) -> Iterator[str]:
        """Nodes with phase and number of workloads."""
        for node in self._list(LatticeNode):
            cordoned = ", cordoned" if node.spec.unschedulable else ""
            yield (
                f"{node.metadata.name}: {node.status.phase or 'Pending'},"
                f" {node.status.workloads or 0} workloads{cordoned}"
            )

    def show_money(self) -> Iterator[str]:
        """Ledgers with the committed cost per hour and the budget."""
        for ledger in self._list(LatticeLedger):
            committed = format_dollars(ledger.status.committed_micros)
            limit = format_dollars(ledger.spec.limit_micros or 0)
            yield f"{ledger.metadata.name}: {committed}/h of {limit}/month"

    def show_events(self, about: str = "") -> Iterator[str]:
        """New events since the last `show events`; with ABOUT, only events of the object or reason of that
        name."""
        page = self._run(self.world.store.list(Event.resource.id))
        fresh = sorted(
            (entry for entry in page.entries if entry.revision > self._last_event_revision),
            key=lambda entry: entry.revision,
        )
        self._last_event_revision = max(
            (entry.revision for entry in fresh), default=self._last_event_revision
        )
        for entry in fresh:
            event = msgspec.json.decode(entry.value, type=Event)
            if about in ("", event.involved_object.name, event.reason):
                yield f"{event.reason} {event.involved_object.name}: {event.message}"

    def show_running(self) -> Iterator[str]:
        """Workloads that really run on every machine, whatever the store says."""
        for machine_name in sorted(self.world.machines):
            names = sorted(
                run.spec.workload
                for run in instance_runs(self.world.machines[machine_name])
                if run.end == float("inf")
            )
            yield f"{machine_name}: {', '.join(names) or 'nothing'}"

    def show_attempts(self, workload: str) -> Iterator[str]:
        """Start attempts of a workload on all machines, in seconds since the first attempt."""
        name = f"default/{workload}"
        times = []
        for machine in self.world.machines.values():
            for at, spec, _ in machine.ground.start_attempts:
                if spec.workload == name:
                    times.append(machine.clock.to_sim_time(at))
        times.sort()
        if not times:
            yield f"{workload}: never tried"
            return
        offsets = ", ".join(f"{at - times[0]:.1f}" for at in times)
        yield f"{workload}: tried {len(times)} times, at {offsets} s"

    def show_leader(self) -> Iterator[str]:
        """Whether the leader is the same as at the last `show leader`; the election is random, so no name is
        shown."""
        host = self.world.leader()
        name = host.name if host else ""
        if not name:
            leader = "no server"
        elif not self._last_leader:
            leader = "a server"
        elif name == self._last_leader:
            leader = "the same server"
        else:
            leader = "another server"
        self._last_leader = name or self._last_leader
        yield f"{leader} leads, term {len(self.world.store.elections)}"


class ScenarioOption(NamedTuple):
    """An optional argument of the commands in `commands`; `to_spec` converts the argument into fields of a
    spec."""

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
    "group": ScenarioOption("crew:3", ("service", "workload"), lambda value: {"group": _parse_group(value)}),
    "state": ScenarioOption("Stopped", ("workload",), lambda value: {"desiredState": value}),
    "pools": ScenarioOption(
        "east", ("service",), lambda value: {"placement": {"pools": {"matchLabels": {"region": value}}}}
    ),
    "near": ScenarioOption(
        "db:node", ("service",), lambda value: {"affinity": {"workload": _parse_term("near", value)}}
    ),
    "apart": ScenarioOption(
        "db:node", ("service",), lambda value: {"affinity": {"antiWorkload": _parse_term("apart", value)}}
    ),
    "port": ScenarioOption("yes", ("service",), lambda value: {"port": True}),
}


def _parse_options(options: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in options.items():
        fields |= OPTIONS[name].to_spec(value)
    return fields


def _parse_group(value: str) -> dict[str, Any]:
    name, colon, min_member = value.partition(":")
    if not name or not colon:
        raise Malformed(
            f"group={value}: expected a name and the minimum number of members",
            fix="write the option as group=crew:3",
        )
    return {"name": name, "minMember": parse_int("group", min_member)}


def _parse_term(option: str, value: str) -> dict[str, Any]:
    """Required affinity terms with one term: a service and a topology key."""
    service, colon, key = value.partition(":")
    if not service or not colon:
        raise Malformed(
            f"{option}={value}: expected a service and a topology key",
            fix=f"write the option as {option}=db:node",
        )
    return {"required": [{"service": service, "topologyKey": key}]}


def parse_int(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Malformed(
            f"{name} must be a whole number, not {value!r}", fix="write the number in digits, such as 3"
        ) from error
