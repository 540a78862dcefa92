"""Tests of `usage_by_cluster`: the total requests of a cluster's workloads."""

from typing import Any

import pytest
from build.objects import a_workload

from lattice.kinds.workload import LatticeWorkload
from lattice.placement.status.supply_status import ClusterUsage, usage_by_cluster


def a_workload_in_cluster(
    name: str, cpu: str, cluster: str = "c1", service: str = "", revision: str = ""
) -> LatticeWorkload:
    main = {"resources": {"requests": {"cpu": cpu}}}
    spec = {"cluster": cluster, "service": service, "revision": revision}
    return a_workload(name, containers={"main": main}, **spec)


@pytest.mark.parametrize(
    ("workloads", "found"),
    [
        pytest.param([], {}, id="nothing runs"),
        pytest.param(
            [
                ("a-0", "1", "c1", "a", "1" * 24),
                ("a-1", "1", "c1", "a", "1" * 24),
                ("a-2", "2", "c1", "a", "2" * 24),
            ],
            {"c1": ClusterUsage(1, 3, {"cpu": 4000})},
            id="each replica counts, each revision with what it asks for",
        ),
        pytest.param(
            [("x", "1"), ("y", "2")],
            {"c1": ClusterUsage(0, 2, {"cpu": 3000})},
            id="bare workloads are counted individually",
        ),
        pytest.param(
            [
                ("a-0", "1", "c1", "a", "1" * 24),
                ("a-1", "1", "c2", "a", "1" * 24),
                ("b-0", "1", "c2", "b", "1" * 24),
            ],
            {"c1": ClusterUsage(1, 1, {"cpu": 1000}), "c2": ClusterUsage(2, 2, {"cpu": 2000})},
            id="by cluster",
        ),
    ],
)
def test_usage_by_cluster(workloads: list[tuple[Any, ...]], found: dict[str, ClusterUsage]) -> None:
    assert usage_by_cluster(a_workload_in_cluster(*each) for each in workloads) == found
