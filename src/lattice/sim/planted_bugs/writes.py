"""Bugs in who may write what, and in what people and copies are told."""

from typing import Any

import msgspec

from lattice.clock import Clock
from lattice.controllers.runtime import context as office
from lattice.controllers.runtime import workqueue as turns
from lattice.errors import Conflict, Gone
from lattice.kinds.service import LatticeService
from lattice.server.agents import join as joining
from lattice.server.resources import admission, verbs, write
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store import cache, memory
from lattice.store import election as leader
from lattice.store.protocol import Key, Put, RevisionConflict

SERVICES_RESOURCE = LatticeService.resource.id


def no_fence() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        revision: int = await self.store.commit(writes, checks=checks, request_id=request_id)
        return revision

    patch_attribute(office.ControllerContext, "commit", commit)


def fence_read_again() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        held = self.store.store.term_of(self.term.role)
        revision: int = await self.store.commit(
            writes, checks=checks, fence=held or self.term, request_id=request_id
        )
        return revision

    patch_attribute(office.ControllerContext, "commit", commit)


def no_compare() -> None:
    patch_attribute(memory, "check_expected_revisions", lambda writes, checks, found: None)


def wall_clock_lease() -> None:
    class Wall:
        def __init__(self, clock: Clock) -> None:
            self.now, self.sleep, self.call_later = clock.now, clock.sleep, clock.call_later

        def monotonic(self) -> float:
            return self.now().timestamp()

    made = leader.Election.__post_init__

    def with_wall(self: Any) -> None:
        made(self)
        self.clock = Wall(self.clock)

    patch_attribute(leader.Election, "__post_init__", with_wall)


def swallowed_gap() -> None:
    """A watch that has fallen too far behind goes on as if nothing was missed."""
    follow = cache.Cache._follow_watch

    async def deaf(self: Any) -> None:
        try:
            await follow(self)
        except Gone:
            self._listed_revision = await self.store.revision()

    patch_attribute(cache.Cache, "_follow_watch", deaf)


def missed_deletions() -> None:
    apply = cache.Cache._apply

    def forgetful(self: Any, change: Any) -> None:
        if change.value is not None or change.revision % 7:
            apply(self, change)

    patch_attribute(cache.Cache, "_apply", forgetful)


def lost_write() -> None:
    """Acknowledged, and never written."""

    async def replaced(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return int(await api.store.revision()) + 1

    patch_attribute(write, "_replace", replaced)


def dropped_write() -> None:
    """Acknowledged with the revision that was there before, as if there had been nothing to change."""
    replaced = write._replace

    async def dropped(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return (
            int(old.revision)
            if key.resource == SERVICES_RESOURCE and old.revision % 3 == 0
            else await replaced(api, key, old, new, value)
        )

    patch_attribute(write, "_replace", dropped)


def written_and_refused() -> None:
    insert = write._insert

    async def inserted(api: Any, served: Any, key: Key, value: bytes) -> int:
        await insert(api, served, key, value)
        raise Conflict("somebody else was first")

    patch_attribute(write, "_insert", inserted)


def stale_reads() -> None:
    known: dict[Any, Any] = {}
    existing = verbs.get_existing

    async def old(api: Any, call: Any) -> Any:
        entry = await existing(api, call)
        if call.method != "GET":
            return entry
        return known.setdefault(entry.key, entry)

    patch_attribute(verbs, "get_existing", old)


def not_found() -> None:
    """A read of what is there is told that there is none."""
    existing = verbs.get_existing

    async def blind(api: Any, call: Any) -> Any:
        entry = await existing(api, call)
        if call.method == "GET" and entry.revision % 2:
            raise verbs.not_found_error(call.target.served, call.target.name)
        return entry

    patch_attribute(verbs, "get_existing", blind)


def foreign_node() -> None:
    """A machine that joins marks somebody else's node, too."""
    node = joining.NodeJoinService._node_write

    def greedy(self: Any, name: str, kept: Any, asked: Any, found: Any) -> Put:
        return msgspec.structs.replace(
            node(self, name, kept, asked, found), key=joining.node_key("rack-1"), expect=None
        )

    patch_attribute(joining.NodeJoinService, "_node_write", greedy)


def given_up_after_conflict() -> None:
    """Neither is it tried again, nor does anybody look at everything from time to time: either alone would heal it."""

    def failed(self: Any, key: str, pause: Any) -> float:
        self._processing.pop(key)
        return 0.0

    wake = turns.WorkQueue.wake

    def deaf(self: Any, key: str, lane: turns.Priority = turns.Priority.NORMAL) -> None:
        if lane is not turns.Priority.BACKGROUND:
            wake(self, key, lane)

    patch_attribute(turns.WorkQueue, "failed", failed)
    patch_attribute(turns.WorkQueue, "wake", deaf)


class _AnyRevision(str):
    """A revision that differs from none."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def blind_put() -> None:
    """What is put is written over whatever is there, not only over what it was meant for."""
    identity = admission.validate_identity

    def blind(served: Any, obj: Any, namespace: str, name: str) -> Any:
        found = identity(served, obj, namespace, name)
        meant = found["metadata"].get("resourceVersion")
        return (
            {**found, "metadata": {**found["metadata"], "resourceVersion": _AnyRevision(meant)}}
            if meant
            else found
        )

    patch_attribute(admission, "validate_identity", blind)


def revision_twice() -> None:
    """Now and then two commits in a row are of the same revision."""
    commit = memory.MemoryStore.commit

    async def repeated(self: Any, writes: Any, **rest: Any) -> int:
        revision: int = await commit(self, writes, **rest)
        if revision % 50 == 0 and self.changes_after(SERVICES_RESOURCE, revision - 1):
            self._revision -= 1
        return revision

    patch_attribute(memory.MemoryStore, "commit", repeated)


def same_again() -> None:
    """Who loses a race writes the same once more, without reading what is there."""
    commit = office.ControllerContext.commit

    async def stubborn(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        for _ in range(9):
            try:
                return await commit(self, writes, checks, request_id)
            except RevisionConflict:
                await self.clock.sleep(0.4)
        return await commit(self, writes, checks, request_id)

    patch_attribute(office.ControllerContext, "commit", stubborn)
