"""Nodes of joined machines: a cluster claims the node of a machine that a placement uses, and gives back the
node of an idle machine."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from lattice.controllers.runtime.event_recorder import EventRecorder
from lattice.controllers.runtime.object_writes import with_spec
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import NODE_CLASS_LABEL, LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.machines import ClusterNode
from lattice.placement.inputs.joined_machines import JOINED_CLASS_PREFIX
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.inventory import Cluster
from lattice.store.cache import Cache
from lattice.store.protocol import Write

CLUSTER_LABEL = "lattice.dev/cluster"
REGION_LABEL, ZONE_LABEL = "lattice.dev/region", "lattice.dev/zone"


def made_nodes(nodes: Sequence[LatticeNode]) -> list[LatticeNode]:
    """The nodes whose machines Lattice makes and removes."""
    return [node for node in nodes if not node.is_joined_machine]


def with_joined_machines(cluster: LatticeCluster, joined: Sequence[ClusterNode]) -> LatticeCluster:
    """The cluster with its joined machines among the desired machines, for its status: a joined machine that
    is not ready is missing."""
    desired = Counter(cluster.spec.nodes) + Counter(node.node_class for node in joined)
    return msgspec.structs.replace(cluster, spec=msgspec.structs.replace(cluster.spec, nodes=dict(desired)))


def claim_writes(
    fleet: Fleet, cluster: Cluster, nodes: Cache[LatticeNode], recorder: EventRecorder
) -> Iterator[Write]:
    """The writes that give the cluster the nodes of its joined machines in the fleet."""
    place = fleet.offers[cluster.offer_row].place
    for machine in cluster.machines:
        machine_type, name = fleet.machines.machine_type[machine], fleet.machines.names[machine]
        entry, node = nodes.entry(f"/{name}"), nodes.get(f"/{name}")
        if not machine_type.is_joined or entry is None or node is None or node.spec.cluster == cluster.name:
            continue
        spec = node.spec
        claimed = msgspec.structs.replace(
            spec,
            cluster=cluster.name,
            node_class=machine_type.name,
            provider=spec.provider or place.provider,
            region=spec.region or place.region,
            zone=spec.zone or place.zone,
        )
        labels = {
            CLUSTER_LABEL: cluster.name,
            NODE_CLASS_LABEL: machine_type.name,
            REGION_LABEL: claimed.region,
            ZONE_LABEL: claimed.zone,
        }
        yield with_spec(entry, claimed, metadata=partial(_with_labels, labels=labels))
        message = f"Cluster {cluster.name} uses the machine, as class {machine_type.name}"
        yield recorder.event(node, "NodeClaimed", message)


def release_writes(
    fleet: Fleet,
    cluster: str,
    nodes: Cache[LatticeNode],
    workloads: Cache[LatticeWorkload],
    recorder: EventRecorder,
) -> Iterator[Write]:
    """The writes that give back the joined machines of the cluster that the fleet counts elsewhere and on
    which no replica is bound. The caller must have waited for the caches of both kinds."""
    for node in nodes.by_index("cluster", cluster):
        name = node.metadata.name
        machine = fleet.machines.row_of.get(name)
        home = None if machine is None else fleet.machines.cluster[machine]
        entry = nodes.entry(f"/{name}")
        if not node.is_joined_machine or entry is None or node.metadata.deletion_timestamp:
            continue
        is_bound = any(workload.spec.service for workload in workloads.by_index("node", name))
        if is_bound or (home is not None and home.name == cluster):
            continue
        is_class_by_size = node.spec.node_class.startswith(JOINED_CLASS_PREFIX)
        released = msgspec.structs.replace(
            node.spec, cluster="", node_class="" if is_class_by_size else node.spec.node_class
        )
        labels = {CLUSTER_LABEL: "", NODE_CLASS_LABEL: released.node_class}
        yield with_spec(entry, released, metadata=partial(_with_labels, labels=labels))
        message = f"Cluster {cluster} no longer needs the machine; pool {node.spec.pool} keeps it"
        yield recorder.event(node, "NodeReleased", message)


def _with_labels(metadata: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """The metadata with the labels; an empty value removes the label."""
    merged = {key: value for key, value in {**metadata.get("labels", {}), **labels}.items() if value}
    return {**metadata, "labels": merged}
