"""Random small clusters for property tests: nodes, workloads, and a sequence of events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations as pairs
from itertools import pairwise, product
from typing import Any

from hypothesis import strategies as st

from build.node_tables import (
    a_node_info,
    a_spread,
    a_taint,
    a_toleration,
    near,
    node_term,
    nodes,
    requirement,
    workload_demands,
)
from build.oracle import ClusterOracle
from lattice.engine.decide import decide
from lattice.engine.plugin import Profile
from lattice.kinds.constraints import (
    MachineImage,
    PreferredNodes,
    PreferredWorkloads,
    Spread,
    Volume,
    WorkloadTerm,
)
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands, GpuNeed, WorkloadAsk

KEYS = ("zone", "node", "rack") * 4 + ("nowhere",)
TAINTS = (
    a_taint("t"),
    a_taint("t", "NoExecute"),
    a_taint("u", "NoSchedule", "1"),
    a_taint("u", "PreferNoSchedule", "1"),
)
TOLERATIONS = (
    a_toleration("t", "Exists"),
    a_toleration("t", effect="NoExecute"),
    a_toleration("u", value="1"),
    a_toleration(operator="Exists"),
)
REQUIREMENTS = (
    requirement("rack", "In", "r1", "r2"),
    requirement("rack", "NotIn", "r1"),
    requirement("rack", "Exists"),
    requirement("size", "DoesNotExist"),
    requirement("size", "Gt", "2"),
    requirement("size", "Lt", "3"),
    requirement("size", "Gt", "1"),
    requirement("size", "Lt", "4"),
)
NODE_TERMS = [
    node_term(*pair)
    for pair in (*pairs(REQUIREMENTS, 2), *((requirement,) for requirement in REQUIREMENTS), ())
]
TERMS = [near(key, app=app) for key in KEYS for app in "ab"]
SELECTORS = [
    LabelSelector(match_expressions=(requirement("app", "In", "a", "c"),)),
    LabelSelector(match_expressions=(requirement("app", "NotIn", "b"),)),
    LabelSelector(match_labels={"app": "b"}, match_expressions=(requirement("tier", "DoesNotExist"),)),
    LabelSelector(match_expressions=(requirement("app", "Exists"), requirement("tier", "In", "web"))),
    LabelSelector(match_expressions=(requirement("tier", "Exists"),)),
]
TERMS += [
    WorkloadTerm(selector=selector, topology_key=key)
    for selector in SELECTORS
    for key in ("zone", "node", "rack")
]
SPREADS = [
    a_spread(key, skew, soft=soft, labels=labels)
    for key, skew, soft, labels in product(KEYS, (1, 2), (False, False, True), (None, {"app": "a"}))
]
SPREADS += [
    Spread(topology_key=key, max_skew=1, selector=selector)
    for selector in SELECTORS
    for key in ("zone", "node")
]


def some_of(choices: Sequence[Any], often: int = 3) -> list[tuple[Any, ...]]:
    """None, one or two of the choices; none `often` times as often as one, two rarely."""
    ones: list[tuple[Any, ...]] = [(choice,) for choice in choices]
    return [()] * (often * len(ones)) + ones + list(pairwise(choices))[::3]


def mostly(usual: Any, *others: Any) -> list[Any]:
    return [usual] * 4 * len(others) + list(others)


PLACES = [
    {
        key: value
        for key, value in zip(("zone", "rack", "size", "cluster", "region"), values, strict=True)
        if value
    }
    for values in product(
        ("x", "x", "y", "y", ""),
        ("r1", "r1", "r2", ""),
        ("1", "2", "3", "4", "big", ""),
        ("c", "c", "d"),
        ("n", "s", ""),
    )
]
ROOMS = [
    {"cpu": cpu, "memory": memory, "workloads": slots, "fpga": fpga, **({"ports": ports} if ports else {})}
    for cpu, memory, (slots, ports), fpga in product(
        (2, 4, 8), (2, 4, 8), ((3, 0), (5, 3), (9, 5), (5, 0)), (0, 1, 2)
    )
]
RANGES = (None, (80, 81), (80, 80), (79, 82), (80, 83), (443, 443))
HEALTH: list[dict[str, Any]] = [{}] * 30 + [{"is_ready": False}, {"is_cordoned": True}, {"is_draining": True}]
ABILITIES = [
    {"runtimes": frozenset(runtimes), "licences": frozenset(licences), "image": image, "price": price}
    for runtimes, licences, image, price in product(
        ((), (), ("process",)), ((), ("pro",)), ("", "os-1.2", "os-1.10", "os-2.0"), (0, 1, 3)
    )
]
GPUS = (
    (),
    (),
    ("v100",),
    ("v100", "v100"),
    ("a100",),
    ("v100", "a100"),
    ("a100", "v100", "v100"),
    ("t4", ("v100", 600)),
)
REQUESTS = [
    {"cpu": cpu, "memory": memory, "fpga": fpga}
    for cpu, memory, fpga in product((0, 1, 1, 2), (0, 1, 1, 2), (0,) * 11 + (1,))
]
OWNERS = [
    {"namespace": namespace, "labels": {"app": app, **({"tier": tier} if tier else {})}, "service": service}
    for namespace, app, tier, service in product(
        ("default", "default", "other"), "ab", ("", "", "web", "data"), ("", "s", "t")
    )
]
PORTS = [
    {"ports": ports, "host_ports": host_ports}
    for ports, host_ports in product(
        (0, 0, 1, 2),
        (
            *((),) * 5,
            ((80, "TCP"),),
            ((80, "TCP"), (80, "UDP")),
            ((80, "UDP"), (443, "TCP")),
            ((81, "UDP"),),
            ((30000, "TCP"),),
        ),
    )
]
PREFERRED_NODES = [
    PreferredNodes(weight=weight, term=term)
    for weight, term in zip((1, 50, 100) * 9, NODE_TERMS, strict=False)
]
PREFERRED_WORKLOADS = [
    PreferredWorkloads(weight=weight, term=term)
    for weight, term in zip((1, 50, 100) * 3, TERMS, strict=False)
]
GPU_NEEDS = [
    GpuNeed(count, milli, models)
    for (count, milli), models in product(
        ((1, 1000), (2, 1000), (1, 300), (1, 700)), ((), (), ("v100",), ("a100", "v100"), ("h100",))
    )
]

IMAGES = [
    MachineImage(pattern=pattern, min_version=version)
    for pattern, version in (
        ("os-*", ""),
        ("*-2.0", ""),
        ("os-1.*", "1.2"),
        ("", "1.3"),
        ("", "2"),
        ("", "1.10"),
        ("os-*", "2.0.1"),
    )
]
ABOUT_GPUS = {"gpu": GPU_NEEDS}
ABOUT_NODES = {
    "gpu": mostly(None, *GPU_NEEDS),
    "runtime": mostly("", "process", "container"),
    "cluster": mostly("", "c"),
    "node_selector": mostly({}, {"rack": "r1"}),
    "node_terms": some_of(NODE_TERMS),
    "node_preferences": some_of(PREFERRED_NODES),
    "volumes": mostly(
        (),
        (Volume(name="v", zone="x"),),
        (Volume(name="v", region="n"),),
        (Volume(name="v", zone="y", region="s"),),
    ),
    "licences": mostly((), ("pro", "max")),
    "image": mostly(None, *IMAGES),
}
ABOUT_NEIGHBOURS = {
    "affinity_terms": some_of(TERMS),
    "affinity_preferences": some_of(PREFERRED_WORKLOADS),
    "anti_affinity_terms": some_of(TERMS, 1),
    "anti_affinity_preferences": some_of(PREFERRED_WORKLOADS),
    "spread": some_of(SPREADS),
}
# A workload that demands everything at once fits nowhere and tests no single demand.
FOCUS: tuple[dict[str, Any], ...] = (
    {},
    {},
    ABOUT_GPUS,
    ABOUT_GPUS,
    ABOUT_NODES,
    ABOUT_NEIGHBOURS,
    ABOUT_NEIGHBOURS,
    {**ABOUT_NODES, **ABOUT_NEIGHBOURS},
)
COMES, GOES, CHANGES, IS_GONE = "comes", "goes", "changes", "is gone"
EVENT_KINDS = (COMES,) * 12 + (GOES,) * 2 + (CHANGES,) * 3 + (IS_GONE,)
CHANGED = (
    *({"health": item} for item in ({}, {"is_cordoned": True}, {"is_ready": False}, {"is_draining": True})),
    *({"room": room} for room in ROOMS[::5]),
    *({"labels": place} for place in PLACES[::11]),
    *({"port_range": item} for item in RANGES),
    *({"gpus": gpu} for gpu in GPUS),
    *({"taints": item} for item in some_of(TAINTS, 1)),
)


class Choices:
    """Derives every choice of a world from one string of bytes, since drawing is slow; zeros choose the first
    alternative."""

    def __init__(self, drawn: bytes) -> None:
        self._drawn, self._next = drawn, 0

    def one(self, among: Sequence[Any]) -> Any:
        value = int.from_bytes(self._drawn[self._next : self._next + 2])
        self._next += 2
        return among[value % len(among)]


def some_demands(choices: Choices) -> Demands:
    focus = choices.one(FOCUS)
    return workload_demands(
        choices.one(REQUESTS),
        **choices.one(OWNERS),
        **choices.one(PORTS),
        tolerations=choices.one(TOLERATED),
        **{name: choices.one(focu) for name, focu in focus.items()},
    )


TOLERATED = some_of(TOLERATIONS, 1)
TAINTED = some_of(TAINTS, 6)


def some_node(choices: Choices, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "room": choices.one(ROOMS),
        "labels": choices.one(PLACES),
        "taints": choices.one(TAINTED),
        "gpus": choices.one(GPUS),
        "port_range": choices.one(RANGES),
        "health": choices.one(HEALTH),
        "abilities": choices.one(ABILITIES),
    }


def facts_of(node: dict[str, Any]) -> NodeInfo:
    return a_node_info(
        **{name: value for name, value in node.items() if name not in ("health", "abilities")},
        **node["health"],
        **node["abilities"],
    )


@dataclass
class Event:
    what: str
    workload: str = ""
    demands: Demands | None = None
    priority: int = 0
    node: str = ""
    facts: NodeInfo | None = None


@dataclass
class World:
    facts: list[NodeInfo]
    events: list[Event]
    wanted: Demands


def world_from_bytes(drawn: bytes) -> World:
    choices = Choices(drawn)
    described = [some_node(choices, f"n{number}") for number in range(choices.one((1, 2, 3, 4, 5, 6, 5, 6)))]
    kinds = [some_demands(choices) for _ in range(choices.one((1, 2, 3)))]
    facts = [facts_of(item) for item in described]
    events = [
        some_event(choices, number, described, kinds) for number in range(choices.one((0, 4, 8, 10, 12, 14)))
    ]
    return World(facts, events, choices.one((*kinds, *kinds, some_demands(choices))))


def some_event(choices: Choices, number: int, described: list[dict[str, Any]], kinds: list[Demands]) -> Event:
    what = choices.one(EVENT_KINDS)
    if what == COMES:
        demands = choices.one(kinds)
        return Event(what, f"{demands.namespace}/w{number}", demands, choices.one((0, 1, 2)))
    if what == GOES:
        return Event(what, workload=f"w{choices.one(range(8))}")
    node = choices.one(described)
    if what == CHANGES:
        node.update(choices.one(CHANGED))
    return Event(what, node=node["name"], facts=facts_of(node))


BYTES = 290  # bytes per world
TOLERATE_ALL = (a_toleration(operator="Exists"),)


def worlds() -> st.SearchStrategy[World]:
    return st.binary(min_size=BYTES, max_size=BYTES).map(world_from_bytes)


def plain_world(world: World) -> World:
    """The world with ready nodes in different zones and small demands, so that most workloads fit."""
    apart = ({"zone": "x", "rack": "r1"}, {"zone": "y", "rack": "r2"})
    places = [{**item.labels, **place} for item, place in zip(world.facts, apart, strict=False)]
    labels = places + [fact.labels for fact in world.facts[2:]]
    well = {"is_ready": True, "is_cordoned": False, "is_draining": False}
    facts = [
        replace(
            item,
            labels=mine,
            allocatable={**item.allocatable, "workloads": item.allocatable["workloads"] + 4},
            **well,
        )
        for item, mine in zip(world.facts, labels, strict=True)
    ]
    little = tuple(
        (resource, amount // 4) for resource, amount in world.wanted.requests if resource != "fpga"
    )
    if len(world.events) == 8:
        return replace(world, facts=facts, wanted=replace(world.wanted, requests=little))
    plain = Demands(
        namespace=world.wanted.namespace,
        labels=world.wanted.labels,
        requests=little,
        tolerations=TOLERATE_ALL,
    )
    return replace(world, facts=facts, wanted=plain)


def plain_worlds() -> st.SearchStrategy[World]:
    return worlds().map(plain_world)


class ClusterHistory:
    """A world after all its events, as a table and as an oracle; `wanted` is decided again after each event."""

    def __init__(self, world: World, profile: Profile, *, backwards: bool = False) -> None:
        self.world, self.profile = world, profile
        self.oracle = ClusterOracle(world.facts)
        self.table: NodeTable = nodes(
            *(reversed(world.facts) if backwards else world.facts), load=not backwards
        )
        for event in world.events:
            self._apply(event)
            decide(self.wanted(), self.table, profile)

    def wanted(self, name: str = "new", priority: int = 0) -> WorkloadAsk:
        return self.table.make_ask(f"{self.world.wanted.namespace}/{name}", self.world.wanted, priority)

    def _apply(self, event: Event) -> None:
        table, oracle = self.table, self.oracle
        match event.what:
            case "comes" if event.demands is not None:
                self._comes(table.make_ask(event.workload, event.demands, event.priority))
            case "goes":
                for name in [name for name in oracle.placed if name.endswith(f"/{event.workload}")]:
                    oracle.remove(name)
                    table.forget(name)
            case "is gone" if event.node in oracle.nodes:
                oracle.remove_node(event.node)
                table.remove_node(event.node)
            case "changes" if event.facts is not None:
                oracle.nodes[event.node] = event.facts
                table.put_node(event.facts)

    def _comes(self, ask: WorkloadAsk) -> None:
        decision = decide(ask, self.table, self.profile)
        if not decision.fits:
            return
        assert decision.name in self.oracle.feasible(ask.demands)
        self.oracle.place(ask.name, ask.demands, decision.name)
        placement = self.table.assume(ask, decision.chosen)
        assert (placement.gpus, placement.ports) == (
            self.oracle.placed[ask.name].gpus,
            self.oracle.placed[ask.name].ports,
        )
        assert_room_was_left(self.table, decision.chosen, ask)

    def fill(self) -> None:
        """Place low-priority copies of the wanted workload until no node has capacity."""
        for number in range(200):
            ask = self.wanted(f"crowd{number}", number % 2)
            decision = decide(ask, self.table, self.profile)
            if not decision.fits:
                return
            self.table.assume(ask, decision.chosen)
            self.oracle.place(ask.name, ask.demands, decision.name)
        raise AssertionError("there is always room for more")

    def rebuilt_table(self) -> NodeTable:
        """A new table with the final nodes and placements only."""
        fresh = nodes(*self.oracle.nodes.values())
        for name, placement in self.table.placements.items():
            ask = fresh.make_ask(name, placement.ask.demands, placement.ask.priority)
            fresh.restore(replace(placement, ask=ask, row=fresh.row_of[self.table.names[placement.row]]))
        return fresh


def assert_room_was_left(table: NodeTable, row: int, ask: WorkloadAsk) -> None:
    assert all(table.free(resource)[row] >= 0 for resource, _ in ask.needs)
    facts, placement = table.node_infos[row], table.placements[ask.name]
    for number in placement.gpus:
        here = [item.ask.demands.gpu for item in table.placements_by_row[row].values() if number in item.gpus]
        assert facts
        assert sum(need.milli for need in here if need) <= facts.gpus[number][1]
