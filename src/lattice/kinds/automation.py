"""AutomationRule: a trigger, and the actions that Lattice takes when an object crosses the threshold."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    number_problems,
    parse_millis,
    quantity_problems,
    share_to_millionths,
    threshold_problems,
)
from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.webhook import Webhook

TRIGGER_FIELDS = ("node_cpu", "workload_failures", "budget", "capacity")
# The controller writes the effects of all actions on one object in one commit, so the number is limited.
MAX_ACTIONS_PER_RULE = 16
ACTION_FIELDS = ("webhook", "event", "retry_workload", "set_desired_state")


class NodeCpu(Part):
    """Fires when the CPU usage of a node stays above a threshold."""

    above: Annotated[
        Amount,
        Meta(description="Share of the cores in use above which the rule fires: 0.85, or 85 for 85 percent."),
    ]
    for_: Annotated[
        str,
        Meta(
            description=(
                'How long the usage must stay above the threshold, such as "5m"; absent means that '
                "the rule fires immediately."
            )
        ),
    ] = msgspec.field(name="for", default="0")
    selector: (
        Annotated[LabelSelector, Meta(description="Labels of the nodes to watch; absent means all nodes.")]
        | None
    ) = None

    @property
    def above_millionths(self) -> int:
        return share_to_millionths(self.above)

    @property
    def for_ms(self) -> int:
        return parse_millis(self.for_)

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)
        yield from quantity_problems(f"{path}.for", self.for_, parse_millis)
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class WorkloadFailures(Part):
    """Fires when a workload has failed several times in a row."""

    count: Annotated[int, Meta(ge=1, description="Number of failures in a row that fires the rule.")]
    selector: (
        Annotated[
            LabelSelector, Meta(description="Labels of the workloads to watch; absent means all workloads.")
        ]
        | None
    ) = None
    namespace: Annotated[str, Meta(description="Namespace to watch; absent means all namespaces.")] = ""

    def problems(self, path: str) -> Iterator[Cause]:
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class BudgetUse(Part):
    """Fires when the spending projected to the end of the month reaches a share of the budget."""

    above: Annotated[
        Amount, Meta(description="Share of the limit at which the rule fires: 0.9, or 90 for 90 percent.")
    ]
    ledger: Annotated[
        str,
        Meta(
            description="Name of the LatticeLedger to watch, such as pool.us-east; absent means all ledgers."
        ),
    ] = ""

    @property
    def above_millionths(self) -> int:
        return share_to_millionths(self.above)

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)


class CapacityUse(Part):
    """Fires when a pool uses a large share of its capacity. The scarcest of machines, cores and memory
    counts."""

    above: Annotated[
        Amount, Meta(description="Share of the capacity at which the rule fires: 0.9, or 90 for 90 percent.")
    ]
    pool: Annotated[str, Meta(description="Name of the LatticePool to watch; absent means all pools.")] = ""

    @property
    def above_millionths(self) -> int:
        return share_to_millionths(self.above)

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)


class Trigger(Part):
    """The condition that fires the rule, once per crossing: exactly one of these fields."""

    node_cpu: Annotated[NodeCpu, Meta(description="CPU usage of a node.")] | None = None
    workload_failures: (
        Annotated[WorkloadFailures, Meta(description="Failures of a workload in a row.")] | None
    ) = None
    budget: Annotated[BudgetUse, Meta(description="Projected spending of a budget.")] | None = None
    capacity: Annotated[CapacityUse, Meta(description="Capacity of a pool in use.")] | None = None

    def problems(self, path: str) -> Iterator[Cause]:
        yield from _exactly_one_problems(self, TRIGGER_FIELDS, path)
        if self.node_cpu:
            yield from self.node_cpu.problems(f"{path}.nodeCpu")
        if self.workload_failures:
            yield from self.workload_failures.problems(f"{path}.workloadFailures")
        if self.budget:
            yield from self.budget.problems(f"{path}.budget")
        if self.capacity:
            yield from self.capacity.problems(f"{path}.capacity")


class EmitEvent(Part):
    """An Event about the object that fired the rule."""

    reason: Annotated[
        str, Meta(pattern="^[A-Z][A-Za-z0-9]*$", description="One word in CamelCase, such as NodeBusy.")
    ]
    message: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Message of the event; absent means that Lattice describes the trigger.",
        ),
    ] = ""
    type: Annotated[
        Literal["Normal", "Warning"], Meta(description="Type of the event; Warning by default.")
    ] = "Warning"


class RetryWorkload(Part):
    """Reset the failure count of the workload that fired the rule, and restart the workload now."""


class SetDesiredState(Part):
    """Change the desired state of the workload that fired the rule."""

    state: Annotated[Literal["Running", "Stopped"], Meta(description="New desired state of the workload.")]


class Action(Part):
    """One action: exactly one of these fields."""

    webhook: Annotated[Webhook, Meta(description="Call a webhook.")] | None = None
    event: Annotated[EmitEvent, Meta(description="Record an Event.")] | None = None
    retry_workload: Annotated[RetryWorkload, Meta(description="Restart the failed workload.")] | None = None
    set_desired_state: Annotated[SetDesiredState, Meta(description="Stop or start the workload.")] | None = (
        None
    )

    def problems(self, path: str, *, about_workloads: bool) -> Iterator[Cause]:
        yield from _exactly_one_problems(self, ACTION_FIELDS, path)
        if self.webhook:
            yield from self.webhook.problems(f"{path}.webhook")
        for name in ("retry_workload", "set_desired_state"):
            if getattr(self, name) is not None and not about_workloads:
                yield Cause(
                    f"{path}.{_camel_case(name)}",
                    "needs a workload to act on: use it with when.workloadFailures",
                )


class AutomationSpec(Part):
    """The trigger and the actions of the rule."""

    when: Annotated[Trigger, Meta(description="Condition that fires the rule.")]
    actions: Annotated[
        tuple[Action, ...],
        Meta(min_length=1, max_length=MAX_ACTIONS_PER_RULE, description="Actions, in order."),
    ]
    suspend: Annotated[
        bool, Meta(description="true: the rule evaluates its condition but takes no action.")
    ] = False
    cooldown: Annotated[
        str,
        Meta(
            description=(
                'Minimum time between two firings for the same object, such as "10m"; absent means none.'
            )
        ),
    ] = "0"

    @property
    def cooldown_ms(self) -> int:
        return parse_millis(self.cooldown)


class AutomationStatus(Status):
    """History of the rule's actions."""

    fired: Annotated[int, Meta(description="How often the rule has fired.")] | None = None
    last_fired: Annotated[str, Meta(description="Time when the rule last fired.")] | None = None
    last_object: Annotated[str, Meta(description="Object that last fired the rule, as kind/name.")] = ""
    last_error: Annotated[str, Meta(description="Last error of an action; empty if there was none.")] = ""
    crossed: Annotated[
        dict[str, str],
        Meta(
            description=(
                "Objects that have fired the rule and are still past the threshold, with the time of "
                "the firing."
            )
        ),
    ] = {}
    quiet: Annotated[
        dict[str, str],
        Meta(description="Objects whose cooldown has not ended, with the time of the firing."),
    ] = {}


class AutomationRule(Kind):
    """A rule that acts on a condition. For example, a busy node calls a webhook, or a failing workload
    records a warning event. A rule fires once per crossing."""

    resource: ClassVar[Resource] = Resource(
        kind="AutomationRule",
        plural="automationrules",
        short_names=("ar",),
        columns=(
            Column("Fired", ".status.fired", "integer"),
            Column("Last", ".status.lastFired", "date"),
            Column("Suspended", ".spec.suspend", "boolean"),
            Column("Object", ".status.lastObject", priority=1),
            Column("Error", ".status.lastError", priority=1),
        ),
    )

    spec: AutomationSpec
    status: AutomationStatus = AutomationStatus()

    def problems(self) -> Iterator[Cause]:
        yield from number_problems(self.spec, "spec")
        yield from self.spec.when.problems("spec.when")
        yield from quantity_problems("spec.cooldown", self.spec.cooldown, parse_millis)
        about_workloads = self.spec.when.workload_failures is not None
        for index, action in enumerate(self.spec.actions):
            yield from action.problems(f"spec.actions[{index}]", about_workloads=about_workloads)


def _exactly_one_problems(part: Part, names: tuple[str, ...], path: str) -> Iterator[Cause]:
    present = [_camel_case(name) for name in names if getattr(part, name) is not None]
    if len(present) != 1:
        allowed = ", ".join(_camel_case(name) for name in names)
        yield Cause(path, f"must have exactly one of {allowed}, got {' and '.join(present) or 'none'}")


def _camel_case(name: str) -> str:
    first, *later_words = name.split("_")
    return first + "".join(word.title() for word in later_words)
