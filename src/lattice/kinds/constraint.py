"""What may keep a replica off a node, or draw it there: taints, affinity, spread, volumes."""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_MAP_BY_NAME, LIST_SET, Part
from lattice.kinds.meta.selector import (
    LabelSelector,
    Requirement,
    label_key_problem,
    label_problems,
    label_value_problem,
)

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Weight = Annotated[
    int, Meta(ge=1, le=100, description="How much it counts against other preferences, 1 to 100.")
]


class Taint(Part):
    """A mark on a node that keeps replicas away unless they tolerate it."""

    key: Annotated[str, Meta(description="Name of the mark, in the form of a label key.")]
    effect: Annotated[
        TaintEffect,
        Meta(
            description="NoSchedule keeps new replicas away, PreferNoSchedule lowers the score of the node, NoExecute also evicts."
        ),
    ]
    value: Annotated[str, Meta(description="Value of the mark.")] = ""

    def problems(self, path: str) -> Iterator[Cause]:
        if wrong := label_key_problem(self.key):
            yield Cause(f"{path}.key", wrong)
        if wrong := label_value_problem(self.value):
            yield Cause(f"{path}.value", wrong)


class Toleration(Part):
    """A taint that a replica puts up with."""

    key: Annotated[
        str, Meta(description="Key of the taint; empty together with Exists tolerates every taint.")
    ] = ""
    operator: Annotated[
        Literal["Equal", "Exists"],
        Meta(description="Equal (the default) compares the value as well, Exists only the key."),
    ] = "Equal"
    value: Annotated[str, Meta(description="Value of the taint, for Equal.")] = ""
    effect: (
        Annotated[TaintEffect, Meta(description="Effect that is tolerated; absent means all of them.")] | None
    ) = None
    toleration_seconds: (
        Annotated[
            int, Meta(ge=0, description="How long a NoExecute taint is put up with; absent means for ever.")
        ]
        | None
    ) = None

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in (None, taint.effect):
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return (self.key, self.value) == (taint.key, taint.value)

    def problems(self, path: str) -> Iterator[Cause]:
        if self.key and (wrong := label_key_problem(self.key)):
            yield Cause(f"{path}.key", wrong)
        if not self.key and self.operator == "Equal":
            yield Cause(
                f"{path}.key",
                "must be given for operator Equal; only Exists may leave it out",
                "FieldValueRequired",
            )
        if self.value and self.operator == "Exists":
            yield Cause(f"{path}.value", f'must be empty for operator Exists, got "{self.value}"')
        if self.toleration_seconds is not None and self.effect not in (None, "NoExecute"):
            yield Cause(f"{path}.tolerationSeconds", f"applies to NoExecute only, got effect {self.effect}")


class Spread(Part):
    """How evenly the replicas of one service are laid out."""

    topology_key: Annotated[
        str,
        Meta(
            description="What to spread over: region, zone, provider, pool, cluster, node, or the key of a node label."
        ),
    ]
    max_skew: Annotated[
        int,
        Meta(
            ge=1, description="Largest allowed difference between the fullest and the emptiest; 1 by default."
        ),
    ] = 1
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"],
        Meta(description="DoNotSchedule (the default) makes it a demand, ScheduleAnyway a preference."),
    ] = "DoNotSchedule"
    selector: (
        Annotated[
            LabelSelector,
            Meta(description="Which workloads are counted; absent means those of the same service."),
        ]
        | None
    ) = None

    def problems(self, path: str) -> Iterator[Cause]:
        if wrong := label_key_problem(self.topology_key):
            yield Cause(f"{path}.topologyKey", wrong)
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class NodeTerm(Part):
    """Demands on the labels of a node that must all hold."""

    match_expressions: Annotated[
        tuple[Requirement, ...], Meta(description="Demands on node labels, Gt and Lt included.")
    ]

    def matches(self, labels: dict[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.match_expressions)

    def problems(self, path: str) -> Iterator[Cause]:
        for index, requirement in enumerate(self.match_expressions):
            yield from requirement.problems(f"{path}.matchExpressions[{index}]", numeric=True)


class PreferredNodes(Part):
    """Nodes that are liked, and how much."""

    weight: Weight
    term: Annotated[NodeTerm, Meta(description="Which nodes.")]


class NodeAffinity(Part):
    """Which nodes a replica needs or likes, by label."""

    required: Annotated[
        tuple[NodeTerm, ...], Meta(description="The node must match at least one of these.")
    ] = ()
    preferred: Annotated[tuple[PreferredNodes, ...], Meta(description="Matching nodes score higher.")] = ()

    def problems(self, path: str) -> Iterator[Cause]:
        for index, term in enumerate(self.required):
            yield from term.problems(f"{path}.required[{index}]")
        for index, liked in enumerate(self.preferred):
            yield from liked.term.problems(f"{path}.preferred[{index}].term")


class WorkloadTerm(Part):
    """Other workloads, and how near counts as near."""

    selector: Annotated[
        LabelSelector, Meta(description="Labels of the other workloads, in the same namespace.")
    ]
    topology_key: Annotated[
        str, Meta(description="Near means: the same value of this, such as node, zone or a node label key.")
    ]

    def problems(self, path: str) -> Iterator[Cause]:
        yield from self.selector.problems(f"{path}.selector")
        if wrong := label_key_problem(self.topology_key):
            yield Cause(f"{path}.topologyKey", wrong)


class PreferredWorkloads(Part):
    """Neighbours that are liked or disliked, and how much."""

    weight: Weight
    term: Annotated[WorkloadTerm, Meta(description="Which neighbours.")]


class WorkloadAffinity(Part):
    """Which neighbours a replica needs or likes; in the anti form, which ones it must or would rather not have."""

    required: Annotated[tuple[WorkloadTerm, ...], Meta(description="All of these must hold.")] = ()
    preferred: Annotated[tuple[PreferredWorkloads, ...], Meta(description="These only move the score.")] = ()

    def problems(self, path: str) -> Iterator[Cause]:
        for index, term in enumerate(self.required):
            yield from term.problems(f"{path}.required[{index}]")
        for index, liked in enumerate(self.preferred):
            yield from liked.term.problems(f"{path}.preferred[{index}].term")


class Affinity(Part):
    """What a replica wants to be near to, or far from."""

    node: Annotated[NodeAffinity, Meta(description="By labels of the node.")] | None = None
    workload: Annotated[WorkloadAffinity, Meta(description="By workloads that should be near.")] | None = None
    anti_workload: (
        Annotated[WorkloadAffinity, Meta(description="By workloads that should be far.")] | None
    ) = None

    def problems(self, path: str) -> Iterator[Cause]:
        if self.node:
            yield from self.node.problems(f"{path}.node")
        if self.workload:
            yield from self.workload.problems(f"{path}.workload")
        if self.anti_workload:
            yield from self.anti_workload.problems(f"{path}.antiWorkload")


class Volume(Part):
    """Storage that a replica is tied to."""

    name: Annotated[str, Meta(description="Name of the volume.")]
    zone: Annotated[
        str, Meta(description="Zone that the volume lives in; the node must be in the same one.")
    ] = ""
    region: Annotated[str, Meta(description="Region that the volume lives in, if no zone is known.")] = ""


class MachineImage(Part):
    """Which images of the machine will do."""

    pattern: Annotated[
        str, Meta(description="What its name must look like; * stands for anything, as in CML-2.9.*.")
    ] = ""
    min_version: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]+(\.[0-9]+)*)?$", description="Lowest version, the number in the image's name."
        ),
    ] = ""


class Constraints(Part):
    """Everything besides room that decides which nodes a workload may use."""

    node_selector: Annotated[
        dict[str, str],
        Meta(
            description="Labels that the node must have with exactly these values; node, zone, region, provider, pool and cluster "
            "are taken from the node's name and spec, and win over labels of the same key."
        ),
    ] = {}
    affinity: (
        Annotated[Affinity, Meta(description="Nodes and neighbours to be near to or far from.")] | None
    ) = None
    tolerations: Annotated[tuple[Toleration, ...], Meta(description="Taints that it puts up with.")] = ()
    spread: Annotated[
        tuple[Spread, ...], Meta(description="How evenly replicas of the same service are laid out.")
    ] = ()
    volumes: Annotated[
        tuple[Volume, ...], LIST_MAP_BY_NAME, Meta(description="Volumes that tie it to a zone.")
    ] = ()
    gpu_models: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="GPU models that will do; none named means any.")
    ] = ()
    licences: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Licences of which the node must hold one; none named means none needed."),
    ] = ()
    machine_image: Annotated[MachineImage, Meta(description="Which machine images will do.")] | None = None

    def problems(self, path: str) -> Iterator[Cause]:
        yield from label_problems(self.node_selector, f"{path}.nodeSelector")
        if self.affinity:
            yield from self.affinity.problems(f"{path}.affinity")
        for index, toleration in enumerate(self.tolerations):
            yield from toleration.problems(f"{path}.tolerations[{index}]")
        for index, spread in enumerate(self.spread):
            yield from spread.problems(f"{path}.spread[{index}]")
