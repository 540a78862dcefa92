"""Random worlds by seed, in which most services fit and much is nearly full; cheap enough for thousands."""

from collections.abc import Iterator
from random import Random
from typing import Any

from build.worlds import REGIONS, a_class, a_cloud, a_policy, a_pool, a_service, a_static
from lattice.kinds.meta.base import Kind
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.world import World

NAMES = ("api", "batch", "cache", "db", "edge", "web")
CLASSES = (
    a_class("s", 2, 4, 0.05),
    a_class("m", 4, 16, 0.2),
    a_class("l", 16, 64, 0.7),
    a_class("g", 8, 32, 0.9, gpu=2, gpu_model="t4"),
    a_class("unpriced", 8, 32, None, providers=["aws"]),
)


def random_world(number: int) -> World:
    """The same world for the same number."""
    draw = Random(number)
    results: list[Kind] = [*CLASSES, *_supply(draw)]
    results += [random_policy(draw, f"rules{number}") for number in range(draw.choice([0, 0, 1, 2]))]
    results += [random_service(draw, name) for name in NAMES[: draw.randint(1, len(NAMES))]]
    return World.of(results, PriceBook({}))


def _supply(draw: Random) -> Iterator[Kind]:
    for number in range(1, draw.randint(1, 3) + 1):
        yield random_pool(draw, f"p{number}")
    has_cloud = draw.random() < 0.6
    if has_cloud:
        yield _cloud(draw)
    if draw.random() < 0.5:
        yield _static(draw, has_cloud)


def random_pool(draw: Random, name: str) -> LatticePool:
    return a_pool(
        name,
        region=draw.choice(REGIONS),
        zone=draw.choice(["", "a", "b"]),
        classes=draw.choice([["m"], ["s", "m"], ["m", "l"], ["s", "m", "l", "g"], ["m", "l", "unpriced"]]),
        labels={
            "tier": "production",
            "compliance": draw.choice([[], ["gdpr"], ["soc2", "gdpr"]]),
            "capabilities": ["gpu", "nvme"],
        },
        capacity=draw.choice(
            [{}, {"maxNodes": 2}, {"maxNodes": 4}, {"maxNodes": 6, "maxCores": 24}, {"maxMemoryGi": 80}]
        ),
        budget=draw.choice([None, None, 150, 400, 1000, 2000]),
    )


def _cloud(draw: Random) -> Kind:
    regions: dict[str, dict[str, Any]] = {
        region: {
            "compliance": draw.choice([None, ["gdpr"], ["soc2", "gdpr"]]),
            "quotas": {
                "maxClusters": draw.choice([None, 1, 2]),
                "maxNodesPerCluster": draw.choice([None, 2, 5]),
            },
            "dataResidency": draw.choice(["", "eu"]),
            "budget": draw.choice([None, None, {"monthly": 300}]),
        }
        for region in draw.sample(REGIONS, draw.randint(1, 2))
    }
    budget = draw.choice(
        [None, {"monthly": 300, "hardLimit": True}, {"monthly": 900, "hardLimit": True}, {"monthly": 10}]
    )
    return a_cloud("cloud", regions, provider="gcp", budget=budget, labels={"tier": "production"})


def _static(draw: Random, has_cloud: bool) -> Kind:
    overflow = {
        "enabled": draw.random() < 0.8,
        "target": "cloud",
        "trigger": draw.choice([{}, {"capacityThreshold": 50}]),
        "limits": draw.choice([{}, {"maxClusters": 1}, {"maxMonthlySpend": 200}]),
    }
    nodes = draw.randint(1, 3)
    return a_static(
        "dc",
        nodes,
        *draw.choice([(4 * nodes, f"{16 * nodes}Gi"), (8 * nodes, f"{20 * nodes}Gi")]),
        region=draw.choice(["", *REGIONS]),
        compliance=draw.choice([[], ["gdpr", "soc2"]]),
        labels={"tier": draw.choice(["production", "test"])},
        overflow=draw.choice([None, overflow]) if has_cloud else None,
        reservation=draw.choice(
            [None, {"reserved": {"nodes": 1}, "reservedFor": [{"labelSelector": {"env": "prod"}}]}]
        ),
        accelerators=draw.choice([[], [{"type": "t4", "count": 3}]]),
    )


def random_service(draw: Random, name: str) -> LatticeService:
    """A service that may call others and have latency limits to them."""
    others = [other for other in NAMES if other != name]
    called = draw.sample(others, draw.choice([0, 0, 1, 2]))
    near = draw.sample(called, 1) if called and draw.random() < 0.4 else []
    demands: dict[str, list[Any]] = {
        "pools": [{"matchLabels": {"tier": "production"}}],
        "compliance": [["gdpr"], ["GDPR", "soc2"]],
        "capabilities": [["gpu"]],
        "dataResidency": ["eu"],
        "requiredRegions": [["us-east-1"], ["us-east-1", "eu-west-1"], ["p1"]],
        "spread": [_skew("region"), _skew("zone"), _skew("node"), _skew("region", "ScheduleAnyway")],
        "gpu": [1, 0.3],
    }
    return a_service(
        name,
        replicas=draw.choice([1, 1, 2, 3, 5, 8]),
        cores=draw.choice([0.25, 0.5, 1, 1.5, 2, 3, 4]),
        memory=draw.choice([0.5, 1, 3, 5, 7, 12]),
        labels={"env": draw.choice(["prod", "dev"])},
        latency={other: {"maxMs": draw.choice([1, 5, 80, 300])} for other in near},
        dependencies={other: {"type": "service", "direction": "outbound"} for other in called},
        priority=draw.choice([0, 0, 10]),
        **{key: draw.choice(values) for key, values in demands.items() if draw.random() < 0.08},
    )


def _skew(key: str, when: str = "DoNotSchedule") -> list[dict[str, Any]]:
    return [{"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when}]


def random_policy(draw: Random, name: str) -> LatticePlacementPolicy:
    rules: dict[str, Any] = draw.choice(
        [{}, {}, {}, {}, {"minRegions": 2}, {"compliance": ["gdpr"]}, {"capabilities": ["nvme"]}]
    )
    if draw.random() < 0.3:
        rules = {
            **rules,
            "spreadConstraint": {
                "topologyKey": draw.choice(["region", "pool", "provider"]),
                "maxSkew": draw.randint(1, 2),
            },
        }
    clusters = draw.choice(
        [None, {"minNodes": 2}, {"minNodes": 3, "maxNodes": 4}, {"maxNodes": 2}, {"binPackingThreshold": 1}]
    )
    return a_policy(name, selector=draw.choice([None, {"env": "prod"}]), clusters=clusters, **rules)


def random_change(number: int, world: World) -> tuple[list[Kind], list[tuple[str, str, str]]]:
    """Objects that a user might apply to the world, and keys that might be deleted."""
    draw = Random(number)
    services = sorted(world.services.values(), key=lambda service: service.metadata.name)
    match draw.randint(0, 6):
        case 0:
            return [random_service(draw, draw.choice(NAMES))], []
        case 1:
            return [random_service(draw, name) for name in draw.sample(NAMES, 3)], []
        case 2:
            return [], [
                ("LatticeService", "default", draw.choice(services).metadata.name)
            ] if services else []
        case 3:
            return [random_pool(draw, draw.choice(["p1", "p9"]))], []
        case 4:
            return [random_policy(draw, draw.choice(["rules0", "rules9"]))], []
        case 5:
            return [], [("LatticePool", "", "p1")]
    return [], []
