"""What a server has while it leads, as far as its agents are concerned; and the two ways in which a conversation with one is ended."""

from collections.abc import Sequence
from typing import Any, Protocol

from lattice.presence import Presence
from lattice.store.cache import Cache
from lattice.store.protocol import Check, Store, Term, Write


class LeaderContext(Protocol):
    """What this server has while it leads; made anew for each term. An Office is one."""

    @property
    def store(self) -> Store: ...
    @property
    def term(self) -> Term: ...
    @property
    def presence(self) -> Presence: ...
    def cache(self, kind: type[Any]) -> Cache[Any]: ...
    async def commit(self, writes: Sequence[Write], checks: Sequence[Check] = ()) -> int: ...


class SessionRejected(Exception):
    """The conversation ends with this reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class NodeQuarantined(SessionRejected):
    """What it says cannot be, and its node is marked: nothing is put there until it says something better."""


class NotLeader(Exception):
    """Another server leads."""
