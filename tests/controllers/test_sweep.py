"""Many writes in few commits."""

from lattice.controllers.runtime.commit_batches import Step, bundles
from lattice.store.protocol import MAX_BYTES, MAX_OPERATIONS, Delete, Key, Put


def test_commits_are_as_large_as_allowed_and_no_larger() -> None:
    small = [Step(Delete(Key("events", "a", str(i))), "ttl") for i in range(MAX_OPERATIONS + 1)]
    assert [len(bundle) for bundle in bundles(small)] == [MAX_OPERATIONS, 1]
    large = [Step(Put(Key("secrets", "a", str(i)), bytes(MAX_BYTES // 2)), "owner") for i in range(3)]
    assert [len(bundle) for bundle in bundles(large)] == [1, 1, 1]
    assert list(bundles([])) == []
