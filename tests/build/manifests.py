"""Nodes and workloads as manifests, and manifests as text."""

import json
from pathlib import Path

import yaml

GIB = 1 << 30


def a_node_manifest(name="n1", cpu=4000, memory=32 * GIB, **spec):
    head = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": name}}
    return {**head, "spec": spec, "status": {"capacity": {"cpu": cpu, "memory": memory}}}


def a_workload_manifest(name="w1", cpu="1", namespace="shop", labels=None, **spec):
    head = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeWorkload"}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {
        **head,
        "metadata": metadata,
        "spec": {
            "containers": {"main": {"command": ["run"]}},
            "requests": {"cpu": cpu, "memory": "1Gi"},
            **spec,
        },
    }


def in_yaml(*objects):
    return yaml.safe_dump_all(objects)


def in_lines(*objects):
    return "".join(json.dumps(item) + "\n" for item in objects)


def changed(value, path, to):
    *above, last = path.split(".")
    inner = value
    for step in above:
        inner = inner[step]
    inner[last] = to
    return value


def manifest(kind, name, spec, **metadata):
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def write(path, *objects):
    Path(path).write_text(yaml.safe_dump_all(objects))
    return str(path)
