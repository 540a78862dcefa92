"""The leader context of agent sessions, and the exceptions that end a session."""

from collections.abc import Sequence
from typing import Any, Protocol

from lattice.presence import Presence
from lattice.store.cache import Cache
from lattice.store.protocol import Check, Store, Term, Write


class LeaderContext(Protocol):
    """What agent sessions use of a leader's term; a new object for every term. The controller context
    implements this protocol."""

    @property
    def store(self) -> Store: ...
    @property
    def term(self) -> Term: ...
    @property
    def presence(self) -> Presence: ...
    def cache(self, kind: type[Any]) -> Cache[Any]: ...
    async def commit(self, writes: Sequence[Write], checks: Sequence[Check] = ()) -> int: ...


class SessionRejected(Exception):
    """The server ends the session and sends the agent this reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class NodeQuarantined(SessionRejected):
    """The registration states an impossible capacity or changes too often. The node is quarantined until its
    agent sends a valid registration."""


class NotLeader(Exception):
    """This server does not lead in the session's term; the agent must connect to the leader."""
