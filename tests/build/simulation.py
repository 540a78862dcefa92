"""Builders of nodes and workloads for offline simulation."""

from build.objects import make_object
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.profile import PRESETS
from lattice.scheduling.offline.simulate import SimulationOptions, simulate

GIB = 1 << 30


def an_offline_node(name, cpu=4000, memory=32 * GIB, status=None, labels=None, **spec):
    """A node as a file declares it: with its capacity, and no condition that an agent reports."""
    stored = {"capacity": {"cpu": cpu, "memory": memory}, **(status or {})}
    return make_object(LatticeNode, name, meta={"labels": labels or {}}, spec=spec, status=stored)


def an_offline_workload(name, cpu="1", memory="1Gi", on="", labels=None, **spec):
    """A workload as a file declares it; `on` is the node that it is bound to."""
    requests = {"cpu": cpu, "memory": memory, **spec.pop("requests", {})}
    spec = {"containers": {"main": {"command": ["run"]}}, "requests": requests, **spec}
    status = {"binding": {"node": on}} if on else {}
    return make_object(LatticeWorkload, name, meta={"labels": labels or {}}, spec=spec, status=status)


def run_simulation(nodes, workloads, profile="balanced", **run):
    return simulate(nodes, workloads, SimulationOptions(PRESETS[profile], **run))


def near(app, key="node"):
    return {
        "affinity": {
            "workload": {"required": [{"selector": {"matchLabels": {"app": app}}, "topologyKey": key}]}
        }
    }


def reasons(report):
    return {name: item.reason for item in report.unschedulable for name in item.names}


def with_gpus(name, count=1, **more):
    status = {
        "capacity": {"cpu": 4000, "memory": 32 * GIB, "gpu": 1000 * count},
        "gpus": [{"model": "t4"}] * count,
    }
    return an_offline_node(name, status=status, **more)


def warnings_of(report):
    return [f"{warning.kind} {warning.name} {warning.message}" for warning in report.warnings]


def needing(name, *others, **more):
    return an_offline_workload(
        name,
        labels={"app": name},
        constraints={
            "affinity": {
                "workload": {
                    "required": [
                        {"selector": {"matchLabels": {"app": other}}, "topologyKey": "node"}
                        for other in others
                    ]
                }
            }
        },
        **more,
    )
