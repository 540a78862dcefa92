"""Many writes are packed into few commits."""

from lattice.controllers.runtime.commit_batches import GarbageWrite, batch_garbage_writes
from lattice.store.protocol import MAX_COMMIT_BYTES, MAX_COMMIT_OPERATIONS, Delete, Key, Put


def test_commits_fill_up_to_size_limit() -> None:
    small = [
        GarbageWrite(Delete(Key("events", "a", str(i))), "ttl") for i in range(MAX_COMMIT_OPERATIONS + 1)
    ]
    assert [len(bundle) for bundle in batch_garbage_writes(small)] == [MAX_COMMIT_OPERATIONS, 1]
    large = [
        GarbageWrite(Put(Key("secrets", "a", str(i)), bytes(MAX_COMMIT_BYTES // 2)), "owner")
        for i in range(3)
    ]
    assert [len(bundle) for bundle in batch_garbage_writes(large)] == [1, 1, 1]
    assert list(batch_garbage_writes([])) == []
