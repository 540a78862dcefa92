"""The checker reports machines that are bought without a prospect or twice, and ledgers that state other machines than there
are, in a synthetic history, and nothing in a valid one."""

from typing import Any

import msgspec
import pytest
from build.checker_history import (
    CLUSTER,
    Case,
    SyntheticHistory,
    a_condition,
    cluster,
    ledger,
    node,
    node_class,
    pool,
    replica,
    service,
    simulation_violations,
)

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService

SIZE = {"cores": 1, "memoryGi": 1}


def a_sized_class(dollars: float = 0.000001) -> Any:
    return node_class(dollars, resources=SIZE)


def a_placed_service(replicas: int) -> LatticeService:
    """Placed in the cluster, 100 millicores a replica."""
    placements = [{"pool": "east", "cluster": CLUSTER, "node": "small", "replicas": replicas}]
    return service(
        least=replicas, placement={"resources": {"cores": 0.1, "memoryGi": 0}}, placements=placements
    )


def a_joined_node(name: str, cpu: int = 1000, **status: Any) -> LatticeNode:
    joined = node(name, cpu, pool="east", nodeClass="small")
    return msgspec.structs.replace(
        joined, status=msgspec.structs.replace(joined.status, agent_version="1", **status)
    )


def a_paid_cluster(machines: int, micros: int = 1, cost: float | None = None) -> tuple[LatticeCluster, Any]:
    """The cluster with that many machines, and the ledger that pays for them."""
    stored = cluster(machines)
    shown = machines * micros / 1_000_000 if cost is None else cost
    status = {**msgspec.to_builtins(stored.status), "cost": {"hourly": shown}}
    paid = ledger(machines)
    lots = {CLUSTER: [{"nodeClass": "small", "count": machines, "micros": micros}]}
    paid_status = {
        **msgspec.to_builtins(paid.status),
        "machines": lots if machines else {},
        "committedMicros": machines * micros,
    }
    return (
        msgspec.structs.replace(stored, status=msgspec.convert(status, type(stored.status))),
        msgspec.structs.replace(paid, status=msgspec.convert(paid_status, type(paid.status))),
    )


def a_pool_with(machines: int) -> LatticePool:
    stored = pool()
    status = {"capacity": {"allocatedNodes": machines}}
    return msgspec.structs.replace(stored, status=msgspec.convert(status, type(stored.status)))


def _reported(case: Case) -> list[set[str]]:
    return [numbers & {"I-20", "I-22", "I-41", "I-42", "I-43"} for numbers in simulation_violations(case)]


def _rest(history: SyntheticHistory, machines: int) -> None:
    """The end: the machines exist, and the pool shows them."""
    history.standing, history.standing_since = [(CLUSTER, "small", machines)], 25.0
    history.commit(a_pool_with(machines), at=30.0)


def machine_is_bought_for_each_service(history: SyntheticHistory, bad: bool) -> None:
    """Five replicas of a tenth of a core wait: one machine takes them."""
    machines = 5 if bad else 1
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    history.commit(a_placed_service(5), *a_paid_cluster(machines), at=4.0)
    nodes = [a_joined_node(f"n{number}") for number in range(machines)]
    history.commit(*nodes, at=20.0)
    history.commit(*(replica(slot, f"n{slot % machines}") for slot in range(5)), at=21.0)
    _rest(history, machines)


def another_machine_is_bought_while_one_is_coming(history: SyntheticHistory, bad: bool) -> None:
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    history.commit(a_placed_service(1), *a_paid_cluster(1), at=4.0)
    history.commit(
        replica(0, conditions=[a_condition("Scheduled", reason="NoNodeFits")], ready=False), at=3.0
    )
    machines = 2 if bad else 1
    history.commit(*a_paid_cluster(machines), at=16.0)
    history.commit(*(a_joined_node(f"n{number}") for number in range(machines)), at=20.0)
    history.commit(replica(0, "n0"), replica(1, f"n{machines - 1}"), at=21.0)
    _rest(history, machines)


def joined_machine_is_too_small(history: SyntheticHistory, bad: bool) -> None:
    """The machine that came has a tenth of the cores that the replica asks for."""
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    history.commit(a_placed_service(1), *a_paid_cluster(1), at=4.0)
    history.commit(a_joined_node("n0", cpu=10 if bad else 100), at=5.0)
    waiting = replica(0, conditions=[a_condition("Scheduled", reason="NoNodeFits")], ready=False)
    history.commit(waiting, at=6.0)
    history.commit(*a_paid_cluster(2), at=40.0)
    history.commit(a_joined_node("n1"), at=41.0)
    history.commit(replica(0, "n1"), replica(1, "n0"), at=42.0)
    history.standing, history.standing_since = [(CLUSTER, "small", 2)], 45.0
    history.commit(a_pool_with(2), at=50.0)


def joined_machine_has_no_runtime(history: SyntheticHistory, bad: bool) -> None:
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    history.commit(a_placed_service(1), *a_paid_cluster(1), at=4.0)
    history.commit(a_joined_node("n0", runtimes=("container",) if bad else ("process",)), at=5.0)
    waiting = replica(0, conditions=[a_condition("Scheduled", reason="NoNodeFits")], ready=False)
    history.commit(waiting, at=6.0)
    history.commit(*a_paid_cluster(2), at=40.0)
    history.commit(a_joined_node("n1"), at=41.0)
    history.commit(replica(0, "n1"), replica(1, "n0"), at=42.0)
    history.standing, history.standing_since = [(CLUSTER, "small", 2)], 45.0
    history.commit(a_pool_with(2), at=50.0)


def idle_machine_is_kept(history: SyntheticHistory, bad: bool) -> None:
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    exclusive = {"spread": [{"topologyKey": "node"}]}
    placed = a_placed_service(2)
    placed = msgspec.structs.replace(
        placed, spec=msgspec.convert({**msgspec.to_builtins(placed.spec), **exclusive}, type(placed.spec))
    )
    history.commit(placed, *a_paid_cluster(2), at=4.0)
    history.commit(a_joined_node("n0"), a_joined_node("n1"), at=20.0)
    history.commit(replica(0, "n0"), replica(1, "n0" if bad else "n1"), at=21.0)
    _rest(history, 2)


def a_world_at_rest(history: SyntheticHistory) -> None:
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    history.commit(a_placed_service(1), *a_paid_cluster(1), at=4.0)
    history.commit(a_joined_node("n0"), at=20.0)
    history.commit(replica(0, "n0"), at=21.0)
    _rest(history, 1)


def price_has_changed_since_the_purchase(history: SyntheticHistory, bad: bool) -> None:
    a_world_at_rest(history)
    history.commit(a_sized_class(0.000003), at=31.0, term=None, origin="api person-1")
    history.commit(*a_paid_cluster(1, 1 if bad else 3), at=32.0)


def ledger_pays_for_a_machine_that_is_gone(history: SyntheticHistory, bad: bool) -> None:
    a_world_at_rest(history)
    history.standing = [] if bad else history.standing


def cluster_shows_another_cost(history: SyntheticHistory, bad: bool) -> None:
    a_world_at_rest(history)
    history.commit(a_paid_cluster(1, cost=0.000002 if bad else 0.000001)[0], at=31.0)


def pool_shows_other_machines(history: SyntheticHistory, bad: bool) -> None:
    a_world_at_rest(history)
    history.commit(a_pool_with(2 if bad else 1), at=31.0)


def exhausted_budget_is_not_shown(history: SyntheticHistory, bad: bool) -> None:
    """The limit is lowered below what the ledger is projected at."""
    a_world_at_rest(history)
    low = msgspec.structs.replace(a_pool_with(1), spec=pool(limit=0.0001).spec)
    history.commit(low, at=31.0, term=None, origin="api person-1")
    exceeded = a_condition("BudgetExceeded", "False" if bad else "True")
    status = {**msgspec.to_builtins(low.status), "conditions": [exceeded]}
    history.commit(msgspec.structs.replace(low, status=msgspec.convert(status, type(low.status))), at=60.0)


def price_rises_above_the_limit(history: SyntheticHistory, bad: bool) -> None:
    """A price that rises is no violation; a purchase above the limit is."""
    history.commit(a_sized_class(), at=0.5, term=None, origin="api person-1")
    tight = msgspec.structs.replace(a_pool_with(1), spec=pool(limit=0.001).spec)
    history.commit(tight, at=0.7, term=None, origin="api person-1")
    exclusive = a_placed_service(1)
    history.commit(exclusive, *a_paid_cluster(1), at=4.0)
    history.commit(a_joined_node("n0"), at=20.0)
    history.commit(replica(0, "n0"), at=21.0)
    history.commit(a_sized_class(0.0001), at=31.0, term=None, origin="api person-1")
    history.commit(*a_paid_cluster(1, 100), at=32.0)
    machines = 2 if bad else 1
    if bad:
        more = [replica(slot, conditions=[a_condition("Scheduled")], ready=False) for slot in range(1, 12)]
        history.commit(*more, at=50.0)
        history.commit(*a_paid_cluster(2, 100), at=51.0)
        history.commit(a_joined_node("n1"), at=52.0)
        history.commit(*(replica(slot, "n1") for slot in range(1, 12)), at=53.0)
    history.standing, history.standing_since = [(CLUSTER, "small", machines)], 55.0
    history.commit(msgspec.structs.replace(a_pool_with(machines), spec=tight.spec), at=60.0)


CASES: list[tuple[str, Case]] = [
    ("I-20", price_rises_above_the_limit),
    ("I-41", joined_machine_is_too_small),
    ("I-41", joined_machine_has_no_runtime),
    ("I-42", machine_is_bought_for_each_service),
    ("I-42", another_machine_is_bought_while_one_is_coming),
    ("I-42", idle_machine_is_kept),
    ("I-43", price_has_changed_since_the_purchase),
    ("I-43", ledger_pays_for_a_machine_that_is_gone),
    ("I-43", cluster_shows_another_cost),
    ("I-43", pool_shows_other_machines),
    ("I-43", exhausted_budget_is_not_shown),
]


@pytest.mark.parametrize(
    ("number", "case"), CASES, ids=[f"{number} {case.__name__}" for number, case in CASES]
)
def test_checker_reports_only_the_violated_invariant(number: str, case: Case) -> None:
    assert _reported(case) == [{number}, set()]
