"""Names of services, pools, clouds and classes decide nothing but ties between equals."""

import os
from collections import Counter
from random import Random

from build.affinity import apart, near, preferred
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_preference, a_service, a_static, a_world
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import Kind
from lattice.placement.plan.plan import converge

SERVICES, POOLS, CLASSES = (
    ("svc-a", "svc-b", "svc-c", "svc-d"),
    ("pool-a", "pool-b", "pool-c"),
    ("cls-a", "cls-b", "cls-c"),
)
REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
Names = dict[str, str]
LONG = os.environ.get("LATTICE_LONG") == "1"


def world_of(draw: Random, name: Names) -> list[Kind]:
    """A world drawn from the seed, with its objects named by `name`; equal seeds draw equal worlds. No two
    objects of a kind are equal in everything but their names."""
    objects: list[Kind] = []
    sizes = draw.sample([(2, 4), (2, 16), (4, 16), (8, 32), (16, 64)], len(CLASSES))
    for key, (cores, memory) in zip(CLASSES, sizes, strict=True):
        objects.append(a_class(name[key], cores, memory, price=draw.choice([0.1, 0.2, 0.4])))
    capacities = draw.sample(
        [{}, {"maxNodes": 2}, {"maxNodes": 3}, {"maxCores": 12}, {"maxNodes": 9}], len(POOLS)
    )
    for key, capacity in zip(POOLS, capacities, strict=True):
        classes = draw.sample(CLASSES, draw.randint(1, len(CLASSES)))
        budget = draw.choice([None, 200, 900])
        region = draw.choice(REGIONS)
        objects.append(
            a_pool(
                name[key],
                region=region,
                classes=[name[each] for each in classes],
                capacity=capacity,
                budget=budget,
            )
        )
    if draw.random() < 0.4:
        objects.append(a_static(name["dc"], nodes=2, cores=8, memory="32Gi", region=draw.choice(REGIONS)))
    if draw.random() < 0.3:
        quotas = {"maxClusters": draw.randint(1, 2), "maxNodesPerCluster": draw.choice([1, 3])}
        regions = {draw.choice(REGIONS): {"quotas": quotas}, draw.choice(REGIONS): {}}
        objects.append(a_cloud(name["cloud"], regions=regions, defaults={"maxClustersPerRegion": 1}))
    requirements = draw.choice([{}, {"minRegions": 2}, {"spreadConstraint": {"topologyKey": "region"}}])
    objects.append(a_policy("rules", selector={"env": "prod"}, **requirements))
    wishes = [{"weight": draw.choice([10, 100]), "preference": {"sortBy": "cost"}}]
    if draw.random() < 0.5:
        wishes.append(
            {
                "weight": draw.choice([5, 50]),
                "preference": {"sortBy": draw.choice(["availableCapacity", "proximity"])},
            }
        )
    objects.append(a_preference("wishes", wishes, {"env": draw.choice(["prod", "dev"])}))
    shapes = draw.sample([(cores, memory) for cores in (0.5, 1, 2, 3) for memory in (1, 2, 6)], len(SERVICES))
    gang = draw.choice([(), (), SERVICES[:2], SERVICES[1:]])
    gang_size = draw.randint(2, 6)
    for key, (cores, memory) in zip(SERVICES, shapes, strict=True):
        called = [each for each in SERVICES if each != key and draw.random() < 0.25]
        limited = [each for each in called if draw.random() < 0.3]
        affinity = None
        if draw.random() < 0.4:
            target = name[draw.choice([each for each in SERVICES if each != key])]
            topology_key = draw.choice(["node", "cluster", "pool", "region"])
            affinity = draw.choice(
                [near(target, topology_key), apart(target, key=topology_key), preferred(target, topology_key)]
            )
        objects.append(
            a_service(
                name[key],
                cores=cores,
                memory=memory,
                replicas=draw.randint(1, 4),
                priority=draw.choice([0, 0, 5]),
                labels={"env": draw.choice(["prod", "dev"])},
                dependencies={name[each]: {"type": "service", "direction": "outbound"} for each in called},
                latency={name[each]: {"maxMs": draw.choice([3, 80])} for each in limited},
                affinity=affinity,
                group={"name": "g", "minMember": gang_size} if key in gang else None,
            )
        )
    return objects


def layout(objects: list[Kind], name: Names) -> tuple[int, dict[str, Counter[tuple[str, str]]]]:
    """The total rate, and the replicas by offer and class of every service, in the original names."""
    settled = converge(a_world(*objects))
    back = {there: here for here, there in name.items()}
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for service, placed in settled.replica_counts.items():
        found = counts.setdefault(back[service.removeprefix("default/")], Counter())
        for (offer, _, node_class), count in placed.items():
            owner, slash, region = offer.partition("/")
            found[back[owner] + slash + region, back.get(node_class, node_class)] += count
    return sum(settled.offer_rates.values()), counts


@settings(max_examples=10_000 if LONG else 40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_names_of_unequal_objects_change_nothing(seed: int, shuffle: int) -> None:
    plain = {key: key for key in (*SERVICES, *POOLS, *CLASSES, "dc", "cloud")}
    renamed: Names = {}
    mixed = Random(shuffle)
    for group in (SERVICES, POOLS, CLASSES, ("dc", "cloud")):
        renamed |= dict(zip(group, mixed.sample(group, len(group)), strict=True))
    first = layout(world_of(Random(seed), plain), plain)
    assert layout(world_of(Random(seed), renamed), renamed) == first


@settings(max_examples=1000 if LONG else 10, deadline=None)
@given(st.integers(0, 1 << 30), st.permutations(range(6)))
def test_ties_between_equals_change_the_total_by_one_percent(seed: int, order: list[int]) -> None:
    """Six equal pools and six pairs of equal services; only their names differ."""

    def total(numbers: list[int]) -> int:
        draw = Random(seed)
        shapes = [(draw.choice([0.5, 1, 3]), draw.randint(1, 4)) for _ in range(3)]
        services = [
            a_service(f"s{numbers[2 * pair + half]}", cores=cores, replicas=replicas)
            for pair, (cores, replicas) in enumerate(shapes)
            for half in range(2)
        ]
        pools = [a_pool(f"p{number}", region="us-east-1", capacity={"maxNodes": 2}) for number in numbers]
        return sum(converge(a_world(*pools, *services)).offer_rates.values())

    plain = total(list(range(6)))
    assert abs(total(order) - plain) * 100 <= plain
