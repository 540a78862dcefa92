"""The bill of recorded machines, split among the workloads on them."""

from typing import Any

from build.objects import make_object

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import NODE_FINALIZER, LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.inputs.bill import RecordedMachines, recorded_bill
from lattice.placement.inputs.cost_allocation import MachineState, cost_parts

CLUSTER = make_object(LatticeCluster, "p1-001", spec={"pool": "p1", "provider": "aws", "nodes": {"m": 1}})


def a_ledger(kind: str, name: str, region: str = "", count: int = 1, micros: int = 100_000) -> LatticeLedger:
    lot = {"nodeClass": "m", "count": count, "micros": micros}
    account = {"kind": kind, "name": name, "region": region}
    status = {"committedMicros": count * micros, "machines": {"p1-001": [lot]}}
    prefix = {"LatticePool": "pool", "CloudInfrastructure": "cloud", "StaticInfrastructure": "static"}[kind]
    return make_object(
        LatticeLedger, ".".join(filter(None, (prefix, name, region))), spec={"budget": account}, status=status
    )


def a_node(name: str, *, is_joined: bool = False, **meta: Any) -> LatticeNode:
    status = {"allocatable": {"cpu": 4000, "memory": 16 << 30}, "agentVersion": "1"}
    finalizers = [NODE_FINALIZER] if is_joined else []
    spec = {"cluster": "p1-001", "nodeClass": "m"}
    return make_object(LatticeNode, name, meta={"finalizers": finalizers, **meta}, spec=spec, status=status)


def a_workload(service: str, node: str) -> LatticeWorkload:
    spec = {"service": service, "requests": {"cpu": "1"}, "containers": {"main": {"command": ["x"]}}}
    return make_object(
        LatticeWorkload, f"{service}-0", "default", spec=spec, status={"binding": {"node": node}}
    )


def test_joined_machine_is_not_the_paid_machine() -> None:
    """Both are of class m in one cluster, and the name of the joined one sorts first."""
    bill = recorded_bill([a_ledger("LatticePool", "p1")], [CLUSTER])
    machines = RecordedMachines(
        {"p1-001": CLUSTER},
        [a_node("a-joined", is_joined=True), a_node("p1-001-m-1")],
        [a_workload("own", "a-joined"), a_workload("paid", "p1-001-m-1")],
        {},
    )
    parts = [(part.machine.name, part.service, part.micros) for part in cost_parts(machines.of(bill))]
    assert parts == [("p1-001-m-1", "default/paid", 100_000)]


def test_machines_that_are_made_leave_or_stand_empty_are_paid() -> None:
    bill = recorded_bill([a_ledger("LatticePool", "p1", count=3)], [CLUSTER])
    nodes = [a_node("n1"), a_node("n2", deletionTimestamp="2026-01-01T00:00:00Z")]
    parts = list(cost_parts(RecordedMachines({"p1-001": CLUSTER}, nodes, [], {}).of(bill)))
    assert [(part.state, part.micros) for part in parts] == [
        (MachineState.EMPTY, 100_000),
        (MachineState.LEAVING, 100_000),
        (MachineState.BEING_MADE, 100_000),
    ]
    assert sum(part.micros for part in parts) == bill.total == 300_000


def test_machine_that_several_ledgers_pay_for_is_on_one_line() -> None:
    """The cluster is gone: the ledger of the region names the offer."""
    ledgers = [
        a_ledger("CloudInfrastructure", "aws"),
        a_ledger("CloudInfrastructure", "aws", "r1"),
        a_ledger("StaticInfrastructure", "dc"),
    ]
    bill = recorded_bill(ledgers, [])
    assert [(line.offer, line.count, line.rate) for line in bill.lines] == [("aws/r1", 1, 100_000)]
    assert set(bill.ledger_rates.values()) == {100_000}
