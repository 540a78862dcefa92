"""Random worlds and what happens to them: classes that lie, updates, crashes, lost machines, drains, and changes of prices,
limits, policies and pools."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from build.affinity import apart, near
from build.control_world import TIMEOUTS, ControlWorld, Lie
from build.worlds import a_class, a_policy, a_pool, a_service
from lattice.kinds.constraints import Taint
from lattice.kinds.container import Container
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import DRAINING_TAINT, LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService

NAMES = ("api", "batch", "cache", "db", "edge", "web")
# Cores, memory in GiB, GPUs and the price; no two classes cost the same per core.
SIZES = {
    "tiny": (1, 2, 0, 0.03),
    "small": (2, 4, 0, 0.05),
    "medium": (4, 16, 0, 0.11),
    "large": (8, 32, 0, 0.19),
    "accelerated": (4, 16, 1, 0.61),
}
PRICE_FACTORS = (0.5, 0.8, 1.3, 3.0)
LIES = (
    Lie(memory_percent=50),
    Lie(memory_percent=10),
    Lie(runtimes=("process",)),
    Lie(is_tainted=True),
    Lie(has_gpus=False),
)
DRAIN_TAINTS = (Taint(key=DRAINING_TAINT, effect="NoSchedule"),)


@dataclass(frozen=True)
class Step:
    """Something that happens `after` seconds of virtual time; `what` names a method of `HistoryPlayer`."""

    after: float
    what: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class WorldHistory:
    """A world, the classes in it whose machines differ from the class, and the steps."""

    objects: tuple[Kind, ...]
    lies: tuple[tuple[str, Lie], ...]
    steps: tuple[Step, ...]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        lines = [f"{item.resource.kind} {item.metadata.name}: {_shown(item)}" for item in self.objects]
        lines += [f"{name} lies: {lie}" for name, lie in self.lies]
        lines += [
            f"+{step.after:g} s {step.what} {[_brief(a) for a in step.arguments]}" for step in self.steps
        ]
        return "\n".join(["", *lines])


def _shown(item: Kind) -> str:
    spec = msgspec.to_builtins(item.spec)  # type: ignore[attr-defined]
    return str(_without_empty(spec))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_empty(entry)
            for key, entry in value.items()
            if entry not in ("", None, {}, [], 0, ())
        }
    return value


def _brief(argument: Any) -> str:
    return f"{argument.metadata.name} {_shown(argument)}" if isinstance(argument, Kind) else str(argument)


def a_priced_class(name: str, factor: float = 1.0) -> LatticeNodeClass:
    cores, memory, gpus, price = SIZES[name]
    return a_class(
        name,
        cores,
        memory,
        round(price * factor, 4),
        gpu=gpus,
        gpu_model="t4" if gpus else "",
        providers=["fake"],
    )


def a_fake_pool(name: str, classes: Sequence[str], **spec: Any) -> LatticePool:
    return a_pool(name, provider="fake", region=f"r-{name}", classes=classes, **spec)


def with_command(service: LatticeService, version: int, *, is_image: bool) -> LatticeService:
    """The service as a process or an image; a version changes the template."""
    container = Container(image=f"app:{version}") if is_image else Container(command=("run", f"v{version}"))
    return msgspec.structs.replace(
        service, spec=msgspec.structs.replace(service.spec, containers={"main": container})
    )


@st.composite
def some_services(draw: st.DrawFn, name: str) -> LatticeService:
    needs_gpu = draw(st.integers(0, 9)) == 0
    extra: dict[str, Any] = {"gpu": 1} if needs_gpu else {}
    if name in ("edge", "web") and draw(st.booleans()):
        extra["dependencies"] = {"db": {"type": "service", "direction": "outbound"}}
        if draw(st.booleans()):
            # Only the region of the dependency is as near.
            extra["latency"] = {"db": {"maxMs": 5}}
    extra |= draw(relations(name))
    service = a_service(
        name,
        replicas=draw(st.sampled_from([1, 1, 1, 2, 3])),
        cores=draw(st.sampled_from([0.1, 0.1, 0.25, 0.5, 1, 2])),
        memory=draw(st.sampled_from([0.25, 0.25, 0.5, 1, 3])),
        **extra,
    )
    return with_command(service, 1, is_image=draw(st.integers(0, 2)) == 0)


@st.composite
def relations(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """In every fourth service: a spread, a gang, or affinity to another service, which may not exist."""
    if draw(st.integers(0, 3)):
        return {}
    other = draw(st.sampled_from([other for other in NAMES if other != name]))
    key = draw(st.sampled_from(["node", "node", "zone"]))
    return draw(
        st.sampled_from(
            [
                {"spread": [{"topologyKey": "node"}]},
                {"group": {"name": "crew", "minMember": 2}},
                {"group": {"name": "crew", "minMember": 3}},
                {"affinity": near(other, key)},
                {"affinity": apart(other, key=key)},
                {"affinity": apart(name)},
            ]
        )
    )


@st.composite
def fake_pools(draw: st.DrawFn, name: str) -> LatticePool:
    classes = draw(
        st.sampled_from(
            [["tiny"], ["small"], ["small", "large"], ["tiny", "medium", "accelerated"], ["medium", "large"]]
        )
    )
    capacity = draw(st.sampled_from([{}, {}, {"maxNodes": 12}, {"maxNodes": 3}]))
    budget = draw(st.sampled_from([None, None, 2000, 400, 150]))
    return a_fake_pool(name, classes, capacity=capacity, budget=budget)


def cluster_rules() -> st.SearchStrategy[LatticePlacementPolicy]:
    rules = [None, {"minNodes": 2}, {"maxNodes": 2}, {"binPackingThreshold": 1}]
    return st.sampled_from([a_policy("rules", clusters=clusters) for clusters in rules])


@st.composite
def worlds_at_start(draw: st.DrawFn) -> tuple[Kind, ...]:
    objects: list[Kind] = [a_priced_class(name) for name in SIZES]
    objects += [draw(fake_pools(name)) for name in ("p1", "p2")[: draw(st.integers(1, 2))]]
    if draw(st.integers(0, 4)) == 0:
        objects.append(draw(cluster_rules()))
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=5)):
        objects.append(draw(some_services(name)))
    return tuple(objects)


def lying_classes() -> st.SearchStrategy[tuple[tuple[str, Lie], ...]]:
    lie = st.tuples(st.sampled_from(sorted(SIZES)), st.sampled_from(LIES))
    return st.lists(lie, max_size=2, unique_by=lambda pair: pair[0]).map(tuple)


def faults() -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    """A machine is lost in one of three ways; the number chooses the machine."""
    return st.tuples(st.sampled_from(["lose", "silence", "drain"]), st.tuples(st.integers(0, 20)))


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    service = st.sampled_from(NAMES)
    return draw(
        st.one_of(
            st.tuples(st.just("update"), st.tuples(service)),
            st.tuples(st.just("scale"), st.tuples(service, st.integers(1, 4))),
            st.tuples(st.just("apply"), service.flatmap(some_services).map(lambda item: (item,))),
            st.tuples(st.just("remove_service"), st.tuples(service)),
            st.tuples(st.just("crash"), st.tuples(service)),
            st.tuples(st.just("join"), st.tuples(st.sampled_from(["p1", "p2"]), st.sampled_from([1, 2, 8]))),
            st.tuples(st.just("leave"), st.tuples(st.integers(0, 20))),
            st.tuples(
                st.just("apply"),
                st.builds(a_priced_class, st.sampled_from(sorted(SIZES)), st.sampled_from(PRICE_FACTORS)).map(
                    lambda item: (item,)
                ),
            ),
            st.tuples(
                st.just("apply"), st.sampled_from(["p1", "p2"]).flatmap(fake_pools).map(lambda item: (item,))
            ),
            st.tuples(st.just("apply"), cluster_rules().map(lambda item: (item,))),
        )
    )


@st.composite
def histories(draw: st.DrawFn) -> WorldHistory:
    objects, lies = draw(worlds_at_start()), draw(st.one_of(st.just(()), lying_classes()))
    steps = []
    for what, arguments in draw(st.lists(st.one_of(changes(), faults()), max_size=6)):
        steps.append(Step(draw(st.sampled_from([0.0, 1.0, 7.0, 30.0, 120.0])), what, arguments))
    return WorldHistory(objects, lies, tuple(steps))


@dataclass
class HistoryPlayer:
    """Lets the steps of a history happen, and counts what the purchases may be for."""

    world: ControlWorld
    version: int = 1
    # Machines that were lost, silenced or drained.
    lost_machines: int = 0
    updates: int = 0
    # Machines that their owners joined.
    joined_machines: int = 0
    drained: list[str] = field(default_factory=list)

    async def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            await self.world.sleep(step.after)
            await getattr(self, step.what)(*step.arguments)

    async def heal(self) -> None:
        """End what does not end by itself: crashes and cordons."""
        self.world.crashing.clear()
        for node in self.world.all(LatticeNode):
            if node.spec.unschedulable:
                taints = tuple(taint for taint in node.spec.taints if taint.key != DRAINING_TAINT)
                await self.world.change_node(node.metadata.name, unschedulable=False, taints=taints)

    async def wait(self, seconds: float) -> None:
        await self.world.sleep(seconds)

    async def lose(self, number: int) -> None:
        if names := self._machines():
            name = names[number % len(names)]
            if not self.world.machines[name].is_joined:
                self.lost_machines += 1
                self.world.lose_machine(name)
            else:
                await self.silence(number)

    async def silence(self, number: int) -> None:
        """A machine falls silent, unless so many are silent then that failover would halt."""
        names = self._machines()
        silent = sum(machine.is_silent for machine in self.world.machines.values()) + 1
        is_outage = silent >= TIMEOUTS.outage_min_nodes and silent > TIMEOUTS.outage_share * (
            len(names) + silent - 1
        )
        if names and not is_outage:
            self.lost_machines += 1
            self.world.silence(names[number % len(names)])

    async def drain(self, number: int) -> None:
        if names := self._machines():
            name = names[number % len(names)]
            node = self.world.context.cache(LatticeNode).get(f"/{name}")
            if node is not None:
                # A budget may keep the replicas from moving together; then a surge replica needs a machine too.
                self.lost_machines += 1 + any(pool.spec.budget for pool in self.world.all(LatticePool))
                self.drained.append(name)
                taints = (*node.spec.taints, *DRAIN_TAINTS)
                await self.world.change_node(name, unschedulable=True, taints=taints)

    async def join(self, pool: str, cores: int) -> None:
        self.joined_machines += 1
        await self.world.join_machine(f"own-{self.joined_machines}", pool, cores, 4 * cores)

    async def leave(self, number: int) -> None:
        if names := [name for name in self._machines() if self.world.machines[name].is_joined]:
            self.lost_machines += 1
            await self.world.leave(names[number % len(names)])

    async def apply(self, item: Kind) -> None:
        await self.world.apply(item)

    async def update(self, name: str) -> None:
        service = self._service(name)
        if service is not None:
            self.version, self.updates = self.version + 1, self.updates + 1
            is_image = bool(service.spec.containers["main"].image)
            await self.world.apply(with_command(service, self.version, is_image=is_image))

    async def scale(self, name: str, replicas: int) -> None:
        service = self._service(name)
        if service is not None:
            wanted = msgspec.structs.replace(service.spec.replicas, min=replicas, max=None)
            await self.world.apply(
                msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, replicas=wanted))
            )

    async def remove_service(self, name: str) -> None:
        await self.world.delete(LatticeService, name, "default")

    async def crash(self, name: str) -> None:
        self.world.crashing.add(name)

    def _service(self, name: str) -> LatticeService | None:
        return self.world.context.cache(LatticeService).get(f"default/{name}")

    def _machines(self) -> list[str]:
        """Machines that report and were not lost yet."""
        machines = self.world.machines
        return [name for name in self.world.reporting_machines() if not machines[name].is_silent]
