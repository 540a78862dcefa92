"""Who was heard when, and what did they say? In memory, for one term: shared by the agents' server side and the nodes controller.

A new leader has heard nobody yet, and counts silence from its own election: make one of these per term.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lattice.clock import Clock
from lattice.kinds.order import Wanted as Wanted

TICK = 2.0  # seconds between signs of our own life
AWAY = 8.0  # so many seconds without one, and we were not listening: paused, or far too busy


@dataclass(frozen=True, slots=True)
class Usage:
    """As measured: milli-cores, bytes, bytes."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a node says of one workload; `run` is the number of the start that it speaks of."""

    uid: str
    state: str
    revision: str = ""
    run: int = 0
    ready: bool = False
    failure: str = ""  # why it failed, in one word
    log: str = ""  # its last lines
    how: str = ""  # it failed, in words


class Session(NamedTuple):
    """One connection of one node. A later one of the same node silences the earlier."""

    node: str
    number: int


@dataclass(frozen=True, slots=True)
class Beat:
    """One message of an agent. What it leaves out is as it was."""

    usage: Usage | None = None
    workload_usage: Mapping[str, Usage] | None = None  # by path
    workloads: Mapping[str, Spoken | None] = field(
        default_factory=dict
    )  # by path; None: it is not there any more
    is_whole: bool = False  # whatever `workloads` does not list is not there
    order: int = 0  # number of the last order that the agent had carried out when it said this


@dataclass(frozen=True, slots=True)
class Heard:
    """The last that was heard of a node in this term."""

    session: int
    at: float  # monotonic
    usage: Usage = Usage()
    workload_usage: Mapping[str, Usage] = field(default_factory=dict)
    workloads: Mapping[str, Spoken] = field(default_factory=dict)
    is_complete: bool = False  # all its workloads were listed once: what is not there is missing
    order: int = 0
    is_connected: bool = True
    since: float = 0.0  # monotonic: when the present connection began
    has_spoken: bool = False  # on the present connection: what is known is of now, not of before


@dataclass(slots=True)
class _Orders:
    """What a node was sent on its present connection: per workload, in which message, and the message that listed them all."""

    number: int = 0
    whole: int = 0
    sent: dict[str, tuple[Wanted | None, int]] = field(default_factory=dict)


class Told(NamedTuple):
    """Something changed that is more than the time: which node, and of which workloads, by path."""

    node: str
    workloads: tuple[str, ...]


class Presence:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, Heard] = {}
        self._ears: list[Callable[[Told], None]] = []
        self._orders: dict[str, _Orders] = {}
        self._sessions = 0
        self._since = clock.monotonic()  # nobody can be silent for longer
        self._ticked: float | None = None

    def get(self, node: str) -> Heard | None:
        return self._heard.get(node)

    def nodes(self) -> list[str]:
        return list(self._heard)

    def silence(self, node: str) -> float:
        """Seconds since it was heard; since we listen, if it never was. Times at which we were away ourselves do not count."""
        self._notice_absence()
        heard = self._heard.get(node)
        return self._clock.monotonic() - max(self._since, heard.at if heard else self._since)

    def on_change(self, told: Callable[[Told], None]) -> Callable[[], None]:
        """Hear of each change, at once; must not wait. Returns how to stop."""
        self._ears.append(told)
        return lambda: self._ears.remove(told)

    def begin(self, node: str) -> Session:
        """An agent connects: it is heard, and what it said on earlier connections stands until it says otherwise."""
        self._sessions += 1
        now, known = self._clock.monotonic(), self._heard.get(node)
        fresh = Heard(self._sessions, now, since=now)
        # what it has carried out is counted per connection, since orders are sent anew on each
        if known is not None:
            fresh = replace(
                known, session=self._sessions, at=now, since=now, order=0, is_connected=True, has_spoken=False
            )
        self._heard[node] = fresh
        self._orders[node] = _Orders()
        self._tell(Told(node, ()))
        return Session(node, self._sessions)

    def order(self, session: Session, wanted: Mapping[str, Wanted | None], is_whole: bool = False) -> int:
        """The number of a message that is now sent: what is wanted by path, None for nothing. The first of a connection lists all.

        0 if a later connection has taken over, or the node was forgotten: nobody will answer that message.
        """
        known, orders = self._heard.get(session.node), self._orders.get(session.node)
        if known is None or orders is None or known.session != session.number:
            return 0
        orders.number += 1
        if is_whole:
            orders.whole, orders.sent = orders.number, {}
        orders.sent.update((path, (each, orders.number)) for path, each in wanted.items())
        return orders.number

    def knows(self, node: str, path: str, wanted: Wanted | None) -> bool:
        """Had the node carried out this order when it last spoke? If not, what it says may be older than the order."""
        heard, orders = self._heard.get(node), self._orders.get(node)
        if heard is None or orders is None:
            return False
        last, number = orders.sent.get(path, (None, orders.whole))
        return last == wanted and 0 < number <= heard.order

    def was_told(self, node: str, path: str) -> bool:
        """Was the node sent anything about this one workload on its present connection?"""
        orders = self._orders.get(node)
        return orders is not None and path in orders.sent

    def hear(self, session: Session, beat: Beat) -> bool:
        """False if a later connection of this node has taken over, or the node was forgotten: end this one.

        Answer a beat only while we lead: a node counts its own silence from when it sent the last beat that was answered.
        """
        known = self._heard.get(session.node)
        if known is None or known.session != session.number:
            return False
        changed = _differences(known.workloads, beat)
        self._heard[session.node] = Heard(
            session.number,
            self._clock.monotonic(),
            beat.usage or known.usage,
            known.workload_usage if beat.workload_usage is None else beat.workload_usage,
            _merged(known.workloads, beat) if changed else known.workloads,
            known.is_complete or beat.is_whole,
            max(known.order, beat.order),
            since=known.since,
            has_spoken=True,
        )
        if changed or beat.order > known.order or beat.is_whole > known.is_complete or not known.has_spoken:
            self._tell(Told(session.node, changed))
        return True

    def end(self, session: Session) -> None:
        """The connection is gone. That is no silence yet: it may be back on another before anybody misses it."""
        known = self._heard.get(session.node)
        if known is not None and known.session == session.number:
            self._heard[session.node] = replace(known, is_connected=False)
            self._tell(Told(session.node, ()))

    def forget(self, node: str) -> None:
        """The node was removed."""
        self._heard.pop(node, None)
        self._orders.pop(node, None)

    async def run(self) -> None:
        """Until cancelled: notices when we were away. Whoever is paused for a minute has not heard anybody, and may blame nobody."""
        while True:
            self._notice_absence()
            self._ticked = self._clock.monotonic()
            await self._clock.sleep(TICK)

    def _notice_absence(self) -> None:
        now = self._clock.monotonic()
        if self._ticked is not None and now - self._ticked > TICK + AWAY:
            self._since = self._ticked = now

    def _tell(self, told: Told) -> None:
        for ear in tuple(self._ears):
            ear(told)


def _differences(known: Mapping[str, Spoken], beat: Beat) -> tuple[str, ...]:
    if beat.is_whole:
        gone = (path for path in known if path not in beat.workloads)
        return (*gone, *(path for path, spoken in beat.workloads.items() if known.get(path) != spoken))
    return tuple(path for path, spoken in beat.workloads.items() if known.get(path) != spoken)


def _merged(known: Mapping[str, Spoken], beat: Beat) -> dict[str, Spoken]:
    merged = {**({} if beat.is_whole else known), **beat.workloads}
    return {path: spoken for path, spoken in merged.items() if spoken is not None}
