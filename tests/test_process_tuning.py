"""The garbage collector skips long-lived objects, and one query leaves its settings unchanged."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from lattice.process_tuning import QUERY_GC_THRESHOLD, freeze_heap, reduced_gc


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_reduced_gc_restores_settings() -> None:
    before = gc.get_threshold()
    with reduced_gc():
        assert gc.get_threshold()[0] == QUERY_GC_THRESHOLD
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_reduced_gc_restores_settings_after_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no answer"), reduced_gc():
        raise ValueError("no answer")
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_freeze_heap_collects_frozen_garbage() -> None:
    class Round:
        other: "Round"

    freeze_heap()
    gone: list[str] = []
    one = Round()
    one.other = one
    weakref.finalize(one, gone.append, "collected")
    gc.freeze()
    del one
    freeze_heap()
    assert gone == ["collected"]
    assert gc.get_threshold()[0] == QUERY_GC_THRESHOLD
