"""Rules -> what they do: an event, a webhook, another try, another desired state; each once per crossing.

What a rule remembers and what it writes are one commit; a webhook is called after it. A server that dies in between has told of
it in the rule's status and in an event, and no other calls it again: at most once, and never silently.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.loop import Again, Loop, Pace, Source
from lattice.controllers.office import Office
from lattice.controllers.record import with_metadata, with_spec, with_status
from lattice.controllers.webhooks import Poster
from lattice.errors import LatticeError
from lattice.kinds.automation import Action, AutomationRule, AutomationStatus
from lattice.kinds.base import Kind
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.quantity import micros
from lattice.kinds.workload import RETRY_REQUESTED, LatticeWorkload
from lattice.placement.money import standing
from lattice.scheduling.automation import MILLION, Firing, Measure, Verdict, judge, mark
from lattice.store.protocol import Entry, Put, Write

LOOK = 5.0  # seconds between two looks at what nodes measure
TRIES = (0.0, 1.0, 5.0)  # seconds before each attempt to call a webhook


@dataclass
class Automation:
    """A key is a rule."""

    office: Office
    poster: Poster
    look: float = LOOK
    name: str = "automation"
    _beyond: dict[tuple[str, str], float] = field(default_factory=dict)  # rule, object: since when, on the monotonic clock

    def __post_init__(self) -> None:
        self._rules = self.office.copy(AutomationRule)
        self._teller = self.office.teller("automation")

    def loop(self) -> Loop:
        watched = (LatticeWorkload, LatticeLedger, LatticePool)
        others = tuple(Source(self.office.copy(kind), self._about(kind)) for kind in watched)
        return Loop(self, self.office.clock, self.office.rng, self._everything, (Source(self._rules), *others), Pace(workers=4))

    def _everything(self) -> list[str]:
        return [f"/{each.metadata.name}" for each in self._rules.all()]

    def _about(self, kind: type[Kind]) -> Callable[[object], Iterable[str]]:
        wanted = {LatticeWorkload: "workload_failures", LatticeLedger: "budget", LatticePool: "capacity"}[kind]
        return lambda _: [f"/{each.metadata.name}" for each in self._rules.all() if getattr(each.spec.when, wanted) is not None]

    async def reconcile(self, key: str) -> Again | None:
        rule, entry = self._rules.get(key), self._rules.entry(key)
        if rule is None or entry is None:
            return None
        verdict = judge(rule, self._measures(rule), self.office.clock.now(), self.office.now)
        again = self.look if rule.spec.when.node_cpu else verdict.again
        status = self._status(rule, verdict)
        if status != rule.status:
            writes = [with_status(entry, status), *(write for firing in verdict.fire for write in self._writes(rule, firing))]
            await self.office.commit(writes)
            for firing in verdict.fire:
                await self._call(rule, firing)
        return None if again is None else Again(again)

    def _status(self, rule: AutomationRule, verdict: Verdict) -> AutomationStatus:
        status = msgspec.structs.replace(rule.status, crossed=dict(verdict.crossed))
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
        selector, now = rule.spec.when.node_cpu.selector if rule.spec.when.node_cpu else None, self.office.clock.monotonic()
        least, _ = mark(rule)
        for node in self.office.copy(LatticeNode).all():
            heard, room = self.office.presence.get(node.metadata.name), node.status.capacity.get("cpu", 0)
            if heard is None or room <= 0 or (selector is not None and not selector.matches(node.metadata.labels)):
                continue
            share = heard.usage.cpu * MILLION // room
            name, key = f"latticenode/{node.metadata.name}", (rule.metadata.name, node.metadata.name)
            if share < least:
                self._beyond.pop(key, None)
                continue
            since = now - self._beyond.setdefault(key, now)
            words = f"{heard.usage.cpu}m of {room}m cpu are in use ({share / 10_000:.0f} %), for {since:.0f} s"
            yield Measure(name, share, words, since)

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
            yield Measure(f"latticeworkload/{metadata.namespace}/{metadata.name}", count, f"it failed {count} times: {reason}")

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
                share, what = max((0 if amount is None else micros(amount), name) for name, amount in shares.items())
                yield Measure(f"latticepool/{each.metadata.name}", share, f"{share / 10_000:.0f} % of its {what} are in use")

    def _object(self, firing: Firing) -> Kind | None:
        kinds = {each.resource.singular: each for each in (LatticeNode, LatticeWorkload, LatticeLedger, LatticePool)}
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
                yield self._teller.event(about, action.event.reason, message, warning=action.event.type == "Warning")
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
                put = with_spec(entry, msgspec.structs.replace(workload.spec, desired_state=action.set_desired_state.state))
            if put is not None:
                entry = Entry(entry.key, put.value, entry.revision)
        if put is not None:
            yield put

    def _asked_again(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata | {"annotations": {**metadata.get("annotations", {}), RETRY_REQUESTED: self.office.now}}

    async def _call(self, rule: AutomationRule, firing: Firing) -> None:
        for action in rule.spec.actions:
            if action.webhook and (wrong := await self._post(rule, action, firing)):
                await self._tell_trouble(rule, wrong)

    async def _post(self, rule: AutomationRule, action: Action, firing: Firing) -> str:
        """What went wrong, in words; "" if it was delivered."""
        body = {"rule": rule.metadata.name, "object": firing.object, "message": firing.words, "time": self.office.now}
        hook, wrong = action.webhook, ""
        for pause in TRIES if hook else ():
            if pause:
                await self.office.clock.sleep(pause)
            try:
                await self.poster.post(hook.url, body, hook.timeout_ms / 1000)  # type: ignore[union-attr]
            except LatticeError as error:
                wrong = str(error)
            else:
                return ""
        return wrong

    async def _tell_trouble(self, rule: AutomationRule, wrong: str) -> None:
        path = f"/{rule.metadata.name}"
        await self._rules.wait_for(await self.office.store.revision())
        now, entry = self._rules.get(path), self._rules.entry(path)
        if now is not None and entry is not None:
            told = self._teller.event(rule, "WebhookFailed", wrong, warning=True)
            await self.office.commit([with_status(entry, msgspec.structs.replace(now.status, last_error=wrong)), told])
