"""LatticeWorkload: what is one replica to do, where is it bound, and how is it?"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraint import Constraints
from lattice.kinds.container import (
    Container,
    Disconnect,
    Quantities,
    container_problems,
    limit_problems,
    parse_amounts,
    total_amounts,
    total_limit_problems,
)
from lattice.kinds.meta.base import Column, Kind, OpaqueJson, Part, Resource, Status
from lattice.kinds.meta.selector import dns_label_problem

EVICTED = "Leaving"  # the condition of a workload that was told to make room for another

DesiredState = Literal["Running", "Stopped", "Deleted"]
ActualState = Literal["Pending", "Starting", "Running", "Stopped", "Failed", "Unknown"]
Count = Annotated[int, Meta(ge=0)]
WORKLOAD_FINALIZER = "lattice.dev/workload"  # the record stays until its node has let go of it
RETRY_REQUESTED_ANNOTATION = (
    "lattice.dev/retry-requested"  # annotation: a person wants it tried again, and when that was said
)


class WorkloadGroup(Part):
    """Workloads that start together or not at all."""

    name: Annotated[str, Meta(min_length=1, description="Name of the group, in this namespace.")]
    min_member: Annotated[int, Meta(ge=1, description="None of them is bound until so many fit at once.")]


class WorkloadSpec(Part):
    """What one replica runs and what it needs."""

    containers: Annotated[dict[str, Container], Meta(description="Programs, by name.")]
    service: Annotated[
        str, Meta(description="LatticeService that it is a replica of; empty for a workload of its own.")
    ] = ""
    slot: Annotated[
        int, Meta(ge=0, description="Its place among the replicas of the service; stays when it is replaced.")
    ] = 0
    desired_state: Annotated[
        DesiredState, Meta(description="What should become of it; Running by default.")
    ] = "Running"
    revision: Annotated[
        str,
        Meta(pattern="^([0-9a-f]{24})?$", description="First 24 hex digits of the SHA-256 of what it runs."),
    ] = ""
    cluster: Annotated[
        str, Meta(description="LatticeCluster whose nodes it may use; empty means any node.")
    ] = ""
    requests: Annotated[
        Quantities,
        Meta(
            description='Kept free for it by resource name, such as cpu "500m"; counts only if no container states requests.'
        ),
    ] = {}
    limits: Annotated[
        Quantities,
        Meta(description="More than this it never gets; counts only if no container states limits."),
    ] = {}
    priority: Annotated[
        int,
        Meta(
            ge=-1_000_000_000,
            le=1_000_000_000,
            description="Higher ones go first and may displace lower ones; 0.",
        ),
    ] = 0
    group: Annotated[WorkloadGroup, Meta(description="Workloads that it starts together with.")] | None = None
    constraints: Annotated[
        Constraints, Meta(description="What besides room decides which nodes it may use.")
    ] = Constraints()
    disconnect: Annotated[Disconnect, Meta(description="What becomes of it when its node is cut off.")] = (
        Disconnect()
    )

    @property
    def request_amounts(self) -> dict[str, int]:
        """Milli-cores, bytes, milli-GPUs and counts: the sum over its containers, if any of them states requests, else its own."""
        return (
            total_amounts(self.containers, "requests")
            if self.containers_declare("requests")
            else parse_amounts(self.requests)
        )

    @property
    def limit_amounts(self) -> dict[str, int]:
        return (
            total_amounts(self.containers, "limits")
            if self.containers_declare("limits")
            else parse_amounts(self.limits)
        )

    @property
    def effective_revision(self) -> str:
        """Revision of what it runs: the one that is given, else made from what it runs."""
        return self.revision or compute_revision(self)

    def containers_declare(self, part: Literal["requests", "limits"]) -> bool:
        return any(getattr(container.resources, part, {}) for container in self.containers.values())


def compute_revision(spec: WorkloadSpec) -> str:
    """Another one whenever what runs is another; neither its desired state nor where it may go changes it."""
    runnable = (spec.containers, spec.requests, spec.limits, spec.disconnect)
    return sha256(msgspec.json.encode(runnable, order="deterministic")).hexdigest()[:24]


class Binding(Part):
    """The node it was given, and by which leader."""

    node: Annotated[str, Meta(description="Name of the LatticeNode.")]
    uid: Annotated[
        str, Meta(description="uid of the node: one that came back under the same name is another.")
    ] = ""
    term: Annotated[int, Meta(ge=0, description="Leadership term that bound it.")] = 0


class Retry(Part):
    """How often it failed and when it is tried again."""

    attempts: Annotated[int, Meta(ge=0, description="Failures so far.")] | None = None
    max: Annotated[int, Meta(ge=0, description="So many failures end it.")] | None = None
    next_at: Annotated[str, Meta(description="Not tried again before this time.")] | None = None
    final: Annotated[
        bool,
        Meta(description="Whether it has failed for good after fewer, since trying again would not help."),
    ] = False
    revision: Annotated[
        str, Meta(description="Revision that this counts the failures of; another begins anew.")
    ] = ""
    run: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="Number of the start that it is for: grows with each, and a node starts each once.",
            ),
        ]
        | None
    ) = None

    @property
    def is_exhausted(self) -> bool:
        """It has failed for good, by the rules of then."""
        return self.final or (self.max is not None and (self.attempts or 0) >= self.max)


class WorkloadStatus(Status):
    """Where it is bound and how it is."""

    binding: Annotated[Binding, Meta(description="The node it was given.")] | None = None
    actual_state: Annotated[ActualState, Meta(description="What it is doing, as its node says.")] = "Pending"
    ready: Annotated[bool, Meta(description="Whether it runs and answers its readiness probe.")] | None = None
    applied_revision: Annotated[str, Meta(description="Revision that its node really runs.")] = ""
    strict: Annotated[
        bool,
        Meta(description="Whether its node ends that revision when it hears nothing of the control plane."),
    ] = False
    allocated_ports: Annotated[
        dict[str, Count], Meta(description="Port numbers on the node, by name of the port.")
    ] = {}
    retry: Annotated[Retry, Meta(description="How often it failed and when it is tried again.")] | None = None
    failure_reason: Annotated[
        str, Meta(description="Why it failed last, as one word such as IMAGE_NOT_FOUND.")
    ] = ""
    failure_message: Annotated[
        str, Meta(description="How that was, in its node's words, such as its exit code or the signal.")
    ] = ""
    state_since: Annotated[str, Meta(description="When it began to do that.")] | None = None
    last_action: Annotated[str, Meta(description="What was last done about it.")] = ""
    last_action_at: Annotated[str, Meta(description="When that was done.")] | None = None
    last_log: Annotated[str, Meta(description="Last lines that it printed.")] = ""
    decision: Annotated[
        OpaqueJson,
        Meta(description="Why this node: the best ones, counts per reason, hash of the input; at most 2 KB."),
    ] = {}


class LatticeWorkload(Kind):
    """One replica on one node. Lattice makes them for services; one without a service is yours to make."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeWorkload",
        plural="latticeworkloads",
        short_names=("lw",),
        categories=("lattice", "all"),
        namespaced=True,
        managed_hint="this workload belongs to a service: change the LatticeService instead, or make a workload of your own without an owner",
        columns=(
            Column("Service", ".spec.service"),
            Column("State", ".status.actualState"),
            Column("Ready", ".status.ready", "boolean"),
            Column("Node", ".status.binding.node"),
            Column("Attempts", ".status.retry.attempts", "integer"),
            Column("Reason", ".status.failureReason"),
            Column("How", ".status.failureMessage", priority=1),
            Column("Desired", ".spec.desiredState", priority=1),
            Column("Cluster", ".spec.cluster", priority=1),
            Column("Revision", ".spec.revision", priority=1),
        ),
    )

    spec: WorkloadSpec
    status: WorkloadStatus = WorkloadStatus()

    def problems(self) -> Iterator[Cause]:
        spec = self.spec
        wrong_alone = [
            *container_problems(spec.containers, "spec.containers"),
            *limit_problems(spec.requests, spec.limits, "spec"),
        ]
        yield from wrong_alone
        if not wrong_alone:
            whose = "spec.containers" if spec.containers_declare("requests") else "spec.requests"
            yield from total_limit_problems(spec.request_amounts, spec.limit_amounts, whose)
        yield from spec.constraints.problems("spec.constraints")
        yield from spec.disconnect.problems("spec.disconnect")
        yield from self._spread_problems()
        if spec.group and (wrong := dns_label_problem(spec.group.name)):
            yield Cause("spec.group.name", wrong)

    def _spread_problems(self) -> Iterator[Cause]:
        for index, spread in enumerate(self.spec.constraints.spread):
            if spread.selector is None and not self.spec.service:
                what = "must be given, since the workload has no service whose replicas could be counted"
                yield Cause(f"spec.constraints.spread[{index}].selector", what, "FieldValueRequired")


class DesiredRun(NamedTuple):
    """Running or Stopped, which revision, and the number of the start."""

    state: Literal["Running", "Stopped"]
    revision: str
    run: int
