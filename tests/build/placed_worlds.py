"""Worlds after placement: the stored objects, the state after a plan, and nodes and workloads bound to them."""

from typing import Any

import msgspec

from build.worlds import a_world, make_valid_object
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState, Plan, converge


def a_placed_world(*objects: Kind) -> World:
    """The world after the objects are applied and every feasible replica is placed."""
    return converge(a_world(*objects)).resulting_world()


def state_after(plan: Plan) -> FleetState:
    """The fleet after the plan is applied."""
    assert plan.state_after is not None
    return plan.state_after


def a_pool_node(name: str, cluster: str = "p1-001", *, ready: str = "True", **more: Any) -> LatticeNode:
    """A node of pool p1 and class m; `more` is its status, apart from `spec`."""
    node = make_valid_object(
        LatticeNode, name, {"cluster": cluster, "pool": "p1", "nodeClass": "m", **more.pop("spec", {})}
    )
    status = {"conditions": [{"type": "Ready", "status": ready}], **more}
    return msgspec.structs.replace(node, status=msgspec.convert(status, type(node.status)))


def a_replica_on_node(name: str, on: str, service: str = "", cores: str = "1") -> LatticeWorkload:
    """A workload bound to a node; without a service it is a bare workload."""
    spec = {"containers": {"main": {"image": "app:1"}}, "service": service, "requests": {"cpu": cores}}
    workload = make_valid_object(LatticeWorkload, name, spec, namespace="default")
    return msgspec.structs.replace(
        workload, status=msgspec.convert({"binding": {"node": on}}, type(workload.status))
    )
