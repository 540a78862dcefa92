"""What every store promises: get, list, watch and commit over encoded objects, and leadership terms.

A store holds bytes under keys. One counter numbers the commits: revision r is the r-th state of the whole store,
positive, growing, never reused (also not after a crash), not necessarily dense. The revision of an entry is the
revision of the commit that last wrote it; it is *not* inside the bytes.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from lattice.errors import Conflict, Fenced, Gone, Malformed, RevisionTooNew, TooLarge

ABSENT = 0  # the revision of what is not there: expect=ABSENT creates
MAX_COMMIT_OPERATIONS = (
    100  # writes + checks in a commit; etcd's default ceiling is 128 with our own keys included
)
MAX_COMMIT_BYTES = 1 << 20  # keys + values in a commit; etcd's default ceiling is 1.5 MiB
REQUEST_ID_TTL_S = 600.0  # seconds for which a request id is remembered


class Key(NamedTuple):
    """Where an object lives: `latticepools.lattice.dev` (or `namespaces`), its namespace or "", its name."""

    resource: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Order of lists on every store: plain string order of this."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        return (
            f"{self.resource}/{self.namespace}/{self.name}"
            if self.namespace
            else f"{self.resource}/{self.name}"
        )


class Entry(msgspec.Struct, frozen=True, gc=False):
    key: Key
    value: bytes
    revision: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write an object. expect: ABSENT creates, a revision replaces exactly that one, None writes whatever is there."""

    key: Key
    value: bytes
    expect: int | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove an object, which must be there. expect: its revision, or None for any."""

    key: Key
    expect: int | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """Compare a revision without writing: ABSENT, or the one it must still have."""

    key: Key
    expect: int


Write = Put | Delete


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one commit did to one object. value None: deleted. previous None: created."""

    revision: int
    key: Key
    value: bytes | None
    previous: Entry | None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """All changes of one resource at one revision, in the order of the commit: delivered together or not at all."""

    revision: int
    changes: tuple[Change, ...]


class Page(msgspec.Struct, frozen=True):
    """Part of a list as it was at `revision`; `more` says that entries follow the last one."""

    entries: list[Entry]
    revision: int
    has_more: bool


class Term(msgspec.Struct, frozen=True):
    """Proof of having been elected. Kept from the election, never read again; `lease` is the store's own handle."""

    role: str
    number: int
    holder: str
    lease: int = 0


class RevisionConflict(Conflict):
    """A write or a check found another revision than it expected. Nothing of the commit was applied."""

    def __init__(self, key: Key, expected: int | None, found: int) -> None:
        want = (
            "any revision"
            if expected is None
            else "absence"
            if expected == ABSENT
            else f"revision {expected}"
        )
        have = "nothing is there" if found == ABSENT else f"it is at revision {found}"
        super().__init__(f"expected {want}, but {have}", where=str(key), fix="read it again and retry")
        self.key = key
        self.expected = expected
        self.actual = found


class Watch(Protocol):
    """A resumable stream of the changes of one resource."""

    @property
    def progress(self) -> int:
        """Every change up to this revision has been handed out: safe to resume after it."""
        ...

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        """The batches at hand, in order; waits for the first. Empty after `timeout` seconds. Raises Gone when a gap opened."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    async def get(self, key: Key) -> Entry | None:
        """The newest acknowledged state: a get after an acknowledged commit sees it."""
        ...

    async def list(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        revision: int = 0,
    ) -> Page:
        """Entries in path order, those after path `after`, at most `limit` (0: all), as of `revision` (0: now).

        Raises Gone if that revision is compacted, Ahead if it has not happened yet.
        """
        ...

    async def watch(self, resource: str, after: int) -> Watch:
        """Every change after revision `after`. Raises Gone if that is compacted, or lies in the future."""
        ...

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        """Apply all or nothing, durably, at one new revision, which is returned.

        In this order: a request_id seen before returns its first revision and applies nothing; a fence whose term is
        over raises Fenced; the first check, then the first write, that does not find what it expects raises Clash.
        No space raises Full; no answer from the store raises Unavailable, and then the outcome is unknown.
        """
        ...

    async def revision(self) -> int:
        """The newest acknowledged revision; 1 in an empty store."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget history before `revision`: watches and lists from before it say Gone, from it on they work. Current state stays."""
        ...

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        """Become leader of a role: a new, higher term, or None while another holder's lease lives."""
        ...

    async def renew(self, term: Term) -> bool:
        """Keep the lease alive without leaving history; False: it is lost."""
        ...

    async def resign(self, term: Term) -> None:
        """Give the lease up at once. The term stays spent."""
        ...

    async def close(self) -> None: ...


def validate_commit(writes: Sequence[Write], checks: Sequence[Check]) -> None:
    """The limits and rules that hold on every store, checked before anything is asked of it."""
    if not writes:
        raise Malformed("a commit needs at least one write")
    operations = len(writes) + len(checks)
    if operations > MAX_COMMIT_OPERATIONS:
        raise TooLarge(
            f"{operations} operations in one commit, at most {MAX_COMMIT_OPERATIONS}", fix="split it"
        )
    keys = [operation.key for operation in (*writes, *checks)]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Malformed("named twice in one commit", where=str(twice), fix="write or check each object once")
    size = sum(len(w.value) for w in writes if isinstance(w, Put)) + sum(len(str(key)) for key in keys)
    if size > MAX_COMMIT_BYTES:
        raise TooLarge(f"{size} bytes in one commit, at most {MAX_COMMIT_BYTES}", fix="split it")


def fenced_error(fence: Term, now: int) -> Fenced:
    return Fenced(
        f"term {fence.number} of {fence.role} is over, term {now} has begun",
        where=fence.holder,
        fix="stop acting; another server leads",
    )


def check_expected_revisions(
    writes: Sequence[Write], checks: Sequence[Check], found: Callable[[Key], int]
) -> None:
    """The first check, then the first write, that does not find what it expects; `found` tells an object's revision."""
    for check in checks:
        if (now := found(check.key)) != check.expect:
            raise RevisionConflict(check.key, check.expect, now)
    for write in writes:
        now = found(write.key)
        missing = isinstance(write, Delete) and now == ABSENT
        if missing or (write.expect is not None and now != write.expect):
            raise RevisionConflict(write.key, write.expect, now)


def compacted_error(asked: int, kept: int) -> Gone:
    return Gone(
        f"revision {asked} is compacted; history begins at {kept}", fix="list again and go on from there"
    )


def future_watch_error(asked: int, newest: int) -> Gone:
    return Gone(
        f"revision {asked} has not happened in this store; the newest is {newest}",
        fix="list again and go on from there",
    )


def future_revision_error(asked: int, newest: int) -> RevisionTooNew:
    return RevisionTooNew(
        f"revision {asked} has not happened yet; the newest is {newest}",
        fix="ask again later, or without a revision",
    )
