"""Calls to webhooks that are still to be made: address by address, so that one that does not answer keeps no other waiting."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.automation.webhook_client import WebhookClient
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue
from lattice.controllers.runtime.object_writes import with_status
from lattice.errors import LatticeError
from lattice.kinds.automation import AutomationRule
from lattice.store.protocol import Write

ATTEMPT_DELAYS_S = (0.0, 1.0, 5.0)  # seconds before each attempt to call a webhook
MAX_QUEUED_PER_URL = 1000  # calls that wait for one address; what comes on top is not made
MAX_CONCURRENT_URLS = 16  # addresses that are called at a time


@dataclass(slots=True)
class WebhookCall:
    """One POST of what happened to one object."""

    rule: AutomationRule
    object_path: str
    url: str
    body: dict[str, Any]
    timeout: float  # seconds
    attempts: int = 0
    due: float = 0.0  # monotonic: not before
    is_finished: bool = False
    error: str = ""  # why it was not delivered


@dataclass
class WebhookQueue:
    """A key is an address. Each call is delivered, or told of as one that was not."""

    context: ControllerContext
    client: WebhookClient
    max_queued: int = MAX_QUEUED_PER_URL
    name: str = "webhooks"
    _queues: dict[str, deque[WebhookCall]] = field(default_factory=dict)
    _failing_urls: set[str] = field(
        default_factory=set
    )  # addresses that did not answer the last call: one attempt is enough for the next

    def __post_init__(self) -> None:
        self._rules = self.context.cache(AutomationRule)
        self._recorder = self.context.recorder("automation")
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self,
            self.context.clock,
            self.context.rng,
            lambda: list(self._queues),
            (),
            Concurrency(workers=MAX_CONCURRENT_URLS),
        )
        self._wake = loop.wake
        return loop

    def enqueue(self, call: WebhookCall) -> None:
        waiting = self._queues.setdefault(call.url, deque())
        if len(waiting) >= self.max_queued:
            call.is_finished, call.error = (
                True,
                f"it was not called: {self.max_queued} calls to that address wait already",
            )
        waiting.append(call)
        self._wake((call.url,))

    async def reconcile(self, key: str) -> Requeue | None:
        waiting = self._queues.get(key)
        if not waiting:
            return None
        call, now = waiting[0], self.context.clock.monotonic()
        if call.due > now:
            return Requeue(call.due - now)
        if not call.is_finished:
            await self._attempt(call)
        if not call.is_finished:
            call.due = self.context.clock.monotonic() + ATTEMPT_DELAYS_S[call.attempts]
            return Requeue(ATTEMPT_DELAYS_S[call.attempts])
        if call.error:
            await self._report_failure(call)
        waiting.popleft()
        if waiting:
            self._wake((key,))
        else:
            del self._queues[key]
        return None

    async def _attempt(self, call: WebhookCall) -> None:
        try:
            await self.client.post(call.url, call.body, call.timeout)
        except LatticeError as error:
            call.attempts, call.error = call.attempts + 1, str(error)
            call.is_finished = call.url in self._failing_urls or call.attempts >= len(ATTEMPT_DELAYS_S)
            if call.is_finished:
                self._failing_urls.add(call.url)
        else:
            call.is_finished, call.error = True, ""
            self._failing_urls.discard(call.url)

    async def _report_failure(self, call: WebhookCall) -> None:
        path = f"/{call.rule.metadata.name}"
        await self._rules.wait_for(await self.context.store.revision())
        rule, entry = self._rules.get(path), self._rules.entry(path)
        writes: list[Write] = [
            self._recorder.event(
                call.rule, "WebhookFailed", f"{call.object_path}: {call.error}", warning=True
            )
        ]
        if rule is not None and entry is not None and rule.status.last_error != call.error:
            writes.append(with_status(entry, msgspec.structs.replace(rule.status, last_error=call.error)))
        await self.context.commit(writes)
