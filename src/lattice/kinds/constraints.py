"""Scheduling constraints of a workload: taints and tolerations, affinity, spread, volumes, machine images."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_MAP_BY_NAME, LIST_SET, Part
from lattice.kinds.meta.selector import (
    LabelSelector,
    Requirement,
    dns_label_problem,
    label_key_problem,
    label_problems,
    label_value_problem,
)

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Weight = Annotated[int, Meta(ge=1, le=100, description="Weight against other preferences, 1 to 100.")]


class Taint(Part):
    """A taint keeps replicas off a node unless they tolerate it."""

    key: Annotated[str, Meta(description="Key of the taint, in the form of a label key.")]
    effect: Annotated[
        TaintEffect,
        Meta(
            description=(
                "NoSchedule rejects new replicas, PreferNoSchedule lowers the score of the node, "
                "NoExecute also evicts running replicas."
            )
        ),
    ]
    value: Annotated[str, Meta(description="Value of the taint.")] = ""

    def problems(self, path: str) -> Iterator[Cause]:
        if wrong := label_key_problem(self.key):
            yield Cause(f"{path}.key", wrong)
        if wrong := label_value_problem(self.value):
            yield Cause(f"{path}.value", wrong)


class Toleration(Part):
    """A taint that a replica tolerates."""

    key: Annotated[
        str, Meta(description="Key of the taint; an empty key with operator Exists tolerates every taint.")
    ] = ""
    operator: Annotated[
        Literal["Equal", "Exists"],
        Meta(description="Equal (the default) compares the value as well, Exists only the key."),
    ] = "Equal"
    value: Annotated[str, Meta(description="Value of the taint, for Equal.")] = ""
    effect: (
        Annotated[TaintEffect, Meta(description="Effect that is tolerated; absent means all effects.")] | None
    ) = None
    toleration_seconds: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="How long the replica tolerates a NoExecute taint; absent means without limit.",
            ),
        ]
        | None
    ) = None

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in (None, taint.effect):
            return False
        if self.operator == "Exists":
            # An empty key tolerates every taint.
            return self.key in ("", taint.key)
        return (self.key, self.value) == (taint.key, taint.value)

    def problems(self, path: str) -> Iterator[Cause]:
        if self.key and (wrong := label_key_problem(self.key)):
            yield Cause(f"{path}.key", wrong)
        if not self.key and self.operator == "Equal":
            yield Cause(
                f"{path}.key",
                "is required for operator Equal; only Exists may omit it",
                "FieldValueRequired",
            )
        if self.value and self.operator == "Exists":
            yield Cause(f"{path}.value", f'must be empty for operator Exists, got "{self.value}"')
        # Only a NoExecute taint evicts, so only that effect has a time limit.
        if self.toleration_seconds is not None and self.effect not in (None, "NoExecute"):
            yield Cause(f"{path}.tolerationSeconds", f"applies to NoExecute only, got effect {self.effect}")


class Spread(Part):
    """How evenly the replicas of one service are distributed."""

    topology_key: Annotated[
        str,
        Meta(
            description=(
                "Domains to spread over: region, zone, provider, pool, cluster, node, or the key of "
                "a node label."
            )
        ),
    ]
    max_skew: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Largest allowed difference in replicas between the fullest and the emptiest domain; "
                "1 by default."
            ),
        ),
    ] = 1
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"],
        Meta(
            description=(
                "DoNotSchedule (the default) makes the rule a requirement, ScheduleAnyway a preference."
            )
        ),
    ] = "DoNotSchedule"
    selector: (
        Annotated[
            LabelSelector,
            Meta(description="Workloads that count; absent means the replicas of the same service."),
        ]
        | None
    ) = None

    def problems(self, path: str) -> Iterator[Cause]:
        if wrong := label_key_problem(self.topology_key):
            yield Cause(f"{path}.topologyKey", wrong)
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class NodeTerm(Part):
    """Requirements on the labels of a node; all must hold."""

    match_expressions: Annotated[
        tuple[Requirement, ...], Meta(description="Requirements on node labels; Gt and Lt are allowed.")
    ]

    def matches(self, labels: dict[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.match_expressions)

    def problems(self, path: str) -> Iterator[Cause]:
        for index, requirement in enumerate(self.match_expressions):
            yield from requirement.problems(f"{path}.matchExpressions[{index}]", numeric=True)


class PreferredNodes(Part):
    """Preferred nodes, and the weight of the preference."""

    weight: Weight
    term: Annotated[NodeTerm, Meta(description="Requirements that preferred nodes meet.")]


class NodeAffinity(Part):
    """Nodes that a replica requires or prefers, by label."""

    required: Annotated[
        tuple[NodeTerm, ...], Meta(description="The node must match at least one of these terms.")
    ] = ()
    preferred: Annotated[tuple[PreferredNodes, ...], Meta(description="Matching nodes score higher.")] = ()

    def problems(self, path: str) -> Iterator[Cause]:
        for index, term in enumerate(self.required):
            yield from term.problems(f"{path}.required[{index}]")
        for index, preference in enumerate(self.preferred):
            yield from preference.term.problems(f"{path}.preferred[{index}].term")


class WorkloadTerm(Part):
    """A set of workloads, and the topology domain in which they count as near."""

    selector: Annotated[LabelSelector, Meta(description="Labels of the workloads.")]
    topology_key: Annotated[
        str,
        Meta(
            description=(
                "Two workloads are near if their nodes have the same value of this key: node, zone "
                "or a node label key."
            )
        ),
    ]
    namespace: Annotated[
        str, Meta(description="Namespace of the workloads; the namespace of this workload if absent.")
    ] = ""

    def matches(self, namespace: str, labels: Mapping[str, str], owner_namespace: str) -> bool:
        """Whether a workload of the namespace with the labels matches the term of a workload in
        `owner_namespace`."""
        return namespace == (self.namespace or owner_namespace) and self.selector.matches(labels)

    def problems(self, path: str) -> Iterator[Cause]:
        if self.namespace and (wrong := dns_label_problem(self.namespace)):
            yield Cause(f"{path}.namespace", wrong)
        yield from self.selector.problems(f"{path}.selector")
        if wrong := label_key_problem(self.topology_key):
            yield Cause(f"{path}.topologyKey", wrong)


class PreferredWorkloads(Part):
    """Workloads to run near or away from, and the weight of the preference."""

    weight: Weight
    term: Annotated[WorkloadTerm, Meta(description="The workloads.")]


class WorkloadAffinity(Part):
    """Workloads that a replica must or should run near. In antiWorkload: workloads that a replica must or
    should run away from."""

    required: Annotated[tuple[WorkloadTerm, ...], Meta(description="Terms that must all hold.")] = ()
    preferred: Annotated[
        tuple[PreferredWorkloads, ...], Meta(description="Terms that only change the score.")
    ] = ()

    def problems(self, path: str) -> Iterator[Cause]:
        for index, term in enumerate(self.required):
            yield from term.problems(f"{path}.required[{index}]")
        for index, preference in enumerate(self.preferred):
            yield from preference.term.problems(f"{path}.preferred[{index}].term")


class Affinity(Part):
    """Nodes and workloads that a replica should run near, or away from."""

    node: Annotated[NodeAffinity, Meta(description="Affinity to nodes, by label.")] | None = None
    workload: Annotated[WorkloadAffinity, Meta(description="Workloads to run near.")] | None = None
    anti_workload: Annotated[WorkloadAffinity, Meta(description="Workloads to run away from.")] | None = None

    def problems(self, path: str) -> Iterator[Cause]:
        if self.node:
            yield from self.node.problems(f"{path}.node")
        if self.workload:
            yield from self.workload.problems(f"{path}.workload")
        if self.anti_workload:
            yield from self.anti_workload.problems(f"{path}.antiWorkload")


class Volume(Part):
    """Storage that binds a replica to a zone or region."""

    name: Annotated[str, Meta(description="Name of the volume.")]
    zone: Annotated[str, Meta(description="Zone of the volume; the node must be in the same zone.")] = ""
    region: Annotated[str, Meta(description="Region of the volume, if the zone is not known.")] = ""


class MachineImage(Part):
    """Machine images that the workload accepts."""

    pattern: Annotated[
        str, Meta(description="Pattern of the image name; * matches any text, as in CML-2.9.*.")
    ] = ""
    min_version: Annotated[
        str,
        Meta(pattern=r"^([0-9]+(\.[0-9]+)*)?$", description="Lowest accepted version, as in the image name."),
    ] = ""


class PlannedNodes(Part):
    """The nodes that placement counts for the replicas of a service. The scheduler prefers to keep to them, since
    further nodes were bought for services that must not share a node with this service."""

    count: Annotated[int, Meta(ge=1, description="Number of nodes that the replicas use.")]
    shared_with: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Services, as namespace/name, whose replicas use the same nodes."),
    ] = ()
    per_node: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Largest number of replicas on one node, so that the replicas that must share the node fit; "
                "0: no limit."
            ),
        ),
    ] = 0


class Constraints(Part):
    """Everything besides free capacity that decides which nodes a workload may use."""

    node_selector: Annotated[
        dict[str, str],
        Meta(
            description=(
                "Labels that the node must have with exactly these values. The keys node, zone, "
                "region, provider, pool and cluster come from the node's name and spec, and override "
                "labels with the same key."
            )
        ),
    ] = {}
    affinity: (
        Annotated[Affinity, Meta(description="Nodes and workloads to run near or away from.")] | None
    ) = None
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(description="Taints that the workload tolerates.")
    ] = ()
    spread: Annotated[
        tuple[Spread, ...], Meta(description="How evenly replicas of the same service are distributed.")
    ] = ()
    volumes: Annotated[
        tuple[Volume, ...], LIST_MAP_BY_NAME, Meta(description="Volumes that bind the workload to a zone.")
    ] = ()
    gpu_models: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Accepted GPU models; empty means any model.")
    ] = ()
    licences: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(
            description=(
                "Licences of which the node must hold at least one; empty means that no licence is needed."
            )
        ),
    ] = ()
    machine_image: Annotated[MachineImage, Meta(description="Accepted machine images.")] | None = None
    planned_nodes: (
        Annotated[
            PlannedNodes,
            Meta(
                description=(
                    "Nodes that placement counts for the replicas of the service in this cluster and class; "
                    "stated by Lattice where affinity decides which services share a node."
                )
            ),
        ]
        | None
    ) = None

    def problems(self, path: str) -> Iterator[Cause]:
        yield from label_problems(self.node_selector, f"{path}.nodeSelector")
        if self.affinity:
            yield from self.affinity.problems(f"{path}.affinity")
        for index, toleration in enumerate(self.tolerations):
            yield from toleration.problems(f"{path}.tolerations[{index}]")
        for index, spread in enumerate(self.spread):
            yield from spread.problems(f"{path}.spread[{index}]")
