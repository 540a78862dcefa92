"""The agent's plan: no duplicate instances, no unassigned instances, and convergence."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from build.assignments import an_assignment, an_instance, instance_id
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.agent.host.runtime_protocol import Failure, Instance, Limits
from lattice.agent.plan import Action, Assignment, Remove, Start, Stop, assignment_from_spec, plan, run_spec
from lattice.kinds.container import Container, ContainerResources, Disconnect, Port
from lattice.kinds.workload import WorkloadSpec

FAILED = Failure("RUNTIME_ERROR", "exited with code 1")


def planned(actions: Iterable[Action]) -> list[str]:
    return [
        f"start {action.spec.id} #{action.spec.attempt}"
        if isinstance(action, Start)
        else f"stop {action.id}: {action.reason}"
        if isinstance(action, Stop)
        else f"remove {action.id}"
        for action in actions
    ]


@pytest.mark.parametrize(
    ("wanted", "running", "expected"),
    [
        pytest.param([an_assignment()], [], ["start u1.a1.main #0"], id="a missing instance is started"),
        pytest.param([an_assignment()], [an_instance()], [], id="a running instance is kept"),
        pytest.param(
            [an_assignment(attempt=3)], [an_instance()], [], id="a retry of a running instance does nothing"
        ),
        pytest.param(
            [],
            [an_instance()],
            ["stop u1.a1.main: no assignment on this node"],
            id="an unassigned instance is stopped",
        ),
        pytest.param(
            [],
            [an_instance(state="Exited")],
            ["remove u1.a1.main"],
            id="an exited unassigned instance is removed",
        ),
        pytest.param(
            [an_assignment(desired="Stopped")],
            [an_instance()],
            ["stop u1.a1.main: desired state Stopped"],
            id="Stopped stops",
        ),
        pytest.param(
            [an_assignment(desired="Stopped")],
            [an_instance(state="Exited", was_stopped_on_request=True)],
            [],
            id="a stopped instance keeps its logs",
        ),
        pytest.param(
            [an_assignment()],
            [an_instance(state="Exited", was_stopped_on_request=True)],
            ["start u1.a1.main #0"],
            id="a stopped instance may run again",
        ),
        pytest.param(
            [an_assignment(desired="Deleted")],
            [an_instance()],
            ["stop u1.a1.main: workload deleted"],
            id="Deleted stops",
        ),
        pytest.param(
            [an_assignment(desired="Deleted")],
            [an_instance(state="Exited")],
            ["remove u1.a1.main"],
            id="then Deleted removes",
        ),
        pytest.param(
            [an_assignment()],
            [an_instance(state="Exited", failure=FAILED)],
            [],
            id="a failed instance waits for the control plane",
        ),
        pytest.param(
            [an_assignment(attempt=1)],
            [an_instance(state="Exited", failure=FAILED)],
            ["start u1.a1.main #1"],
            id="a retry restarts a failed instance",
        ),
        pytest.param(
            [an_assignment(revision="b2")],
            [an_instance()],
            ["stop u1.a1.main: revision changed"],
            id="an update first stops the old revision",
        ),
        pytest.param(
            [an_assignment(revision="b2")],
            [an_instance(state="Exited", was_stopped_on_request=True)],
            ["remove u1.a1.main", "start u1.b2.main #0"],
            id="and starts the new revision once the old one exited",
        ),
        pytest.param(
            [an_assignment(uid="u2")],
            [an_instance()],
            ["stop u1.a1.main: no assignment on this node"],
            id="a namesake waits for its predecessor's end",
        ),
        pytest.param(
            [an_assignment(containers={"new": Container(command=("a",))})],
            [an_instance()],
            ["stop u1.a1.main: revision changed"],
            id="a container that is no longer in the workload is stopped first",
        ),
        pytest.param(
            [an_assignment(containers={"b": Container(command=("b",)), "a": Container(command=("a",))})],
            [an_instance(id=instance_id(container="a"), state="Exited", failure=FAILED)],
            ["start u1.a1.b #0"],
            id="each container has its own fate",
        ),
        pytest.param(
            [an_assignment(uid="u1", term=4), an_assignment(uid="u2", term=5)],
            [],
            ["start u2.a1.main #0"],
            id="of two assignments of one name the later term wins",
        ),
        pytest.param(
            [an_assignment(uid="u1"), an_assignment(uid="u2", desired="Deleted")],
            [],
            ["start u1.a1.main #0"],
            id="a running assignment wins over a stopping one",
        ),
    ],
)
def test_plan(wanted: list[Assignment], running: list[Instance], expected: list[str]) -> None:
    assert planned(plan(wanted, running)) == expected


@pytest.mark.parametrize(
    ("order", "field", "expected"),
    [
        pytest.param(
            an_assignment(limits=Limits(500, 64)),
            "limits",
            Limits(500, 64),
            id="limits of the workload hold when containers state none",
        ),
        pytest.param(
            an_assignment(
                limits=Limits(500, 64),
                containers={
                    "main": Container(command=("a",), resources=ContainerResources(limits={"cpu": "250m"}))
                },
            ),
            "limits",
            Limits(cpu=250),
            id="a container's own limits go first",
        ),
        pytest.param(
            an_assignment(disconnect=Disconnect(policy="stop", stop_after="45s")),
            "stop_after",
            45.0,
            id="stop gives a deadline",
        ),
        pytest.param(
            an_assignment(disconnect=Disconnect(policy="keep")), "stop_after", None, id="keep gives none"
        ),
        pytest.param(
            an_assignment(
                ports={"http": 31000, "other": 1},
                containers={
                    "main": Container(
                        command=("a",),
                        ports=(Port(name="http"), Port(name="fixed", port=80), Port(name="free")),
                    )
                },
            ),
            "ports",
            {"http": 31000, "fixed": 80},
            id="allocated and fixed ports only",
        ),
    ],
)
def test_run_spec_of_a_container(order: Assignment, field: str, expected: Any) -> None:
    assert getattr(run_spec(order, "main"), field) == expected


def test_assignment_is_made_from_workload() -> None:
    spec = WorkloadSpec(
        containers={"main": Container(command=("a",))},
        revision="a" * 24,
        limits={"cpu": "1", "memory": "1Ki"},
        desired_state="Stopped",
    )
    order = assignment_from_spec("default/web", "u1", spec)
    assert (order.revision, order.desired, order.limits) == ("a" * 24, "Stopped", Limits(1000, 1024))


NAMES = st.sampled_from(["default/web", "default/api"])
orders = st.builds(
    an_assignment,
    workload=NAMES,
    uid=st.sampled_from(["u1", "u2"]),
    revision=st.sampled_from(["a1", "b2"]),
    term=st.integers(0, 2),
    attempt=st.integers(0, 2),
    desired=st.sampled_from(["Running", "Stopped", "Deleted"]),
    containers=st.sets(st.sampled_from(["main", "side"]), min_size=1).map(
        lambda names: {name: Container(command=("a",)) for name in names}
    ),
)
instances = st.builds(
    an_instance,
    workload=NAMES,
    id=st.builds(
        instance_id,
        uid=st.sampled_from(["u1", "u2", "u3"]),
        revision=st.sampled_from(["a1", "b2"]),
        container=st.sampled_from(["main", "side"]),
    ),
    state=st.sampled_from(["Starting", "Running", "Exited"]),
    attempt=st.integers(0, 2),
    failure=st.sampled_from([None, FAILED]),
    was_stopped_on_request=st.booleans(),
)


def one_each(found: list[Instance]) -> list[Instance]:
    """A possible set of instances: one per id, and live instances of one uid and revision only."""
    kept: dict[Any, Instance] = {}
    live: dict[str, tuple[str, str]] = {}
    owner: dict[str, str] = {}
    for each in found:
        if each.id in kept or owner.setdefault(each.id.uid, each.workload) != each.workload:
            continue
        if each.is_live and live.setdefault(each.workload, (each.id.uid, each.id.revision)) != (
            each.id.uid,
            each.id.revision,
        ):
            continue
        kept[each.id] = each
    return list(kept.values())


class Slow:
    """A reference machine: executes one action at a time and rejects a duplicate instance."""

    def __init__(self, there: list[Instance]) -> None:
        self.there = {instance.id: instance for instance in there}

    def do(self, action: Action) -> None:
        if isinstance(action, Remove):
            assert not self.there[action.id].is_live, "removed while it ran"
            del self.there[action.id]
        elif isinstance(action, Stop):
            assert self.there[action.id].is_live
            self.there[action.id] = msgspec.structs.replace(
                self.there[action.id], state="Exited", was_stopped_on_request=True, failure=None
            )
        else:
            spec = action.spec
            assert spec.id not in self.there or not self.there[spec.id].is_live
            self.there[spec.id] = an_instance(spec.workload, id=spec.id, attempt=spec.attempt)
        self.check()

    def check(self) -> None:
        for name in {instance.workload for instance in self.there.values()}:
            copies = {
                (instance.id.uid, instance.id.revision)
                for instance in self.there.values()
                if instance.is_live and instance.workload == name
            }
            assert len(copies) <= 1, f"two copies of {name}: {copies}"


def should_live(wanted: list[Assignment], there: list[Instance]) -> set[Any]:
    """The reference answer: of each name the assignment with the highest term runs (running ones first),
    unless it failed in this attempt."""
    best: dict[str, Assignment] = {}
    for order in wanted:
        rank = (order.term, order.desired == "Running", order.uid, order.revision, order.attempt)
        other = best.get(order.workload)
        if (
            other is None
            or (other.term, other.desired == "Running", other.uid, other.revision, other.attempt) <= rank
        ):
            best[order.workload] = order
    spent = {
        instance.id
        for instance in there
        if not instance.is_live and not instance.was_stopped_on_request
        for order in [best.get(instance.workload)]
        if order and instance.attempt >= order.attempt
    }
    alive = {
        instance_id(o.uid, o.revision, name)
        for o in best.values()
        if o.desired == "Running"
        for name in o.containers
    }
    return alive - spent


def with_uids_of_one_name(wanted: list[Assignment], there: list[Instance]) -> list[Assignment]:
    """Assignments in which each uid belongs to one name."""
    names = {instance.id.uid: instance.workload for instance in there}
    return [order for order in wanted if names.setdefault(order.uid, order.workload) == order.workload]


@given(wanted=st.lists(orders, max_size=4), found=st.lists(instances, max_size=6), data=st.data())
@settings(max_examples=300, deadline=None)
def test_plan_converges_without_duplicate_instances(
    wanted: list[Assignment], found: list[Instance], data: st.DataObject
) -> None:
    there = one_each(found)
    wanted = with_uids_of_one_name(wanted, there)
    machine = Slow(there)
    for _ in range(4):  # in any order, and not all of it: the agent may be killed in between
        actions = plan(wanted, machine.there.values())
        for action in data.draw(st.permutations(actions)):
            if data.draw(st.booleans()):
                machine.do(action)
    for _ in range(4):
        for action in plan(wanted, machine.there.values()):
            machine.do(action)
    assert plan(wanted, machine.there.values()) == []
    ranks = [
        (order.workload, order.term, order.desired == "Running", order.uid, order.revision, order.attempt)
        for order in wanted
    ]
    if len(set(ranks)) == len(ranks):  # two orders that differ in containers only: either will do
        assert {instance.id for instance in machine.there.values() if instance.is_live} == should_live(
            wanted, list(machine.there.values())
        )


@given(wanted=st.lists(orders, max_size=4), found=st.lists(instances, max_size=6), seed=st.randoms())
@settings(max_examples=200, deadline=None)
def test_plan_does_not_depend_on_input_order(
    wanted: list[Assignment], found: list[Instance], seed: Any
) -> None:
    there = one_each(found)
    first = plan(wanted, there)
    seed.shuffle(wanted)
    seed.shuffle(there)
    assert plan(wanted, there) == first
    assert plan(wanted, there) == first


def test_same_port_name_in_two_containers_is_distinct() -> None:
    container = Container(command=("true",), ports=(Port(name="http"), Port(name="fixed", port=80)))
    alone = an_assignment(containers={"a": container}, ports={"http": 31000})
    assert run_spec(alone, "a").ports == {"http": 31000, "fixed": 80}
    both = an_assignment(
        containers={"a": container, "b": container}, ports={"a.http": 31000, "b.http": 31001}
    )
    assert (run_spec(both, "a").ports["http"], run_spec(both, "b").ports["http"]) == (31000, 31001)
