"""Evaluate automation rules and carry out their actions: events, webhooks, retries and desired states, once
each time an object crosses the rule's threshold.

The controller commits the status of a rule together with the writes of its actions. The webhook queue calls
webhooks after the commit, so an unreachable URL blocks no rule. If the server dies between the commit and the
call, the status of the rule and an event show the firing, and no other server repeats the call: a call can be
lost, but never silently.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from lattice.controllers.automation.webhook_queue import WebhookCall, WebhookQueue
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_metadata, with_spec, with_status
from lattice.kinds.automation import AutomationRule
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind, path_of
from lattice.kinds.meta.quantity import MILLIONTHS, dollars_to_micros, pluralize
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.lifecycle.automation import (
    Firing,
    Measurement,
    RuleDecision,
    evaluate_rule,
    split_decision,
    threshold,
)
from lattice.placement.inputs.ledger_math import budget_status
from lattice.presence import Usage
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, Entry, Put, Write

# The poll interval of rules on measured usage.
USAGE_POLL_S = 5.0


@dataclass
class AutomationController:
    """Evaluate a rule and commit the writes of its actions; the key is the rule, `/name`."""

    context: ControllerContext
    webhook_queue: WebhookQueue
    poll_interval_s: float = USAGE_POLL_S
    name: str = "automation"
    # By rule and node: the monotonic time since which the CPU usage exceeds the threshold. In memory only: a
    # new leader measures the duration from its own first observation.
    _exceeded_since: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rules = self.context.cache(AutomationRule)
        self._recorder = self.context.recorder("automation")

    def loop(self) -> Loop:
        # A change of an object wakes the rules that measure its kind; usage of nodes is polled and wakes no rule.
        sources = (
            Source(self._rules),
            Source(self.context.cache(LatticeWorkload), lambda _: self._rules_measuring("workload_failures")),
            Source(self.context.cache(LatticeLedger), lambda _: self._rules_measuring("budget")),
            Source(self.context.cache(LatticePool), lambda _: self._rules_measuring("capacity")),
        )
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: [f"/{rule.metadata.name}" for rule in self._rules.objects()],
            sources,
            Concurrency(workers=4),
        )

    def _rules_measuring(self, field_name: str) -> list[str]:
        return [
            f"/{rule.metadata.name}"
            for rule in self._rules.objects()
            if getattr(rule.spec.when, field_name) is not None
        ]

    async def reconcile(self, key: str) -> Requeue | None:
        rule, entry = self._rules.get(key), self._rules.entry(key)
        if rule is None or entry is None:
            return None
        measurements = list(self._measurements(rule))
        decision = evaluate_rule(
            rule, measurements, self.context.clock.now(), self.context.timestamp, self._unmeasured(rule)
        )
        requeue_after = self.poll_interval_s if rule.spec.when.node_cpu else decision.requeue_after
        status = rule.status
        # A commit holds the write of the rule itself and, for every firing, an event and one write per
        # action.
        max_firings = (MAX_COMMIT_OPERATIONS - 1) // (len(rule.spec.actions) + 1)
        for part in split_decision(decision, max_firings):
            next_status = msgspec.structs.replace(
                status, crossed=dict(part.crossed), quiet=dict(part.cooling_down)
            )
            if part.firings:
                next_status = msgspec.structs.replace(
                    next_status,
                    fired=(status.fired or 0) + len(part.firings),
                    last_fired=self.context.timestamp,
                    last_object=part.firings[-1].object,
                    last_error="",
                )
            if next_status != status:
                put = with_status(entry, next_status)
                writes: list[Write] = [put]
                for firing in part.firings:
                    writes += self._writes(rule, firing)
                revision = await self.context.commit(writes)
                # After the commit: if the commit fails, the next reconcile decides the firing again, and the
                # webhook must not be called for both.
                self._enqueue_webhooks(rule, part)
                # The next part must expect the revision that this commit wrote.
                entry, status = Entry(entry.key, put.value, revision), next_status
        return None if requeue_after is None else Requeue(requeue_after)

    def _measurements(self, rule: AutomationRule) -> Iterator[Measurement]:
        when = rule.spec.when
        if when.node_cpu:
            yield from self._cpu_measurements(rule)
        elif when.workload_failures:
            failures = when.workload_failures
            for workload in self.context.cache(LatticeWorkload).objects(failures.namespace or None):
                metadata, retry = workload.metadata, workload.status.retry
                if failures.selector is None or failures.selector.matches(metadata.labels):
                    count = (retry.attempts or 0) if retry else 0
                    reason = workload.status.failure_reason or "no reason reported"
                    yield Measurement(
                        f"latticeworkload/{path_of(workload)}",
                        count,
                        f"{pluralize(count, 'failure')}, last reason: {reason}",
                    )
        elif when.budget:
            for ledger in self.context.cache(LatticeLedger).objects():
                if when.budget.ledger in ("", ledger.metadata.name):
                    status = budget_status(ledger, self.context.clock.now())
                    share = status.utilisation or 0
                    message = f"{share / 10_000:.1f} % of the budget is used by the {status.rule.words}"
                    yield Measurement(f"latticeledger/{ledger.metadata.name}", share, message)
        elif when.capacity:
            for pool in self.context.cache(LatticePool).objects():
                name, utilization = pool.metadata.name, pool.status.utilization
                if utilization is None or when.capacity.pool not in ("", name):
                    continue
                shares = (
                    ("nodes", utilization.nodes),
                    ("cores", utilization.cores),
                    ("memory", utilization.memory),
                )
                share, resource = max(
                    (0 if amount is None else dollars_to_micros(amount), resource)
                    for resource, amount in shares
                )
                message = f"{share / 10_000:.0f} % of the {resource} of the pool in use"
                yield Measurement(f"latticepool/{name}", share, message)

    def _cpu_measurements(self, rule: AutomationRule) -> Iterator[Measurement]:
        node_cpu, now = rule.spec.when.node_cpu, self.context.clock.monotonic()
        selector = node_cpu.selector if node_cpu else None
        min_share, _ = threshold(rule)
        for node in self.context.cache(LatticeNode).objects():
            usage, capacity = self._usage(node), node.status.capacity.get("cpu", 0)
            # Skip a node without a measurement: `_exceeded_since` keeps the node's entry, and the rule's
            # status keeps the recorded crossing of the node (see `_unmeasured`).
            if (
                usage is None
                or capacity <= 0
                or (selector is not None and not selector.matches(node.metadata.labels))
            ):
                continue
            share = usage.cpu * MILLIONTHS // capacity
            name, key = f"latticenode/{node.metadata.name}", (rule.metadata.name, node.metadata.name)
            if share < min_share:
                self._exceeded_since.pop(key, None)
                continue
            duration_s = now - self._exceeded_since.setdefault(key, now)
            message = (
                f"{usage.cpu}m of {capacity}m cpu in use ({share / 10_000:.0f} %) for {duration_s:.0f} s"
            )
            yield Measurement(name, share, message, duration_s)

    def _usage(self, node: LatticeNode) -> Usage | None:
        """The measured usage of a node; None if this server has not received a heartbeat, or the agent
        measured nothing yet."""
        heartbeat = self.context.presence.get(node.metadata.name)
        return heartbeat.usage if heartbeat is not None and heartbeat.usage != Usage() else None

    def _unmeasured(self, rule: AutomationRule) -> set[str]:
        """Objects that exist and have no measurement now; recorded crossings of these objects stay
        recorded."""
        if rule.spec.when.node_cpu:
            return {
                f"latticenode/{node.metadata.name}"
                for node in self.context.cache(LatticeNode).objects()
                if self._usage(node) is None
            }
        if rule.spec.when.capacity:
            pools = self.context.cache(LatticePool).objects()
            return {f"latticepool/{pool.metadata.name}" for pool in pools if pool.status.utilization is None}
        return set()

    def _writes(self, rule: AutomationRule, firing: Firing) -> Iterator[Write]:
        """The events and object writes of one firing."""
        kinds: dict[str, type[Kind]] = {
            kind.resource.singular: kind
            for kind in (LatticeNode, LatticeWorkload, LatticeLedger, LatticePool)
        }
        singular, _, path = firing.object.partition("/")
        subject = self.context.cache(kinds[singular]).get(path if "/" in path else f"/{path}")
        yield self._recorder.event(rule, "RuleFired", f"{firing.object}: {firing.message}")
        # The object was deleted after the measurement: only the event on the rule remains.
        if subject is None:
            return
        for action in rule.spec.actions:
            if action.event:
                message = action.event.message or f"{firing.message} (rule {rule.metadata.name})"
                yield self._recorder.event(
                    subject, action.event.reason, message, warning=action.event.type == "Warning"
                )
        entry = self.context.cache(type(subject)).entry(path_of(subject))
        if entry is None or not isinstance(subject, LatticeWorkload):
            return
        # All changes of the workload go into one write: two writes of the same key would conflict in a
        # commit.
        retry_request = {RETRY_REQUESTED_ANNOTATION: self.context.timestamp}
        put: Put | None = None
        for action in rule.spec.actions:
            if action.retry_workload is not None:
                put = with_metadata(
                    entry,
                    lambda metadata: {
                        **metadata,
                        "annotations": {**metadata.get("annotations", {}), **retry_request},
                    },
                )
            elif action.set_desired_state:
                put = with_spec(
                    entry,
                    msgspec.structs.replace(subject.spec, desired_state=action.set_desired_state.state),
                )
            # The next action builds on the value of this write, and expects the same stored revision.
            if put is not None:
                entry = Entry(entry.key, put.value, entry.revision)
        if put is not None:
            yield put

    def _enqueue_webhooks(self, rule: AutomationRule, decision: RuleDecision) -> None:
        for firing in decision.firings:
            body = {
                "rule": rule.metadata.name,
                "object": firing.object,
                "message": firing.message,
                "time": self.context.timestamp,
            }
            for action in rule.spec.actions:
                if action.webhook:
                    self.webhook_queue.enqueue(WebhookCall(rule, firing.object, action.webhook, body))
