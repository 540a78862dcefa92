"""The store feed of the query process equals lists, also after watches have lost changes."""

import contextlib
import random

import pytest
from build.virtual import VirtualClock
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import LatticeError
from lattice.server.fleet_queries.store_feed import Snapshot
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Key, Put

pytestmark = pytest.mark.timeout(90)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.sampled_from([3, 1000]))
async def test_snapshot_equals_lists_at_its_revision(seed: int, window: int) -> None:
    """Also after more changes than the watch window holds."""
    draw, clock = random.Random(seed), VirtualClock()
    store = MemoryStore(clock, window)
    snapshot = Snapshot(store, clock, ["a", "b"])
    known: dict[Key, tuple[int, bytes]] = {}
    for _ in range(6):
        for _ in range(draw.randint(0, 12)):
            await _something(store, draw)
        async for load in snapshot.loads():
            if load.anew:
                known.clear()
            for row in load.rows:
                known.pop(row.key, None)
                if row.value is not None:
                    known[row.key] = (row.revision, row.value)
        lists = [(await store.list(each, revision=snapshot.revision)).entries for each in ("a", "b")]
        assert known == {each.key: (each.revision, each.value) for entries in lists for each in entries}
        assert (snapshot.revision, snapshot.size) == (await store.revision(), len(known))
        if draw.random() < 0.2:
            snapshot.reset()


async def _something(store: MemoryStore, draw: random.Random) -> None:
    key = Key(draw.choice("abc"), "", draw.choice("xyz"))
    with contextlib.suppress(LatticeError):
        await store.commit([Delete(key) if draw.random() < 0.3 else Put(key, str(draw.random()).encode())])
