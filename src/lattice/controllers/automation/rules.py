"""Rules -> what they do: an event, a webhook, another try, another desired state; each once per crossing.

What a rule remembers and what it writes are one commit; a webhook is called after it, by somebody else, so that an address that
does not answer keeps nobody waiting. A server that dies in between has told of it in the rule's status and in an event, and no
other calls it again: at most once, and never silently.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.automation.webhook_queue import Call, Calls
from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import with_metadata, with_spec, with_status
from lattice.kinds.automation import AutomationRule, AutomationStatus
from lattice.kinds.meta.base import Kind
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.meta.quantity import micros
from lattice.kinds.workload import RETRY_REQUESTED, LatticeWorkload
from lattice.placement.inputs.ledger_math import standing
from lattice.presence import Usage
from lattice.lifecycle.automation import MILLION, Firing, Measure, Verdict, judge, mark, parts
from lattice.store.protocol import MAX_OPERATIONS, Entry, Put, Write

LOOK = 5.0  # seconds between two looks at what nodes measure


@dataclass
class Automation:
    """A key is a rule."""

    office: Office
    calls: Calls
    look: float = LOOK
    name: str = "automation"
    _beyond: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # rule, object: since when, on the monotonic clock

    def __post_init__(self) -> None:
        self._rules = self.office.copy(AutomationRule)
        self._teller = self.office.teller("automation")

    def loop(self) -> Loop:
        watched = (LatticeWorkload, LatticeLedger, LatticePool)
        others = tuple(Source(self.office.copy(kind), self._about(kind)) for kind in watched)
        return Loop(
            self,
            self.office.clock,
            self.office.rng,
            self._everything,
            (Source(self._rules), *others),
            Pace(workers=4),
        )

    def _everything(self) -> list[str]:
        return [f"/{each.metadata.name}" for each in self._rules.all()]

    def _about(self, kind: type[Kind]) -> Callable[[object], Iterable[str]]:
        wanted = {LatticeWorkload: "workload_failures", LatticeLedger: "budget", LatticePool: "capacity"}[
            kind
        ]
        return lambda _: [
            f"/{each.metadata.name}"
            for each in self._rules.all()
            if getattr(each.spec.when, wanted) is not None
        ]

    async def reconcile(self, key: str) -> Again | None:
        rule, entry = self._rules.get(key), self._rules.entry(key)
        if rule is None or entry is None:
            return None
        measures = list(self._measures(rule))
        verdict = judge(rule, measures, self.office.clock.now(), self.office.now, self._unmeasured(rule))
        again = self.look if rule.spec.when.node_cpu else verdict.again
        status = rule.status
        for part in parts(
            verdict, (MAX_OPERATIONS - 1) // (len(rule.spec.actions) + 1)
        ):  # one commit each, the rule itself included
            found = self._status(status, part)
            if found != status:
                put = with_status(entry, found)
                revision = await self.office.commit(
                    [put, *(write for firing in part.fire for write in self._writes(rule, firing))]
                )
                self._call(rule, part)
                entry, status = Entry(entry.key, put.value, revision), found
        return None if again is None else Again(again)

    def _status(self, status: AutomationStatus, verdict: Verdict) -> AutomationStatus:
        status = msgspec.structs.replace(status, crossed=dict(verdict.crossed), quiet=dict(verdict.quiet))
        if not verdict.fire:
            return status
        return msgspec.structs.replace(
            status,
            fired=(status.fired or 0) + len(verdict.fire),
            last_fired=self.office.now,
            last_object=verdict.fire[-1].object,
            last_error="",
        )

    def _measures(self, rule: AutomationRule) -> Iterator[Measure]:
        when = rule.spec.when
        if when.node_cpu:
            yield from self._busy(rule)
        elif when.workload_failures:
            yield from self._failures(rule)
        elif when.budget:
            yield from self._budgets(when.budget.ledger)
        elif when.capacity:
            yield from self._pools(when.capacity.pool)

    def _busy(self, rule: AutomationRule) -> Iterator[Measure]:
        selector, now = (
            rule.spec.when.node_cpu.selector if rule.spec.when.node_cpu else None,
            self.office.clock.monotonic(),
        )
        least, _ = mark(rule)
        for node in self.office.copy(LatticeNode).all():
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
                self._beyond.pop(key, None)
                continue
            since = now - self._beyond.setdefault(key, now)
            words = f"{usage.cpu}m of {room}m cpu are in use ({share / 10_000:.0f} %), for {since:.0f} s"
            yield Measure(name, share, words, since)

    def _usage(self, node: LatticeNode) -> Usage | None:
        """None: a server that has just begun to lead has not heard it yet, or it is silent and may be anywhere."""
        heard = self.office.presence.get(node.metadata.name)
        return heard.usage if heard is not None and heard.usage != Usage() else None

    def _unmeasured(self, rule: AutomationRule) -> set[str]:
        """What is there, and cannot be judged now."""
        if rule.spec.when.node_cpu:
            return {
                f"latticenode/{each.metadata.name}"
                for each in self.office.copy(LatticeNode).all()
                if self._usage(each) is None
            }
        if rule.spec.when.capacity:
            pools = self.office.copy(LatticePool).all()
            return {f"latticepool/{each.metadata.name}" for each in pools if each.status.utilization is None}
        return set()

    def _failures(self, rule: AutomationRule) -> Iterator[Measure]:
        when = rule.spec.when.workload_failures
        for each in self.office.copy(LatticeWorkload).all():
            metadata, retry = each.metadata, each.status.retry
            if when is None or (when.namespace and when.namespace != metadata.namespace):
                continue
            if when.selector is not None and not when.selector.matches(metadata.labels):
                continue
            count = (retry.attempts or 0) if retry else 0
            reason = each.status.failure_reason or "no reason was told"
            yield Measure(
                f"latticeworkload/{metadata.namespace}/{metadata.name}",
                count,
                f"it failed {count} times: {reason}",
            )

    def _budgets(self, ledger: str) -> Iterator[Measure]:
        for each in self.office.copy(LatticeLedger).all():
            if not ledger or each.metadata.name == ledger:
                found = standing(each, self.office.clock.now())
                words = f"{(found.utilisation or 0) / 10_000:.1f} % of the budget are projected to be used this month"
                yield Measure(f"latticeledger/{each.metadata.name}", found.utilisation or 0, words)

    def _pools(self, pool: str) -> Iterator[Measure]:
        for each in self.office.copy(LatticePool).all():
            use = each.status.utilization
            if use is not None and (not pool or each.metadata.name == pool):
                shares = {"nodes": use.nodes, "cores": use.cores, "memory": use.memory}
                share, what = max(
                    (0 if amount is None else micros(amount), name) for name, amount in shares.items()
                )
                yield Measure(
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
        return self.office.copy(kinds[kind]).get(path if "/" in path else f"/{path}")

    def _writes(self, rule: AutomationRule, firing: Firing) -> Iterator[Write]:
        about = self._object(firing)
        yield self._teller.event(rule, "RuleFired", f"{firing.object}: {firing.words}")
        if about is None:
            return
        for action in rule.spec.actions:
            if action.event:
                message = action.event.message or f"{firing.words} (rule {rule.metadata.name})"
                yield self._teller.event(
                    about, action.event.reason, message, warning=action.event.type == "Warning"
                )
        entry = self.office.copy(type(about)).entry(f"{about.metadata.namespace}/{about.metadata.name}")
        if entry is not None and isinstance(about, LatticeWorkload):
            yield from self._changed(rule, about, entry)

    def _changed(self, rule: AutomationRule, workload: LatticeWorkload, entry: Entry) -> Iterator[Write]:
        """Everything that the rule does to the workload, in one write."""
        put: Put | None = None
        for action in rule.spec.actions:
            if action.retry_workload is not None:
                put = with_metadata(entry, self._asked_again)
            elif action.set_desired_state:
                put = with_spec(
                    entry,
                    msgspec.structs.replace(workload.spec, desired_state=action.set_desired_state.state),
                )
            if put is not None:
                entry = Entry(entry.key, put.value, entry.revision)
        if put is not None:
            yield put

    def _asked_again(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata | {
            "annotations": {**metadata.get("annotations", {}), RETRY_REQUESTED: self.office.now}
        }

    def _call(self, rule: AutomationRule, verdict: Verdict) -> None:
        for firing in verdict.fire:
            body = {
                "rule": rule.metadata.name,
                "object": firing.object,
                "message": firing.words,
                "time": self.office.now,
            }
            for action in rule.spec.actions:
                if action.webhook:
                    self.calls.ask(
                        Call(rule, firing.object, action.webhook.url, body, action.webhook.timeout_ms / 1000)
                    )
