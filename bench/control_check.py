"""Is what was acknowledged there, bound once, and within what its node has? Read back through the API and added up plainly."""

from collections import Counter, defaultdict
from collections.abc import Collection

from bench.control_objects import CPU, MEMORY
from bench.control_site import NODES, WORKLOADS, Site
from bench.control_watch import Bindings


def check(site: Site, names: Collection[str], bindings: Bindings) -> int:
    """How many were checked; whatever must not be ends the run."""
    assert not bindings.moved, f"bound more than once: {bindings.moved[:5]}"
    found = {each["metadata"]["name"]: each for each in site.everything(WORKLOADS)}
    lost = [name for name in names if name not in found]
    assert not lost, f"{len(lost)} were acknowledged and are not there: {lost[:5]}"
    room = {each["metadata"]["name"]: each["status"] for each in site.everything(NODES)}
    taken: Counter[str] = Counter()
    ports: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for name, each in found.items():
        binding = each["status"].get("binding")
        assert binding, f"{name} is not bound"
        node = binding["node"]
        assert node in room, f"{name} is bound to {node}, which is not there"
        assert name not in bindings.seen or bindings.seen[name][1] == node, (
            f"{name} was seen on another node than {node}"
        )
        taken[node] += 1
        ports[node].update(each["status"].get("allocatedPorts", {}).values())
    for node, count in taken.items():
        has = room[node]["allocatable"]
        assert count <= has.get("workloads", count), f"{count} workloads on {node}"
        assert count * CPU <= has["cpu"], f"{count * CPU} milli-cores are taken on {node}"
        assert count * MEMORY <= has["memory"], f"{count * MEMORY} bytes are taken on {node}"
        assert room[node].get("workloads") == count, (
            f"{node} says {room[node].get('workloads')} and has {count}"
        )
        assert not (twice := [port for port, times in ports[node].items() if times > 1]), (
            f"ports of {node} given twice: {twice}"
        )
    return len(found)
