"""Small worlds for placement tests, by builders of each kind, and random ones."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from hypothesis import strategies as st

from build.objects import make_object
from lattice.kinds import KINDS
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.greedy.place_all import PlanRounds, place_one_round
from lattice.placement.inputs.price_book import PriceBook
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World

EXAMPLES = int(os.environ.get("EXAMPLES", "3000" if os.environ.get("LATTICE_LONG") == "1" else "20"))
K = TypeVar("K", bound=Kind)
Spec = Mapping[str, Any]
KIND: dict[str, type[Kind]] = {kind.resource.kind: kind for kind in KINDS}
EXAMPLE = Path(__file__).parents[2] / "examples" / "worlds" / "seed-000"


def make_valid_object(
    cls: type[K], name: str, spec: Spec, labels: Mapping[str, str] | None = None, namespace: str = ""
) -> K:
    """An object as if it had been applied; `spec` in manifest notation."""
    meta = {"labels": dict(labels or {}), "namespace": namespace}
    valid = make_object(cls, name, meta=meta, spec=spec)
    problems = [str(problem) for problem in valid.problems()]
    assert not problems, problems
    return valid


def a_pool(
    name: str = "p1",
    *,
    labels: Spec | None = None,
    capacity: Spec | None = None,
    budget: float | None = None,
    **spec: Any,
) -> LatticePool:
    """On aws, in a region of its own, with class m."""
    provider = {
        "type": spec.pop("provider", "aws"),
        "region": spec.pop("region", f"{name}-1"),
        "zone": spec.pop("zone", ""),
    }
    body = {
        "provider": provider,
        "nodeClasses": list(spec.pop("classes", ["m"])),
        "labels": labels or {},
        "capacity": capacity or {},
        **spec,
    }
    if budget is not None:
        body["budget"] = {"maxMonthlyCost": budget}
    return make_valid_object(LatticePool, name, body)


def a_class(
    name: str = "m", cores: float = 4, memory: float = 16, price: float | None = 0.2, **spec: Any
) -> LatticeNodeClass:
    providers = spec.pop("providers", ["aws", "gcp"])
    resources = {
        "cores": cores,
        "memoryGi": memory,
        "gpu": spec.pop("gpu", 0),
        "gpuModel": spec.pop("gpu_model", ""),
    }
    costs = {} if price is None else dict.fromkeys(providers, price)
    return make_valid_object(
        LatticeNodeClass,
        name,
        {
            "providers": {provider: {} for provider in providers},
            "resources": resources,
            "costPerHour": costs,
            **spec,
        },
    )


def a_cloud(
    name: str = "cloud", regions: Mapping[str, Spec] | Sequence[str] = ("r1",), **spec: Any
) -> CloudInfrastructure:
    listed = dict(regions) if isinstance(regions, Mapping) else {region: {} for region in regions}
    labels = spec.pop("labels", None)
    return make_valid_object(
        CloudInfrastructure,
        name,
        {"provider": spec.pop("provider", "aws"), "regions": listed, **spec},
        labels,
    )


def a_static(
    name: str = "dc", nodes: int = 4, cores: float | None = 16, memory: str | None = "64Gi", **spec: Any
) -> StaticInfrastructure:
    capacity = {
        "nodes": nodes,
        "cores": cores,
        "memory": memory,
        "accelerators": spec.pop("accelerators", []),
    }
    location = {"name": f"{name}-hall", "region": spec.pop("region", "")}
    labels = spec.pop("labels", None)
    return make_valid_object(
        StaticInfrastructure, name, {"location": location, "capacity": capacity, **spec}, labels
    )


def a_service(
    name: str = "api", *, replicas: int | None = None, cores: float = 1, memory: float = 1, **placement: Any
) -> LatticeService:
    """Keywords in camelCase go into `placement`; `labels`, `resources_`, `most`, `spread`, `affinity` and `group`
    do not."""
    labels, most = placement.pop("labels", None), placement.pop("most", None)
    spec: dict[str, Any] = {
        "containers": {"main": {"image": "app:1"}},
        "resources": placement.pop("dependencies", {}),
        "spread": placement.pop("spread", []),
        "replicas": {"min": replicas, "max": most},
        "priority": placement.pop("priority", 0),
        "affinity": placement.pop("affinity", None),
        "group": placement.pop("group", None),
    }
    gpus: dict[str, Any] = {key: placement.pop(key) for key in ("gpu", "gpuModel") if key in placement}
    amounts: dict[str, Any] = {"cores": cores, "memoryGi": memory, **gpus}
    return make_valid_object(
        LatticeService, name, {**spec, "placement": {"resources": amounts, **placement}}, labels, "default"
    )


def a_policy(
    name: str = "rules", *, selector: Spec | None = None, clusters: Spec | None = None, **requirements: Any
) -> LatticePlacementPolicy:
    chosen = {"matchLabels": dict(selector)} if selector else None
    return make_valid_object(
        LatticePlacementPolicy,
        name,
        {"selector": chosen, "requirements": requirements, "clusterPolicy": clusters},
    )


def a_preference(name: str, weighted: Sequence[Spec], selector: Spec | None = None) -> LatticePlacementPolicy:
    """A policy that states preferences only."""
    chosen = {"matchLabels": dict(selector)} if selector else None
    return make_valid_object(
        LatticePlacementPolicy, name, {"selector": chosen, "preferences": list(weighted)}
    )


def a_world(*objects: Kind) -> World:
    """With class m, unless classes are given."""
    has_class = any(isinstance(node_class, LatticeNodeClass) for node_class in objects)
    return World.of(objects if has_class else (a_class(), *objects))


def arranged(world: World, *but: str) -> Fleet:
    """The fleet with every feasible service placed, except the named ones."""
    fleet = world.build_fleet()
    place_one_round(
        [demand for name, demand in world.demands.items() if name not in but], fleet, PlanRounds(fleet)
    )
    return fleet


def read_world(folder: Path) -> World:
    """Every manifest in the folder."""
    results: list[Kind] = []
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            metadata, cls = document["metadata"], KIND[document["kind"]]
            namespace = "default" if cls.resource.namespaced else ""
            results.append(
                make_valid_object(cls, metadata["name"], document["spec"], metadata.get("labels"), namespace)
            )
    return World.of(results)


def seed_world(*compliance: str) -> World:
    """The design document's pools and services; us-east has these compliance standards, as printed soc2 and hipaa."""
    world = read_world(EXAMPLE)
    pool = world.objects["LatticePool", "", "us-east"]
    assert isinstance(pool, LatticePool)
    labels = {**pool.spec.labels, "compliance": list(compliance)}
    return world.with_objects(
        [msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, labels=labels))]
    )


# --- random worlds ---

REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
COMPLIANCE = ("gdpr", "soc2", "hipaa")
TIERS = ("production", "test")
WHEN = ("DoNotSchedule", "ScheduleAnyway")


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Three times in four the usual value: a world in which nothing fits for five reasons at once tests
    little."""
    return st.sampled_from([usual] * 3 * max(1, len(others)) + list(others))


def _some(words: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), unique=True, max_size=len(words))


@st.composite
def pools(draw: st.DrawFn, name: str) -> LatticePool:
    capacity = draw(
        _mostly(
            {},
            {"maxNodes": 0},
            {"maxNodes": 1},
            {"maxNodes": 2},
            {"maxNodes": 3, "maxCores": 8},
            {"maxMemoryGi": 40},
        )
    )
    return a_pool(
        name,
        region=draw(st.sampled_from(REGIONS)),
        zone=draw(st.sampled_from(["", "a"])),
        classes=draw(st.sampled_from([["m"], ["s"], ["s", "m"], ["m", "l"], ["unpriced"], []])),
        labels={
            "tier": draw(st.sampled_from(TIERS)),
            "compliance": draw(_some(COMPLIANCE)),
            "capabilities": draw(_some(["gpu", "nvme"])),
        },
        capacity=capacity,
        budget=draw(_mostly(None, 0, 100, 150, 400)),
    )


@st.composite
def clouds(draw: st.DrawFn, name: str) -> CloudInfrastructure:
    regions = {
        region: {
            "compliance": draw(st.none() | _some(COMPLIANCE)),
            "quotas": {"maxClusters": draw(st.sampled_from([None, 0, 1]))},
            "dataResidency": draw(st.sampled_from(["", "eu"])),
        }
        for region in draw(st.lists(st.sampled_from(REGIONS), unique=True, min_size=1, max_size=2))
    }
    budget = draw(
        st.sampled_from(
            [None, {"monthly": 100, "hardLimit": True}, {"monthly": 300, "hardLimit": True}, {"monthly": 10}]
        )
    )
    return a_cloud(
        name, regions, provider="gcp", budget=budget, labels={"tier": draw(st.sampled_from(TIERS))}
    )


@st.composite
def statics(draw: st.DrawFn, name: str, cloud: str) -> StaticInfrastructure:
    overflow = st.fixed_dictionaries({
        "enabled": st.booleans(), "target": st.just(cloud), "trigger": st.sampled_from([{}, {"capacityThreshold": 50}]),
        "limits": st.sampled_from([{}, {"maxClusters": 0}, {"maxMonthlySpend": 100}]),
    })  # fmt: skip
    nodes = draw(st.integers(1, 3))
    return a_static(
        name,
        nodes,
        4 * nodes,
        f"{16 * nodes}Gi",
        region=draw(st.sampled_from(["", *REGIONS])),
        compliance=draw(_some(COMPLIANCE)),
        labels={"tier": draw(st.sampled_from(TIERS))},
        overflow=draw(st.none() | overflow) if cloud else None,
        reservation=draw(
            st.none()
            | st.just({"reserved": {"nodes": 1}, "reservedFor": [{"labelSelector": {"env": "prod"}}]})
        ),
    )


@st.composite
def services(draw: st.DrawFn, name: str, others: Sequence[str] = ()) -> LatticeService:
    latency = {
        other: {"maxMs": draw(st.sampled_from([1, 5, 80, 300]))} for other in others if draw(st.booleans())
    }
    replicas = draw(st.integers(1, 3))
    return a_service(
        name,
        replicas=replicas,
        most=draw(st.sampled_from([None, None, 3])),
        cores=draw(_mostly(1, 0.5, 3, 4, 8, 40)),
        memory=draw(_mostly(1, 2, 12, 16, 70)),
        labels={"env": draw(st.sampled_from(["prod", "dev"]))},
        pools=draw(_mostly(None, {"matchLabels": {"tier": "production"}}, {"matchLabels": {"tier": "none"}})),
        compliance=draw(_mostly([], ["gdpr"], ["gdpr"], ["GDPR", "soc2"], ["iso"])),
        capabilities=draw(_mostly([], ["gpu"])),
        dataResidency=draw(_mostly("", "eu")),
        requiredRegions=draw(_mostly([], ["us-east-1"], ["us-east-1", "eu-west-1"], ["p1"], ["moon"])),
        latency=latency,
        spread=draw(
            _mostly(
                [], *([{"topologyKey": "region", "maxSkew": 1, "whenUnsatisfiable": when}] for when in WHEN)
            )
        ),
    )


@st.composite
def policies(draw: st.DrawFn, name: str) -> LatticePlacementPolicy:
    rules: dict[str, Any] = draw(
        st.sampled_from(
            [{}, {"minRegions": 2}, {"compliance": ["gdpr"]}, {"minRegions": 3}, {"capabilities": ["nvme"]}]
        )
    )
    if draw(st.booleans()):
        rules = {**rules, "spreadConstraint": {"topologyKey": "region", "maxSkew": draw(st.integers(1, 2))}}
    clusters = draw(
        st.sampled_from([None, None, {"minNodes": 2}, {"minNodes": 3, "maxNodes": 4}, {"maxNodes": 1}])
    )
    return a_policy(name, selector=draw(st.sampled_from([None, {"env": "prod"}])), clusters=clusters, **rules)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A few offers of all kinds, services with dependencies, and policies; much of it does not fit."""
    classes = [
        a_class("s", 2, 4, 0.05),
        a_class(),
        a_class("l", 16, 64, 0.7),
        a_class("unpriced", 8, 32, None, providers=["aws"]),
    ]
    results: list[Kind] = [draw(pools(f"p{number}")) for number in range(1, draw(_mostly(2, 0, 1, 3, 4)) + 1)]
    cloud = draw(st.sampled_from(["", "cloud"]))
    if cloud:
        results.append(draw(clouds(cloud)))
    if draw(st.booleans()):
        results.append(draw(statics("dc", cloud)))
    results += [draw(policies(f"rules{number}")) for number in range(draw(st.integers(0, 2)))]
    results += [
        draw(services("db")),
        draw(services("api", ["db", "ghost"] if draw(st.integers(0, 9)) == 0 else ["db"])),
        draw(services("web")),
    ]
    return World.of([*classes, *results], PriceBook({}))
