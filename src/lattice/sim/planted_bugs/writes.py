"""Planted bugs of writes, leadership, replies and caches."""

from typing import Any

import msgspec

from lattice.clock import Clock
from lattice.controllers.runtime import context, workqueue
from lattice.errors import Conflict, Gone
from lattice.kinds.service import LatticeService
from lattice.server.agents import join
from lattice.server.resources import admission, verbs, write
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store import cache, election, memory
from lattice.store.protocol import Key, Put, RevisionConflict

SERVICES_RESOURCE = LatticeService.resource.id


def no_fence() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        revision: int = await self.store.commit(writes, checks=checks, request_id=request_id)
        return revision

    patch_attribute(context.ControllerContext, "commit", commit)


def fence_read_again() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        current_term = self.store.store.term_of(self.term.role)
        revision: int = await self.store.commit(
            writes, checks=checks, fence=current_term or self.term, request_id=request_id
        )
        return revision

    patch_attribute(context.ControllerContext, "commit", commit)


def no_compare() -> None:
    patch_attribute(memory, "check_expected_revisions", lambda writes, checks, stored: None)


def wall_clock_lease() -> None:
    class WallClock:
        def __init__(self, clock: Clock) -> None:
            self.now, self.sleep, self.call_later = clock.now, clock.sleep, clock.call_later

        def monotonic(self) -> float:
            return self.now().timestamp()

    original = election.Election.__post_init__

    def with_wall_clock(self: Any) -> None:
        original(self)
        self.clock = WallClock(self.clock)

    patch_attribute(election.Election, "__post_init__", with_wall_clock)


def swallowed_gap() -> None:
    """A watch behind the compacted revision continues without a new list."""
    follow = cache.Cache._follow_watch

    async def skip_gap(self: Any) -> None:
        try:
            await follow(self)
        except Gone:
            # Pretends that the cache is current.
            self._listed_revision = await self.store.revision()

    patch_attribute(cache.Cache, "_follow_watch", skip_gap)


def missed_deletions() -> None:
    apply = cache.Cache._apply

    def skip_deletions(self: Any, change: Any) -> None:
        if change.value is not None or change.revision % 7:
            apply(self, change)

    patch_attribute(cache.Cache, "_apply", skip_deletions)


def lost_write() -> None:
    """The server acknowledges a write and never stores the write."""

    async def replaced(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return int(await api.store.revision()) + 1

    patch_attribute(write, "_replace", replaced)


def dropped_write() -> None:
    """The server acknowledges a write with the previous revision, as if the object had not changed."""
    replace = write._replace

    async def drop(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return (
            int(old.revision)
            if key.resource == SERVICES_RESOURCE and old.revision % 3 == 0
            else await replace(api, key, old, new, value)
        )

    patch_attribute(write, "_replace", drop)


def written_and_refused() -> None:
    insert = write._insert

    async def inserted(api: Any, served: Any, key: Key, value: bytes) -> int:
        await insert(api, served, key, value)
        raise Conflict("another write came first")

    patch_attribute(write, "_insert", inserted)


def stale_reads() -> None:
    cached: dict[Any, Any] = {}
    get_existing = verbs.get_existing

    async def get_stale(api: Any, call: Any) -> Any:
        entry = await get_existing(api, call)
        if call.method != "GET":
            return entry
        return cached.setdefault(entry.key, entry)

    patch_attribute(verbs, "get_existing", get_stale)


def not_found() -> None:
    """The server answers a read of an existing object with NotFound."""
    get_existing = verbs.get_existing

    async def get_missing(api: Any, call: Any) -> Any:
        entry = await get_existing(api, call)
        if call.method == "GET" and entry.revision % 2:
            raise verbs.not_found_error(call.target.served, call.target.name)
        return entry

    patch_attribute(verbs, "get_existing", get_missing)


def foreign_node() -> None:
    """A joining machine also writes the node of another machine."""
    node_write = join.NodeJoinService._node_write

    def foreign_write(self: Any, name: str, grant: Any, request: Any, entry: Any) -> Put:
        return msgspec.structs.replace(
            node_write(self, name, grant, request, entry), key=join.node_key("rack-1"), expect=None
        )

    patch_attribute(join.NodeJoinService, "_node_write", foreign_write)


def given_up_after_conflict() -> None:
    """The work queue neither retries a failed key nor accepts the keys of a resync. Both are disabled, because
    either would reconcile the key again after the conflict."""

    def failed(self: Any, key: str, pause: Any) -> float:
        self._processing.pop(key)
        return 0.0

    wake = workqueue.WorkQueue.wake

    def wake_without_resync(
        self: Any, key: str, lane: workqueue.Priority = workqueue.Priority.NORMAL
    ) -> None:
        if lane is not workqueue.Priority.BACKGROUND:
            wake(self, key, lane)

    patch_attribute(workqueue.WorkQueue, "failed", failed)
    patch_attribute(workqueue.WorkQueue, "wake", wake_without_resync)


class _AnyRevision(str):
    """A revision that equals every revision."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, revision: object) -> bool:
        return True

    def __ne__(self, revision: object) -> bool:
        return False


def blind_put() -> None:
    """A PUT replaces the stored object whatever the expected revision."""
    validate_identity = admission.validate_identity

    def validate_any_revision(served: Any, obj: Any, namespace: str, name: str) -> Any:
        obj_with_identity = validate_identity(served, obj, namespace, name)
        expected = obj_with_identity["metadata"].get("resourceVersion")
        return (
            {
                **obj_with_identity,
                "metadata": {**obj_with_identity["metadata"], "resourceVersion": _AnyRevision(expected)},
            }
            if expected
            else obj_with_identity
        )

    patch_attribute(admission, "validate_identity", validate_any_revision)


def revision_twice() -> None:
    """Now and then two consecutive commits have the same revision."""
    commit = memory.MemoryStore.commit

    async def commit_repeated(self: Any, writes: Any, **options: Any) -> int:
        revision: int = await commit(self, writes, **options)
        if revision % 50 == 0 and self.changes_after(SERVICES_RESOURCE, revision - 1):
            self._revision -= 1
        return revision

    patch_attribute(memory.MemoryStore, "commit", commit_repeated)


def same_again() -> None:
    """A controller repeats a rejected commit without a new read."""
    commit = context.ControllerContext.commit

    async def commit_again(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        for _ in range(9):
            try:
                return await commit(self, writes, checks, request_id)
            except RevisionConflict:
                await self.clock.sleep(0.4)
        return await commit(self, writes, checks, request_id)

    patch_attribute(context.ControllerContext, "commit", commit_again)
