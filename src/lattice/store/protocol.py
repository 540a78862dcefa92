"""The store protocol: get, list, watch and commit over encoded objects, and leadership terms; the promises of
every store.

A store holds bytes under keys. One counter numbers the commits: revision r is the state of the whole store
after commit r. Revisions are positive, grow, and are never reused, not even after a crash; numbers may be
skipped. The revision of an entry is the revision of the commit that last wrote the entry; the revision is
*not* inside the bytes.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from lattice.errors import Conflict, Fenced, Gone, Malformed, RevisionTooNew, TooLarge

# The revision of a missing object: expect=ABSENT creates.
ABSENT = 0
# Limit of writes and checks in one commit. The default limit of etcd is 128, and the etcd store adds
# operations of its own.
MAX_COMMIT_OPERATIONS = 100
# Limit of the bytes of keys and values in one commit. The default limit of etcd is 1.5 MiB.
MAX_COMMIT_BYTES = 1 << 20
# The same limit of stores without a network in between (SQLite, memory): the largest body of a request, 3 MiB as
# in Kubernetes, with what the server adds to the object.
MAX_EMBEDDED_COMMIT_BYTES = 4 << 20
# How long a store remembers a request id.
REQUEST_ID_TTL_S = 600.0


class Key(NamedTuple):
    """The key of an object: resource, such as `latticepools.lattice.dev` or `namespaces`; namespace or "";
    name."""

    resource: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The path within the resource; every store lists in plain string order of the path."""
        return f"{self.namespace}/{self.name}"

    def __str__(self) -> str:
        if self.namespace:
            return f"{self.resource}/{self.namespace}/{self.name}"
        return f"{self.resource}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """The key whose string is `text`."""
        resource, _, path = text.partition("/")
        namespace, _, name = path.rpartition("/")
        return cls(resource, namespace, name)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stored object: key, encoded value, and the revision of the commit that wrote the value."""

    key: Key
    value: bytes
    revision: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write an object. expect: ABSENT creates, a revision replaces exactly that revision, None writes
    unconditionally."""

    key: Key
    value: bytes
    expect: int | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove an existing object. expect: the revision of the object, or None for any revision."""

    key: Key
    expect: int | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """Require that an object, which the commit does not write, still has the revision `expect`; ABSENT
    requires that the object does not exist."""

    key: Key
    expect: int


Write = Put | Delete


class Change(msgspec.Struct, frozen=True, gc=False):
    """The effect of one commit on one object. value None: deleted. previous None: created."""

    revision: int
    key: Key
    value: bytes | None
    previous: Entry | None


class Batch(msgspec.Struct, frozen=True, gc=False):
    """All changes of one resource at one revision, in the order of the commit. A watch delivers a batch
    whole."""

    revision: int
    changes: tuple[Change, ...]


class Page(msgspec.Struct, frozen=True):
    """Part of a list as of `revision`; `has_more` says that entries follow the last entry."""

    entries: list[Entry]
    revision: int
    has_more: bool


class Term(msgspec.Struct, frozen=True):
    """Proof that a server was elected. The leader keeps the term that `campaign` returned and never reads the
    term from the store again; `lease` is the store's own handle of the lease."""

    role: str
    number: int
    holder: str
    lease: int = 0


class RevisionConflict(Conflict):
    """A write or check found another revision than expected. The store applied nothing of the commit."""

    def __init__(self, key: Key, expected: int | None, actual: int) -> None:
        if expected is None:
            expectation = "any revision"
        elif expected == ABSENT:
            expectation = "no object"
        else:
            expectation = f"revision {expected}"
        state = "the object does not exist" if actual == ABSENT else f"the object is at revision {actual}"
        super().__init__(
            f"expected {expectation}, but {state}", where=str(key), fix="read the object again and retry"
        )
        self.key = key
        self.expected = expected
        self.actual = actual


class Watch(Protocol):
    """A resumable stream of the changes of one resource."""

    @property
    def progress(self) -> int:
        """The revision up to which the watch has delivered every change: a new watch after this revision
        misses nothing."""
        ...

    async def next(self, timeout: float | None = None) -> Sequence[Batch]:
        """Return the available batches in order. If there is none, wait for the first; return no batch after
        `timeout` seconds without a change.

        Raise Gone when changes were lost.
        """
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """A versioned store of objects. Methods raise Unavailable when the store does not answer."""

    async def get(self, key: Key) -> Entry | None:
        """Return the newest acknowledged entry: a get after an acknowledged commit sees the commit."""
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
        """Return entries in path order: after path `after`, at most `limit` (0: no limit), as of `revision`
        (0: newest).

        Raise Gone if the revision is compacted, RevisionTooNew if the store has not reached the revision.
        """
        ...

    async def count(self, resource: str, namespace: str | None = None) -> int:
        """Return the number of objects at the newest revision, without reading the objects."""
        ...

    async def watch(self, resource: str, after: int) -> Watch:
        """Watch the changes after revision `after`. Raise Gone if the revision is compacted or lies in the
        future."""
        ...

    async def commit(
        self,
        writes: Sequence[Write],
        *,
        checks: Sequence[Check] = (),
        fence: Term | None = None,
        request_id: str | None = None,
    ) -> int:
        """Apply all writes or none, durably, at one new revision, and return the revision.

        In this order: if an earlier commit had the same request_id, return the revision of that commit and
        apply nothing; if the term of `fence` is over, raise Fenced; compare the checks and then the writes,
        and raise RevisionConflict for the first operation whose object does not have the expected revision.
        Raise Full if the store has no space. Raise Unavailable if the store does not answer; the outcome is
        then unknown.
        """
        ...

    async def revision(self) -> int:
        """Return the newest acknowledged revision; 1 in an empty store."""
        ...

    async def compact(self, revision: int) -> None:
        """Drop the history before `revision`; the current state stays. Watches and lists from an older
        revision raise Gone."""
        ...

    async def campaign(self, role: str, holder: str, ttl: float) -> Term | None:
        """Become leader of a role: return a new, higher term, or None while the lease of another holder
        lives."""
        ...

    async def renew(self, term: Term) -> bool:
        """Extend the lease without adding history; return False if the lease is lost."""
        ...

    async def resign(self, term: Term) -> None:
        """Release the lease at once. The number of the term is never used again."""
        ...

    async def close(self) -> None: ...


async def list_pages(
    store: Store, resource: str, namespace: str | None = None, *, limit: int, first: Page | None = None
) -> AsyncIterator[Page]:
    """Yield the pages of a list; every page is read at the revision of the first page.

    `first` is the first page if the caller has read it already. Raise Gone if the revision is compacted
    meanwhile.
    """
    page = first or await store.list(resource, namespace, limit=limit)
    yield page
    while page.has_more:
        last_path = page.entries[-1].key.path
        page = await store.list(resource, namespace, limit=limit, after=last_path, revision=page.revision)
        yield page


def validate_commit(
    writes: Sequence[Write],
    checks: Sequence[Check],
    max_bytes: int = MAX_COMMIT_BYTES,
    store: str = "this store",
) -> None:
    """Raise an error for a commit without writes, with a repeated key or beyond the limits; `store` names the
    store in the message about its limit of bytes."""
    if not writes:
        raise Malformed("a commit needs at least one write")
    operations = len(writes) + len(checks)
    if operations > MAX_COMMIT_OPERATIONS:
        raise TooLarge(
            f"{operations} operations in one commit; the maximum is {MAX_COMMIT_OPERATIONS}",
            fix="split the commit",
        )
    keys = [operation.key for operation in (*writes, *checks)]
    if len(set(keys)) != len(keys):
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise Malformed(
            "appears twice in one commit", where=str(duplicate), fix="write or check each object once"
        )
    size = sum(len(write.value) for write in writes if isinstance(write, Put)) + sum(
        len(str(key)) for key in keys
    )
    if size > max_bytes:
        raise TooLarge(
            f"{store} takes at most {max_bytes:,} bytes in one commit, got {size:,}",
            fix="split the object into several smaller ones, or use a store with a higher limit",
        )


def fenced_error(fence: Term, current_term: int) -> Fenced:
    return Fenced(
        f"term {fence.number} of {fence.role} has ended, term {current_term} has begun",
        where=fence.holder,
        fix="stop writing; another server is the leader",
    )


def check_expected_revisions(
    writes: Sequence[Write], checks: Sequence[Check], revision_of: Callable[[Key], int]
) -> None:
    """Compare the checks and then the writes; raise RevisionConflict for the first operation whose object
    does not have the expected revision.

    `revision_of` returns the current revision of an object.
    """
    for check in checks:
        if (actual := revision_of(check.key)) != check.expect:
            raise RevisionConflict(check.key, check.expect, actual)
    for write in writes:
        actual = revision_of(write.key)
        is_missing = isinstance(write, Delete) and actual == ABSENT
        if is_missing or (write.expect is not None and actual != write.expect):
            raise RevisionConflict(write.key, write.expect, actual)


def compacted_error(requested: int, oldest: int) -> Gone:
    return Gone(
        f"revision {requested} is compacted; history is available from revision {oldest}",
        fix="list again and watch from the new revision",
    )


def future_watch_error(requested: int, newest: int) -> Gone:
    return Gone(
        f"revision {requested} does not exist in this store; the newest is {newest}",
        fix="list again and watch from the new revision",
    )


def future_revision_error(requested: int, newest: int) -> RevisionTooNew:
    return RevisionTooNew(
        f"revision {requested} does not exist yet; the newest is {newest}",
        fix="retry later, or omit the revision",
    )
