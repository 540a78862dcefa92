"""AutomationRule: what is to be done by itself, and when?"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    dollars_to_micros,
    number_problems,
    parse_millis,
    quantity_problems,
    share_as_fraction,
    threshold_problems,
)
from lattice.kinds.meta.selector import LabelSelector

TRIGGER_FIELDS = ("node_cpu", "workload_failures", "budget", "capacity")
MAX_WEBHOOK_TIMEOUT_MS = 30_000
MAX_ACTIONS_PER_RULE = 16  # of one rule: what it does about one object is one commit
ACTION_FIELDS = ("webhook", "event", "retry_workload", "set_desired_state")


class NodeCpu(Part):
    """A node whose processors have been busy for some time."""

    above: Annotated[
        Amount, Meta(description="More than this share of the cores in use, as 0.85 or as 85 percent.")
    ]
    for_: Annotated[
        str, Meta(description='How long it must stay above, such as "5m"; absent means at once.')
    ] = msgspec.field(name="for", default="0")
    selector: (
        Annotated[LabelSelector, Meta(description="Labels of the nodes to watch; absent means all.")] | None
    ) = None

    @property
    def above_millionths(self) -> int:
        return dollars_to_micros(share_as_fraction(self.above))

    @property
    def for_ms(self) -> int:
        return parse_millis(self.for_)

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)
        yield from quantity_problems(f"{path}.for", self.for_, parse_millis)
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class WorkloadFailures(Part):
    """A workload that has failed again and again."""

    count: Annotated[int, Meta(ge=1, description="So many failures in a row.")]
    selector: (
        Annotated[LabelSelector, Meta(description="Labels of the workloads to watch; absent means all.")]
        | None
    ) = None
    namespace: Annotated[str, Meta(description="Namespace to watch; absent means all.")] = ""

    def problems(self, path: str) -> Iterator[Cause]:
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class BudgetUse(Part):
    """A budget of which much is used up, as projected to the end of the month."""

    above: Annotated[Amount, Meta(description="This share of the limit or more, as 0.9 or as 90 percent.")]
    ledger: Annotated[
        str, Meta(description="Name of the LatticeLedger to watch, such as pool.us-east; absent means all.")
    ] = ""

    @property
    def above_millionths(self) -> int:
        return dollars_to_micros(share_as_fraction(self.above))

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)


class CapacityUse(Part):
    """A pool of which much is in use: machines, cores or memory, whichever is scarcest."""

    above: Annotated[Amount, Meta(description="This share of the capacity or more, as 0.9 or as 90 percent.")]
    pool: Annotated[str, Meta(description="Name of the LatticePool to watch; absent means all.")] = ""

    @property
    def above_millionths(self) -> int:
        return dollars_to_micros(share_as_fraction(self.above))

    def problems(self, path: str) -> Iterator[Cause]:
        yield from threshold_problems(f"{path}.above", self.above)


class Trigger(Part):
    """What sets the rule off, once per crossing: exactly one of these."""

    node_cpu: (
        Annotated[NodeCpu, Meta(description="A node whose processors have been busy for some time.")] | None
    ) = None
    workload_failures: (
        Annotated[WorkloadFailures, Meta(description="A workload that has failed again and again.")] | None
    ) = None
    budget: Annotated[BudgetUse, Meta(description="A budget of which much is used up.")] | None = None
    capacity: Annotated[CapacityUse, Meta(description="A pool of which much is in use.")] | None = None

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


class Webhook(Part):
    """A POST of what happened, as JSON."""

    url: Annotated[
        str,
        Meta(
            description="https address to post to; logins do not belong into it. Addresses inside the installation are refused."
        ),
    ]
    timeout: Annotated[
        str,
        Meta(
            description='No answer after this long is a failure, such as "5s", which is the default; "30s" at most.'
        ),
    ] = "5s"

    @property
    def timeout_ms(self) -> int:
        return parse_millis(self.timeout)

    def problems(self, path: str) -> Iterator[Cause]:
        unreadable = list(quantity_problems(f"{path}.timeout", self.timeout, parse_millis))
        yield from unreadable
        if not unreadable and self.timeout_ms > MAX_WEBHOOK_TIMEOUT_MS:
            yield Cause(f"{path}.timeout", f'must be at most 30s, got "{self.timeout}"')
        for wrong in _url_problems(self.url):
            yield Cause(f"{path}.url", wrong)


class EmitEvent(Part):
    """An Event about the object that set the rule off."""

    reason: Annotated[
        str, Meta(pattern="^[A-Z][A-Za-z0-9]*$", description="One word in CamelCase, such as NodeBusy.")
    ]
    message: Annotated[
        str,
        Meta(max_length=1024, description="Sentence for people; absent means one that says what happened."),
    ] = ""
    type: Annotated[Literal["Normal", "Warning"], Meta(description="Warning by default.")] = "Warning"


class RetryWorkload(Part):
    """Forget the failures of the workload that set the rule off, and try it again at once."""


class SetDesiredState(Part):
    """Change what should become of the workload that set the rule off."""

    state: Annotated[Literal["Running", "Stopped"], Meta(description="What should become of it.")]


class Action(Part):
    """One thing to do: exactly one of these."""

    webhook: Annotated[Webhook, Meta(description="Post what happened to an address.")] | None = None
    event: Annotated[EmitEvent, Meta(description="Leave an Event.")] | None = None
    retry_workload: Annotated[RetryWorkload, Meta(description="Try the failed workload again.")] | None = None
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
    """When to act, and how."""

    when: Annotated[Trigger, Meta(description="What sets the rule off.")]
    actions: Annotated[
        tuple[Action, ...],
        Meta(min_length=1, max_length=MAX_ACTIONS_PER_RULE, description="What is done, in this order."),
    ]
    suspend: Annotated[bool, Meta(description="true: the rule watches but does nothing.")] = False
    cooldown: Annotated[
        str, Meta(description='Quiet time after it acted on an object, such as "10m"; absent means none.')
    ] = "0"

    @property
    def cooldown_ms(self) -> int:
        return parse_millis(self.cooldown)


class AutomationStatus(Status):
    """What the rule has done."""

    fired: Annotated[int, Meta(description="How often it has acted.")] | None = None
    last_fired: Annotated[str, Meta(description="When it acted last.")] | None = None
    last_object: Annotated[str, Meta(description="What it acted on last, as kind/name.")] = ""
    last_error: Annotated[str, Meta(description="What went wrong last, if anything did.")] = ""
    crossed: Annotated[
        dict[str, str],
        Meta(
            description="Objects that it has acted on and that are still beyond the mark, with the time when it acted."
        ),
    ] = {}
    quiet: Annotated[
        dict[str, str],
        Meta(description="Objects whose quiet time is not over yet, with the time when it acted."),
    ] = {}


class AutomationRule(Kind):
    """Something that is done by itself: a busy node calls a webhook, a failing workload raises an alert. Fires once per crossing."""

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
    given = [_camel_case(name) for name in names if getattr(part, name) is not None]
    if len(given) != 1:
        allowed = ", ".join(_camel_case(name) for name in names)
        yield Cause(path, f"must have exactly one of {allowed}, got {' and '.join(given) or 'none'}")


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _url_problems(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "https" and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        yield f'must be an https address, got "{url}"'
        return
    login = parts.username is not None or parts.password is not None
    if login:
        yield "must not carry a user name or password"
    if not usable:
        yield "must be an https address" + ("" if login else f', got "{url}"')  # a password is not repeated
