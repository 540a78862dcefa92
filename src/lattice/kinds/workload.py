"""LatticeWorkload: one replica, the node that it is bound to, and its state."""

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraints import Constraints
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
from lattice.kinds.meta.timestamps import parse_timestamp

# Condition of a workload that the scheduler preempts. The stored name is "Leaving".
EVICTED = "Leaving"

# Label of the replicas of a service: the name of the service.
SERVICE_LABEL = "lattice.dev/service"

DesiredState = Literal["Running", "Stopped", "Deleted"]
ActualState = Literal["Pending", "Starting", "Running", "Stopped", "Failed", "Unknown", "Succeeded"]
RestartPolicy = Literal["Always", "OnFailure", "Never"]
Count = Annotated[int, Meta(ge=0)]
# Finalizer of a workload: the object stays until the node has released the workload.
WORKLOAD_FINALIZER = "lattice.dev/workload"
# Condition of a workload: whether the scheduler has bound it to a node.
SCHEDULED_CONDITION = "Scheduled"
# Reason of the condition Scheduled of an unschedulable workload.
NO_NODE_FITS = "NoNodeFits"
# Condition of a workload that is reported as failed: it used up its attempts, or no restart can help.
FAILED_CONDITION = "Failed"
# Time at which a user or an automation rule requested a restart of the failed workload.
RETRY_REQUESTED_ANNOTATION = "lattice.dev/retry-requested"


class WorkloadGroup(Part):
    """A gang: workloads that are scheduled together or not at all."""

    name: Annotated[str, Meta(min_length=1, description="Name of the group, in this namespace.")]
    min_member: Annotated[
        int, Meta(ge=1, description="Minimum number of workloads that must fit together before any is bound.")
    ]


class WorkloadSpec(Part):
    """Containers of one replica, and their requirements."""

    containers: Annotated[dict[str, Container], Meta(description="Containers, by name.")]
    service: Annotated[
        str, Meta(description="LatticeService of the replica; empty for a workload without a service.")
    ] = ""
    slot: Annotated[
        int,
        Meta(
            ge=0, description="Number of the replica within the service; a replacement has the same number."
        ),
    ] = 0
    desired_state: Annotated[DesiredState, Meta(description="Desired state; Running by default.")] = "Running"
    restart_policy: Annotated[
        RestartPolicy,
        Meta(
            description=(
                "When Lattice runs the containers again after they have ended. Always (the default): always. "
                "OnFailure: unless the exit code is 0; the state is then Succeeded. Never: a program that has "
                "started is not started again; exit code 0 is Succeeded, everything else is Failed."
            )
        ),
    ] = "Always"
    revision: Annotated[
        str,
        Meta(
            pattern="^([0-9a-f]{24})?$",
            description=(
                "First 24 hex digits of the SHA-256 of containers, requests, limits and disconnect policy."
            ),
        ),
    ] = ""
    cluster: Annotated[
        str, Meta(description="LatticeCluster whose nodes the workload may use; empty means any node.")
    ] = ""
    requests: Annotated[
        Quantities,
        Meta(
            description=(
                'Amounts reserved for the workload, by resource name, such as cpu "500m"; used only '
                "if no container states requests."
            )
        ),
    ] = {}
    limits: Annotated[
        Quantities,
        Meta(
            description="Largest amounts that the workload may use; used only if no container states limits."
        ),
    ] = {}
    priority: Annotated[
        int,
        Meta(
            ge=-1_000_000_000,
            le=1_000_000_000,
            description=(
                "Workloads of higher priority go first and may preempt workloads of lower priority; "
                "0 by default."
            ),
        ),
    ] = 0
    group: (
        Annotated[
            WorkloadGroup, Meta(description="Gang of the workload: workloads that are scheduled together.")
        ]
        | None
    ) = None
    constraints: Annotated[
        Constraints,
        Meta(description="Rules besides free capacity that decide which nodes the workload may use."),
    ] = Constraints()
    disconnect: Annotated[
        Disconnect,
        Meta(
            description="What happens to the replica when its node loses the connection to the control plane."
        ),
    ] = Disconnect()

    @property
    def request_amounts(self) -> dict[str, int]:
        """Milli-cores, bytes, milli-GPUs and counts: the total of the containers if any container states
        requests, else `requests`."""
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
        """The stated revision, or else the revision computed from the spec."""
        return self.revision or compute_revision(self)

    def containers_declare(self, part: Literal["requests", "limits"]) -> bool:
        return any(getattr(container.resources, part, {}) for container in self.containers.values())


def compute_revision(spec: WorkloadSpec) -> str:
    """Digest of the containers, requests, limits and disconnect policy; desired state and constraints do not
    change it."""
    runnable = (spec.containers, spec.requests, spec.limits, spec.disconnect)
    return sha256(msgspec.json.encode(runnable, order="deterministic")).hexdigest()[:24]


class ReservationRecord(Part):
    """Resources of a node that are reserved for the workload until it is bound, or until a time."""

    id: Annotated[str, Meta(description="Name of the reservation; the binding states the same name.")]
    node: Annotated[str, Meta(description="Name of the LatticeNode.")]
    uid: Annotated[str, Meta(description="uid of the node.")]
    until: Annotated[
        str,
        Meta(
            description="Time after which the scheduler cancels the reservation unless the workload is bound."
        ),
    ]
    gang: Annotated[
        str,
        Meta(
            description=(
                "Name of the attempt that binds the members of a gang in several commits; empty for a "
                "workload that one commit binds."
            )
        ),
    ] = ""
    lead: Annotated[
        str,
        Meta(
            description=(
                "Member, as namespace/name, whose binding decides the attempt: once this member is bound, "
                "Lattice also binds the others; until then, the attempt can be cancelled."
            )
        ),
    ] = ""

    def is_expired(self, now: datetime) -> bool:
        return now >= parse_timestamp(self.until)


class Binding(Part):
    """The node of the workload, and the leadership term and reservation that bound it."""

    node: Annotated[str, Meta(description="Name of the LatticeNode.")]
    uid: Annotated[
        str, Meta(description="uid of the node; a later node with the same name has another uid.")
    ] = ""
    term: Annotated[int, Meta(ge=0, description="Leadership term in which the workload was bound.")] = 0
    reservation: Annotated[str, Meta(description="Name of the reservation that this binding fulfils.")] = ""
    gang: Annotated[
        str,
        Meta(
            description=(
                "Name of the attempt that bound the members of a gang in several commits; empty for a "
                "workload that one commit bound."
            )
        ),
    ] = ""


class Retry(Part):
    """Failures so far, and the time of the next attempt."""

    attempts: Annotated[int, Meta(ge=0, description="Failures so far.")] | None = None
    max: (
        Annotated[
            int,
            Meta(
                ge=0,
                description=(
                    "Number of failures after which the workload is reported as failed. Without a service, the "
                    "workload is then not restarted."
                ),
            ),
        ]
        | None
    ) = None
    next_at: Annotated[str, Meta(description="Time before which the workload is not restarted.")] | None = (
        None
    )
    final: Annotated[
        bool,
        Meta(
            description=(
                "true: the workload failed permanently before it reached `max` failures, because a restart "
                "would not help."
            )
        ),
    ] = False
    succeeded: Annotated[
        bool,
        Meta(description="true: the run ended with exit code 0 and, by the restart policy, is not repeated."),
    ] = False
    revision: Annotated[
        str, Meta(description="Revision whose failures are counted; a new revision starts from 0.")
    ] = ""
    run: (
        Annotated[
            int,
            Meta(
                ge=0,
                description=(
                    "Number of the run. Each start of the workload is a new run with a higher number; a node "
                    "starts each run once."
                ),
            ),
        ]
        | None
    ) = None

    @property
    def has_failed(self) -> bool:
        """Whether the workload is reported as failed. `max` is the limit that was stored with the last
        failure; a later change of the setting counts only in `lifecycle.retry.is_exhausted`, which decides
        whether the workload is restarted."""
        return self.final or (self.max is not None and (self.attempts or 0) >= self.max)


class WorkloadStatus(Status):
    """Node and state of the workload."""

    binding: Annotated[Binding, Meta(description="Node of the workload.")] | None = None
    reservation: (
        Annotated[
            ReservationRecord,
            Meta(description="Node that is reserved for the workload, in two-phase binding and for gangs."),
        ]
        | None
    ) = None
    actual_state: Annotated[ActualState, Meta(description="Current state, as the node reports it.")] = (
        "Pending"
    )
    ready: (
        Annotated[bool, Meta(description="Whether the workload runs and passes its readiness probe.")] | None
    ) = None
    applied_revision: Annotated[str, Meta(description="Revision that the node runs.")] = ""
    strict: Annotated[
        bool,
        Meta(
            description=(
                "Whether the node stops this revision when it loses the connection to the control plane."
            )
        ),
    ] = False
    qos_class: Annotated[
        str,
        Meta(
            description=(
                "Quality-of-service class, from requests and limits: Guaranteed, Burstable or BestEffort. It "
                "decides which workload a node under pressure ends first. Set when the workload is bound."
            )
        ),
    ] = ""
    allocated_ports: Annotated[
        dict[str, Count], Meta(description="Port numbers on the node, by name of the port.")
    ] = {}
    allocated_gpus: Annotated[
        tuple[Count, ...], Meta(description="GPUs of the node that the workload may use, by index from 0.")
    ] = ()
    retry: Annotated[Retry, Meta(description="Failures so far, and the time of the next attempt.")] | None = (
        None
    )
    failure_reason: Annotated[
        str, Meta(description="Reason of the last failure, as one word such as IMAGE_NOT_FOUND.")
    ] = ""
    failure_message: Annotated[
        str,
        Meta(description="Details of the last failure from the node, such as the exit code or the signal."),
    ] = ""
    last_exit_code: (
        Annotated[
            int,
            Meta(
                description=(
                    "Exit code of the last run that ended; 128 plus the number of the signal that ended it. "
                    "Absent if no run ended, or if the code is unknown."
                )
            ),
        ]
        | None
    ) = None
    restarts: (
        Annotated[
            int, Meta(ge=0, description="Number of restarts after failures; a replacement starts from 0.")
        ]
        | None
    ) = None
    state_since: Annotated[str, Meta(description="Time at which the current state began.")] | None = None
    last_action: Annotated[str, Meta(description="Last action of Lattice on the workload.")] = ""
    last_action_at: Annotated[str, Meta(description="Time of the last action.")] | None = None
    last_log: Annotated[str, Meta(description="Last lines of the log.")] = ""
    decision: Annotated[
        OpaqueJson,
        Meta(
            description=(
                "Decision record: the best candidates, rejections per reason, hash of the input; at "
                "most 2 KB."
            )
        ),
    ] = {}


class LatticeWorkload(Kind):
    """One replica on one node. Lattice creates workloads for services; users may create workloads without a
    service."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeWorkload",
        plural="latticeworkloads",
        short_names=("lw",),
        categories=("lattice", "all"),
        namespaced=True,
        managed_hint=(
            "this workload belongs to a service: change the LatticeService instead, or create a "
            "workload without an owner"
        ),
        columns=(
            Column("Service", ".spec.service"),
            Column("State", ".status.actualState"),
            Column("Ready", ".status.ready", "boolean"),
            Column("Node", ".status.binding.node"),
            Column("Restarts", ".status.restarts", "integer"),
            # The last failure of a workload that is ready again is history.
            Column("Reason", ".status.failureReason", unless=".status.ready"),
            Column("How", ".status.failureMessage", priority=1, unless=".status.ready", max_chars=60),
            Column("Attempts", ".status.retry.attempts", "integer", 1),
            Column("Exit", ".status.lastExitCode", "integer", 1),
            Column("Desired", ".spec.desiredState", priority=1),
            Column("Cluster", ".spec.cluster", priority=1),
            Column("Revision", ".spec.revision", priority=1),
            Column("QoS", ".status.qosClass", priority=1),
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
        # Totals need amounts that can be parsed.
        if not wrong_alone:
            requests_path = "spec.containers" if spec.containers_declare("requests") else "spec.requests"
            yield from total_limit_problems(spec.request_amounts, spec.limit_amounts, requests_path)
        yield from spec.constraints.problems("spec.constraints")
        yield from spec.disconnect.problems("spec.disconnect")
        for index, spread in enumerate(spec.constraints.spread):
            # By default a spread counts the replicas of the service.
            if spread.selector is None and not spec.service:
                problem = "is required, because the workload has no service whose replicas could be counted"
                yield Cause(f"spec.constraints.spread[{index}].selector", problem, "FieldValueRequired")
        if spec.group and (wrong := dns_label_problem(spec.group.name)):
            yield Cause("spec.group.name", wrong)


def service_path(workload: LatticeWorkload) -> str:
    """Path of the workload's service; empty for a workload without a service."""
    return f"{workload.metadata.namespace}/{workload.spec.service}" if workload.spec.service else ""


class DesiredRun(NamedTuple):
    """The state to which the node should bring the workload, the revision of the template, and the number of
    the run."""

    state: Literal["Running", "Stopped"]
    revision: str
    run: int
