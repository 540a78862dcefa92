"""Node objects of a cluster: their names, labels, and the object of a node whose agent has not joined yet."""

from dataclasses import dataclass

from lattice.controllers.runtime.object_writes import owner_reference
from lattice.kinds.cluster import RESERVE_LABEL, LatticeCluster
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import CLASS_GENERATION_ANNOTATION, NODE_CLASS_LABEL, LatticeNode, NodeSpec
from lattice.kinds.node_class import LatticeNodeClass
from lattice.store.cache import Cache

# The finalizer of a node whose machine may still exist.
MACHINE_FINALIZER = "lattice.dev/machine"


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The set of all node names, of any cluster."""

    nodes: Cache[LatticeNode]

    def __contains__(self, name: object) -> bool:
        return self.nodes.get(f"/{name}") is not None


def node_labels(node: LatticeNode, cluster: LatticeCluster) -> dict[str, str]:
    """The labels of a node, with the current reserve label of its cluster."""
    labels = {key: value for key, value in node.metadata.labels.items() if key != RESERVE_LABEL}
    return labels | {key: value for key, value in cluster.spec.labels.items() if key == RESERVE_LABEL}


def build_node(
    cluster: LatticeCluster, name: str, node_class: LatticeNodeClass | None, class_name: str
) -> LatticeNode:
    """The object of a node whose agent has not joined yet."""
    spec, resource = cluster.spec, LatticeNode.resource
    labels = {
        **(node_class.spec.labels if node_class else {}),
        **spec.labels,
        "lattice.dev/cluster": cluster.metadata.name,
        NODE_CLASS_LABEL: class_name,
        "lattice.dev/region": spec.region,
        "lattice.dev/zone": spec.zone,
    }
    return LatticeNode(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(
            name=name,
            labels={key: value for key, value in labels.items() if value},
            annotations={CLASS_GENERATION_ANNOTATION: str(node_class.metadata.generation)}
            if node_class
            else {},
            # Keeps the node until the provider has deleted the machine: a machine is paid until it is gone
            # (I-22).
            finalizers=(MACHINE_FINALIZER,),
            owner_references=(owner_reference(cluster),),
        ),
        spec=NodeSpec(
            cluster=cluster.metadata.name,
            pool=spec.pool,
            provider=spec.provider,
            region=spec.region,
            zone=spec.zone,
            node_class=class_name,
            taints=node_class.spec.taints if node_class else (),
            machine_image=node_class.spec.machine_image if node_class else "",
            licences=node_class.spec.licences if node_class else (),
        ),
    )
