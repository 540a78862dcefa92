"""Bugs in who may write what, and in what people and copies are told."""

from typing import Any

import msgspec

from lattice.clock import Clock
from lattice.controllers.runtime import context as office, workqueue as turns
from lattice.errors import Conflict, Gone
from lattice.kinds.service import LatticeService
from lattice.server.resources import admission, verbs, write
from lattice.server.agents import join as joining
from lattice.sim.planted_bugs.patching import swap
from lattice.store import cache, election as leader, memory
from lattice.store.protocol import Clash, Key, Put

SERVICES = LatticeService.resource.id


def no_fence() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        revision: int = await self.store.commit(writes, checks=checks, request_id=request_id)
        return revision

    swap(office.Office, "commit", commit)


def fence_read_again() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        held = self.store.store.held(self.term.role)
        revision: int = await self.store.commit(
            writes, checks=checks, fence=held or self.term, request_id=request_id
        )
        return revision

    swap(office.Office, "commit", commit)


def no_compare() -> None:
    swap(memory, "refuse_clash", lambda writes, checks, found: None)


def wall_clock_lease() -> None:
    class Wall:
        def __init__(self, clock: Clock) -> None:
            self.now, self.sleep, self.alarm = clock.now, clock.sleep, clock.alarm

        def monotonic(self) -> float:
            return self.now().timestamp()

    made = leader.Election.__post_init__

    def with_wall(self: Any) -> None:
        made(self)
        self.clock = Wall(self.clock)

    swap(leader.Election, "__post_init__", with_wall)


def swallowed_gap() -> None:
    """A watch that has fallen too far behind goes on as if nothing was missed."""
    follow = cache.Cache._follow

    async def deaf(self: Any) -> None:
        try:
            await follow(self)
        except Gone:
            self._listed = await self.store.revision()

    swap(cache.Cache, "_follow", deaf)


def missed_deletions() -> None:
    apply = cache.Cache._apply

    def forgetful(self: Any, change: Any) -> None:
        if change.value is not None or change.revision % 7:
            apply(self, change)

    swap(cache.Cache, "_apply", forgetful)


def lost_write() -> None:
    """Acknowledged, and never written."""

    async def replaced(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return int(await api.store.revision()) + 1

    swap(write, "_replace", replaced)


def dropped_write() -> None:
    """Acknowledged with the revision that was there before, as if there had been nothing to change."""
    replaced = write._replace

    async def dropped(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return (
            int(old.revision)
            if key.resource == SERVICES and old.revision % 3 == 0
            else await replaced(api, key, old, new, value)
        )

    swap(write, "_replace", dropped)


def written_and_refused() -> None:
    insert = write._insert

    async def inserted(api: Any, served: Any, key: Key, value: bytes) -> int:
        await insert(api, served, key, value)
        raise Conflict("somebody else was first")

    swap(write, "_insert", inserted)


def stale_reads() -> None:
    known: dict[Any, Any] = {}
    existing = verbs.existing

    async def old(api: Any, call: Any) -> Any:
        entry = await existing(api, call)
        if call.method != "GET":
            return entry
        return known.setdefault(entry.key, entry)

    swap(verbs, "existing", old)


def not_found() -> None:
    """A read of what is there is told that there is none."""
    existing = verbs.existing

    async def blind(api: Any, call: Any) -> Any:
        entry = await existing(api, call)
        if call.method == "GET" and entry.revision % 2:
            raise verbs.absent(call.target.served, call.target.name)
        return entry

    swap(verbs, "existing", blind)


def foreign_node() -> None:
    """A machine that joins marks somebody else's node, too."""
    node = joining.Joining._node

    def greedy(self: Any, name: str, kept: Any, asked: Any, found: Any) -> Put:
        return msgspec.structs.replace(
            node(self, name, kept, asked, found), key=joining.node_key("rack-1"), expect=None
        )

    swap(joining.Joining, "_node", greedy)


def given_up_after_conflict() -> None:
    """Neither is it tried again, nor does anybody look at everything from time to time: either alone would heal it."""

    def failed(self: Any, key: str, pause: Any) -> float:
        self._in_hand.pop(key)
        return 0.0

    wake = turns.Turns.wake

    def deaf(self: Any, key: str, lane: turns.Lane = turns.Lane.ORDINARY) -> None:
        if lane is not turns.Lane.BACKGROUND:
            wake(self, key, lane)

    swap(turns.Turns, "failed", failed)
    swap(turns.Turns, "wake", deaf)


class _Whichever(str):
    """A revision that differs from none."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def blind_put() -> None:
    """What is put is written over whatever is there, not only over what it was meant for."""
    identity = admission.demand_identity

    def blind(served: Any, obj: Any, namespace: str, name: str) -> Any:
        found = identity(served, obj, namespace, name)
        meant = found["metadata"].get("resourceVersion")
        return (
            {**found, "metadata": {**found["metadata"], "resourceVersion": _Whichever(meant)}}
            if meant
            else found
        )

    swap(admission, "demand_identity", blind)


def revision_twice() -> None:
    """Now and then two commits in a row are of the same revision."""
    commit = memory.MemoryStore.commit

    async def repeated(self: Any, writes: Any, **rest: Any) -> int:
        revision: int = await commit(self, writes, **rest)
        if revision % 50 == 0 and self.changes_after(SERVICES, revision - 1):
            self._revision -= 1
        return revision

    swap(memory.MemoryStore, "commit", repeated)


def same_again() -> None:
    """Who loses a race writes the same once more, without reading what is there."""
    commit = office.Office.commit

    async def stubborn(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        for _ in range(9):
            try:
                return await commit(self, writes, checks, request_id)
            except Clash:
                await self.clock.sleep(0.4)
        return await commit(self, writes, checks, request_id)

    swap(office.Office, "commit", stubborn)
