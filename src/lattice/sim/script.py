"""Scenarios that read as documentation: a command, `----`, what Lattice says. The same words each time, since time and chance are ours."""

import asyncio
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from lattice.agent.runtimes.fake import Behaviour
from lattice.agent.runtimes.protocol import Failure
from lattice.errors import Malformed
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.money import dollars
from lattice.scheduling.facts import DRAINING_TAINT
from lattice.sim.churn import node_class, pool, service, workload
from lattice.sim.machines import SimMachine
from lattice.sim.past import lives, node_of
from lattice.sim.servers import ServerHost
from lattice.sim.stores import HOST as STORE
from lattice.sim.users import Client
from lattice.sim.world import Shape, World

SEPARATOR = "----"
TRIES = 20
FAILURES = {
    "fails": Behaviour(start_fails=Failure("RUNTIME_ERROR", "it does not start")),
    "crashes": Behaviour(exits_after=1.0, exit_code=1),
}


@dataclass
class Block:
    """Comments and commands, and what was said after them."""

    head: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        return [line for line in self.head if line and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """Separated by empty lines; a block without the separator says nothing."""
    found = []
    for part in text.strip("\n").split("\n\n"):
        head, _, said = f"{part}\n".partition(f"{SEPARATOR}\n")
        found.append(Block(head.rstrip("\n").split("\n"), said.rstrip("\n").split("\n") if said.strip() else []))
    return found


def written(found: list[Block]) -> str:
    parts = []
    for block in found:
        said = [SEPARATOR, *block.said] if block.said else []
        parts.append("\n".join([*block.head, *said]))
    return "\n\n".join(parts) + "\n"


def played(text: str) -> str:
    """The same scenario with what is said now."""
    stage = Stage()
    found = blocks(text)
    for block in found:
        block.said = [line for command in block.commands for line in stage.do(command)]
    return written(found)


class Stage:
    """A world that does as it is told, line by line."""

    def __init__(self) -> None:
        self.world = World(7, Shape(racks=0))
        self.world.tune = lambda machine: machine.ground.behaviours.update({"": Behaviour(start_takes=0.3, stop_takes=0.2)})
        self.client: Client = self.world.client("ann")
        self._seen = 0  # events that were shown
        self._led = ""  # who was shown to lead last

    def do(self, command: str) -> Iterator[str]:
        verb, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [self._home(word) if word.startswith("@") else word for word in words if "=" not in word]
        deed: Callable[..., Any] | None = getattr(self, f"_{verb.replace('-', '_')}", None)
        if deed is None:
            raise Malformed(f"there is no command {verb!r}", fix="see src/lattice/sim/script.py")
        said = deed(*names, **options)
        yield from said or ()

    def _home(self, word: str) -> str:
        """`@lone`: the node of that workload."""
        return next((node_of(each) for each in self._all(LatticeWorkload) if each.metadata.name == word[1:]), "")

    def _run(self, work: Any) -> Any:
        return self.world.loop.run_until_complete(work)

    def _world(self, racks: str = "0", servers: str = "3", binding: Any = "optimistic") -> None:
        self.world.shape = replace(self.world.shape, racks=int(racks), servers=int(servers), binding=binding)
        self.world.profile = replace(self.world.profile, binding=binding)
        del self.world.hosts[int(servers) :]

        async def begin() -> None:
            self.world.begin()
            await asyncio.sleep(4)

        self._run(begin())

    def _wait(self, seconds: str) -> None:
        self._run(asyncio.sleep(float(seconds)))

    def _class(self, name: str, cores: str = "1", memory: str = "2", price: str = "0.05") -> list[str]:
        return self._told(self.client.apply, "latticenodeclasses", name, node_class(float(cores), float(memory), price), "")

    def _pool(self, name: str, classes: str = "small", budget: str = "1000", most: str = "4") -> list[str]:
        return self._told(self.client.apply, "latticepools", name, pool(name, tuple(classes.split(",")), float(budget), int(most)), "")

    def _service(self, name: str, replicas: str = "1", cores: str = "0.5", version: str = "1", **rest: str) -> list[str]:
        return self._told(self.client.apply, "latticeservices", name, service(int(replicas), float(cores), int(version), **_options(rest)))

    def _workload(self, name: str, cpu: str = "250m", version: str = "1", **rest: str) -> list[str]:
        return self._told(self.client.apply, "latticeworkloads", name, workload(cpu, int(version), **_options(rest)))

    def _scale(self, name: str, count: str) -> list[str]:
        return self._told(self.client.scale, name, int(count))

    def _delete(self, kind: str, name: str) -> list[str]:
        return self._told(self.client.delete, {"service": "latticeservices", "workload": "latticeworkloads"}[kind], name)

    def _retry(self, name: str) -> list[str]:
        return self._told(self.client.retry, name)

    def _cordon(self, name: str) -> list[str]:
        return self._told(self.client.patch, "latticenodes", name, {"spec": {"unschedulable": True}})

    def _uncordon(self, name: str) -> list[str]:
        return self._told(self.client.patch, "latticenodes", name, {"spec": {"unschedulable": False, "taints": []}})

    def _taint(self, name: str, key: str, effect: str) -> list[str]:
        return self._told(self.client.patch, "latticenodes", name, {"spec": {"taints": [{"key": key, "effect": effect}]}})

    def _drain(self, name: str) -> list[str]:
        taint = {"key": DRAINING_TAINT, "effect": "NoSchedule"}
        return self._told(self.client.patch, "latticenodes", name, {"spec": {"unschedulable": True, "taints": [taint]}})

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
        found = self.world.leader() if name == "leader" else next((each for each in self.world.hosts if each.name == name), None)
        if found is None:
            raise Malformed(f"there is no server {name!r}")
        return found

    def _machine(self, name: str) -> SimMachine:
        return self.world.machines[name]

    def _kill(self, name: str) -> None:
        if name in self.world.machines:
            self._machine(name).kill_agent()
        else:
            self.world.kill_server(self._host(name))

    def _start(self, name: str) -> None:
        if name in self.world.machines:
            self._machine(name).start_agent()
        else:
            self.world.start_server(self._host(name))

    def _pause(self, name: str) -> None:
        host = self._host(name)
        self._paused = host.server
        if host.server is not None:
            self.world.loop.pause(host.server.process)

    def _resume(self) -> None:
        if self._paused is not None:
            self.world.loop.resume(self._paused.process)

    def _pairs(self, name: str) -> list[tuple[str, str]]:
        others = [host.name for host in self.world.hosts if host.name != name]
        if name not in self.world.machines:
            others = [STORE]
        return [pair for other in others for pair in ((name, other), (other, name))]

    def _cut(self, name: str) -> None:
        name = self._host("leader").name if name == "leader" else name
        for src, dst in self._pairs(name):
            self.world.net.cut(src, dst)

    def _heal(self) -> None:
        for src, dst in sorted(self.world.net.cuts):
            self.world.heal(src, dst)

    def _power_off(self, name: str) -> None:
        self._machine(name).lose_power()

    def _power_on(self, name: str) -> None:
        self._machine(name).restore_power()

    def _lose(self, name: str) -> None:
        self.world.cloud.lose(name)

    def _runtime(self, name: str, how: str) -> None:
        for machine in self.world.machines.values() if name == "all" else [self._machine(name)]:
            machine.ground.behaviours[""] = FAILURES.get(how, Behaviour(start_takes=0.3, stop_takes=0.2))

    def _provider(self, how: str) -> None:
        self.world.cloud.provider.refusing = "" if how == "answers" else "the cloud does not answer"

    def _jump(self, name: str, seconds: str) -> None:
        self._host(name).clock.jump(float(seconds))

    # --- what is there ---

    def _all(self, kind: Any) -> list[Any]:
        page = self._run(self.world.store.list(kind.resource.id))
        return [msgspec.json.decode(each.value, type=kind) for each in page.entries]

    def _show(self, what: str, about: str = "") -> Iterator[str]:
        yield from getattr(self, f"_show_{what}")(about)

    def _show_workloads(self, _: str) -> Iterator[str]:
        for each in self._all(LatticeWorkload):
            state = each.status.actual_state + (" ready" if each.status.ready else "")
            why = next((one.message for one in each.status.conditions if one.type == "Scheduled" and one.status == "False"), "")
            reason = why if not node_of(each) else each.status.failure_reason
            yield f"{each.metadata.name}: {state}, {node_of(each) or 'no node'}{f', {reason}' if reason else ''}"

    def _show_services(self, _: str) -> Iterator[str]:
        for each in self._all(LatticeService):
            ready = each.status.health.ready if each.status.health else 0
            placed = next((one for one in each.status.conditions if one.type == "Placed"), None)
            yield f"{each.metadata.name}: {ready or 0} of {each.spec.wanted()} ready, {placed.message if placed else 'not looked at'}"

    def _show_nodes(self, _: str) -> Iterator[str]:
        for each in self._all(LatticeNode):
            cordoned = ", cordoned" if each.spec.unschedulable else ""
            yield f"{each.metadata.name}: {each.status.phase or 'Pending'}, {each.status.workloads or 0} workloads{cordoned}"

    def _show_money(self, _: str) -> Iterator[str]:
        for each in self._all(LatticeLedger):
            yield f"{each.metadata.name}: {dollars(each.status.committed_micros)}/h of {dollars(each.spec.limit_micros or 0)}/month"

    def _show_events(self, about: str) -> Iterator[str]:
        """Those that are new since the last time."""
        page = self._run(self.world.store.list(Event.resource.id))
        fresh = sorted((each for each in page.entries if each.revision > self._seen), key=lambda each: each.revision)
        self._seen = max((each.revision for each in fresh), default=self._seen)
        for entry in fresh:
            event = msgspec.json.decode(entry.value, type=Event)
            if about in ("", event.involved_object.name, event.reason):
                yield f"{event.reason} {event.involved_object.name}: {event.message}"

    def _show_running(self, _: str) -> Iterator[str]:
        """What really runs, whatever is written anywhere."""
        for name in sorted(self.world.machines):
            copies = sorted(life.spec.workload for life in lives(self.world.machines[name]) if life.end == float("inf"))
            yield f"{name}: {', '.join(copies) or 'nothing'}"

    def _show_leader(self, _: str) -> Iterator[str]:
        """Which of them it is is chance; whether it is the same one is not."""
        host = self.world.leader()
        name = host.name if host else ""
        who = "nobody" if not name else "one" if not self._led else "the same one" if name == self._led else "another one"
        self._led = name or self._led
        yield f"{who} leads, term {len(self.world.store.elections)}"


def _options(words: dict[str, str]) -> dict[str, Any]:
    """`stop=15s`, `priority=5`, `group=crew:3`, `state=Stopped`, `pools=east`, `port=yes`."""
    options: dict[str, Any] = {}
    for name, value in words.items():
        if name == "stop":
            options["disconnect"] = {"policy": "stop", "stopAfter": value}
        elif name == "priority":
            options["priority"] = int(value)
        elif name == "group":
            group, _, least = value.partition(":")
            options["group"] = {"name": group, "minMember": int(least)}
        elif name == "state":
            options["desiredState"] = value
        elif name == "pools":
            options["placement"] = {"pools": {"matchLabels": {"region": value}}}
        elif name == "port":
            options["port"] = True
        else:
            raise Malformed(f"there is no option {name!r}", fix="see src/lattice/sim/script.py")
    return options
