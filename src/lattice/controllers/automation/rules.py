"""Rules -> what they do: an event, a webhook, another try, another desired state; each once per crossing.

What a rule remembers and what it writes are one commit; a webhook is called after it, by somebody else, so that an address that
does not answer keeps nobody waiting. A server that dies in between has told of it in the rule's status and in an event, and no
other calls it again: at most once, and never silently.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.automation.webhook_queue import WebhookCall, WebhookQueue
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_metadata, with_spec, with_status
from lattice.kinds.automation import AutomationRule, AutomationStatus
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.lifecycle.automation import (
    MILLION,
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

USAGE_POLL_S = 5.0  # seconds between two looks at what nodes measure


@dataclass
class AutomationController:
    """A key is a rule."""

    context: ControllerContext
    webhook_queue: WebhookQueue
    poll_interval_s: float = USAGE_POLL_S
    name: str = "automation"
    _exceeded_since: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # rule, object: since when, on the monotonic clock

    def __post_init__(self) -> None:
        self._rules = self.context.cache(AutomationRule)
        self._recorder = self.context.recorder("automation")

    def loop(self) -> Loop:
        watched = (LatticeWorkload, LatticeLedger, LatticePool)
        others = tuple(Source(self.context.cache(kind), self._keys_for_kind(kind)) for kind in watched)
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            self._list_keys,
            (Source(self._rules), *others),
            Concurrency(workers=4),
        )

    def _list_keys(self) -> list[str]:
        return [f"/{each.metadata.name}" for each in self._rules.objects()]

    def _keys_for_kind(self, kind: type[Kind]) -> Callable[[object], Iterable[str]]:
        wanted = {LatticeWorkload: "workload_failures", LatticeLedger: "budget", LatticePool: "capacity"}[
            kind
        ]
        return lambda _: [
            f"/{each.metadata.name}"
            for each in self._rules.objects()
            if getattr(each.spec.when, wanted) is not None
        ]

    async def reconcile(self, key: str) -> Requeue | None:
        rule, entry = self._rules.get(key), self._rules.entry(key)
        if rule is None or entry is None:
            return None
        measures = list(self._measures(rule))
        verdict = evaluate_rule(
            rule, measures, self.context.clock.now(), self.context.timestamp, self._unmeasured(rule)
        )
        again = self.poll_interval_s if rule.spec.when.node_cpu else verdict.requeue_after
        status = rule.status
        for part in split_decision(
            verdict, (MAX_COMMIT_OPERATIONS - 1) // (len(rule.spec.actions) + 1)
        ):  # one commit each, the rule itself included
            found = self._status(status, part)
            if found != status:
                put = with_status(entry, found)
                revision = await self.context.commit(
                    [put, *(write for firing in part.firings for write in self._writes(rule, firing))]
                )
                self._enqueue_webhooks(rule, part)
                entry, status = Entry(entry.key, put.value, revision), found
        return None if again is None else Requeue(again)

    def _status(self, status: AutomationStatus, verdict: RuleDecision) -> AutomationStatus:
        status = msgspec.structs.replace(
            status, crossed=dict(verdict.crossed), quiet=dict(verdict.cooling_down)
        )
        if not verdict.firings:
            return status
        return msgspec.structs.replace(
            status,
            fired=(status.fired or 0) + len(verdict.firings),
            last_fired=self.context.timestamp,
            last_object=verdict.firings[-1].object,
            last_error="",
        )

    def _measures(self, rule: AutomationRule) -> Iterator[Measurement]:
        when = rule.spec.when
        if when.node_cpu:
            yield from self._cpu_measures(rule)
        elif when.workload_failures:
            yield from self._failures(rule)
        elif when.budget:
            yield from self._budgets(when.budget.ledger)
        elif when.capacity:
            yield from self._pools(when.capacity.pool)

    def _cpu_measures(self, rule: AutomationRule) -> Iterator[Measurement]:
        selector, now = (
            rule.spec.when.node_cpu.selector if rule.spec.when.node_cpu else None,
            self.context.clock.monotonic(),
        )
        least, _ = threshold(rule)
        for node in self.context.cache(LatticeNode).objects():
            usage, room = self._usage(node), node.status.capacity.get("cpu", 0)
            if (
                usage is None
                or room <= 0
                or (selector is not None and not selector.matches(node.metadata.labels))
            ):
                continue
            share = usage.cpu * MILLION // room
            name, key = f"latticenode/{node.metadata.name}", (rule.metadata.name, node.metadata.name)
            if share < least:
                self._exceeded_since.pop(key, None)
                continue
            since = now - self._exceeded_since.setdefault(key, now)
            words = f"{usage.cpu}m of {room}m cpu are in use ({share / 10_000:.0f} %), for {since:.0f} s"
            yield Measurement(name, share, words, since)

    def _usage(self, node: LatticeNode) -> Usage | None:
        """None: a server that has just begun to lead has not heard it yet, or it is silent and may be anywhere."""
        heard = self.context.presence.get(node.metadata.name)
        return heard.usage if heard is not None and heard.usage != Usage() else None

    def _unmeasured(self, rule: AutomationRule) -> set[str]:
        """What is there, and cannot be judged now."""
        if rule.spec.when.node_cpu:
            return {
                f"latticenode/{each.metadata.name}"
                for each in self.context.cache(LatticeNode).objects()
                if self._usage(each) is None
            }
        if rule.spec.when.capacity:
            pools = self.context.cache(LatticePool).objects()
            return {f"latticepool/{each.metadata.name}" for each in pools if each.status.utilization is None}
        return set()

    def _failures(self, rule: AutomationRule) -> Iterator[Measurement]:
        when = rule.spec.when.workload_failures
        for each in self.context.cache(LatticeWorkload).objects():
            metadata, retry = each.metadata, each.status.retry
            if when is None or (when.namespace and when.namespace != metadata.namespace):
                continue
            if when.selector is not None and not when.selector.matches(metadata.labels):
                continue
            count = (retry.attempts or 0) if retry else 0
            reason = each.status.failure_reason or "no reason was told"
            yield Measurement(
                f"latticeworkload/{metadata.namespace}/{metadata.name}",
                count,
                f"it failed {count} times: {reason}",
            )

    def _budgets(self, ledger: str) -> Iterator[Measurement]:
        for each in self.context.cache(LatticeLedger).objects():
            if not ledger or each.metadata.name == ledger:
                found = budget_status(each, self.context.clock.now())
                words = f"{(found.utilisation or 0) / 10_000:.1f} % of the budget are projected to be used this month"
                yield Measurement(f"latticeledger/{each.metadata.name}", found.utilisation or 0, words)

    def _pools(self, pool: str) -> Iterator[Measurement]:
        for each in self.context.cache(LatticePool).objects():
            use = each.status.utilization
            if use is not None and (not pool or each.metadata.name == pool):
                shares = {"nodes": use.nodes, "cores": use.cores, "memory": use.memory}
                share, what = max(
                    (0 if amount is None else dollars_to_micros(amount), name)
                    for name, amount in shares.items()
                )
                yield Measurement(
                    f"latticepool/{each.metadata.name}",
                    share,
                    f"{share / 10_000:.0f} % of its {what} are in use",
                )

    def _object(self, firing: Firing) -> Kind | None:
        kinds = {
            each.resource.singular: each
            for each in (LatticeNode, LatticeWorkload, LatticeLedger, LatticePool)
        }
        kind, _, path = firing.object.partition("/")
        return self.context.cache(kinds[kind]).get(path if "/" in path else f"/{path}")

    def _writes(self, rule: AutomationRule, firing: Firing) -> Iterator[Write]:
        about = self._object(firing)
        yield self._recorder.event(rule, "RuleFired", f"{firing.object}: {firing.message}")
        if about is None:
            return
        for action in rule.spec.actions:
            if action.event:
                message = action.event.message or f"{firing.message} (rule {rule.metadata.name})"
                yield self._recorder.event(
                    about, action.event.reason, message, warning=action.event.type == "Warning"
                )
        entry = self.context.cache(type(about)).entry(f"{about.metadata.namespace}/{about.metadata.name}")
        if entry is not None and isinstance(about, LatticeWorkload):
            yield from self._workload_writes(rule, about, entry)

    def _workload_writes(
        self, rule: AutomationRule, workload: LatticeWorkload, entry: Entry
    ) -> Iterator[Write]:
        """Everything that the rule does to the workload, in one write."""
        put: Put | None = None
        for action in rule.spec.actions:
            if action.retry_workload is not None:
                put = with_metadata(entry, self._with_retry_request)
            elif action.set_desired_state:
                put = with_spec(
                    entry,
                    msgspec.structs.replace(workload.spec, desired_state=action.set_desired_state.state),
                )
            if put is not None:
                entry = Entry(entry.key, put.value, entry.revision)
        if put is not None:
            yield put

    def _with_retry_request(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata | {
            "annotations": {
                **metadata.get("annotations", {}),
                RETRY_REQUESTED_ANNOTATION: self.context.timestamp,
            }
        }

    def _enqueue_webhooks(self, rule: AutomationRule, verdict: RuleDecision) -> None:
        for firing in verdict.firings:
            body = {
                "rule": rule.metadata.name,
                "object": firing.object,
                "message": firing.message,
                "time": self.context.timestamp,
            }
            for action in rule.spec.actions:
                if action.webhook:
                    self.webhook_queue.enqueue(
                        WebhookCall(
                            rule, firing.object, action.webhook.url, body, action.webhook.timeout_ms / 1000
                        )
                    )
