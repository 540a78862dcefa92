"""The contract of stores: reads, commits, lists, watches, request ids, terms and compaction."""

import asyncio
import contextlib
import random
import subprocess
import sys

import pytest
from build.store_keys import PODS, pod

from lattice.clock import SystemClock
from lattice.errors import Fenced, Gone, LatticeError, Malformed, RevisionTooNew, TooLarge
from lattice.store.cache import Cache
from lattice.store.protocol import (
    ABSENT,
    MAX_COMMIT_BYTES,
    MAX_EMBEDDED_COMMIT_BYTES,
    Batch,
    Check,
    Delete,
    Key,
    Page,
    Put,
    RevisionConflict,
    Store,
    Term,
    Watch,
)
from tests.contract.conftest import OpenStore

POOLS = "latticepools.lattice.dev"


def pool(name: str) -> Key:
    return Key(POOLS, "", name)


async def take(watch: Watch, count: int, timeout: float = 5.0) -> list[Batch]:
    """Exactly this many batches."""
    batches: list[Batch] = []
    while len(batches) < count:
        more = await watch.next(timeout)
        assert more, f"{len(batches)} of {count} batches came"
        batches += more
    assert len(batches) == count
    return batches


def paths_of(page: Page) -> list[str]:
    return [entry.key.path for entry in page.entries]


async def test_an_empty_store_is_at_revision_one(open_store: OpenStore) -> None:
    async with open_store() as store:
        assert await store.get(pool("a")) is None
        page = await store.list(POOLS)
        assert (page.entries, page.has_more) == ([], False)
        assert page.revision == await store.revision() >= 1


async def test_committed_object_is_read(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.commit([Put(pool("a"), b"1", ABSENT), Put(pod("x/y"), b"2")])
        entry = await store.get(pool("a"))
        other = await store.get(pod("x/y"))
        assert entry is not None
        assert other is not None
        assert (entry.key, entry.value, entry.revision) == (pool("a"), b"1", first)
        assert other.revision == first
        second = await store.commit([Put(pool("a"), b"", first)])
        assert second > first
        assert await store.revision() == second
        changed = await store.get(pool("a"))
        assert changed is not None
        assert (changed.value, changed.revision) == (b"", second)
        third = await store.commit([Delete(pool("a"), second)])
        assert third > second
        assert await store.get(pool("a")) is None


async def test_concurrent_gets_return_their_own_objects(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.commit([Put(pool(f"n{i}"), b"%d" % i) for i in range(100)])
        found = await asyncio.gather(*(store.get(pool(f"n{i}")) for i in range(250)))
        assert [entry.value if entry else None for entry in found] == [
            b"%d" % i if i < 100 else None for i in range(250)
        ]


@pytest.mark.parametrize(
    ("writes", "checks", "clashing", "expected", "found_it"),
    [
        pytest.param(
            [Put(pool("here"), b"", ABSENT)],
            [],
            pool("here"),
            ABSENT,
            True,
            id="create of an existing object",
        ),
        pytest.param(
            [Put(pool("none"), b"", 7)], [], pool("none"), 7, False, id="replace of a missing object"
        ),
        pytest.param(
            [Put(pool("here"), b"", 999)], [], pool("here"), 999, True, id="replace of another revision"
        ),
        pytest.param([Delete(pool("none"))], [], pool("none"), None, False, id="delete of a missing object"),
        pytest.param(
            [Delete(pool("here"), 999)], [], pool("here"), 999, True, id="delete of another revision"
        ),
        pytest.param(
            [Delete(pool("none"), ABSENT)],
            [],
            pool("none"),
            ABSENT,
            False,
            id="delete of the absent, expecting absence",
        ),
        pytest.param(
            [Put(pool("new"), b"")],
            [Check(pool("none"), 5)],
            pool("none"),
            5,
            False,
            id="check of a missing object",
        ),
        pytest.param(
            [Put(pool("new"), b"")],
            [Check(pool("here"), ABSENT)],
            pool("here"),
            ABSENT,
            True,
            id="check of absence of an existing object",
        ),
        pytest.param(
            [Put(pool("none"), b"", 7)],
            [Check(pool("here"), 999)],
            pool("here"),
            999,
            True,
            id="checks are judged before writes",
        ),
        pytest.param(
            [Put(pool("new"), b""), Put(pool("none"), b"", 8), Put(pool("here"), b"", 9)],
            [],
            pool("none"),
            8,
            False,
            id="the first wrong write is named",
        ),
    ],
)
async def test_conflict_names_object_and_writes_nothing(
    open_store: OpenStore,
    writes: list[Put | Delete],
    checks: list[Check],
    clashing: Key,
    expected: int | None,
    found_it: bool,
) -> None:
    async with open_store() as store:
        here = await store.commit([Put(pool("here"), b"old")])
        with pytest.raises(RevisionConflict) as clash:
            await store.commit(writes, checks=checks)
        assert (clash.value.key, clash.value.expected, clash.value.actual) == (
            clashing,
            expected,
            here if found_it else ABSENT,
        )
        assert await store.revision() == here
        assert paths_of(await store.list(POOLS)) == ["/here"]


async def test_passing_check_allows_commit(open_store: OpenStore) -> None:
    async with open_store() as store:
        node = await store.commit([Put(pool("node"), b"")])
        done = await store.commit(
            [Put(pod("a/b"), b"")], checks=[Check(pool("node"), node), Check(pool("ghost"), ABSENT)]
        )
        assert done > node
        kept = await store.get(pool("node"))
        assert kept is not None
        assert kept.revision == node


@pytest.mark.parametrize(
    ("writes", "error"),
    [
        pytest.param([], Malformed, id="nothing to write"),
        pytest.param([Put(pool("a"), b""), Delete(pool("a"))], Malformed, id="the same object twice"),
        pytest.param([Put(pool(f"n{i}"), b"") for i in range(101)], TooLarge, id="a hundred and one writes"),
        pytest.param(
            [Put(pool("a"), b"x" * MAX_EMBEDDED_COMMIT_BYTES)], TooLarge, id="more than any store takes"
        ),
    ],
)
async def test_invalid_commits_are_rejected(
    open_store: OpenStore, writes: list[Put | Delete], error: type[LatticeError]
) -> None:
    async with open_store() as store:
        before = await store.revision()
        with pytest.raises(error):
            await store.commit(writes)
        assert await store.revision() == before


async def test_the_largest_commit_passes(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.commit([Put(pool(f"n{i:03}"), b"x" * 10_000, ABSENT) for i in range(100)])
        term = await store.campaign("big", "me", 10)
        assert term is not None
        assert (
            await store.commit(
                [Delete(pool(f"n{i:03}"), first) for i in range(100)], fence=term, request_id="big"
            )
            > first
        )
        assert await store.commit([Put(pool("one"), b"x" * (MAX_COMMIT_BYTES - 100))]) > first


async def test_count_is_the_length_of_the_list(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.commit(
            [Put(pod(path), b"") for path in ("a/x", "a/y", "a-b/x", "a0/x", "/cluster-scoped")]
        )
        await store.commit([Delete(pod("a/y")), Put(pool("other"), b"")])
        for namespace in (None, "a", "a-b", "nowhere"):
            listed = await store.list(PODS, namespace)
            assert await store.count(PODS, namespace) == len(listed.entries)


async def test_lists_are_in_path_order_and_page_at_one_revision(open_store: OpenStore) -> None:
    paths = ["a/x", "a-b/x", "a/x-1", "a/x1", "a.b/c", "b/a", "b/é", "b/a.a", "/cluster-scoped"]
    async with open_store() as store:
        at = await store.commit([Put(pod(path), path.encode()) for path in paths])
        whole = await store.list(PODS)
        assert paths_of(whole) == sorted(paths)
        assert (whole.revision, whole.has_more) == (at, False)
        assert paths_of(await store.list(PODS, "a")) == ["a/x", "a/x-1", "a/x1"]
        assert paths_of(await store.list(PODS, "")) == ["/cluster-scoped"]
        assert paths_of(await store.list(PODS, "none")) == []
        paged: list[str] = []
        page = await store.list(PODS, limit=2)
        while True:
            paged += paths_of(page)
            if not page.has_more:
                break
            await store.commit([Put(pod(f"a/new{len(paged)}"), b""), Put(pod("b/a"), b"changed")])
            page = await store.list(PODS, limit=2, after=paged[-1], revision=page.revision)
            assert page.revision == at
        assert paged == sorted(paths)
        assert paths_of(await store.list(PODS, "b", limit=1, after="b/a", revision=at)) == ["b/a.a"]
        assert paths_of(await store.list(PODS, "b", after="a/zzz", revision=at)) == ["b/a", "b/a.a", "b/é"]


async def test_a_list_that_ends_exactly_at_the_limit_has_no_more(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.commit([Put(pod(f"a/{i}"), b"") for i in range(4)])
        await store.commit([Put(Key("podsmore", "a", "x"), b""), Put(Key("pod", "a", "x"), b"")])
        assert not (await store.list(PODS, limit=4)).has_more
        assert (await store.list(PODS, limit=3)).has_more
        assert not (await store.list(PODS, limit=3, after="a/0")).has_more


async def test_long_lists_are_complete(open_store: OpenStore) -> None:
    async with open_store() as store:
        for start in range(0, 1300, 100):
            await store.commit([Put(pod(f"a/{i:05}"), b"%d" % i) for i in range(start, start + 100)])
        at = await store.revision()
        assert paths_of(await store.list(PODS)) == [f"a/{i:05}" for i in range(1300)]
        await store.commit([Delete(pod(f"a/{i:05}")) for i in range(0, 1300, 20)])
        await store.commit([Put(pod(f"a/{i:05}"), b"again") for i in range(0, 1300, 40)])
        old = await store.list(PODS, revision=at)
        assert [entry.value for entry in old.entries] == [b"%d" % i for i in range(1300)]
        page = await store.list(PODS, revision=at, limit=700, after="a/00009")
        assert (paths_of(page), page.has_more) == ([f"a/{i:05}" for i in range(10, 710)], True)


async def test_old_and_future_revisions_of_lists(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.commit([Put(pod("a/b"), b"1")])
        second = await store.commit([Delete(pod("a/b"))])
        third = await store.commit([Put(pod("a/b"), b"3"), Put(pod("a/c"), b"3")])
        assert [entry.value for entry in (await store.list(PODS, revision=first)).entries] == [b"1"]
        assert paths_of(await store.list(PODS, revision=second)) == []
        with pytest.raises(RevisionTooNew):
            await store.list(PODS, revision=third + 1)
        await store.compact(second)
        with pytest.raises(Gone):
            await store.list(PODS, revision=first)
        assert paths_of(await store.list(PODS, revision=second)) == []
        assert len((await store.list(PODS)).entries) == 2
        await store.compact(first)
        with pytest.raises(RevisionTooNew):
            await store.compact(third + 10)


async def test_watch_delivers_each_change_once_in_order(open_store: OpenStore) -> None:
    async with open_store() as store:
        start = await store.revision()
        watch = await store.watch(PODS, start)
        one = await store.commit([Put(pod("a/2"), b"v1"), Put(pool("other"), b""), Put(pod("a/1"), b"w1")])
        two = await store.commit([Put(pod("a/1"), b"w2")])
        await store.commit([Put(pool("other"), b"2")])
        three = await store.commit([Delete(pod("a/2"), one), Put(pod("a/3"), b"z")])
        batches = await take(watch, 3)
        assert [batch.revision for batch in batches] == [one, two, three]
        told = [
            [
                (c.key.path, c.value, c.previous and (c.previous.value, c.previous.revision))
                for c in batch.changes
            ]
            for batch in batches
        ]
        assert told == [
            [("a/2", b"v1", None), ("a/1", b"w1", None)],
            [("a/1", b"w2", (b"w1", one))],
            [("a/2", None, (b"v1", one)), ("a/3", b"z", None)],
        ]
        assert all(change.revision == batch.revision for batch in batches for change in batch.changes)
        assert watch.progress == three
        later = await store.watch(PODS, two)
        assert [batch.revision for batch in await take(later, 1)] == [three]
        again = await store.watch(PODS, start)
        assert await take(again, 3) == batches


async def test_watchers_share_change_objects(open_store: OpenStore) -> None:
    async with open_store() as store:
        start = await store.revision()
        watches = [await store.watch(PODS, start) for _ in range(3)]
        await store.commit([Put(pod("a/b"), b"")])
        seen = [(await take(watch, 1))[0].changes[0] for watch in watches]
        assert seen[0] is seen[1] is seen[2]


async def test_progress_follows_other_resources(open_store: OpenStore) -> None:
    async with open_store() as store:
        watch = await store.watch(PODS, await store.revision())
        assert list(await watch.next(0.01)) == []
        other = await store.commit([Put(pool("other"), b"")])
        for _ in range(100):
            assert list(await watch.next(0.05)) == []
            if watch.progress >= other:
                break
        assert watch.progress == other
        resumed = await store.watch(PODS, watch.progress)
        mine = await store.commit([Put(pod("a/b"), b"")])
        assert [batch.revision for batch in await take(resumed, 1)] == [mine]


async def test_waiting_watch_wakes_and_closed_watch_ends(open_store: OpenStore) -> None:
    async with open_store() as store:
        watch = await store.watch(PODS, await store.revision())
        waiting = asyncio.ensure_future(watch.next())
        await asyncio.sleep(0)
        revision = await store.commit([Put(pod("a/b"), b"")])
        assert [batch.revision for batch in await asyncio.wait_for(waiting, 5)] == [revision]
        waiting = asyncio.ensure_future(watch.next())
        await asyncio.sleep(0)
        watch.close()
        assert list(await asyncio.wait_for(waiting, 5)) == []
        cancelled = asyncio.ensure_future((await store.watch(PODS, revision)).next())
        await asyncio.sleep(0)
        cancelled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
        assert cancelled.cancelled()


async def test_watches_from_compacted_or_future_revisions_are_gone(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.commit([Put(pod("a/b"), b"1")])
        second = await store.commit([Delete(pod("a/b"))])
        third = await store.commit([Put(pod("a/b"), b"3")])
        with pytest.raises(Gone):
            await store.watch(PODS, third + 1)
        await store.compact(second)
        with pytest.raises(Gone):
            await store.watch(PODS, first)
        watch = await store.watch(PODS, second)
        batch = (await take(watch, 1))[0]
        assert (batch.revision, batch.changes[0].previous) == (third, None)


async def test_a_watch_that_began_before_a_compaction_goes_on(open_store: OpenStore) -> None:
    async with open_store() as store:
        watch = await store.watch(PODS, await store.revision())
        first = await store.commit([Put(pod("a/b"), b"1")])
        await take(watch, 1)
        await store.compact(first)
        second = await store.commit([Put(pod("a/b"), b"2")])
        batch = (await take(watch, 1))[0]
        assert batch.revision == second
        assert batch.changes[0].previous is not None
        assert batch.changes[0].previous.value == b"1"


async def test_repeated_request_is_applied_once(open_store: OpenStore) -> None:
    async with open_store() as store:
        first = await store.commit([Put(pod("a/b"), b"1", ABSENT)], request_id="r1")
        assert await store.commit([Put(pod("a/b"), b"1", ABSENT)], request_id="r1") == first
        assert await store.commit([Put(pod("a/c"), b"other")], request_id="r1") == first
        assert await store.get(pod("a/c")) is None
        stale = Term("nobody", 99, "me")
        assert await store.commit([Put(pod("a/b"), b"1", ABSENT)], request_id="r1", fence=stale) == first
        with pytest.raises(RevisionConflict):
            await store.commit([Put(pod("a/b"), b"2", ABSENT)], request_id="r2")
        second = await store.commit([Put(pod("a/b"), b"2", first)], request_id="r2")
        assert second > first


async def test_terms_grow_and_fence(open_store: OpenStore) -> None:
    async with open_store() as store:
        with pytest.raises(Fenced):
            await store.commit([Put(pod("a/b"), b"")], fence=Term("role", 1, "ghost"))
        old = await store.campaign("role", "one", 10)
        assert old is not None
        assert (old.role, old.number, old.holder) == ("role", 1, "one")
        assert await store.campaign("role", "two", 10) is None
        assert (await store.campaign("other", "two", 10)) is not None
        assert await store.renew(old)
        first = await store.commit([Put(pod("a/b"), b"1")], fence=old)
        await store.resign(old)
        assert not await store.renew(old)
        new = await store.campaign("role", "two", 10)
        assert new is not None
        assert new.number == 2
        with pytest.raises(Fenced, match=r"term 1 of role has ended, term 2 has begun"):
            await store.commit([Put(pod("a/b"), b"2", 999)], fence=old)
        with pytest.raises(Fenced):
            await store.commit([Put(pod("a/b"), b"2")], fence=Term("role", 3, "two"))
        assert await store.commit([Put(pod("a/b"), b"2", first)], fence=new) > first
        await store.resign(old)
        assert await store.renew(new)


async def test_new_term_of_same_holder_ends_old_one(open_store: OpenStore) -> None:
    async with open_store() as store:
        before = await store.campaign("role", "one", 10)
        after = await store.campaign("role", "one", 10)
        assert before is not None
        assert after is not None
        assert after.number == before.number + 1
        assert not await store.renew(before)
        assert await store.renew(after)
        with pytest.raises(Fenced):
            await store.commit([Put(pod("a/b"), b"")], fence=before)


async def test_only_one_of_many_candidates_wins(open_store: OpenStore) -> None:
    async with open_store() as store:
        terms = await asyncio.gather(*(store.campaign("role", f"server-{i}", 10) for i in range(8)))
        assert len([term for term in terms if term is not None]) == 1


async def test_renewal_leaves_no_history(open_store: OpenStore) -> None:
    async with open_store() as store:
        term = await store.campaign("role", "one", 10)
        assert term is not None
        before = await store.revision()
        for _ in range(3):
            assert await store.renew(term)
        assert await store.revision() == before


async def test_one_of_concurrent_writers_wins_each_round(open_store: OpenStore) -> None:
    async def attempt(store: Store, expect: int, writer: int) -> int | None:
        try:
            return await store.commit([Put(pod("a/b"), b"%d" % writer, expect)])
        except RevisionConflict:
            return None

    async with open_store() as store:
        expect = ABSENT
        for _ in range(5):
            results = await asyncio.gather(*(attempt(store, expect, writer) for writer in range(10)))
            won = [revision for revision in results if revision is not None]
            assert len(won) == 1
            expect = won[0]


async def test_page_is_consistent_during_writes(open_store: OpenStore) -> None:
    """Two objects always change together, so every list and every batch shows them equal."""

    async def writing(store: Store) -> None:
        for number in range(60):
            await store.commit([Put(pod("a/left"), b"%d" % number), Put(pod("z/right"), b"%d" % number)])

    async with open_store() as store:
        watch = await store.watch(PODS, await store.revision())
        writer = asyncio.ensure_future(writing(store))
        while not writer.done():
            page = await store.list(PODS)
            assert len({entry.value for entry in page.entries}) <= 1
            assert all(entry.revision <= page.revision for entry in page.entries)
            await asyncio.sleep(0)
        await writer
        assert all(len({change.value for change in batch.changes}) == 1 for batch in await take(watch, 60))


async def test_cache_is_complete_up_to_its_revision(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.commit([Put(pod(f"a/{i:03}"), b"0") for i in range(50)])
        cache: Cache[bytes] = Cache(
            store, PODS, lambda entry: entry.value, SystemClock(), random.Random(1), freeze=False
        )
        task = asyncio.ensure_future(cache.run())
        for number in range(1, 5):
            mine = await store.commit(
                [Put(pod(f"a/{i:03}"), b"%d" % number) for i in range(0, 50, 5)]
                + [Delete(pod(f"a/{number:03}"))]
            )
            await cache.wait_for(mine)
            listed = await store.list(PODS, revision=mine)
            assert {entry.key.path: entry.value for entry in listed.entries} == {
                e.key.path: cache.get(e.key.path) for e in listed.entries
            }
            assert len(cache) == len(listed.entries)
            other = await store.commit([Put(pool("other"), b"")])
            await cache.wait_for(other)
            await store.commit([Put(pod(f"a/{number:03}"), b"back")])
        task.cancel()


def test_stores_without_etcd_do_not_load_grpc() -> None:
    modules = ", ".join(f"lattice.store.{name}" for name in ("memory", "sqlite", "cache", "election"))
    script = f"import sys, {modules}; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
