"""Fault injection: strikes the programs by the plan and heals every fault."""

import heapq
import itertools
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from chaos import network
from chaos.network import ETCDS, GROUPS, SERVERS, Rule
from chaos.plan import Strike
from chaos.programs import CLIENTS, FAKETIME, LINK, PEERS, SMALL_ETCD, SMALL_GROUP, Fleet, Program
from chaos.record import History, etcd_leader

# Seconds by which a wall clock is set forward or back.
CLOCK_JUMP_S = 3600
# Microseconds by which an fsync is delayed.
FSYNC_DELAY_US = 200_000
# Range of packet loss ratios.
LOSS_RATIOS = (0.02, 0.30)
BALLAST = "ballast"
MEBI = 1 << 20
# Unplanned exits after which a program is not restarted.
MAX_RESTARTS = 3


@dataclass
class Fault:
    """An injected fault; times are monotonic times."""

    strike: Strike
    at: float
    victims: list[str]
    # Leader of the servers when the fault struck.
    leader: str
    healed: float = 0.0
    undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.strike.kind.title

    @property
    def lane(self) -> str:
        return self.strike.kind.lane


@dataclass
class Nemesis:
    """Injects the strikes of a plan into the fleet and restarts programs that exit by themselves."""

    fleet: Fleet
    history: History
    strikes: list[Strike]
    say: Callable[[str], None]
    done: list[Fault] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    # Programs that exited by themselves.
    surprises: list[str] = field(default_factory=list)
    _active: list[Fault] = field(default_factory=list)
    _restarts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Inject all strikes; returns when the last fault is healed."""
        began = time.monotonic()
        number = itertools.count()
        agenda: list[tuple[float, int, Strike | Fault]] = [
            (began + strike.at, next(number), strike) for strike in self.strikes
        ]
        heapq.heapify(agenda)
        while agenda:
            due, _, entry = agenda[0]
            if time.monotonic() < due:
                time.sleep(min(0.2, max(0.01, due - time.monotonic())))
                self.look()
                continue
            heapq.heappop(agenda)
            if isinstance(entry, Fault):
                self.heal(entry)
            elif (fault := self.strike(entry)) is not None:
                heapq.heappush(agenda, (time.monotonic() + entry.lasts, next(number), fault))

    def strike(self, strike: Strike) -> Fault | None:
        rng = random.Random(strike.chance)
        victims = self._victims(strike, rng)
        if not victims or (strike.kind.name == "clock" and not FAKETIME):
            self.skipped.append(strike.kind.title)
            return None
        fault = Fault(strike, time.monotonic(), victims, self.history.leader)
        self.done.append(fault)
        self._active.append(fault)
        self.say(f"{fault.name}: {', '.join(victims)} for {strike.lasts:.1f} s")
        _ACTIONS[strike.kind.name](self, fault, rng)
        return fault

    def heal(self, fault: Fault) -> None:
        for undo in fault.undo:
            undo()
        fault.healed = time.monotonic()
        self._active.remove(fault)

    def look(self) -> None:
        """Report and restart programs that exited without a fault."""
        for program in self.fleet.programs:
            if (
                program.is_alive
                or program.expected
                or program.process is None
                or self._restarts[program.name] > MAX_RESTARTS
            ):
                continue
            words = (
                f"{program.name} ended by itself with code {program.process.returncode}:"
                f" {program.last_words[-600:]}"
            )
            if not (program.small and self._is_full(program)):
                self.surprises.append(words)
                self.say(words)
                program.start()
                self._restarts[program.name] += 1

    def _is_full(self, program: Program) -> bool:
        """Report whether the program is a member of etcd with a full disk: the member exits, and restarts
        after the fault."""
        return program.name in ETCDS and (program.folder / BALLAST).exists()

    @property
    def _busy(self) -> set[str]:
        return set(chain.from_iterable(fault.victims for fault in self._active))

    def _victims(self, strike: Strike, rng: random.Random) -> list[str]:
        target, busy = strike.kind.target, self._busy
        if target in ("all servers", "most of etcd"):
            victims = list(SERVERS) if target == "all servers" else rng.sample(ETCDS, 2)
            return [] if busy & {*victims} else victims
        free = [group for group in GROUPS if group not in busy]
        if target == "half of the groups":
            return rng.sample(free, len(GROUPS) // 2) if len(free) >= len(GROUPS) // 2 else []
        if target.startswith("agent"):
            groups = (SMALL_GROUP,) if target == "agent on a small disk" else GROUPS
            free = [
                name for name, agent in self.fleet.agents.items() if agent.part in groups and name not in busy
            ]
        elif target != "group":
            free = [name for name in self._control_plane_victims(target) if name not in busy]
        return [rng.choice(free)] if free else []

    def _control_plane_victims(self, target: str) -> list[str]:
        if target == "leader":
            return [self.history.leader] if self.history.leader in SERVERS else []
        if target == "follower":
            return [name for name in SERVERS if name != self.history.leader]
        if target == "etcd leader":
            return [name for name in [etcd_leader(self.fleet.endpoints)] if name]
        return [SMALL_ETCD] if target == "etcd on a small disk" else list(ETCDS)

    def _programs(self, fault: Fault) -> list[Program]:
        """The victims' programs, including the agents of a group."""
        programs = {program.name: program for program in self.fleet.programs}
        return [programs[name] for name in fault.victims if name in programs] + [
            agent for agent in self.fleet.agents.values() if agent.part in fault.victims
        ]

    def kill(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            program.kill()
            fault.undo.append(program.start)

    def terminate(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            program.terminate()
            fault.undo.append(program.start_again)

    def power_off(self, fault: Fault, rng: random.Random) -> None:
        for name in fault.victims:
            agent = self.fleet.agents[name]
            agent.lose_power()
            fault.undo.append(agent.start)

    def pause(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            program.send(signal.SIGSTOP)
            fault.undo.append(partial(program.send, signal.SIGCONT))

    def shift(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            self.fleet.set_clock(program.name, rng.choice((-CLOCK_JUMP_S, CLOCK_JUMP_S)))
            fault.undo.append(partial(self.fleet.set_clock, program.name, 0))

    def cut(self, fault: Fault, rng: random.Random) -> None:
        rules: list[Rule] = []
        for part in fault.victims:
            rules += _CUTS[fault.strike.kind.name](part, rng)
        self._add_rules(fault, rules)

    def _add_rules(self, fault: Fault, rules: list[Rule]) -> None:
        for rule in rules:
            rule.put(self.fleet.run)
            fault.undo.append(partial(rule.lift, self.fleet.run))

    def fill(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            ballast = program.folder / BALLAST
            _fill(ballast)
            fault.undo.append(ballast.unlink)
            fault.undo.append(program.start_if_dead)

    def slow_down(self, fault: Fault, rng: random.Random) -> None:
        for program in self._programs(fault):
            if program.process is None:
                continue
            inject = f"inject=fsync,fdatasync:delay_exit={FSYNC_DELAY_US}"
            words = [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "strace",
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "trace=fsync,fdatasync",
                "-e",
                inject,
            ]
            tracer = subprocess.Popen(
                [*words, "-p", str(program.process.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            fault.undo.append(partial(_detach, tracer))


def _detach(tracer: "subprocess.Popen[bytes]") -> None:
    tracer.send_signal(signal.SIGINT)
    try:
        tracer.wait(3)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.wait()


def _fill(path: Path) -> None:
    """Write until the disk has no free byte."""
    with path.open("wb", buffering=0) as file:
        for size in (MEBI, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


_CUTS: dict[str, Callable[[str, random.Random], list[Rule]]] = {
    "cut": lambda part, rng: network.cut(part),
    "deaf": lambda part, rng: network.deaf(part),
    "dumb": lambda part, rng: network.dumb(part),
    "loss": lambda part, rng: network.lossy(part, rng.uniform(*LOSS_RATIOS)),
    "cut from etcd": lambda part, rng: network.cut_port(part, CLIENTS),
    "cut from agents": lambda part, rng: network.cut_port(part, LINK),
    "cut from peers": lambda part, rng: network.cut_port(part, PEERS),
}
_ACTIONS: dict[str, Callable[[Nemesis, Fault, random.Random], None]] = {
    "kill -9": Nemesis.kill,
    "SIGTERM": Nemesis.terminate,
    "pause": Nemesis.pause,
    "power off": Nemesis.power_off,
    "clock": Nemesis.shift,
    "disk full": Nemesis.fill,
    "slow fsync": Nemesis.slow_down,
    **dict.fromkeys(_CUTS, Nemesis.cut),
}
