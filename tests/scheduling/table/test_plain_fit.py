"""Tests of QoS classes, eviction order, compressible resources and sums over containers."""

from typing import Any

import pytest

from lattice.kinds.container import Container, ContainerResources, format_amount, total_amounts
from lattice.kinds.qos import Qos, eviction_order, is_compressible, is_extended, qos_of
from lattice.kinds.workload import WorkloadSpec
from lattice.scheduling.table.plain_fit import fits, utilisation

Given = tuple[dict[str, Any], dict[str, Any]]


def containers(*each: Given) -> dict[str, Container]:
    return {
        f"c{number}": Container(image="i", resources=ContainerResources(requests=requests, limits=limits))
        for number, (requests, limits) in enumerate(each)
    }


FULL = {"cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([], Qos.BestEffort, id="no containers"),
        pytest.param([({}, {})], Qos.BestEffort, id="nothing set"),
        pytest.param([({"cpu": 0}, {})], Qos.BestEffort, id="nothing above zero set"),
        pytest.param([(FULL, FULL)], Qos.Guaranteed, id="cpu and memory, request = limit"),
        pytest.param(
            [(FULL, {"cpu": "1000m", "memory": "1024Mi"})],
            Qos.Guaranteed,
            id="equal amounts, written differently",
        ),
        pytest.param([(FULL, FULL), ({}, {})], Qos.Burstable, id="one container without"),
        pytest.param([({"cpu": 1}, {"cpu": 1})], Qos.Burstable, id="cpu only"),
        pytest.param([(FULL, {"cpu": 2, "memory": "1Gi"})], Qos.Burstable, id="limit above request"),
        pytest.param([({}, FULL)], Qos.Burstable, id="limits only"),
        pytest.param([({**FULL, "x/fpga": 1}, FULL)], Qos.Burstable, id="an extended resource without limit"),
        pytest.param(
            [({**FULL, "x/fpga": 1}, {**FULL, "x/fpga": 1})],
            Qos.Guaranteed,
            id="an extended resource, request = limit",
        ),
        pytest.param([({**FULL, "disk": "1Gi"}, FULL)], Qos.Guaranteed, id="disk has no say"),
    ],
)
def test_qos_of(given: list[Given], expected: Qos) -> None:
    assert qos_of(WorkloadSpec(containers=containers(*given))) is expected


def test_workload_requests_count_if_containers_have_none() -> None:
    assert qos_of(WorkloadSpec(containers=containers(({}, {})), requests=FULL, limits=FULL)) is Qos.Guaranteed
    assert qos_of(WorkloadSpec(containers=containers((FULL, FULL)), requests={"cpu": 1})) is Qos.Guaranteed


def test_eviction_order_by_qos_then_priority() -> None:
    who = [
        ("g", Qos.Guaranteed, 0),
        ("b9", Qos.Burstable, 9),
        ("b1", Qos.Burstable, 1),
        ("e", Qos.BestEffort, 100),
    ]
    assert eviction_order(who) == ["e", "b1", "b9", "g"]


def test_compressible_resources() -> None:
    assert [is_compressible(name) for name in ("cpu", "ephemeral-storage", "memory", "disk", "x/fpga")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [is_extended(name) for name in ("cpu", "memory", "hugepages-2Mi", "x/fpga")] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("need", "free", "expected"),
    [
        pytest.param({"cpu": 2}, {"cpu": 2}, True, id="just enough"),
        pytest.param({"memory": 3}, {"memory": 2}, False, id="8 there, 6 used, 3 asked"),
        pytest.param({"x": 1}, {}, False, id="unknown is none"),
        pytest.param({}, {}, True, id="nothing asked"),
    ],
)
def test_fits(need: dict[str, int], free: dict[str, int], expected: bool) -> None:
    assert fits(need, free) is expected


def test_utilisation_is_that_of_fullest_resource() -> None:
    assert utilisation({"cpu": 1, "memory": 3}, {"cpu": 4, "memory": 4}) == 0.75
    assert utilisation({"cpu": 9}, {"cpu": 4}) == 1.0
    assert utilisation({"cpu": 1}, {"cpu": 0}) == 0.0
    assert utilisation({}, {}) == 0.0


def test_container_amounts_add_up_unless_limit_missing() -> None:
    two = containers(
        ({"cpu": 1, "memory": "1Gi"}, {"cpu": 2, "memory": "2Gi"}), ({"cpu": "500m"}, {"memory": "1Gi"})
    )
    assert total_amounts(two, "requests") == {"cpu": 1500, "memory": 1 << 30}
    assert total_amounts(two, "limits") == {"memory": 3 << 30}


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("gpu", 500, "500m"),
        ("memory", 4 << 30, "4Gi"),
        ("memory", 1234567891, "1.1Gi"),
        ("x/fpga", 3, "3"),
    ],
)
def test_format_amount(resource: str, amount: int, text: str) -> None:
    assert format_amount(resource, amount) == text
