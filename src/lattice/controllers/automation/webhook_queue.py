"""Calls to webhooks that are still to be made: address by address, so that one that does not answer keeps no other waiting."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.controllers.runtime.loop import Again, Loop, Pace
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import with_status
from lattice.controllers.automation.webhook_client import Poster
from lattice.errors import LatticeError
from lattice.kinds.automation import AutomationRule
from lattice.store.protocol import Write

TRIES = (0.0, 1.0, 5.0)  # seconds before each attempt to call a webhook
MOST = 1000  # calls that wait for one address; what comes on top is not made
WORKERS = 16  # addresses that are called at a time


@dataclass(slots=True)
class Call:
    """One POST of what happened to one object."""

    rule: AutomationRule
    object: str
    url: str
    body: dict[str, Any]
    timeout: float  # seconds
    tries: int = 0
    due: float = 0.0  # monotonic: not before
    is_over: bool = False
    wrong: str = ""  # why it was not delivered


@dataclass
class Calls:
    """A key is an address. Each call is delivered, or told of as one that was not."""

    office: Office
    poster: Poster
    most: int = MOST
    name: str = "webhooks"
    _waiting: dict[str, deque[Call]] = field(default_factory=dict)
    _silent: set[str] = field(
        default_factory=set
    )  # addresses that did not answer the last call: one attempt is enough for the next

    def __post_init__(self) -> None:
        self._rules = self.office.copy(AutomationRule)
        self._teller = self.office.teller("automation")
        self._wake: Callable[[Iterable[str]], None] = lambda _: None

    def loop(self) -> Loop:
        loop = Loop(
            self, self.office.clock, self.office.rng, lambda: list(self._waiting), (), Pace(workers=WORKERS)
        )
        self._wake = loop.wake
        return loop

    def ask(self, call: Call) -> None:
        waiting = self._waiting.setdefault(call.url, deque())
        if len(waiting) >= self.most:
            call.is_over, call.wrong = (
                True,
                f"it was not called: {self.most} calls to that address wait already",
            )
        waiting.append(call)
        self._wake((call.url,))

    async def reconcile(self, key: str) -> Again | None:
        waiting = self._waiting.get(key)
        if not waiting:
            return None
        call, now = waiting[0], self.office.clock.monotonic()
        if call.due > now:
            return Again(call.due - now)
        if not call.is_over:
            await self._try(call)
        if not call.is_over:
            call.due = self.office.clock.monotonic() + TRIES[call.tries]
            return Again(TRIES[call.tries])
        if call.wrong:
            await self._tell(call)
        waiting.popleft()
        if waiting:
            self._wake((key,))
        else:
            del self._waiting[key]
        return None

    async def _try(self, call: Call) -> None:
        try:
            await self.poster.post(call.url, call.body, call.timeout)
        except LatticeError as error:
            call.tries, call.wrong = call.tries + 1, str(error)
            call.is_over = call.url in self._silent or call.tries >= len(TRIES)
            if call.is_over:
                self._silent.add(call.url)
        else:
            call.is_over, call.wrong = True, ""
            self._silent.discard(call.url)

    async def _tell(self, call: Call) -> None:
        path = f"/{call.rule.metadata.name}"
        await self._rules.wait_for(await self.office.store.revision())
        rule, entry = self._rules.get(path), self._rules.entry(path)
        writes: list[Write] = [
            self._teller.event(call.rule, "WebhookFailed", f"{call.object}: {call.wrong}", warning=True)
        ]
        if rule is not None and entry is not None and rule.status.last_error != call.wrong:
            writes.append(with_status(entry, msgspec.structs.replace(rule.status, last_error=call.wrong)))
        await self.office.commit(writes)
