"""Builders of nodes and workloads for offline simulation."""

import msgspec

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.profile import PRESETS
from lattice.scheduling.offline.simulate import SimulationOptions, simulate

GIB = 1 << 30


def an_offline_node(name, cpu=4000, memory=32 * GIB, status=None, labels=None, **spec):
    value = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNode",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
    }
    value["status"] = {"capacity": {"cpu": cpu, "memory": memory}, **(status or {})}
    return msgspec.convert(value, LatticeNode)


def an_offline_workload(name, cpu="1", memory="1Gi", on="", labels=None, **spec):
    requests = {"cpu": cpu, "memory": memory, **spec.pop("requests", {})}
    value = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": {"main": {"command": ["run"]}}, "requests": requests, **spec},
    }
    if on:
        value["status"] = {"binding": {"node": on}}
    return msgspec.convert(value, LatticeWorkload)


def run_simulation(nodes, workloads, profile="balanced", **run):
    return simulate(nodes, workloads, SimulationOptions(PRESETS[profile], **run))


def near(app, key="node"):
    return {
        "affinity": {
            "workload": {"required": [{"selector": {"matchLabels": {"app": app}}, "topologyKey": key}]}
        }
    }


def reasons(report):
    return {name: each.reason for each in report.unschedulable for name in each.names}


def with_gpus(name, count=1, **more):
    status = {
        "capacity": {"cpu": 4000, "memory": 32 * GIB, "gpu": 1000 * count},
        "gpus": [{"model": "t4"}] * count,
    }
    return an_offline_node(name, status=status, **more)


def warnings_of(report):
    return [f"{each.kind} {each.name} {each.message}" for each in report.warnings]
