"""A large fleet for the page benchmark, written directly into a store file: pools, ledgers, clusters, nodes,
services, workloads and a week of events."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lattice.clock import SystemClock
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.ledger import Account, LatticeLedger
from lattice.kinds.meta.object_lifecycle import new_object
from lattice.kinds.meta.stored_encoding import pack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.store.protocol import ABSENT, MAX_COMMIT_OPERATIONS, Key, Put
from lattice.store.sqlite.store import SqliteStore

REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south")
CAPACITY = {"cpu": 16_000, "memory": 64 << 30, "workloads": 110}
SIZES = (("250m", "512Mi"), ("500m", "1Gi"), ("1", "2Gi"), ("2", "4Gi"))
Object = dict[str, Any]


@dataclass(frozen=True)
class Size:
    nodes: int = 1000
    workloads: int = 10_000
    # Replicas of a service.
    replicas: int = 10
    # Nodes of a cluster.
    in_cluster: int = 25
    events: int = 10_000


def write(folder: Path, size: Size) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_write(folder / "state.db", size))


async def _write(path: Path, size: Size) -> None:
    store = await SqliteStore.open(path, SystemClock())
    try:
        puts = list(_objects(size))
        for start in range(0, len(puts), MAX_COMMIT_OPERATIONS):
            await store.commit(puts[start : start + MAX_COMMIT_OPERATIONS])
    finally:
        await store.close()


def _objects(size: Size) -> Iterator[Put]:
    numbers = itertools.count(1)
    moment = SystemClock().now()
    now = format_timestamp(moment)

    def new_put(kind: type[Any], name: str, body: Object, namespace: str = "") -> Put:
        resource = kind.resource
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **body}
        fresh = new_object(manifest, uid=f"00000000-0000-0000-0000-{next(numbers):012d}", now=now)
        return Put(Key(resource.id, namespace, name), pack(resource, fresh), ABSENT)

    def put(kind: type[Any], name: str, spec: Object, status: Object, namespace: str = "") -> Put:
        return new_put(kind, name, {"spec": spec, "status": status}, namespace)

    for number in range(size.events):
        yield new_put(Event, f"event-{number:05}", _event(number, size, moment), "default")
    for region in REGIONS:
        for pool in _pools(region):
            yield put(
                LatticePool, pool, {"provider": {"type": "paper", "region": region}}, {"phase": "Ready"}
            )
            yield put(LatticeLedger, *_ledger(pool, size, now))
    for number in range(0, size.nodes, size.in_cluster):
        name, pool, region = _cluster(number, size)
        status = {"phase": "Ready", "readyNodes": size.in_cluster, "cost": {"hourly": 12.5}}
        yield put(
            LatticeCluster,
            name,
            {"pool": pool, "region": region, "nodes": {"large": size.in_cluster}},
            status,
        )
    for number in range(size.nodes):
        yield put(LatticeNode, *_node(number, size, now))
    for number in range(0, size.workloads, size.replicas):
        yield put(LatticeService, *_service(number, size), "default")
    for number in range(size.workloads):
        yield put(LatticeWorkload, *_workload(number, size, now), "default")


def _event(number: int, size: Size, now: datetime) -> Object:
    """An event; the last event is new, the first event is a week old."""
    timestamp = format_timestamp(now - timedelta(days=7) * (size.events - 1 - number) / size.events)
    service = number % (size.workloads // size.replicas)
    involved_object = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "namespace": "default",
        "name": f"service-{service:04}",
    }
    text = {
        "reason": "Placed",
        "message": f"10 in eu-west-a-{number % 40:03} on large",
        "type": "Warning" if number % 10 == 0 else "Normal",
    }
    return {
        "involvedObject": involved_object,
        **text,
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1 + number % 3,
    }


def _ledger(pool: str, size: Size, now: str) -> tuple[str, Object, Object]:
    account = {"kind": "LatticePool", "name": pool}
    lots = {
        _cluster(node, size)[0]: _cluster(node, size)[1] for node in range(0, size.nodes, size.in_cluster)
    }
    machines = {
        name: [{"nodeClass": "large", "count": size.in_cluster, "micros": 500_000}]
        for name, owner in lots.items()
        if owner == pool
    }
    committed = len(machines) * size.in_cluster * 500_000
    spent = {
        "committedMicros": committed,
        "spentMicros": 200 * committed,
        "month": now[:7],
        "asOf": f"{now[:-1]}.000000Z",
    }
    spec = {"budget": account, "limitMicros": 1000 * committed, "hard": True, "alertMillionths": 800_000}
    return Account(kind="LatticePool", name=pool).ledger_name, spec, {**spent, "machines": machines}


def _pools(region: str) -> list[str]:
    return [f"{region}-a", f"{region}-b"]


def _cluster(node: int, size: Size) -> tuple[str, str, str]:
    """Cluster, pool and region of a node."""
    number = node // size.in_cluster
    region = REGIONS[number % len(REGIONS)]
    pool = _pools(region)[number // len(REGIONS) % 2]
    return f"{pool}-{number:03}", pool, region


def _node(number: int, size: Size, now: str) -> tuple[str, Object, Object]:
    cluster, pool, region = _cluster(number, size)
    ready = {
        "type": "Ready",
        "status": "False" if number % 97 == 0 else "True",
        "reason": "Heard",
        "lastTransitionTime": now,
    }
    spec = {
        "cluster": cluster,
        "pool": pool,
        "region": region,
        "nodeClass": "large",
        "unschedulable": number % 61 == 0,
    }
    return (
        f"node-{number:04}",
        spec,
        {"phase": "Ready", "capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]},
    )


def _containers(service: int) -> Object:
    cpu, memory = SIZES[service % len(SIZES)]
    return {"main": {"command": ["serve"], "resources": {"requests": {"cpu": cpu, "memory": memory}}}}


def _service(number: int, size: Size) -> tuple[str, Object, Object]:
    service = number // size.replicas
    cluster, pool, _ = _cluster(service % size.nodes, size)
    status = {
        "phase": "Running",
        "replicas": size.replicas,
        "health": {"ready": size.replicas},
        "placements": [{"pool": pool, "cluster": cluster, "replicas": size.replicas}],
        "totalCost": {"hourly": 0.25},
        "schedulerDecision": {"verdict": "Placed", "reason": f"Placed in {pool}"},
    }
    return (
        f"service-{service:04}",
        {"containers": _containers(service), "replicas": {"min": size.replicas}},
        status,
    )


def _workload(number: int, size: Size, now: str) -> tuple[str, Object, Object]:
    service = number // size.replicas
    node = (number * 7 + service * 3) % size.nodes
    spec = {
        "containers": _containers(service),
        "service": f"service-{service:04}",
        "slot": number % size.replicas,
    }
    status = {
        "actualState": "Running",
        "ready": True,
        "stateSince": now,
        "binding": {"node": f"node-{node:04}"},
    }
    return (
        f"service-{service:04}-{number % size.replicas}",
        {**spec, "cluster": _cluster(node, size)[0]},
        status,
    )
