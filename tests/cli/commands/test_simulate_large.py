"""`lattice simulate` with ten thousand nodes and a hundred thousand workloads: every workload is reported,
and no node is overcommitted."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

NODES, WORKLOADS = 10_000, 100_000
CPU, MEMORY = 16_000, 64  # of each node: thousandths, GiB
REQUESTS = [(100, 1), (250, 2), (500, 4), (1000, 1), (3000, 2)]
NOWHERE = 50  # every so manieth service wants a disk that no node has
ZONES = 5


def a_numbered_node(number: int) -> dict[str, object]:
    spec, capacity = {"zone": f"z{number % ZONES}"}, {"cpu": CPU, "memory": MEMORY << 30}
    head = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNode",
        "metadata": {"name": f"n{number:05}"},
    }
    return {**head, "spec": spec, "status": {"capacity": capacity}}


def a_numbered_workload(number: int) -> dict[str, object]:
    """A hundred replicas of each service; some services have to be spread over zones, others apart from themselves."""
    service, (cpu, memory) = number // 100, REQUESTS[number // 100 % len(REQUESTS)]
    constraints: dict[str, object] = {}
    if service % 4 == 0:
        constraints["spread"] = [{"topologyKey": "zone", "maxSkew": 1}]
    if service % 7 == 0:
        own = {"topologyKey": "node", "selector": {"matchLabels": {"app": f"s{service}"}}}
        constraints["affinity"] = {"antiWorkload": {"required": [own]}}
    if service % NOWHERE == 0:
        constraints["nodeSelector"] = {"disk": "nvme"}
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Gi"}
    spec = {
        "containers": {"main": {"command": ["run"]}},
        "service": f"s{service}",
        "requests": requests,
        "constraints": constraints,
    }
    metadata = {"name": f"w{number}", "namespace": "default", "labels": {"app": f"s{service}"}}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": metadata,
        "spec": spec,
    }


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_ten_thousand_nodes_and_a_hundred_thousand_workloads(tmp_path: Path) -> None:
    world = tmp_path / "world.jsonl"
    with world.open("w") as file:
        for made in (*map(a_numbered_node, range(NODES)), *map(a_numbered_workload, range(WORKLOADS))):
            file.write(json.dumps(made) + "\n")
    command = [sys.executable, "-m", "lattice.cli.main", "simulate", "-f", str(world), "-o", "json"]
    ran = subprocess.run(
        command, capture_output=True, timeout=800, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    told = json.loads(ran.stdout)
    placed: dict[str, str] = told["placements"]
    expected = {f"default/w{number}" for number in range(WORKLOADS) if number // 100 % NOWHERE}
    assert set(placed) == expected
    assert sum(len(each["workloads"]) for each in told["unplaced"]) == WORKLOADS - len(expected)
    cpu, memory, together, zones = (
        Counter[str](),
        Counter[str](),
        Counter[tuple[int, str]](),
        Counter[tuple[int, int]](),
    )
    for name, node in placed.items():
        service = int(name.removeprefix("default/w")) // 100
        cpu[node] += REQUESTS[service % len(REQUESTS)][0]
        memory[node] += REQUESTS[service % len(REQUESTS)][1]
        together[service, node] += 1
        zones[service, int(node[1:]) % ZONES] += 1
    assert max(cpu.values()) <= CPU
    assert max(memory.values()) <= MEMORY
    assert all(count == 1 for (service, _), count in together.items() if service % 7 == 0)
    spread = {service for service, _ in zones if service % 4 == 0}
    assert all(zones[service, zone] == 100 // ZONES for service in spread for zone in range(ZONES))
