"""The reserve of a data center, with the real scheduler: other services never occupy reserved machines, and
the services it is for find them."""

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from build.objects import a_workload
from build.scheduling_world import RunningScheduler, running_scheduler
from build.service_world import NOW, RunningFleet, running_fleet
from build.virtual import VirtualClock
from build.worlds import a_policy, a_service, a_static
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from lattice.controllers.runtime.object_writes import put_new, with_metadata
from lattice.controllers.services.cluster_nodes import build_node, node_labels
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
    max_examples=400 if os.environ.get("LATTICE_LONG") == "1" else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
_numbers = itertools.count(1)


def a_site(nodes: int = 3, reserved: int = 1) -> Kind:
    """A data center of machines with 4 cores, so many of them reserved for production."""
    return a_static(
        "dc",
        nodes,
        4 * nodes,
        f"{16 * nodes}Gi",
        reservation={"reserved": {"nodes": reserved}, "reservedFor": [{"labelSelector": PROD}]},
    )


@dataclass
class Site:
    fleet: RunningFleet
    scheduler: RunningScheduler

    async def settle(self) -> None:
        """Run all controllers, create and remove machines, and start bound workloads, until nothing changes."""
        for _ in range(12):
            revision_before = await self.fleet.store.revision()
            await self.fleet.converge()
            await self._make_nodes()
            await self.scheduler.run_cycle()
            await self.fleet.wait_for_caches()
            for replica in self.fleet.all(LatticeWorkload):
                if replica.status.binding and not replica.status.ready:
                    await self.fleet.change(replica, ready=True, actual_state="Running")
            await self.fleet.finish_deletions()
            if await self.fleet.store.revision() == revision_before:
                return
        raise AssertionError("never done")

    async def _make_nodes(self) -> None:
        """Create the wanted nodes and remove surplus empty ones; the remaining nodes carry the label of their
        reserve."""
        for cluster in self.fleet.all(LatticeCluster):
            await self._relabel(cluster)
            for kind in {*cluster.spec.nodes, "static"}:
                here = [
                    node
                    for node in self.fleet.all(LatticeNode)
                    if (node.spec.cluster, node.spec.node_class) == (cluster.metadata.name, kind)
                ]
                surplus = len(here) - cluster.spec.nodes.get(kind, 0)
                for node in [each for each in here if not self.on(each.metadata.name)][: max(0, surplus)]:
                    await self.fleet.remove(LatticeNode, node.metadata.name)
                for _ in range(-surplus):
                    name = f"{cluster.metadata.name}-{next(_numbers)}"
                    await self.fleet.store.commit(
                        [put_new(a_joined_node(cluster, name, kind), uid=name, now=NOW)]
                    )
        await self.fleet.wait_for_caches()

    async def _relabel(self, cluster: LatticeCluster) -> None:
        for node in self.fleet.all(LatticeNode):
            if (
                node.spec.cluster == cluster.metadata.name
                and (labels := node_labels(node, cluster)) != node.metadata.labels
            ):
                await self._write_labels(Key(LatticeNode.resource.id, "", node.metadata.name), labels)

    async def _write_labels(self, key: Key, labels: dict[str, str]) -> None:
        entry = await self.fleet.store.get(key)
        assert entry is not None
        await self.fleet.store.commit([with_metadata(entry, lambda metadata: metadata | {"labels": labels})])

    async def relabel(self, service: str, labels: dict[str, str]) -> None:
        await self._write_labels(Key(LatticeService.resource.id, "default", service), labels)
        await self.fleet.wait_for_caches()
        await self.settle()

    async def apply(self, *objects: Kind) -> None:
        await self.fleet.apply(*objects)
        await self.settle()

    async def remove(self, service: str) -> None:
        await self.fleet.remove(LatticeService, service, "default")
        await self.settle()

    def on(self, node: str) -> list[LatticeWorkload]:
        return [
            replica
            for replica in self.fleet.all(LatticeWorkload)
            if replica.status.binding and replica.status.binding.node == node
        ]

    def running(self, service: str) -> int:
        return sum(1 for replica in self.fleet.live(service) if replica.status.binding)

    def is_bound(self, workload: str) -> bool:
        (found,) = [
            replica for replica in self.fleet.all(LatticeWorkload) if replica.metadata.name == workload
        ]
        return found.status.binding is not None

    def machines_of_others(self) -> int:
        """The number of machines with a workload that the reserve is not for."""
        found = [self.on(node.metadata.name) for node in self.fleet.all(LatticeNode)]
        return sum(any((each.metadata.labels or {}).get("env") != "prod" for each in some) for some in found)

    def machines_among_others(self) -> int:
        """The number of machines of clusters with a workload that the reserve is not for, or with a service
        that is placed there but not bound yet."""
        nodes = self.fleet.all(LatticeNode)
        placed = {
            placement.cluster
            for service in self.fleet.all(LatticeService)
            if (service.metadata.labels or {}).get("env") != "prod"
            for placement in service.status.placements
        }
        labels: dict[str, list[str | None]] = {node.spec.cluster: [] for node in nodes}
        for node in nodes:
            labels[node.spec.cluster] += [
                (each.metadata.labels or {}).get("env") for each in self.on(node.metadata.name)
            ]
        return sum(
            node.spec.cluster in placed or any(each != "prod" for each in labels[node.spec.cluster])
            for node in nodes
        )


def a_joined_node(cluster: LatticeCluster, name: str, kind: str) -> LatticeNode:
    node = build_node(cluster, name, None, kind)
    status = msgspec.structs.replace(
        node.status,
        allocatable=dict(MACHINE),
        conditions=(Condition(type="Ready", status="True", reason="Heard"),),
    )
    return msgspec.structs.replace(node, status=status)


@asynccontextmanager
async def running_site(*objects: Kind) -> AsyncIterator[Site]:
    clock = VirtualClock()
    async with (
        running_fleet(*objects, clock=clock) as fleet,
        running_scheduler(fleet.store, clock, role="scheduling") as scheduler,
    ):
        site = Site(fleet, scheduler)
        await site.settle()
        yield site


def crit(replicas: int, cores: float = 2, name: str = "crit") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels=PROD)


def web(replicas: int, cores: float = 1, name: str = "web") -> LatticeService:
    return a_service(name, replicas=replicas, cores=cores, labels={"env": "dev"})


async def test_other_services_do_not_spread_over_reserve() -> None:
    """Ten of twelve cores are requested; other services get two machines, in any order of binding."""
    async with running_site(a_site(), crit(3), web(4)) as site:
        assert site.machines_of_others() <= 2
        await site.apply(crit(4))
        assert site.running("crit") == 4


async def test_other_services_get_only_unreserved_machines() -> None:
    async with running_site(a_site(), crit(3), web(4)) as site:
        await site.apply(crit(1))
        await site.apply(web(12))
        assert site.machines_of_others() <= 2
        assert site.running("web") == 8
        await site.apply(crit(2))
        assert site.running("crit") == 2


async def test_unused_machines_of_others_count_as_theirs() -> None:
    """A cluster that starts with two machines and uses one leaves none of them to a service under another
    policy."""
    rules = a_policy(selector={"env": "dev", "team": "large"}, clusters={"minNodes": 2})
    async with running_site(
        a_site(), rules, a_service("web", labels={"env": "dev", "team": "large"})
    ) as site:
        await site.apply(web(4, 4, name="job"))
        await site.apply(a_service("crit", cores=4, labels=PROD))
        assert site.running("crit") == 1


async def test_standalone_workload_stays_outside_reserve() -> None:
    """The only machine with capacity for the workload is reserved."""
    async with running_site(a_site(), crit(1, 1), web(2, 4)) as site:
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")


async def test_reserve_overflows_to_machines_others_leave() -> None:
    async with running_site(a_site(), web(2, 3)) as site:
        await site.apply(crit(3, 4), web(2, 3))
        assert (site.running("crit"), site.running("web")) == (1, 2)
        await site.apply(crit(2, 1, name="small"))
        assert site.running("small") == 2


async def test_later_reserve_stops_growth_of_others() -> None:
    """All machines are in use by then. Running replicas stay; released machines become reserved."""
    async with running_site(a_static("dc", 3, 12, "48Gi"), web(5, 2)) as site:
        await site.apply(a_site(), web(7, 2))
        assert site.running("web") == 5
        await site.apply(web(2, 2))
        await site.apply(web(7, 2))
        assert (site.running("web"), site.machines_of_others()) == (4, 2)
        await site.apply(crit(1, 4))
        assert site.running("crit") == 1


async def test_service_losing_label_counts_among_others() -> None:
    async with running_site(a_site(), crit(1, 4, name="was")) as site:
        await site.relabel("was", {"env": "dev"})
        await site.apply(web(3, 4))
        assert (site.running("was"), site.running("web")) == (1, 1)
        await site.apply(crit(1, 4))
        assert site.running("crit") == 1


async def test_service_older_than_reserve_is_not_among_others() -> None:
    """The reserve is met already: production has a machine, other services have two and use half of the
    second."""
    rules = a_policy(selector=PROD, clusters={"minNodes": 1, "maxNodes": 7})
    async with running_site(a_static("dc", 3, 12, "48Gi"), rules, crit(1, 4), web(3, 2)) as site:
        await site.apply(a_site())
        await site.apply(web(4, 2))
        assert (site.running("web"), site.running("crit")) == (4, 1)


async def test_newly_reserved_machines_reject_standalone_workloads() -> None:
    async with running_site(a_static("dc", 3, 12, "48Gi"), crit(1, 1)) as site:
        await site.apply(a_site())
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")


async def test_standalone_workload_in_reserve_counts_among_others() -> None:
    """The workload is older than the reserve: one of the other machines becomes reserved."""
    async with running_site(a_static("dc", 3, 12, "48Gi"), crit(1, 2)) as site:
        await site.apply(a_workload("guest", 1000))
        assert site.is_bound("guest")
        await site.apply(a_site())
        await site.apply(web(3, 4))
        assert (site.running("web"), site.machines_of_others()) == (1, 2)
        await site.apply(crit(2, 2))
        assert site.running("crit") == 2


async def test_machines_are_shared_once_nothing_is_reserved() -> None:
    async with running_site(a_site(), crit(1, 1)) as site:
        await site.apply(a_workload("guest", 2000))
        assert not site.is_bound("guest")
        await site.apply(a_static("dc", 3, 12, "48Gi"))
        await site.fleet.clock.advance(INITIAL_BACKOFF_S)
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
async def test_random_changes_keep_the_reserve(
    nodes: int, reserved: int, sizes: tuple[int, ...], steps: list[tuple[str, int]]
) -> None:
    """Two services are production, two are not, and two share a policy. In the end production starts anew and
    wants the whole reserve."""
    cores = dict(zip(("crit", "vip", "web", "job"), sizes, strict=True))
    labels = {
        "crit": PROD,
        "vip": {**PROD, "team": "own"},
        "web": {"env": "dev"},
        "job": {"env": "dev", "team": "own"},
    }
    async with running_site(
        a_site(nodes, min(nodes, reserved)), a_policy(selector={"team": "own"}, clusters={"minNodes": 2})
    ) as site:
        known: set[str] = set()
        for name, replicas in steps:
            if replicas:
                await site.apply(a_service(name, replicas=replicas, cores=cores[name], labels=labels[name]))
                known.add(name)
            elif name in known:
                await site.remove(name)
                known.remove(name)
            assert site.machines_of_others() <= nodes - min(nodes, reserved)
        for name in known & {"crit", "vip"}:
            await site.remove(name)
        await site.apply(a_service("anew", replicas=min(nodes, reserved), cores=4, labels=PROD))
        assert site.running("anew") == min(nodes, reserved)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["crit", "web", "guest"]), st.integers(0, 5))
    | st.tuples(st.just("reserve"), st.integers(0, 3)),
    min_size=2,
    max_size=8,
)


@EXAMPLES
@example(
    sizes=(4, 4), changes=[("crit", 5), ("web", 1), ("crit", 2), ("reserve", 2), ("guest", 1), ("guest", 4)]
)
@given(sizes=st.tuples(*[st.sampled_from([1, 2, 4])] * 2), changes=CHANGES)
async def test_changing_reserves_never_grow_others(
    sizes: tuple[int, int], changes: list[tuple[str, int]]
) -> None:
    """A service that has more than the reserve leaves keeps it and gets nothing new; a standalone workload
    joins machines that others already use."""
    cores = dict(zip(("crit", "web"), sizes, strict=True))
    async with running_site(a_site(4, 0)) as site:
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
