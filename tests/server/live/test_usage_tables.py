"""Usage by pool, cluster, node and service, from measurements of nodes and stored objects."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from build.objects import make_object

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.presence import LastHeartbeat, Usage
from lattice.server.live.usage_tables import (
    UsageSnapshot,
    budget_fields,
    budget_rows,
    cluster_rows,
    node_rows,
    pool_rows,
    service_rows,
    summarize_cluster,
    workload_requests,
)

NOW = datetime(2026, 11, 16, tzinfo=UTC)
GI = 1 << 30
READY = [{"type": "Ready", "status": "True"}]


def a_node_of_cluster(
    name: str, cluster: str = "north-001", pool: str = "north", **status: Any
) -> LatticeNode:
    room = {"cpu": 2000, "memory": 4 * GI}
    stored = {"capacity": room, "allocatable": room, "conditions": READY, "phase": "Ready", **status}
    return make_object(LatticeNode, name, spec={"cluster": cluster, "pool": pool}, status=stored)


def a_replica_of_service(name: str, service: str, node: str, **status: Any) -> LatticeWorkload:
    spec = {
        "containers": {"main": {"command": ["x"]}},
        "service": service,
        "cluster": "north-001",
        "requests": {"cpu": "500m"},
    }
    binding = {"binding": {"node": node}} if node else {}
    return make_object(LatticeWorkload, name, "default", spec=spec, status={**binding, **status})


HEARD = {
    "n1": LastHeartbeat(
        1,
        0.0,
        Usage(500, GI, 7),
        {"default/web-0": Usage(300, GI // 2), "default/web-1": Usage(100, GI // 4)},
    ),
    "n2": LastHeartbeat(2, 0.0, Usage(1500, 2 * GI, 9)),
    "n3": LastHeartbeat(3, 0.0, Usage(900, GI, 9), is_connected=False),
}
FLEET = UsageSnapshot(
    NOW,
    pools=[
        make_object(
            LatticePool,
            "north",
            spec={
                "provider": {"type": "local", "region": "n"},
                "capacity": {"maxNodes": 4},
                "budget": {"maxMonthlyCost": 100},
            },
        )
    ],
    clusters=[
        make_object(
            LatticeCluster,
            "north-001",
            spec={"pool": "north", "nodes": {"nano": 3}},
            status={"cost": {"hourly": 0.3}, "phase": "Ready"},
        ),
        make_object(LatticeCluster, "aws-001", spec={"pool": "aws/us-east-1", "nodes": {"big": 1}}),
    ],
    nodes=[
        a_node_of_cluster("n2"),
        a_node_of_cluster("n1"),
        a_node_of_cluster("n3", conditions=[], phase="NotReady"),
        a_node_of_cluster("n4", "aws-001", "aws/us-east-1"),
    ],
    services=[
        make_object(
            LatticeService,
            "web",
            "default",
            spec={"containers": {"main": {"command": ["x"]}}, "replicas": {"min": 3}},
            status={
                "placements": [{"pool": "north", "replicas": 2}],
                "health": {"ready": 1},
                "replicas": 2,
                "phase": "Progressing",
            },
        )
    ],
    workloads=[
        a_replica_of_service("web-0", "web", "n1", ready=True, actualState="Running"),
        a_replica_of_service("web-1", "web", "n1", actualState="Failed", retry={"attempts": 2}),
        a_replica_of_service("web-2", "web", ""),
    ],
    ledgers=[
        make_object(
            LatticeLedger,
            "pool.north",
            spec={"budget": {"kind": "LatticePool", "name": "north"}, "limitMicros": 100_000_000},
            status={
                "committedMicros": 300_000,
                "month": "2026-11",
                "past": {"2026-10": 7_000_000},
                "asOf": "2026-11-15T00:00:00.000000Z",
                "machines": {"north-001": [{"nodeClass": "nano", "count": 3, "micros": 100_000}]},
            },
        )
    ],
    presence_of=HEARD.get,
)


def test_node_usage_is_empty_once_disconnected() -> None:
    rows = {row["name"]: row for row in node_rows(FLEET)}
    assert list(rows) == ["n1", "n2", "n3", "n4"]
    assert rows["n1"]["cpu"] == {"used": 500, "of": 2000, "asked": 1000}
    assert rows["n1"]["memory"] == {"used": GI, "of": 4 * GI, "asked": 0}
    assert (rows["n1"]["workloads"], rows["n2"]["workloads"]) == (2, 0)
    assert (rows["n3"]["cpu"]["used"], rows["n3"]["isConnected"], rows["n3"]["isReady"]) == (0, False, False)
    assert rows["n4"]["isConnected"] is False


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        pytest.param(
            {"containers": {"a": {"command": ["x"]}}, "requests": {"cpu": "500m", "memory": "1Gi"}},
            (500, GI),
            id="by itself",
        ),
        pytest.param(
            {
                "containers": {
                    "a": {"command": ["x"], "resources": {"requests": {"cpu": 1}}},
                    "b": {"command": ["x"], "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}},
                    "c": {"command": ["x"]},
                },
                "requests": {"cpu": 9},
            },
            (1250, GI),
            id="by its containers, whose words go before its own",
        ),
        pytest.param({"containers": {"a": {"command": ["x"], "resources": {}}}}, (0, 0), id="nothing"),
    ],
)
def test_workload_row_shows_requests(spec: dict[str, Any], asked: tuple[int, int]) -> None:
    workload = make_object(LatticeWorkload, "w", "default", spec=spec)
    amounts = workload.spec.request_amounts
    assert workload_requests(workload) == asked == (amounts.get("cpu", 0), amounts.get("memory", 0))


def test_clusters_sum_their_nodes() -> None:
    rows = {row["name"]: row for row in cluster_rows(FLEET)}
    north = rows["north-001"]
    assert north["cpu"] == {"used": 2000, "of": 6000, "asked": 1000}
    assert (north["readyNodes"], north["nodes"], north["readyWorkloads"], north["workloads"]) == (2, 3, 1, 3)
    assert (north["hourlyMicros"], rows["aws-001"]["hourlyMicros"]) == (300_000, 0)


def test_budget_rows_show_limits_and_past_months() -> None:
    (row,) = budget_rows(FLEET)
    assert (row["ledger"], row["kind"], row["name"], row["region"]) == (
        "pool.north",
        "LatticePool",
        "north",
        "",
    )
    assert (row["isHard"], row["alertMillionths"], row["pastMicros"]) == (
        False,
        800_000,
        {"2026-10": 7_000_000},
    )
    assert row["projectedMicros"] == 24 * 300_000 + 15 * 24 * 300_000


def test_hard_budget_shows_hourly_headroom() -> None:
    (book,) = FLEET.ledgers
    hard = msgspec.structs.replace(
        book, spec=msgspec.structs.replace(book.spec, hard=True, limit_micros=720_000_000)
    )
    found = budget_fields(hard, FLEET.now)
    assert (found["leftHourlyMicros"], found["state"]) == (1_000_000 - 300_000, "Ok")


def test_pool_rows_sum_nodes_and_show_budget() -> None:
    rows = {row["name"]: row for row in pool_rows(FLEET)}
    assert list(rows) == ["aws/us-east-1", "north"]
    north = rows["north"]
    assert (north["nodes"], north["maxNodes"], north["clusters"]) == (3, 4, 1)
    assert north["budget"] == {
        "hourlyMicros": 300_000,
        "spentMicros": 24 * 300_000,
        "projectedMicros": 24 * 300_000 + 15 * 24 * 300_000,
        "limitMicros": 100_000_000,
        "leftHourlyMicros": 0,
        "usedMillionths": 2_160_000,
        "rule": "30-day run rate",
        "isRefusing": False,
        "state": "Exceeded",
        "message": (
            "30-day run rate: $216.00 of $100.00 (216 %), $116.00 over the limit; nothing is stopped, "
            "nothing more is bought"
        ),
    }
    assert (north["hourlyMicros"], north["unpricedMachines"]) == (300_000, 0)
    assert "budget" not in rows["aws/us-east-1"]


def test_services_sum_what_their_replicas_use() -> None:
    (web,) = service_rows(FLEET)
    assert web["cpu"] == {"used": 400}
    assert web["memory"] == {"used": GI // 2 + GI // 4}
    assert (web["ready"], web["wanted"], web["replicas"], web["failures"], web["pools"]) == (
        1,
        3,
        2,
        2,
        ["north"],
    )


@pytest.mark.parametrize(
    ("cluster", "counts"),
    [
        pytest.param("", (4, 3, 3, {"Running": 1, "Failed": 1, "Pending": 1}), id="all"),
        pytest.param("aws-001", (1, 1, 0, {}), id="one cluster"),
        pytest.param("nowhere", (0, 0, 0, {}), id="none"),
    ],
)
def test_a_summary_counts(cluster: str, counts: tuple[int, int, int, dict[str, int]]) -> None:
    found = summarize_cluster(FLEET.nodes, FLEET.workloads, cluster)
    assert (len(found.nodes), found.ready_nodes, len(found.workloads), found.workloads_by_state) == counts


def test_summary_sums_capacity_and_bound_requests() -> None:
    found = summarize_cluster(FLEET.nodes, FLEET.workloads, "north-001")
    assert found.capacity == {"cpu": 6000, "memory": 12 * GI}
    assert found.requested == {"cpu": 1000}


def test_workload_counts_in_cluster_of_its_node() -> None:
    bare: Kind = make_object(
        LatticeWorkload,
        "job",
        "default",
        spec={"containers": {"m": {"command": ["x"]}}},
        status={"binding": {"node": "n4"}},
    )
    assert [
        workload.metadata.name for workload in summarize_cluster(FLEET.nodes, [bare], "aws-001").workloads
    ] == ["job"]  # type: ignore[list-item]
    assert summarize_cluster(FLEET.nodes, [bare], "north-001").workloads == []  # type: ignore[list-item]
