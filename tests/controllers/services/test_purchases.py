"""No machine is bought without prospect, and the bill returns to that of a fresh plan: the real control plane
in virtual time, with machines that have less than their class states."""

from collections.abc import Callable
from typing import Any

import pytest
from build.sim_fleet import SimFleet, in_own_process

from lattice.agent.host.runtime_protocol import Failure
from lattice.agent.runtimes.fake import Behaviour
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.sim.world.machines import SimMachine

SMALL_RATE = 50_000
GPU_REPLICA = {"resources": {"cores": 0.25, "memoryGi": 0.25, "gpu": 1}}
IMAGE = {"containers": {"main": {"image": "app:1"}}}
NO_COMMAND = Behaviour(start_fails=Failure("COMMAND_NOT_FOUND", "no such command"))


def without_containers(machine: SimMachine) -> None:
    machine.runtimes = ("process",)


def smaller(machine: SimMachine) -> None:
    machine.size = machine.size._replace(millicores=100)


def a_lying_fleet(
    shape: Callable[[SimMachine], None] = lambda machine: None, servers: int = 1, **service: Any
) -> SimFleet:
    """One service in a pool whose class states more than its machines have."""
    fleet = SimFleet(shape, servers)
    extended = service.pop("stated", {})
    fleet.add_class("big", gpu=1, resources={"extended": extended})
    fleet.add_pool("lab", "big", most=5)
    fleet.add_service("train", **service)
    return fleet


@pytest.mark.parametrize(
    ("shape", "service", "shortage"),
    [
        pytest.param(
            lambda machine: None,
            {"placement": GPU_REPLICA},
            "gpu on the real machines of class big: need 1, have 0",
            id="a GPU that is not there",
        ),
        pytest.param(
            lambda machine: None,
            {
                "stated": {"vendor.com/fpga": 2},
                "placement": {"resources": {"cores": 0.25, "extended": {"vendor.com/fpga": 1}}},
            },
            "vendor.com/fpga on the real machines of class big: need 1, have 0",
            id="an extended resource that is not there",
        ),
        pytest.param(
            without_containers,
            IMAGE,
            "runtime on the real machines of class big: need container, have process",
            id="an image without a container runtime",
        ),
        pytest.param(
            smaller,
            {},
            "cpu on the real machines of class big: need 250m, have 100m",
            id="fewer cores",
        ),
    ],
)
@in_own_process
def test_machine_without_prospect_is_bought_once_and_released(
    shape: Callable[[SimMachine], None], service: dict[str, Any], shortage: str
) -> None:
    fleet = a_lying_fleet(shape, **service)
    fleet.wait(180)
    assert fleet.made == ["lab-001-big-1"]
    assert (fleet.nodes(), fleet.bill()) == ([], 0)
    verdict, reason = fleet.verdict("train")
    assert verdict == "NotHere"
    assert shortage in reason
    assert len(fleet.events("NotPlaced")) == 1
    fleet.wait(3600)
    assert fleet.made == ["lab-001-big-1"]


@in_own_process
def test_class_tells_what_machines_lack_until_its_spec_changes() -> None:
    fleet = a_lying_fleet(placement=GPU_REPLICA)
    fleet.wait(120)
    condition = fleet.condition(LatticeNodeClass, "big", "MachinesDiffer")
    assert (condition.status, condition.reason) == ("True", "LessThanStated")
    assert condition.message.startswith("the machines have gpu 0 instead of 1 in lab: ")
    assert "the spec of the class changes" in condition.message
    assert fleet.events("MachinesDiffer") == [condition.message]
    (record,) = fleet.object(LatticeNodeClass, "big").status.observed
    assert (record.offer, record.allocatable["gpu"], record.generation) == ("lab", 0, 1)
    # A changed class may have other machines, so one more is tried.
    fleet.add_class("big", gpu=1, labels={"image": "with-driver"})
    fleet.wait(120)
    assert len(fleet.made) == 2
    assert fleet.nodes() == []
    (record,) = fleet.object(LatticeNodeClass, "big").status.observed
    assert record.generation == 2


@in_own_process
def test_machines_that_refuse_for_their_own_reason_are_released() -> None:
    """A taint that the class does not state: placement counts on the machine, the scheduler rejects it. One
    tainted machine can be an accident; a second one is no accident."""
    fleet = a_lying_fleet()
    for _ in range(600):
        for name in fleet.nodes():
            fleet.taint(name, "site/reserved", "NoSchedule")
        fleet.wait(0.3)
    assert len(fleet.made) == 2
    assert (fleet.nodes(), fleet.bill()) == ([], 0)
    verdict, reason = fleet.verdict("train")
    assert verdict == "NotHere"
    assert "on the real machines of class big: need " in reason
    (record,) = fleet.object(LatticeService, "train").status.remediation
    assert (record.refused, record.offer, record.node_class) == (True, "lab", "big")
    assert record.reason == "the empty node lab-001-big-2 did not accept a replica"
    assert len(fleet.events("MachineRefused")) == 1
    # A new version and more replicas ask the same of a machine.
    fleet.add_service("train", version=2, replicas=2)
    fleet.wait(60)
    assert len(fleet.made) == 2
    # Other requests may fit: one more machine is tried.
    fleet.add_service("train", version=2, cores=0.3)
    fleet.wait(60)
    assert fleet.ready() == {"train": 1}
    assert len(fleet.made) == 3


@in_own_process
def test_service_with_image_buys_nothing_without_containers() -> None:
    fleet = SimFleet()
    fleet.world.cloud.provider.machine_runtimes = frozenset({"process"})
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    fleet.add_service("web", **IMAGE)
    fleet.wait(60)
    assert fleet.made == []
    verdict, reason = fleet.verdict("web")
    assert verdict == "NotHere"
    assert reason == (
        "0 of 1 pool: 1 without container runtime; lab: runtime of machines: need container, have process"
    )


@pytest.mark.parametrize("kill_at", range(1, 12))
@in_own_process
def test_new_leader_does_not_buy_again_what_the_machines_lack(kill_at: int) -> None:
    """The leader dies after the n-th commit since the machine reported, and another one takes over."""
    fleet = a_lying_fleet(servers=2, placement=GPU_REPLICA)
    store = fleet.world.store
    while not any(node.status.allocatable for node in fleet.objects(LatticeNode)):
        fleet.wait(0.05)
    revision = fleet._run(store.revision()) + kill_at
    for _ in range(2000):
        if fleet._run(store.revision()) >= revision:
            break
        fleet.wait(0.02)
    fleet.kill("leader")
    fleet.wait(120)
    assert len(fleet.made) == 1
    assert (fleet.nodes(), fleet.bill()) == ([], 0)


@pytest.mark.parametrize(
    ("services", "cores"),
    [pytest.param("abcde", 0.1, id="five tiny services"), pytest.param("ab", 0.25, id="api and orders")],
)
@in_own_process
def test_lost_machine_is_replaced_once_for_all_its_replicas(services: str, cores: float) -> None:
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    for name in services:
        fleet.add_service(name, cores=cores)
    fleet.wait(30)
    assert (fleet.made, fleet.bill()) == (["lab-001-small-1"], SMALL_RATE)
    fleet.power_off("lab-001-small-1")
    fleet.wait(120)
    assert len(fleet.made) == 2
    assert fleet.ready() == dict.fromkeys(services, 1)
    assert (len(fleet.nodes()), fleet.bill()) == (1, SMALL_RATE)


@in_own_process
def test_drained_machine_is_replaced_once_for_all_its_replicas() -> None:
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    for name in "abcde":
        fleet.add_service(name, cores=0.1)
    fleet.wait(30)
    fleet.drain("lab-001-small-1")
    fleet.wait(180)
    assert len(fleet.made) == 2
    assert fleet.ready() == dict.fromkeys("abcde", 1)
    assert (fleet.nodes(), fleet.bill()) == (["lab-001-small-2"], SMALL_RATE)


@in_own_process
def test_lost_machine_is_not_replaced_where_others_have_room() -> None:
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_class("large", cores=4, memory=8, price="0.08")
    fleet.add_pool("lab", "small")
    fleet.add_pool("spare", "large")
    fleet.add_service("a", cores=0.25, placement={"requiredRegions": ["lab"]})
    fleet.add_service("big", cores=2, placement={"requiredRegions": ["spare"]})
    fleet.wait(30)
    fleet.add_service("a", cores=0.25)
    fleet.wait(10)
    fleet.power_off("lab-001-small-1")
    fleet.wait(120)
    assert len(fleet.made) == 2
    assert fleet.ready() == {"a": 1, "big": 1}
    assert fleet.bill() == 80_000


def four_services(**pool: Any) -> SimFleet:
    """Four services that fill one machine."""
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_pool("lab", "small", **pool)
    for name in "abcd":
        fleet.add_service(name, cores=0.25)
    fleet.wait(30)
    assert (fleet.made, fleet.bill()) == (["lab-001-small-1"], SMALL_RATE)
    return fleet


@pytest.mark.parametrize(
    "updated", [pytest.param("a", id="one update"), pytest.param("abcd", id="four at once")]
)
@in_own_process
def test_machine_of_a_surge_is_given_back_when_the_update_ends(updated: str) -> None:
    fleet = four_services()
    for name in updated:
        fleet.add_service(name, cores=0.25, version=2)
    bills = set()
    for _ in range(120):
        fleet.wait(1)
        bills.add(fleet.bill())
    assert max(bills) == 2 * SMALL_RATE
    assert fleet.ready() == dict.fromkeys("abcd", 1)
    assert (len(fleet.nodes()), fleet.bill()) == (1, SMALL_RATE)
    assert len(fleet.made) == 2


@in_own_process
def test_missing_command_costs_what_a_fresh_plan_costs() -> None:
    fleet = four_services()
    configure = fleet.world.configure_machine

    def broken(machine: SimMachine) -> None:
        configure(machine)
        machine.ground.behaviours[""] = NO_COMMAND

    fleet.world.configure_machine = broken
    fleet.add_service("a", cores=0.25, version=2)
    fleet.wait(120)
    assert fleet.ready() == dict.fromkeys("abcd", 1)
    assert (fleet.nodes(), fleet.bill()) == (["lab-001-small-1"], SMALL_RATE)
    progress = fleet.condition(LatticeService, "a", "Progressing")
    assert (progress.status, progress.reason) == ("False", "COMMAND_NOT_FOUND")
    made = list(fleet.made)
    fleet.wait(1800)
    assert fleet.made == made
    # The template as it was before ends the update.
    fleet.add_service("a", cores=0.25)
    fleet.wait(60)
    assert fleet.condition(LatticeService, "a", "Progressing").reason == "Complete"


SHORT_OF_BUDGET = (
    "over budget: latticepool/lab cannot pay for one more machine of class small: "
    "need $0.05/h, have $0.019444/h"
)


@in_own_process
def test_drain_blocked_by_a_budget_names_the_budget() -> None:
    fleet = four_services(budget=50)
    fleet.drain("lab-001-small-1")
    fleet.wait(60)
    assert SHORT_OF_BUDGET in fleet.condition(LatticeNode, "lab-001-small-1", "Drained").message
    (stuck,) = fleet.events("NodeDrainStuck")
    assert SHORT_OF_BUDGET in stuck
    assert fleet.events("NoMachine") == [f"No machine is bought for a waiting replica: {SHORT_OF_BUDGET}"] * 4
    exceeded = fleet.condition(LatticePool, "lab", "BudgetExceeded")
    assert (exceeded.status, exceeded.reason) == ("True", "PurchaseRefused")
    fleet.add_pool("lab", "small", budget=100)
    fleet.wait(120)
    assert fleet.nodes() == ["lab-001-small-2"]
    assert fleet.condition(LatticePool, "lab", "BudgetExceeded").status == "False"


@in_own_process
def test_update_blocked_by_a_budget_names_the_budget() -> None:
    fleet = four_services(budget=50)
    fleet.add_service("a", cores=0.25, version=2)
    fleet.wait(60)
    progress = fleet.condition(LatticeService, "a", "Progressing")
    assert (progress.status, progress.reason) == ("False", "NoRoomForSurge")
    assert SHORT_OF_BUDGET in progress.message
    assert fleet.made == ["lab-001-small-1"]
    exceeded = fleet.condition(LatticePool, "lab", "BudgetExceeded")
    assert (exceeded.status, exceeded.reason) == ("True", "PurchaseRefused")
    # The template as it was before needs no machine.
    fleet.add_service("a", cores=0.25)
    fleet.wait(60)
    assert fleet.condition(LatticePool, "lab", "BudgetExceeded").status == "False"


@in_own_process
def test_machine_that_keeps_dying_is_bought_with_back_off() -> None:
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    fleet.add_service("a")
    fleet.wait(20)
    for _ in range(60):
        for machine in list(fleet.world.machines.values()):
            machine.lose_power()
        fleet.wait(60)
    # An hour: without a back-off a machine every 40 to 60 s.
    assert 4 <= len(fleet.made) <= 12


@in_own_process
def test_layout_above_a_fresh_plan_says_what_would_lower_it() -> None:
    fleet = SimFleet()
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    for name in "abcdef":
        fleet.add_service(name, cores=0.25)
    fleet.wait(60)
    assert fleet.bill() == 2 * SMALL_RATE
    assert not fleet.events("CostsMore")
    by_node: dict[str, list[str]] = {}
    for name in "abcdef":
        by_node.setdefault(fleet.node_of(f"{name}-0"), []).append(name)
    full, half = sorted(by_node.values(), key=len, reverse=True)
    assert (len(full), len(half)) == (4, 2)
    for name in full[:2]:
        fleet.scale(name, 0)
    fleet.wait(60)
    # Two replicas on each machine: one machine would hold all four, and no healthy replica is stopped for it.
    assert fleet.bill() == 2 * SMALL_RATE
    stale = {name: fleet.condition(LatticeService, name, "PlacementStale") for name in "abcdef"}
    named = [name for name, condition in stale.items() if condition.status == "True"]
    assert named in (full[2:], half)
    moves = " and ".join(f"1 replica of default/{name}" for name in named).replace(" and ", ", ")
    node = next(node for node, names in by_node.items() if named[0] in names)
    message = f"a fresh plan costs $0.05/h, this one $0.10/h; moving {moves} would release machine {node}"
    assert {(stale[name].reason, stale[name].message) for name in named} == {("CostsMore", message)}
    assert fleet.events("CostsMore") == [message] * 2
    # What the message proposes ends the condition.
    fleet.drain(node)
    fleet.wait(120)
    assert fleet.bill() == SMALL_RATE
    for name in named:
        assert fleet.condition(LatticeService, name, "PlacementStale").status == "False"
    assert len(fleet.events("CostsMore")) == 2


@in_own_process
def test_new_leader_keeps_the_back_off() -> None:
    """Every machine dies soon after it came, and so does every leader."""
    fleet = SimFleet(servers=3)
    fleet.add_class("small")
    fleet.add_pool("lab", "small")
    fleet.add_service("a")
    fleet.wait(20)
    attempts = []
    for round_number in range(30):
        for machine in list(fleet.world.machines.values()):
            machine.lose_power()
        if round_number % 5 == 4:
            dead = fleet.world.leader().name
            fleet.kill(dead)
            fleet.wait(30)
            fleet.start(dead)
            fleet.wait(30)
        else:
            fleet.wait(60)
        records = fleet.object(LatticeService, "a").status.remediation
        attempts.append(max((record.attempts for record in records), default=0))
    # Half an hour: without a back-off a machine every 40 to 60 s, with one that every leader begins anew, ten.
    assert 3 <= len(fleet.made) <= 8
    assert attempts == sorted(attempts)
    assert max(attempts) >= 3
