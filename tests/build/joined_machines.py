"""Machines that their owners joined, and worlds with a provider that makes none."""

from random import Random
from typing import Any

from build.objects import make_object
from build.worlds import a_world
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import NODE_FINALIZER, LatticeNode
from lattice.placement.model.supply import Adapters
from lattice.placement.model.world import World

GIB = 1 << 30
# The adapters of a server whose provider metal creates no machines; the runtimes of the machines are unknown.
MANUAL_ADAPTERS: Adapters = dict.fromkeys(("aws", "gcp", "metal=manual"))


async def manual_adapters() -> Adapters:
    return MANUAL_ADAPTERS


def a_joined_machine(name: str = "box", cores: int = 4, *, pool: str = "p1", **parts: Any) -> LatticeNode:
    """A ready machine that its owner joined to the pool; `spec`, `status` and `meta` add fields."""
    status = {
        "allocatable": {"cpu": cores * 1000, "memory": cores * 4 * GIB, "storage": 64 * GIB},
        "agentVersion": "1",
        "conditions": [{"type": "Ready", "status": "True"}],
        **parts.pop("status", {}),
    }
    meta = {"finalizers": [NODE_FINALIZER], **parts.pop("meta", {})}
    return make_object(
        LatticeNode, name, meta=meta, spec={"pool": pool, **parts.pop("spec", {})}, status=status
    )


def a_manual_world(*objects: Kind) -> World:
    """A world in which provider metal creates no machines."""
    world = a_world(*objects)
    return World(world.objects, world.price_book, adapters=MANUAL_ADAPTERS)


def random_joined_machines(draw: Random, pools: list[str]) -> list[LatticeNode]:
    """Up to eight machines of the pools, some tainted and some without a runtime for images."""
    return [
        a_joined_machine(
            f"box{number}",
            draw.choice([1, 2, 8]),
            pool=draw.choice(pools),
            spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]} if draw.random() < 0.2 else {},
            status={"runtimes": ["process"]} if draw.random() < 0.2 else {},
        )
        for number in range(draw.randint(0, 8))
    ]
