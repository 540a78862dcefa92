"""Load of the control-plane benchmark: nodes without agents, bare workloads, and a service with its pool."""

import itertools
import json
from collections.abc import Iterator

import msgspec

from bench.control_site import API, SERVICES, WORKLOADS, Object, Site, opened
from bench.load import request
from lattice.clock import SystemClock
from lattice.controllers.runtime.object_writes import put_new, with_status
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Put

HEAD = {"apiVersion": "lattice.dev/v1alpha1"}
ALLOCATABLE = {"cpu": 4000, "memory": 32 << 30, "storage": 100 << 30, "workloads": 110}
REQUESTS = {"cpu": "100m", "memory": "500Mi"}
CPU, MEMORY = 100, 500 << 20  # the same as numbers
PROVIDER, POOL, CLASS = "paper", "paper", "paper"
_uids = itertools.count(1)


def paper_node(number: int) -> Put:
    """A node in the state after registration and a heartbeat, without an agent."""
    body = {
        **HEAD,
        "kind": "LatticeNode",
        "metadata": {"name": f"paper-{number:05}"},
        "spec": {"zone": f"z{number % 3}"},
        "status": paper_status(),
    }
    return put_new(
        msgspec.convert(body, LatticeNode),
        uid=f"00000000-0000-0000-0000-{next(_uids):012d}",
        now=format_timestamp(SystemClock().now()),
    )


def paper_status() -> Object:
    now = format_timestamp(SystemClock().now())
    heard = {"type": "Ready", "status": "True", "reason": "Heard", "message": "", "lastTransitionTime": now}
    return {
        "phase": "Ready",
        "capacity": ALLOCATABLE,
        "allocatable": ALLOCATABLE,
        "runtimes": ["container", "process"],
        "portRange": {"first": 20_000, "last": 29_999},
        "agentVersion": "paper",
        "conditions": [heard],
    }


def workload(name: str) -> bytes:
    """A workload without a service, as JSON."""
    container = {"command": ["serve"], "ports": [{"name": "http"}], "resources": {"requests": REQUESTS}}
    metadata = {"name": name, "namespace": "default", "labels": {"app": "bench"}}
    return json.dumps(
        {**HEAD, "kind": "LatticeWorkload", "metadata": metadata, "spec": {"containers": {"main": container}}}
    ).encode()


def creates(prefix: str, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield request("POST", WORKLOADS, workload(f"{prefix}-{number:06d}"))


def offer(site: Site, nodes: int) -> None:
    """A pool of the fake provider, its node class, and a policy with a fixed number of nodes."""
    site.send(
        "POST",
        f"{API}/latticenodeclasses",
        {
            **HEAD,
            "kind": "LatticeNodeClass",
            "metadata": {"name": CLASS},
            "spec": {
                "providers": {PROVIDER: {}},
                "resources": {"cores": 4, "memoryGi": 32, "storageGi": 100},
                "costPerHour": {PROVIDER: 0.01},
            },
        },
    )
    site.send(
        "POST",
        f"{API}/latticepools",
        {
            **HEAD,
            "kind": "LatticePool",
            "metadata": {"name": POOL},
            "spec": {
                "provider": {"type": PROVIDER, "region": "paper"},
                "capacity": {"maxNodes": nodes},
                "nodeClasses": [CLASS],
                "labels": {"tier": "bench"},
            },
        },
    )
    site.send(
        "POST",
        f"{API}/latticeplacementpolicies",
        {
            **HEAD,
            "kind": "LatticePlacementPolicy",
            "metadata": {"name": "keep"},
            "spec": {
                "selector": {"matchLabels": {"app": "bench"}},
                "clusterPolicy": {"minNodes": nodes, "maxNodes": nodes},
            },
        },
    )


def service(name: str, replicas: int) -> Object:
    container = {"command": ["serve"], "ports": [{"name": "http"}], "resources": {"requests": REQUESTS}}
    return {
        **HEAD,
        "kind": "LatticeService",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "bench"}},
        "spec": {
            "containers": {"main": container},
            "placement": {"resources": {"cores": 0.1, "memoryGi": 500 / 1024}},
            "replicas": {"min": replicas, "max": replicas},
        },
    }


async def register_all(site: Site) -> None:
    """Write the status that the agents of all nodes would have written at registration; the server must be
    stopped."""
    status = msgspec.convert(paper_status(), NodeStatus)
    async with opened(site) as store:
        last_path = ""
        while True:
            page = await store.list(LatticeNode.resource.id, limit=MAX_COMMIT_OPERATIONS, after=last_path)
            if page.entries:
                await store.commit([with_status(entry, status) for entry in page.entries])
            if not page.has_more:
                return
            last_path = page.entries[-1].key.path


def apply_service(site: Site, name: str, replicas: int) -> None:
    site.send("POST", SERVICES, service(name, replicas))
