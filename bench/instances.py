"""Instances of Q3: data centers, and services in the order of arrival."""

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

DATA = (
    Path(os.environ.get("LATTICE_BENCH_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
    / "fleet"
)
MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class DataCenter:
    name: str
    region: str
    cores: int
    memory: int  # GiB


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    cpu: int
    memory: int  # GiB
    replicas: int
    min_regions: int
    # Cloud region -> micro-dollars per hour of a replica.
    cost: dict[str, int]
    # Data centers that may run the service.
    inside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    seed: int
    data_centers: tuple[DataCenter, ...]
    services: tuple[Service, ...]  # in arrival order


def load(seed: int) -> Instance:
    """The instance of a seed. A data center is a region of its own, not the nearby cloud region."""
    output = subprocess.run(
        [sys.executable, str(DATA / "instances.py"), str(seed)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return read(json.loads(output.stdout))


def read(raw: dict) -> Instance:
    centers = tuple(DataCenter(d["name"], d["name"], d["cores"], d["memGi"]) for d in raw["dataCenters"])
    services = tuple(
        Service(
            s["name"],
            s["cpu"],
            s["memGi"],
            s["replicas"],
            s["minRegions"],
            {region: round(dollars * MICRO) for region, dollars in s["cost"].items()},
            tuple(s["dataCenters"]),
        )
        for s in raw["services"]
    )
    return Instance(raw["seed"], centers, services)


def cut_down(instance: Instance, rng: random.Random) -> Instance:
    """A few services with few replicas and regions, and data centers that are too small for all."""
    services = []
    for service in rng.sample(instance.services, 4):
        regions = rng.sample(sorted(service.cost), min(4, len(service.cost)))
        replicas = min(service.replicas, 3)
        minimum = min(service.min_regions, replicas, len(regions))
        services.append(
            replace(
                service, replicas=replicas, min_regions=minimum, cost={r: service.cost[r] for r in regions}
            )
        )
    centers = tuple(
        replace(dc, cores=rng.randint(0, 24), memory=rng.randint(0, 96)) for dc in instance.data_centers
    )
    return replace(instance, data_centers=centers, services=tuple(services))
