"""Deliver webhook calls with a queue per URL, so that an unreachable URL does not delay other URLs."""

from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.automation.webhook_client import WebhookClient
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue
from lattice.controllers.runtime.object_writes import with_status
from lattice.errors import LatticeError, NotFound
from lattice.kinds.automation import AutomationRule
from lattice.kinds.core import Secret
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Kind
from lattice.kinds.webhook import Webhook
from lattice.store.protocol import Write

# Delays in seconds before the first, second and third attempt of a call.
ATTEMPT_DELAYS_S = (0.0, 1.0, 5.0)
# Limit of queued calls per URL; a further call fails without an attempt.
MAX_QUEUED_PER_URL = 1000
MAX_CONCURRENT_URLS = 16
# The key of a signing secret.
SIGNING_KEY = "key"


@dataclass(slots=True)
class WebhookCall:
    """One POST about one object, with the state of its delivery. `subject` is the object that names the webhook."""

    subject: Kind
    object_path: str
    webhook: Webhook
    body: dict[str, Any]
    attempts: int = 0
    # The monotonic time of the next attempt.
    due: float = 0.0
    is_finished: bool = False
    # Why the call was not delivered.
    error: str = ""

    @property
    def url(self) -> str:
        return self.webhook.url


@dataclass
class WebhookQueue:
    """Deliver calls in order, URL by URL; a call that is not delivered becomes a Warning event. The key is
    the URL."""

    context: ControllerContext
    client: WebhookClient
    max_queued: int = MAX_QUEUED_PER_URL
    name: str = "webhooks"
    _queues: dict[str, deque[WebhookCall]] = field(default_factory=dict)
    # URLs whose last call failed: the next call gets a single attempt.
    _failing_urls: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._rules, self._secrets = self.context.cache(AutomationRule), self.context.cache(Secret)
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
        """Queue a call; a call beyond the limit of its URL is queued as failed, so that the failure is
        reported in order."""
        calls = self._queues.setdefault(call.url, deque())
        if len(calls) >= self.max_queued:
            call.is_finished, call.error = (
                True,
                f"the call was dropped: {self.max_queued} calls to this address are already queued",
            )
        calls.append(call)
        self._wake((call.url,))

    async def reconcile(self, key: str) -> Requeue | None:
        calls = self._queues.get(key)
        if not calls:
            return None
        call, now = calls[0], self.context.clock.monotonic()
        # The wake-up of a later call must not shorten the delay before the next attempt.
        if call.due > now:
            return Requeue(call.due - now)
        if not call.is_finished:
            try:
                signing_key = self._signing_key(call.webhook)
                await self.client.post(call.url, call.body, call.webhook.timeout_ms / 1000, signing_key)
            except LatticeError as error:
                call.attempts, call.error = call.attempts + 1, str(error)
                call.is_finished = call.url in self._failing_urls or call.attempts >= len(ATTEMPT_DELAYS_S)
                if call.is_finished:
                    self._failing_urls.add(call.url)
            else:
                call.is_finished, call.error = True, ""
                self._failing_urls.discard(call.url)
        if not call.is_finished:
            call.due = self.context.clock.monotonic() + ATTEMPT_DELAYS_S[call.attempts]
            return Requeue(ATTEMPT_DELAYS_S[call.attempts])
        # Report before the call leaves the queue: if the commit of the report fails, the next reconcile
        # repeats only the report.
        if call.error:
            message = f"{call.object_path}: {call.error}"
            writes: list[Write] = [self._recorder.event(call.subject, "WebhookFailed", message, warning=True)]
            rule = entry = None
            if isinstance(call.subject, AutomationRule):
                # The automation controller has just written this rule, so a write based on an older cached
                # entry would conflict.
                await self._rules.wait_for(await self.context.store.revision())
                path = f"/{call.subject.metadata.name}"
                rule, entry = self._rules.get(path), self._rules.entry(path)
            if rule is not None and entry is not None and rule.status.last_error != call.error:
                status = msgspec.structs.replace(rule.status, last_error=call.error)
                writes.append(with_status(entry, status))
            await self.context.commit(writes)
        calls.popleft()
        if calls:
            self._wake((key,))
        else:
            del self._queues[key]
        return None

    def _signing_key(self, webhook: Webhook) -> bytes:
        """The key of the secret that the webhook names, or no bytes if it names none. A call is never sent without
        the signature that it should have."""
        if not webhook.secret_ref:
            return b""
        secret = self._secrets.get(f"{SYSTEM_NAMESPACE}/{webhook.secret_ref}")
        key = b64decode(secret.data.get(SIGNING_KEY, "")) if secret is not None else b""
        if not key:
            raise NotFound(
                f"has no value {SIGNING_KEY} to sign the call with",
                where=f"secret {SYSTEM_NAMESPACE}/{webhook.secret_ref}",
                fix=f"create the secret with the value {SIGNING_KEY}, or remove secretRef from the webhook",
            )
        return key
