"""What a data center reserves: bound by the real scheduler, others never come onto machines that are kept, and those they are kept for find them."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from build.scheduling_world import Acting, a_workload, acting
from build.service_world import NOW, Town, a_town
from build.virtual import VirtualClock
from build.worlds import a_policy, a_service, a_static
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lattice.controllers.runtime.object_writes import put_new, with_metadata
from lattice.controllers.services.clusters import build_node, node_labels
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.scheduling_queue import INITIAL_BACKOFF_S
from lattice.store.protocol import Key

PROD = {"env": "prod"}
MACHINE = {"cpu": 4000, "memory": 16 << 30}
EXAMPLES = settings(
    max_examples=400 if os.environ.get("LATTICE_LONG") == "1" else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
_numbers = itertools.count(1)


def a_site(nodes: int = 3, reserved: int = 1) -> Kind:
    """A data center of machines with 4 cores; so many are for production."""
    return a_static(
        "dc",
        nodes,
        4 * nodes,
        f"{16 * nodes}Gi",
        reservation={"reserved": {"nodes": reserved}, "reservedFor": [{"labelSelector": PROD}]},
    )


@dataclass
class Site:
    town: Town
    scheduler: Acting

    async def settle(self) -> None:
        """Everybody looks, machines come and go, and what is bound runs, until there is nothing to do."""
        for _ in range(12):
            before = await self.town.store.revision()
            await self.town.look()
            await self._make_nodes()
            await self.scheduler.look()
            await self.town.caught_up()
            for each in self.town.all(LatticeWorkload):
                if each.status.binding and not each.status.ready:
                    await self.town.change(each, ready=True, actual_state="Running")
            await self.town.finish()
            if await self.town.store.revision() == before:
                return
        raise AssertionError("never done")

    async def _make_nodes(self) -> None:
        """As many as are wanted; of those that are too many, the empty ones go. Those that stay say whose reserve they are on."""
        for cluster in self.town.all(LatticeCluster):
            await self._relabel(cluster)
            for kind in {*cluster.spec.nodes, "static"}:
                here = [
                    each
                    for each in self.town.all(LatticeNode)
                    if (each.spec.cluster, each.spec.node_class) == (cluster.metadata.name, kind)
                ]
                surplus = len(here) - cluster.spec.nodes.get(kind, 0)
                for node in [each for each in here if not self.on(each.metadata.name)][: max(0, surplus)]:
                    await self.town.remove(LatticeNode, node.metadata.name)
                for _ in range(-surplus):
                    name = f"{cluster.metadata.name}-{next(_numbers)}"
                    await self.town.store.commit([put_new(a_machine(cluster, name, kind), uid=name, now=NOW)])
        await self.town.caught_up()

    async def _relabel(self, cluster: LatticeCluster) -> None:
        for node in self.town.all(LatticeNode):
            if (
                node.spec.cluster == cluster.metadata.name
                and (labels := node_labels(node, cluster)) != node.metadata.labels
            ):
                await self._write_labels(Key(LatticeNode.resource.id, "", node.metadata.name), labels)

    async def _write_labels(self, key: Key, labels: dict[str, str]) -> None:
        entry = await self.town.store.get(key)
        assert entry is not None
        await self.town.store.commit([with_metadata(entry, lambda metadata: metadata | {"labels": labels})])

    async def relabel(self, service: str, labels: dict[str, str]) -> None:
        await self._write_labels(Key(LatticeService.resource.id, "default", service), labels)
        await self.town.caught_up()
        await self.settle()

    async def apply(self, *objects: Kind) -> None:
        await self.town.apply(*objects)
        await self.settle()

    async def remove(self, service: str) -> None:
        await self.town.remove(LatticeService, service, "default")
        await self.settle()

    def on(self, node: str) -> list[LatticeWorkload]:
        return [
            each
            for each in self.town.all(LatticeWorkload)
            if each.status.binding and each.status.binding.node == node
        ]

    def running(self, service: str) -> int:
        return sum(1 for each in self.town.live(service) if each.status.binding)

    def is_bound(self, workload: str) -> bool:
        (found,) = [each for each in self.town.all(LatticeWorkload) if each.metadata.name == workload]
        return found.status.binding is not None

    def machines_of_others(self) -> int:
        """With anybody on them whom the reserve is not for."""
        found = [self.on(each.metadata.name) for each in self.town.all(LatticeNode)]
        return sum(any((each.metadata.labels or {}).get("env") != "prod" for each in some) for some in found)

    def machines_among_others(self) -> int:
        """Of clusters with anybody in them whom the reserve is not for."""
        nodes = self.town.all(LatticeNode)
        labels: dict[str, list[str | None]] = {each.spec.cluster: [] for each in nodes}
        for node in nodes:
            labels[node.spec.cluster] += [
                (each.metadata.labels or {}).get("env") for each in self.on(node.metadata.name)
            ]
        return sum(any(each != "prod" for each in labels[node.spec.cluster]) for node in nodes)


def a_machine(cluster: LatticeCluster, name: str, kind: str) -> LatticeNode:
    node = build_node(cluster, name, None, kind)
    status = msgspec.structs.replace(
        node.status,
        allocatable=dict(MACHINE),
        conditions=(Condition(type="Ready", status="True", reason="Heard"),),
    )
    return msgspec.structs.replace(node, status=status)


@asynccontextmanager
async def a_place(*objects: Kind) -> AsyncIterator[Site]:
    clock = VirtualClock()
    async with (
        a_town(*objects, clock=clock) as town,
        acting(town.store, clock, role="scheduling") as scheduler,
    ):
        site = Site(town, scheduler)
        await site.settle()
        yield site


def crit(replicas: int, cores: float = 2, name: str = "crit") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels=PROD)


def web(replicas: int, cores: float = 1, name: str = "web") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels={"env": "dev"})


async def test_other_services_do_not_spread_over_reserve() -> None:
    """Ten cores of twelve are asked for. Two thirds of them are reserved for nobody: two machines, whoever is bound first."""
    async with a_place(a_site(), crit(3), web(4)) as site:
        assert site.machines_of_others() <= 2
        await site.apply(crit(4))
        assert site.running("crit") == 4


async def test_other_services_get_only_unreserved_machines() -> None:
    async with a_place(a_site(), crit(3), web(4)) as site:
        await site.apply(crit(1))
        await site.apply(web(12))
        assert site.machines_of_others() <= 2
        assert site.running("web") == 8
        await site.apply(crit(2))
        assert site.running("crit") == 2


async def test_unused_machines_of_others_count_as_theirs() -> None:
    """A cluster of others that begins with two machines and uses one leaves none of them to a service under other rules."""
    rules = a_policy(selector={"env": "dev", "team": "large"}, clusters={"minNodes": 2})
    async with a_place(a_site(), rules, a_service("web", labels={"env": "dev", "team": "large"})) as site:
        await site.apply(web(4, 4, name="job"))
        await site.apply(a_service("crit", cores=4, labels=PROD))
        assert site.running("crit") == 1


async def test_standalone_workload_stays_outside_reserve() -> None:
    """The only machine with room for it is one that is kept."""
    async with a_place(a_site(), crit(1, 1), web(2, 4)) as site:
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")


async def test_reserve_overflows_to_machines_others_leave() -> None:
    async with a_place(a_site(), web(2, 3)) as site:
        await site.apply(crit(3, 4), web(2, 3))
        assert (site.running("crit"), site.running("web")) == (1, 2)
        await site.apply(crit(2, 1, name="small"))
        assert site.running("small") == 2


async def test_later_reserve_stops_growth_of_others() -> None:
    """All machines are in use by then. Whoever runs stays; as machines are given up they are kept."""
    async with a_place(a_static("dc", 3, 12, "48Gi"), web(5, 2)) as site:
        await site.apply(a_site(), web(7, 2))
        assert site.running("web") == 5
        await site.apply(web(2, 2))
        await site.apply(web(7, 2))
        assert (site.running("web"), site.machines_of_others()) == (4, 2)
        await site.apply(crit(1, 4))
        assert site.running("crit") == 1


async def test_service_losing_label_counts_among_others() -> None:
    async with a_place(a_site(), crit(1, 4, name="was")) as site:
        await site.relabel("was", {"env": "dev"})
        await site.apply(web(3, 4))
        assert (site.running("was"), site.running("web")) == (1, 1)
        await site.apply(crit(1, 4))
        assert site.running("crit") == 1


async def test_service_older_than_reserve_is_not_among_others() -> None:
    """The reserve holds already: production has a machine, others have two and use half of the second one."""
    rules = a_policy(selector=PROD, clusters={"minNodes": 1, "maxNodes": 7})
    async with a_place(a_static("dc", 3, 12, "48Gi"), rules, crit(1, 4), web(3, 2)) as site:
        await site.apply(a_site())
        await site.apply(web(4, 2))
        assert (site.running("web"), site.running("crit")) == (4, 1)


async def test_newly_reserved_machines_reject_standalone_workloads() -> None:
    async with a_place(a_static("dc", 3, 12, "48Gi"), crit(1, 1)) as site:
        await site.apply(a_site())
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")


async def test_standalone_workload_in_reserve_counts_among_others() -> None:
    """It was there before the reserve was: of the other machines one is kept."""
    async with a_place(a_static("dc", 3, 12, "48Gi"), crit(1, 2)) as site:
        await site.apply(a_workload("guest", 1000))
        assert site.is_bound("guest")
        await site.apply(a_site())
        await site.apply(web(3, 4))
        assert (site.running("web"), site.machines_of_others()) == (1, 2)
        await site.apply(crit(2, 2))
        assert site.running("crit") == 2


async def test_machines_are_shared_once_nothing_is_reserved() -> None:
    async with a_place(a_site(), crit(1, 1)) as site:
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")
        await site.apply(a_static("dc", 3, 12, "48Gi"))
        await site.town.clock.advance(INITIAL_BACKOFF_S)
        await site.settle()
        assert site.is_bound("guest")


STEPS = st.lists(
    st.tuples(st.sampled_from(["crit", "vip", "web", "job"]), st.integers(0, 6)), min_size=1, max_size=7
)


@EXAMPLES
@given(
    nodes=st.integers(2, 4),
    reserved=st.integers(1, 2),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 4),
    steps=STEPS,
)
def test_random_changes_keep_the_reserve(
    nodes: int, reserved: int, sizes: tuple[int, ...], steps: list[tuple[str, int]]
) -> None:
    """Two services are production, two are not, two share their rules. In the end production begins anew, and wants all that is reserved."""
    cores = dict(zip(("crit", "vip", "web", "job"), sizes, strict=True))
    labels = {
        "crit": PROD,
        "vip": {**PROD, "team": "own"},
        "web": {"env": "dev"},
        "job": {"env": "dev", "team": "own"},
    }

    async def scenario() -> None:
        async with a_place(
            a_site(nodes, min(nodes, reserved)), a_policy(selector={"team": "own"}, clusters={"minNodes": 2})
        ) as site:
            known: set[str] = set()
            for name, replicas in steps:
                if replicas:
                    await site.apply(
                        a_service(name, replicas=replicas, cores=cores[name], labels=labels[name])
                    )
                    known.add(name)
                elif name in known:
                    await site.remove(name)
                    known.remove(name)
                assert site.machines_of_others() <= nodes - min(nodes, reserved)
            for name in known & {"crit", "vip"}:
                await site.remove(name)
            await site.apply(a_service("anew", replicas=min(nodes, reserved), cores=4, labels=PROD))
            assert site.running("anew") == min(nodes, reserved)

    asyncio.run(scenario())


CHANGES = st.lists(
    st.tuples(st.sampled_from(["crit", "web", "guest"]), st.integers(0, 5))
    | st.tuples(st.just("reserve"), st.integers(0, 3)),
    min_size=2,
    max_size=8,
)


@EXAMPLES
@given(sizes=st.tuples(*[st.sampled_from([1, 2, 4])] * 2), changes=CHANGES)
def test_changing_reserves_never_grow_others(sizes: tuple[int, int], changes: list[tuple[str, int]]) -> None:
    """Who has more than is left beside a reserve keeps it, gets nothing new, and a workload of no service comes where others are already."""
    cores = dict(zip(("crit", "web"), sizes, strict=True))

    async def scenario() -> None:
        async with a_place(a_site(4, 0)) as site:
            reserved, known = 0, set[str]()
            for number, (what, count) in enumerate(changes):
                before = site.machines_among_others()
                if what == "reserve":
                    reserved = count
                    await site.apply(a_site(4, reserved))
                elif what == "guest":
                    await site.apply(a_workload(f"guest-{number}", 1000 * max(1, count)))
                elif count:
                    await site.apply(
                        a_service(
                            what,
                            replicas=count,
                            cores=cores[what],
                            labels={"env": "prod" if what == "crit" else "dev"},
                        )
                    )
                    known.add(what)
                elif what in known:
                    await site.remove(what)
                    known.remove(what)
                assert site.machines_among_others() <= max(before, 4 - reserved)

    asyncio.run(scenario())
