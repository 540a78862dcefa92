"""Fault injection: a seed draws the kinds of faults, their rate and duration; all faults end before the end
of the run."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from lattice.agent.host.runtime_protocol import Failure
from lattice.agent.runtimes.fake import Behaviour
from lattice.kinds.node_class import MachineSize
from lattice.scheduling.cycle.profile import BindingModeName
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.recording_client import Client
from lattice.sim.world.servers import ServerHost
from lattice.sim.world.store import STORE_HOST as STORE
from lattice.sim.world.store import run_synchronously
from lattice.sim.world.user_actions import NODE_CLASSES
from lattice.sim.world.world import World, WorldConfig

BINDING_MODES: tuple[BindingModeName, ...] = ("optimistic", "optimistic", "pessimistic", "two-phase")
# The second epoch crosses the end of a month.
EPOCHS = (
    datetime(2026, 3, 10, 9, 0, tzinfo=UTC),
    datetime(2026, 1, 31, 23, 58, tzinfo=UTC),
)
HOUR_S = 3600.0
# Additional latency of a slow machine in both directions, and the time for which the machine is slow before a cut.
SLOW_LINK_DELAY_S, SLOW_BEFORE_CUT_S = (3.0, 9.0)
MAX_WATCH_STALL_S = 7.0
# Longer than the cloud needs for a machine, and placement for the next attempt.
PURCHASE_S = 30.0
ALL_RUNTIMES = ("container", "process")
UNEXPECTED_TAINT_KEY = "sim.lattice.dev/not-in-the-class"
FAULT_KINDS = (
    "kill server", "pause server", "stop server", "kill agent", "pause agent", "power cut", "machine lost", "cut agent", "cut store",
    "cut one way", "store away", "loss", "twice", "slow", "lag", "gap", "clock jump", "clock rate", "provider", "runtime", "capacity",
    "crash", "crash agent", "machine differs", "class change", "price unknown",
)  # fmt: skip
# Faults that are active without a break while faults are injected; a wrong clock rate lasts for the whole
# run.
PERMANENT_FAULTS = frozenset({"twice", "clock rate"})
# The average interval between faults of one kind is a drawn number of seconds, times the share of kinds that
# take part, times this factor. The factor is a constant and not the number of kinds, so that a new kind
# changes no plan.
KIND_INTERVAL_FACTOR = 18


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a seed, and the configuration of the world."""

    kinds: tuple[str, ...]
    world_config: WorldConfig
    # Average seconds between faults of a kind.
    interval_s: float
    max_duration_s: float
    users: int
    # Average seconds between the operations of a user.
    operation_interval_s: float
    # Servers keep their identity over restarts.
    stable_server_names: bool = True

    @classmethod
    def from_seed(cls, seed: int) -> "FaultPlan":
        """Draw the plan of a seed. Every kind and every property has a generator of its own, so that a new
        kind changes no other draw."""
        share = rng_for(seed, "share").choice((0.15, 0.3, 0.6))
        kinds = tuple(kind for kind in FAULT_KINDS if rng_for(seed, kind).random() < share)
        # Some seeds have clock jumps only, because I-10 is checked only without faults that disturb a leader.
        if rng_for(seed, "alone").random() < 0.03:
            kinds = ("clock jump",)
        config = WorldConfig(
            racks=rng_for(seed, "racks").randint(1, 3),
            epoch=rng_for(seed, "epoch").choice(EPOCHS),
            binding=rng_for(seed, "binding").choice(BINDING_MODES),
            # Below CLOCK_RATE_TOLERANCE (0.05), which the timeouts allow for.
            max_clock_rate_error=0.045 if "clock rate" in kinds else 0.0,
            max_clock_offset_s=rng_for(seed, "offset").choice((0.0, 2.0, 60.0)),
        )
        return cls(
            kinds,
            config,
            interval_s=rng_for(seed, "pause").uniform(3, 12) * share * KIND_INTERVAL_FACTOR,
            max_duration_s=rng_for(seed, "longest").choice((6.0, 15.0, 45.0)),
            users=rng_for(seed, "people").randint(1, 2),
            operation_interval_s=rng_for(seed, "hurry").uniform(1.5, 5),
            stable_server_names=rng_for(seed, "named").random() < 0.5,
        )

    def __str__(self) -> str:
        config = self.world_config
        return (
            f"{', '.join(self.kinds) or 'no faults'}; each every {self.interval_s:.1f} s on average,"
            f" for up to {self.max_duration_s:g} s; {self.users} users,"
            f" each with one operation every {self.operation_interval_s:.1f} s on average;"
            f" {config.servers} servers, {config.racks} racks, {config.binding} binding"
        )


def rng_for(seed: int, draw: str) -> random.Random:
    """The random generator of a named draw; independent of all further draws of the seed."""
    return random.Random(f"{seed} {draw}")  # noqa: S311


def both_ways(links: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The links and, after every link, the link in the opposite direction."""
    pairs = []
    for src, dst in links:
        pairs += [(src, dst), (dst, src)]
    return pairs


@dataclass
class FaultInjector:
    """Injects the faults of a plan until cancelled; `heal_all` ends every fault."""

    world: World
    fault_plan: FaultPlan
    fault_counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._heals: list[Callable[[], None]] = []
        self._is_healed = False
        # Values of the faults that are active at present: loss ratios, and seconds by host.
        self._losses: list[float] = []
        self._slowness: dict[str, list[float]] = {}
        self._lags: dict[str, list[float]] = {}
        # Replaced by the generator of the kind before every fault.
        self.rng = random.Random(0)  # noqa: S311
        self._fault_methods: dict[str, Callable[[float], None]] = {
            "kill server": self._kill_server,
            "pause server": self._pause_server,
            "stop server": self._stop_server,
            "kill agent": self._kill_agent,
            "pause agent": self._pause_agent,
            "power cut": self._cut_power,
            "machine lost": self._lose_machine,
            "cut agent": self._cut_agent,
            "cut store": lambda seconds: self._cut(both_ways([(self._host().name, STORE)]), seconds),
            "cut one way": self._cut_one_way,
            "store away": lambda seconds: self._cut(
                both_ways((host.name, STORE) for host in self.world.hosts), min(seconds, 10.0)
            ),
            "loss": self._lose_messages,
            "slow": self._slow,
            "lag": self._lag,
            "gap": self._gap,
            "clock jump": self._jump,
            "provider": self._provider,
            "runtime": self._runtime,
            "capacity": self._capacity,
            "crash": self._crash,
            "crash agent": self._crash_agent,
            "machine differs": self._machine_differs,
            "class change": self._change_class,
            "price unknown": self._forget_price,
        }
        # Classes that a fault has changed; they are applied again after the faults.
        self.changed_classes: set[str] = set()
        self._provisioning: Client | None = None

    async def run(self) -> None:
        kinds = [kind for kind in self.fault_plan.kinds if kind not in PERMANENT_FAULTS]
        if "twice" in self.fault_plan.kinds:
            self.world.net.duplicate_rate = 0.05
            self.fault_counts["twice"] += 1
        self.fault_counts["clock rate"] += "clock rate" in self.fault_plan.kinds
        await asyncio.gather(
            *(self._inject_repeatedly(kind, rng_for(self.world.seed, f"strikes {kind}")) for kind in kinds)
        )

    async def _inject_repeatedly(self, kind: str, rng: random.Random) -> None:
        while True:
            # The average of the uniform draw is one interval.
            await asyncio.sleep(self.fault_plan.interval_s * 2 * rng.random())
            self.rng = rng
            self.fault_counts[kind] += 1
            self._fault_methods[kind](0.5 + rng.random() * self.fault_plan.max_duration_s)

    def heal_all(self) -> None:
        world, self._is_healed = self.world, True
        for heal in self._heals:
            heal()
        self._heals.clear()
        # Permanent faults have no heal function.
        world.net.loss_rate = world.net.duplicate_rate = 0.0
        for host in world.hosts:
            world.start_server(host)
        for machine in world.machines.values():
            machine.ground.behaviours = {"": machine.default_behaviour}
            machine.restore_power()
        world.log_fault("all faults are over")

    def _heal_later(self, seconds: float, heal: Callable[[], None]) -> None:
        """Call `heal` exactly once: after `seconds`, or when all faults are healed."""
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                heal()

        self._heals.append(once)
        self.world.loop.schedule_external(self.world.loop.time() + seconds, once)

    def _apply_worst_of(
        self, active: list[float], amount: float, seconds: float, apply: Callable[[float], None]
    ) -> None:
        """Start a fault while faults of the same kind may be active. The largest active value applies, and
        every fault ends at its own time."""
        active.append(amount)
        apply(max(active))

        def heal() -> None:
            active.remove(amount)
            apply(max(active, default=0.0))

        self._heal_later(seconds, heal)

    def _host(self) -> ServerHost:
        """A server host; the leader is more likely than a follower."""
        leader = self.world.leader()
        return leader if leader is not None and self.rng.random() < 0.6 else self.rng.choice(self.world.hosts)

    def _machine(self) -> SimMachine | None:
        names = sorted(self.world.machines)
        return self.world.machines[self.rng.choice(names)] if names else None

    def _kill_server(self, seconds: float) -> None:
        host = self._host()
        self.world.log_fault(f"kill {host.name} for {seconds:.1f} s")
        self.world.kill_server(host)
        host.has_stable_identity = self.fault_plan.stable_server_names
        self._heal_later(min(seconds, 12.0), lambda: self.world.start_server(host))

    def _crash(self, seconds: float) -> None:
        """Kill the server after one of its next commits: the store has applied the commit, and the server
        never receives the reply."""
        host, remaining = self._host(), self.rng.choice((1, 1, 2, 3, 8))
        server, store = host.server, self.world.store
        # Half of the crashes follow a commit of a reservation (two-phase) or a lock (pessimistic), before the
        # binding; in optimistic mode there is no such step, and any commit counts.
        is_between_phases = self.rng.random() < 0.5
        markers = {"two-phase": b'"reservation":{', "pessimistic": b'"holderIdentity"'}

        def on_commit(_: int) -> None:
            nonlocal remaining
            if server is None or store.writer != server.process.name or not server.process.is_alive:
                return
            values = [change.value or b"" for change in store.history[-1].changes]
            if is_between_phases and not any(
                markers.get(self.fault_plan.world_config.binding, b"") in value for value in values
            ):
                return
            remaining -= 1
            if remaining == 0:
                self.world.log_fault(f"{server.process.name} crashes after revision {store.latest_revision}")
                # Scheduled and not called here: the store still iterates its listeners, and `kill_server`
                # removes one.
                self.world.loop.schedule_external(self.world.loop.time(), self.world.kill_server, host)
                self._heal_later(min(seconds, 12.0), lambda: self.world.start_server(host))

        store.listeners.append(on_commit)
        self._heals.append(lambda: store.listeners.remove(on_commit))

    def _crash_agent(self, seconds: float) -> None:
        """Kill the agent right after the agent has accepted assignments; half of the restarted agents are cut
        off from all servers."""
        machine, is_cut = self._machine(), self.rng.random() < 0.5
        if machine is None:
            return

        def on_assignments() -> None:
            # Crash only once per fault.
            machine.state_file.listeners.remove(on_assignments)
            self.world.log_fault(f"agent of {machine.name} crashes after receiving assignments")
            machine.kill_agent()
            if is_cut:
                self._cut(both_ways((machine.name, host.name) for host in self.world.hosts), seconds)
            self._heal_later(min(seconds, 1.0), machine.start_agent)

        machine.state_file.listeners.append(on_assignments)
        self._heals.append(machine.state_file.listeners.clear)

    def _pause_server(self, seconds: float) -> None:
        host = self._host()
        server = host.server
        if server is not None:
            self.world.log_fault(f"pause {server.process.name} for {seconds:.1f} s")
            self.world.loop.pause(server.process)
            self._heal_later(seconds, lambda: self.world.loop.resume(server.process))

    def _stop_server(self, seconds: float) -> None:
        """Stop the server gracefully: running work ends and the leader resigns."""
        host = self._host()
        server = host.server
        if server is not None and server.process.is_alive:
            self.world.log_fault(f"stop {server.process.name}")
            self.world.loop.spawn(server.process, server.stop())
            # A server whose graceful stop does not end is killed.
            self._heal_later(3.0, lambda: self.world.kill_server(host))
            self._heal_later(4.0 + min(seconds, 8.0), lambda: self.world.start_server(host))

    def _kill_agent(self, seconds: float) -> None:
        if (machine := self._machine()) is not None:
            self.world.log_fault(f"kill agent of {machine.name} for {seconds:.1f} s")
            machine.kill_agent()
            self._heal_later(seconds, machine.start_agent)

    def _pause_agent(self, seconds: float) -> None:
        machine = self._machine()
        process = machine.process if machine else None
        if process is not None:
            self.world.log_fault(f"pause {process.name} for {seconds:.1f} s")
            self.world.loop.pause(process)
            self._heal_later(seconds, lambda: self.world.loop.resume(process))

    def _cut_power(self, seconds: float) -> None:
        if (machine := self._machine()) is not None:
            self.world.log_fault(f"power cut at {machine.name} for {seconds:.1f} s")
            machine.lose_power()
            self._heal_later(seconds, machine.restore_power)

    def _lose_machine(self, _: float) -> None:
        created = [name for name in sorted(self.world.machines) if not name.startswith("rack")]
        if created:
            node = self.rng.choice(created)
            self.world.log_fault(f"the cloud loses {node}")
            self.world.cloud.lose_machine(node)

    def _cut(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        self.world.log_fault(
            f"cut {', '.join(f'{src} to {dst}' for src, dst in pairs[:4])} for {seconds:.1f} s"
        )
        for src, dst in pairs:
            self.world.net.cut(src, dst)

        def heal() -> None:
            for src, dst in pairs:
                self.world.heal(src, dst)

        self._heal_later(seconds, heal)

    def _cut_agent(self, seconds: float) -> None:
        """Cut an agent off from all servers or from a single server. Some cuts lose only messages from the
        agent to the server, and begin after the link was slow."""
        machine = self._machine()
        if machine is None:
            return
        hosts = self.world.hosts if self.rng.random() < 0.7 else [self._host()]
        pairs = [(machine.name, host.name) for host in hosts]
        if self.rng.random() < 0.6:
            self._cut([*pairs, *((host, name) for name, host in pairs)], seconds)
            return
        self._be_slow(machine.name, SLOW_LINK_DELAY_S, SLOW_BEFORE_CUT_S + SLOW_LINK_DELAY_S)
        self.world.loop.schedule_external(
            self.world.loop.time() + SLOW_BEFORE_CUT_S,
            # The cut must not start after all faults were healed.
            lambda: None if self._is_healed else self._cut(pairs, seconds),
        )

    def _cut_one_way(self, seconds: float) -> None:
        host = self._host().name
        machine = self._machine()
        peer = STORE if machine is None or self.rng.random() < 0.5 else machine.name
        self._cut([(host, peer) if self.rng.random() < 0.5 else (peer, host)], seconds)

    def _lose_messages(self, seconds: float) -> None:
        share = self.rng.choice((0.01, 0.05, 0.2))
        self.world.log_fault(f"{share:.0%} of requests and responses are lost for {seconds:.1f} s")
        self._apply_worst_of(
            self._losses, share, seconds, lambda worst: setattr(self.world.net, "loss_rate", worst)
        )

    def _slow(self, seconds: float) -> None:
        host = self.rng.choice(
            [STORE, *(host.name for host in self.world.hosts), *sorted(self.world.machines)]
        )
        self._be_slow(
            host,
            self.rng.choice(
                (0.05, 0.5, SLOW_LINK_DELAY_S) if host in self.world.machines else (0.05, 0.3, 1.0)
            ),
            seconds,
        )

    def _be_slow(self, name: str, delay_s: float, seconds: float) -> None:
        self.world.log_fault(f"{name} is slow by {delay_s:g} s for {seconds:.1f} s")
        self._apply_worst_of(
            self._slowness.setdefault(name, []),
            delay_s,
            seconds,
            lambda worst: self.world.net.extra_delay_s.update({name: worst}),
        )

    def _lag(self, seconds: float) -> None:
        host, lag_s = self._host(), self.rng.choice((0.2, 1.0, 4.0))
        self.world.log_fault(f"watches of {host.name} are {lag_s:g} s behind for {seconds:.1f} s")
        self._apply_worst_of(
            self._lags.setdefault(host.name, []),
            lag_s,
            seconds,
            lambda worst: setattr(host, "watch_lag_s", worst),
        )

    def _gap(self, seconds: float) -> None:
        """Pause the watches of a server and compact the missed changes away before the watches continue."""
        host = self._host()
        client = host.server.store if host.server is not None else None
        if client is None or client.are_watches_paused:
            return
        self.world.log_fault(
            f"watches of {host.name} stall for {min(seconds, MAX_WATCH_STALL_S):.1f} s,"
            " and the missed revisions are compacted"
        )
        client.are_watches_paused = True

        def heal() -> None:
            run_synchronously(self.world.store.compact(self.world.store.latest_revision))
            client.resume_watches()

        self._heal_later(min(seconds, MAX_WATCH_STALL_S), heal)

    def _jump(self, _: float) -> None:
        machine = self._machine()
        clock = self._host().clock if machine is None or self.rng.random() < 0.7 else machine.clock
        offset_s = self.rng.choice((-HOUR_S, -20.0, 20.0, HOUR_S))
        self.world.log_fault(f"a wall clock jumps by {offset_s:g} s")
        clock.jump(offset_s)

    def _provider(self, seconds: float) -> None:
        provider = self.world.cloud.provider
        if self.rng.random() < 0.5:
            provider.outage_reason = "the cloud API does not respond"
        else:
            provider.latency_s = self.rng.choice((3.0, 10.0))
        self.world.log_fault(f"the provider fails for {seconds:.1f} s")

        def heal() -> None:
            provider.outage_reason, provider.latency_s = "", 0.8

        self._heal_later(seconds, heal)

    def _runtime(self, seconds: float) -> None:
        """Let instances on a machine fail to start, exit early, or start and stop slowly."""
        machine = self._machine()
        if machine is None:
            return
        # The current behaviour may be a fault already, so start from the default.
        usual = machine.default_behaviour
        faulty = self.rng.choice(
            (
                replace(usual, start_fails=Failure("RUNTIME_UNAVAILABLE", "no space left")),
                replace(usual, start_fails=Failure("RUNTIME_ERROR", "the start failed")),
                replace(usual, exits_after=self.rng.uniform(0.5, 5), exit_code=1),
                replace(usual, stop_takes=9.0),
                replace(usual, start_takes=self.rng.uniform(2, 8)),
            )
        )
        self.world.log_fault(f"the runtime of {machine.name} fails for {seconds:.1f} s")
        machine.ground.behaviours[""] = faulty
        self._heal_later(seconds, lambda: machine.ground.behaviours.update({"": usual}))

    def _capacity(self, seconds: float) -> None:
        """Restart the agent with half of the machine's capacity."""
        machine = self._machine()
        if machine is None:
            return
        size = machine.full_size
        machine.size = MachineSize(size.millicores // 2, size.memory // 2, size.storage, 0, {})
        self.world.log_fault(f"{machine.name} has half its capacity for {seconds:.1f} s")
        machine.kill_agent()
        machine.start_agent()

        def heal() -> None:
            machine.size = machine.full_size
            machine.kill_agent()
            machine.start_agent()

        self._heal_later(seconds, heal)

    def _machine_differs(self, seconds: float) -> None:
        """Let the cloud deliver machines of one class with less than the class promises, too little for any
        replica, for longer than a purchase takes. When the fault ends, the machines offer what their class
        promises."""
        world, differing = self.world, list[SimMachine]()
        # A class without machines is better: nothing is known about its machines yet.
        present = {machine.node_class for machine in world.machines.values()}
        node_class = self.rng.choice(sorted(NODE_CLASSES.keys() - present) or sorted(NODE_CLASSES))
        difference = self.rng.choice(
            ("a 32nd of the memory", "a 16th of the cores", "no process runtime", "a taint")
        )
        world.log_fault(
            f"machines of class {node_class} come with {difference} for {PURCHASE_S + seconds:.1f} s"
        )

        def differ(machine: SimMachine) -> None:
            differing.append(machine)
            size = machine.full_size
            match difference:
                case "a 32nd of the memory":
                    machine.size = size._replace(memory=size.memory // 32)
                case "a 16th of the cores":
                    machine.size = size._replace(millicores=size.millicores // 16)
                case "no process runtime":
                    machine.runtimes = ("container",)
                case _:
                    taint = {"key": UNEXPECTED_TAINT_KEY, "effect": "NoSchedule"}
                    self._patch("latticenodes", machine.name, {"spec": {"taints": [taint]}})

        world.machine_differences[node_class] = differ

        def heal() -> None:
            if world.machine_differences.get(node_class) is differ:
                del world.machine_differences[node_class]
            for machine in differing:
                machine.size, machine.runtimes = machine.full_size, ALL_RUNTIMES
                machine.kill_agent()
                machine.start_agent()
                if difference == "a taint":
                    self._patch("latticenodes", machine.name, {"spec": {"taints": []}})
            # Users that repair their machines change the class.
            self.changed_classes.add(node_class)

        self._heal_later(PURCHASE_S + seconds, heal)

    def _change_class(self, _: float) -> None:
        """Change the size of a class; the machines that exist keep theirs."""
        name = self.rng.choice(sorted(NODE_CLASSES))
        cores, memory, _price = NODE_CLASSES[name]
        factor = self.rng.choice((0.5, 1, 2))
        self.changed_classes.add(name)
        self.world.log_fault(f"class {name} has {memory * factor:g} GiB from now on")
        resources = {"cores": cores, "memoryGi": memory * factor, "storageGi": 10}
        self._patch("latticenodeclasses", name, {"spec": {"resources": resources}}, "")

    def _forget_price(self, _: float) -> None:
        """Remove the price of a class."""
        name = self.rng.choice(sorted(NODE_CLASSES))
        self.changed_classes.add(name)
        self.world.log_fault(f"the price of class {name} is unknown from now on")
        self._patch("latticenodeclasses", name, {"spec": {"costPerHour": {"fake": None}}}, "")

    def _patch(self, kind: str, name: str, body: dict[str, Any], namespace: str = "default") -> None:
        if self._provisioning is None:
            self._provisioning = self.world.client("provisioning")
        self.world.loop.spawn(None, self._provisioning.patch(kind, name, body, namespace))


def draw_behaviour(rng: random.Random) -> Behaviour:
    return Behaviour(
        start_takes=rng.choice((0.0, 0.3, 1.0)), stop_takes=rng.choice((0.0, 0.2, 1.5)), ready_after=0.0
    )
