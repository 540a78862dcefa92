"""Which changes wake which keys: with thousands of bound replicas, waking on every change would starve the
controllers."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from build.control_plane import ControlPlane
from build.virtual import settle

from lattice.controllers.nodes.eviction import EvictionController
from lattice.controllers.nodes.node_health import NodeHealthController
from lattice.controllers.nodes.workloads import WorkloadController
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop
from lattice.controllers.services.replicas import ReplicaController
from lattice.kinds.constraints import Taint
from lattice.kinds.container import Container
from lattice.kinds.meta.base import Condition, Kind, Metadata
from lattice.kinds.node import LatticeNode, NodeSpec, NodeStatus
from lattice.kinds.service import Health, LatticeService, ServicePlacement, ServiceSpec, ServiceStatus
from lattice.kinds.workload import Binding, LatticeWorkload, WorkloadSpec, WorkloadStatus
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.lifecycle.node_health import NodeTimeouts

CONTAINERS = {"main": Container(command=("run",))}
READY = (Condition(type="Ready", status="True", reason="Heartbeat"),)
replace = msgspec.structs.replace


def make_unnamed(kind: type[Any], **parts: Any) -> Any:
    namespace = "default" if kind.resource.namespaced else ""
    return kind(
        api_version=kind.resource.api_version,
        kind=kind.resource.kind,
        metadata=Metadata(name="x", namespace=namespace),
        **parts,
    )


def workload(**status: Any) -> LatticeWorkload:
    found: LatticeWorkload = make_unnamed(
        LatticeWorkload, spec=WorkloadSpec(containers=CONTAINERS), status=WorkloadStatus(**status)
    )
    return found


def node(taints: tuple[Taint, ...] = (), **status: Any) -> LatticeNode:
    found: LatticeNode = make_unnamed(
        LatticeNode, spec=NodeSpec(taints=taints), status=NodeStatus(conditions=READY, **status)
    )
    return found


def service(replicas: int = 1, **status: Any) -> LatticeService:
    placed = (ServicePlacement(pool="p", cluster="c", node="small", replicas=replicas),)
    found: LatticeService = make_unnamed(
        LatticeService,
        spec=ServiceSpec(containers=CONTAINERS),
        status=ServiceStatus(placements=placed, **status),
    )
    return found


def workloads_loop(context: ControllerContext) -> Loop:
    return WorkloadController(
        context, NodeHealthController(context, NodeTimeouts()), DecidedEvictions()
    ).loop()


LOOPS: dict[str, Callable[[ControllerContext], Loop]] = {
    "workloads": workloads_loop,
    "nodes": lambda context: NodeHealthController(context, NodeTimeouts()).loop(),
    "departures": lambda context: EvictionController(context, DecidedEvictions()).loop(),
    "replicas": lambda context: ReplicaController(context).loop(),
}
DRAINED = (Taint(key="lattice.dev/draining", effect="NoSchedule"),)


@pytest.mark.parametrize(
    ("loop", "states", "looked_at"),
    [
        pytest.param("workloads", [workload()], [False], id="an unbound workload is left to the scheduler"),
        pytest.param(
            "workloads",
            [workload(), workload(binding=Binding(node="n"))],
            [False, True],
            id="a bound workload is reconciled",
        ),
        pytest.param(
            "nodes",
            [node(), node(workloads=1), node(workloads=2)],
            [True, False, False],
            id="a workload count does not wake the node",
        ),
        pytest.param(
            "nodes",
            [node(), node(workloads=1, phase="NotReady")],
            [True, True],
            id="a count with another change wakes the node",
        ),
        pytest.param(
            "nodes", [node(), node(DRAINED, workloads=1)], [True, True], id="a changed spec wakes the node"
        ),
        pytest.param(
            "departures",
            [node(), node(workloads=1)],
            [False, False],
            id="a node without taints is not reconciled",
        ),
        pytest.param(
            "departures",
            [node(), node(DRAINED), node(DRAINED, workloads=1)],
            [False, True, True],
            id="a draining node is reconciled",
        ),
        pytest.param(
            "replicas",
            [service(), service(health=Health(ready=1))],
            [True, False],
            id="changed health does not wake the replicas",
        ),
        pytest.param(
            "replicas", [service(), service(2)], [True, True], id="a changed placement wakes the replicas"
        ),
    ],
)
async def test_only_relevant_changes_wake_keys(loop: str, states: list[Kind], looked_at: list[bool]) -> None:
    plane = ControlPlane()
    context = await plane.new_term()
    feeds = [asyncio.create_task(copy.run()) for copy in context.caches]
    built = LOOPS[loop](context)
    woken: list[str] = []
    for copy in context.caches:
        await copy.wait_for()
    for source in built.sources:
        source.cache.on_change(lambda change, keys=source.keys: _extend(woken, keys(change)))
    found = []
    for state in states:
        woken.clear()
        await plane.put(state)
        await settle()
        found.append(bool(woken))
    for feed in feeds:
        feed.cancel()
    await asyncio.gather(*feeds, return_exceptions=True)
    assert found == looked_at


def _extend(woken: list[str], keys: Iterable[str]) -> None:
    woken.extend(keys)
