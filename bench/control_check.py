"""Checks that acknowledged workloads exist, are bound once, and fit their nodes; reads through the API and
adds up plainly."""

from collections import Counter, defaultdict
from collections.abc import Collection

from bench.control_objects import CPU, MEMORY
from bench.control_site import NODES, WORKLOADS, Site
from bench.control_watch import Bindings


def check(site: Site, names: Collection[str], bindings: Bindings) -> int:
    """The number of checked workloads. Asserts every rule."""
    assert not bindings.moved, f"bound more than once: {bindings.moved[:5]}"
    workloads = {workload["metadata"]["name"]: workload for workload in site.everything(WORKLOADS)}
    lost = [name for name in names if name not in workloads]
    assert not lost, f"{len(lost)} were acknowledged and are not there: {lost[:5]}"
    node_status = {node["metadata"]["name"]: node["status"] for node in site.everything(NODES)}
    counts: Counter[str] = Counter()
    ports: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for name, workload in workloads.items():
        binding = workload["status"].get("binding")
        assert binding, f"{name} is not bound"
        node = binding["node"]
        assert node in node_status, f"{name} is bound to {node}, which is not there"
        assert name not in bindings.seen or bindings.seen[name][1] == node, (
            f"{name} was seen on another node than {node}"
        )
        counts[node] += 1
        ports[node].update(workload["status"].get("allocatedPorts", {}).values())
    for node, count in counts.items():
        allocatable = node_status[node]["allocatable"]
        assert count <= allocatable.get("workloads", count), f"{count} workloads on {node}"
        assert count * CPU <= allocatable["cpu"], f"{count * CPU} milli-cores are taken on {node}"
        assert count * MEMORY <= allocatable["memory"], f"{count * MEMORY} bytes are taken on {node}"
        assert node_status[node].get("workloads") == count, (
            f"{node} says {node_status[node].get('workloads')} and has {count}"
        )
        assert not (twice := [port for port, times in ports[node].items() if times > 1]), (
            f"ports of {node} given twice: {twice}"
        )
    return len(workloads)
