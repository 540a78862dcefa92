"""Tests of rollouts: replicas are replaced one by one, ready replicas never fall below the target, at most
one surge replica runs, and the rollout ends."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from build.property_settings import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.lifecycle.replica_template import NodeGroupKey, free_slots
from lattice.lifecycle.rollout import Replica, RolloutSteps, ScaleDownLimits, next_steps

A: NodeGroupKey = ("us-001", "m")
B: NodeGroupKey = ("eu-001", "m")
OLD, NEW = "old", "new"


def an_api_replica(
    slot: int, revision: str = NEW, cell: NodeGroupKey = A, *, ready: bool = True, **facts: object
) -> Replica:
    return Replica(f"api-{slot}", slot, cell, revision, is_ready=ready, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "replicas", "steps"),
    [
        pytest.param({A: 2}, [], RolloutSteps(start=(A, A)), id="all at once when there are none"),
        pytest.param(
            {A: 2},
            [an_api_replica(0), an_api_replica(1)],
            RolloutSteps(),
            id="nothing when all are as they should be",
        ),
        pytest.param({A: 2}, [an_api_replica(0)], RolloutSteps(start=(A,)), id="the one that is lacking"),
        pytest.param(
            {A: 1},
            [an_api_replica(0), an_api_replica(1), an_api_replica(2)],
            RolloutSteps(stop=("api-2", "api-1")),
            id="the highest slots go",
        ),
        pytest.param(
            {A: 1},
            [an_api_replica(0, ready=False), an_api_replica(1)],
            RolloutSteps(stop=("api-0",)),
            id="the one that is not ready goes before others",
        ),
        pytest.param(
            {A: 1, B: 1},
            [an_api_replica(0, OLD, B), an_api_replica(1, OLD, A), an_api_replica(2, NEW, B)],
            RolloutSteps(stop=("api-0",), is_rolling=True),
            id="the one in the group of the surge replica goes before a higher slot in another group",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, node="n2"), an_api_replica(1, node="n1"), an_api_replica(2, node="n1")],
            RolloutSteps(stop=("api-0",)),
            id="the replica on a machine that becomes empty goes before a higher slot",
        ),
        pytest.param(
            {A: 3},
            [
                an_api_replica(0, node="n1"),
                an_api_replica(1, node="n1"),
                an_api_replica(2, node="n2"),
                an_api_replica(3, node="n2"),
            ],
            RolloutSteps(stop=("api-3",)),
            id="where all are needed the highest slot of the last of the fullest goes",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, OLD), an_api_replica(1, OLD)],
            RolloutSteps(start=(A,), is_rolling=True),
            id="an update begins with one more",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, OLD), an_api_replica(1, OLD), an_api_replica(2, ready=False)],
            RolloutSteps(is_rolling=True),
            id="an update waits until the surge replica is ready",
        ),
        pytest.param(
            {A: 2},
            [
                an_api_replica(0, OLD),
                an_api_replica(1, OLD),
                an_api_replica(2, ready=False, unschedulable_reason="0 of 1 node"),
            ],
            RolloutSteps(is_rolling=True, unschedulable_reason="0 of 1 node"),
            id="an unschedulable surge replica blocks the update, with a message",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0), an_api_replica(1, ready=False, unschedulable_reason="0 of 1 node")],
            RolloutSteps(unschedulable_reason="0 of 1 node"),
            id="no update waits for room",
        ),
        pytest.param(
            {A: 1, B: 1},
            [an_api_replica(0, OLD), an_api_replica(1, ready=False, unschedulable_reason="0 of 1 node")],
            RolloutSteps(start=(B,), is_rolling=True, unschedulable_reason="0 of 1 node"),
            id="an unschedulable surge replica does not block another cluster",
        ),
        pytest.param(
            {A: 1, B: 1},
            [
                an_api_replica(0, OLD),
                an_api_replica(1, ready=False, unschedulable_reason="0 of 1 node"),
                an_api_replica(2, cell=B, ready=False),
            ],
            RolloutSteps(is_rolling=True, unschedulable_reason="0 of 1 node"),
            id="one surge replica at a time over all clusters",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, OLD), an_api_replica(1, OLD), an_api_replica(2)],
            RolloutSteps(stop=("api-1",), is_rolling=True),
            id="an old replica stops once the surge replica is ready",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, OLD), an_api_replica(1, OLD, is_terminating=True), an_api_replica(2)],
            RolloutSteps(is_rolling=True),
            id="the next one waits until the last one is gone",
        ),
        pytest.param(
            {A: 2},
            [
                an_api_replica(0, OLD),
                an_api_replica(1, OLD),
                an_api_replica(2, ready=False, failure="IMAGE_NOT_FOUND"),
            ],
            RolloutSteps(is_rolling=True, failure="IMAGE_NOT_FOUND"),
            id="an update that fails stops and says why",
        ),
        pytest.param(
            {A: 2},
            [an_api_replica(0, OLD, ready=False), an_api_replica(1, OLD, ready=False)],
            RolloutSteps(start=(A, A), stop=("api-1", "api-0"), is_rolling=True),
            id="what is not ready is replaced at once",
        ),
        pytest.param(
            {A: 1, B: 1},
            [an_api_replica(0), an_api_replica(1)],
            RolloutSteps(start=(B,), is_waiting=True),
            id="what is placed elsewhere starts there first",
        ),
        pytest.param(
            {A: 1, B: 1},
            [
                an_api_replica(0, OLD),
                an_api_replica(1, OLD),
                an_api_replica(2, ready=False, unschedulable_reason="0 of 2 nodes"),
            ],
            RolloutSteps(start=(B,), is_rolling=True, unschedulable_reason="0 of 2 nodes"),
            id="a surge replica that no node accepts does not keep another cluster waiting",
        ),
        pytest.param(
            {},
            [an_api_replica(0), an_api_replica(1)],
            RolloutSteps(stop=("api-1", "api-0"), is_rolling=True),
            id="none are wanted any more",
        ),
    ],
)
def test_next_steps(wanted: dict[NodeGroupKey, int], replicas: list[Replica], steps: RolloutSteps) -> None:
    assert replace(next_steps(wanted, NEW, replicas), is_ready=True) == steps


@pytest.mark.parametrize(
    ("replicas", "is_ready"),
    [
        pytest.param([an_api_replica(0), an_api_replica(1)], True, id="all of the revision are ready"),
        pytest.param([an_api_replica(0), an_api_replica(1, ready=False)], False, id="one is not ready"),
        pytest.param([an_api_replica(0), an_api_replica(1, OLD)], False, id="one has the old revision"),
        pytest.param([an_api_replica(0)], False, id="one does not exist yet"),
    ],
)
def test_rollout_is_ready_with_the_last_new_replica(replicas: list[Replica], is_ready: bool) -> None:
    assert next_steps({A: 2}, NEW, replicas).is_ready is is_ready


NO_COMMAND = "COMMAND_NOT_FOUND"
TWO_OLD = [an_api_replica(0, OLD, node="n1"), an_api_replica(1, OLD, node="n1")]


def a_surge(node: str = "n2", *, ready: bool = False, final: bool = True) -> Replica:
    failure = "" if ready else NO_COMMAND
    return an_api_replica(2, ready=ready, node=node, failure=failure, has_failed_finally=final)


@pytest.mark.parametrize(
    ("replicas", "final_failure", "steps"),
    [
        pytest.param(
            [*TWO_OLD, a_surge()],
            "",
            RolloutSteps(stop=("api-2",), is_rolling=True, is_ready=False, failure=NO_COMMAND),
            id="a surge replica that failed for good and is alone on its machine is stopped",
        ),
        pytest.param(
            [*TWO_OLD, a_surge(final=False)],
            "",
            RolloutSteps(is_rolling=True, is_ready=False, failure=NO_COMMAND),
            id="a surge replica that is restarted stays",
        ),
        pytest.param(
            [*TWO_OLD, a_surge("n1")],
            NO_COMMAND,
            RolloutSteps(is_rolling=True, is_ready=False, failure=NO_COMMAND),
            id="a surge replica beside other replicas stays",
        ),
        pytest.param(
            TWO_OLD,
            NO_COMMAND,
            RolloutSteps(is_rolling=True, is_ready=False, failure=NO_COMMAND),
            id="no further surge replica starts after one that failed for good",
        ),
        pytest.param(
            TWO_OLD,
            "",
            RolloutSteps(start=(A,), is_rolling=True, is_ready=False),
            id="a surge replica starts if none failed for good",
        ),
        pytest.param(
            [*TWO_OLD, a_surge("n1", ready=True, final=False)],
            NO_COMMAND,
            RolloutSteps(stop=("api-1",), is_rolling=True, is_ready=False),
            id="a surge replica that became ready after a manual retry ends the failure",
        ),
        pytest.param(
            [an_api_replica(0), an_api_replica(1)],
            NO_COMMAND,
            RolloutSteps(),
            id="a failure of an update that has ended holds nothing",
        ),
    ],
)
def test_surge_replica_that_failed_for_good(
    replicas: list[Replica], final_failure: str, steps: RolloutSteps
) -> None:
    assert next_steps({A: 2}, NEW, replicas, final_failure=final_failure) == steps


def test_scale_down_does_not_prefer_shared_machine() -> None:
    replicas = [an_api_replica(0, node="n1"), an_api_replica(1, node="n1"), an_api_replica(2, node="n2")]
    assert next_steps(
        {A: 2}, NEW, replicas, 0, ScaleDownLimits(is_shared=lambda node: node == "n2")
    ).stop == ("api-1",)


def test_scale_down_is_even_when_machines_stay() -> None:
    replicas = [an_api_replica(0, node="n1"), an_api_replica(1, node="n1"), an_api_replica(2, node="n2")]
    assert next_steps({A: 2}, NEW, replicas, 0, ScaleDownLimits(min_machines=lambda _: 2)).stop == ("api-1",)


@dataclass
class Fleet:
    """Replicas that start, become ready, fail and stop at random times."""

    rng: Random
    replicas: dict[str, Replica] = field(default_factory=dict)

    def take(self, steps: RolloutSteps, revision: str) -> None:
        slots = free_slots([each.slot for each in self.replicas.values()])
        for cell in steps.start:
            made = an_api_replica(next(slots), revision, cell, ready=False)
            self.replicas[made.name] = made
        for name in steps.stop:
            self.replicas[name] = replace(self.replicas[name], is_terminating=True, is_ready=False)

    def live(self) -> list[Replica]:
        return [each for each in self.replicas.values() if not each.is_terminating]

    def pass_time(self) -> None:
        for name, each in list(self.replicas.items()):
            if each.is_terminating and self.rng.random() < 0.7:
                del self.replicas[name]
            elif not each.is_terminating and not each.is_ready and self.rng.random() < 0.7:
                self.replicas[name] = replace(each, is_ready=True)


cells = st.dictionaries(st.sampled_from([A, B, ("us-002", "l")]), st.integers(1, 4), min_size=1)


@settings(max_examples=3000 if LONG else 100, deadline=None)
@given(before=cells, after=cells, seed=st.integers(0, 1 << 20))
def test_rollout_stays_within_bounds_and_terminates(
    before: dict[NodeGroupKey, int], after: dict[NodeGroupKey, int], seed: int
) -> None:
    fleet = Fleet(Random(seed))
    fleet.take(next_steps(before, OLD, []), OLD)
    for _ in range(50):
        fleet.pass_time()
    least, most = (
        min(sum(before.values()), sum(after.values())),
        max(sum(before.values()), sum(after.values())),
    )
    total = sum(after.values())
    for _ in range(400):
        steps = next_steps(after, NEW, list(fleet.replicas.values()))
        fleet.take(steps, NEW)
        live = fleet.live()
        assert sum(each.is_ready for each in live) >= least
        assert len(live) <= max(most, total + 1)
        if not steps.is_rolling and steps.is_empty and all(each.is_ready for each in live):
            break
        fleet.pass_time()
    else:
        raise AssertionError("never done")
    assert Counter(each.node_group for each in fleet.live()) == Counter(after)
    assert {each.revision for each in fleet.live()} == {NEW}


@settings(max_examples=2000 if LONG else 70, deadline=None)
@given(count=st.integers(1, 6), seed=st.integers(0, 1 << 20))
def test_failing_rollout_keeps_old_replicas(count: int, seed: int) -> None:
    fleet = Fleet(Random(seed))
    fleet.take(next_steps({A: count}, OLD, []), OLD)
    fleet.replicas = {name: replace(each, is_ready=True) for name, each in fleet.replicas.items()}
    for _ in range(20):
        steps = next_steps({A: count}, NEW, list(fleet.replicas.values()))
        fleet.take(steps, NEW)
        failed = {
            each.name: replace(each, failure="CRASHED") for each in fleet.live() if each.revision == NEW
        }
        fleet.replicas |= failed
    assert sum(each.is_ready and each.revision == OLD for each in fleet.live()) == count
    assert len(fleet.live()) == count + 1
    assert next_steps({A: count}, NEW, list(fleet.replicas.values())).failure == "CRASHED"
