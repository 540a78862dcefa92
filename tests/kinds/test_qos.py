"""QoS classes on a node: the order of the out-of-memory killer, and of eviction."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.qos import Qos, eviction_order, oom_score_adj

GIB = 1 << 30


@pytest.mark.parametrize(
    ("qos", "request_bytes", "expected"),
    [
        pytest.param(Qos.Guaranteed, 4 * GIB, -997, id="Guaranteed is killed last"),
        pytest.param(Qos.BestEffort, 0, 1000, id="BestEffort is killed first"),
        pytest.param(Qos.Burstable, 4 * GIB, 500, id="half of the memory"),
        pytest.param(Qos.Burstable, 0, 999, id="Burstable without a memory request comes after BestEffort"),
        pytest.param(Qos.Burstable, 8 * GIB, 2, id="all of the memory stays above Guaranteed"),
    ],
)
def test_score_for_the_out_of_memory_killer(qos: Qos, request_bytes: int, expected: int) -> None:
    assert oom_score_adj(qos, request_bytes, 8 * GIB) == expected


@given(
    st.lists(st.tuples(st.sampled_from(Qos), st.integers(0, 2), st.integers(-1, 2)), min_size=2, max_size=6)
)
def test_eviction_order_agrees_with_the_obvious_comparison(drawn: list[tuple[Qos, int, int]]) -> None:
    named = {f"w{number}": workload for number, workload in enumerate(drawn)}
    order = eviction_order(
        [(name, qos, priority) for name, (qos, priority, _) in named.items()],
        {name: excess for name, (_, _, excess) in named.items()},
    )
    for first, second in pairwise(order):
        (qos, priority, excess), (other, other_priority, other_excess) = named[first], named[second]
        assert qos >= other
        if qos == other:
            assert (excess > 0) >= (other_excess > 0)
            if (excess > 0) == (other_excess > 0):
                assert priority <= other_priority
