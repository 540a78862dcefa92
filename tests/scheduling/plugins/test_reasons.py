"""Tests of reasons: every filter's rejection has need, have and missing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from build.node_tables import (
    a_node_info,
    a_spread,
    a_taint,
    a_toleration,
    ask,
    near,
    node_term,
    nodes,
    place,
    requirement,
    workload_demands,
)

from lattice.engine.decide import decide
from lattice.engine.explain import all_rejections, reason_details
from lattice.engine.plugin import Shortfall
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraints import MachineImage as Image
from lattice.kinds.constraints import PlannedNodes, Volume
from lattice.scheduling.cycle.profile import FILTERS, compile_preset
from lattice.scheduling.table.label_codes import LabelCodes
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands

PORT = workload_demands(host_ports=((8080, "TCP"),))
WEB = workload_demands(labels={"app": "web"})
NEEDS_SSD = workload_demands(node_selector={"disk": "ssd"})


def one_node_table(node: NodeInfo) -> Callable[[], NodeTable]:
    return lambda: nodes(node)


def zoned_table(demands: Demands, *on: str, **more: Any) -> Callable[[], NodeTable]:
    """Nodes a1 and a2 in zone a, b1 in zone b, c1 in no zone, with such workloads on the named ones."""

    def table() -> NodeTable:
        found = nodes(
            *(
                a_node_info(name, room={"cpu": 64, "memory": "64Gi"}, **where, **more)
                for name, where in ZONES
            ),
            load=False,
        )
        place(found, demands, *on)
        return found

    return table


ZONES: list[tuple[str, dict[str, Any]]] = [
    ("a1", {"zone": "a"}),
    ("a2", {"zone": "a"}),
    ("b1", {"zone": "b"}),
    ("c1", {}),
]
REPELS_WEB = workload_demands(labels={"app": "loner"}, anti_affinity_terms=(near("zone", app="web"),))
SPREAD = workload_demands(service="s", spread=(a_spread("zone"),))
ONE_A_NODE = workload_demands(service="s", planned_nodes=PlannedNodes(count=2, per_node=1))
OPEN = "open to new workloads"

# filter, case, table, demands, node (the first if empty), and the text of its reasons
CASES: list[tuple[str, str, Callable[[], NodeTable], Demands, str, list[str]]] = [
    (
        "Ready",
        "not ready",
        one_node_table(a_node_info(is_ready=False)),
        workload_demands(),
        "n1",
        ["node: need ready, have not ready"],
    ),
    (
        "Ready",
        "cordoned",
        one_node_table(a_node_info(is_cordoned=True)),
        workload_demands(),
        "n1",
        [f"node: need {OPEN}, have cordoned"],
    ),
    (
        "Ready",
        "draining",
        one_node_table(a_node_info(is_draining=True)),
        workload_demands(),
        "n1",
        [f"node: need {OPEN}, have draining"],
    ),
    (
        "NodePressure",
        "BestEffort",
        one_node_table(a_node_info(is_under_pressure=True)),
        workload_demands(is_best_effort=True),
        "n1",
        ["node: need no pressure, or requests of the workload, have MemoryPressure or DiskPressure"],
    ),
    (
        "InCluster",
        "another cluster",
        one_node_table(a_node_info(cluster="west")),
        workload_demands(cluster="east"),
        "n1",
        ["cluster: need east, have west"],
    ),
    (
        "InCluster",
        "no cluster",
        one_node_table(a_node_info()),
        workload_demands(cluster="east"),
        "n1",
        ["cluster: need east, have none"],
    ),
    (
        "Kept",
        "a reserve",
        one_node_table(a_node_info(labels={RESERVE_LABEL: "dc"})),
        workload_demands(),
        "n1",
        ["reserved node: need a service that may use the node, have a workload without a service"],
    ),
    (
        "NodeSelector",
        "another value",
        one_node_table(a_node_info(labels={"disk": "hdd"})),
        NEEDS_SSD,
        "n1",
        ["label: need disk=ssd, have disk=hdd"],
    ),
    (
        "NodeSelector",
        "no label",
        one_node_table(a_node_info()),
        NEEDS_SSD,
        "n1",
        ["label: need disk=ssd, have no label disk"],
    ),
    (
        "NodeAffinity",
        "some are there, some are not",
        one_node_table(a_node_info(zone="c")),
        workload_demands(
            node_terms=(
                node_term(requirement("zone", "In", "a", "b")),
                node_term(requirement("gpu", "Exists")),
            )
        ),
        "n1",
        ["labels: need zone in (a,b) or gpu, have zone=c, no label gpu"],
    ),
    (
        "Taints",
        "nothing tolerated",
        one_node_table(a_node_info(taints=(a_taint("gpu", value="true"),))),
        workload_demands(tolerations=(a_toleration("other", "Exists"),)),
        "n1",
        ["toleration: need gpu=true:NoSchedule, have none"],
    ),
    (
        "Taints",
        "nearly tolerated",
        one_node_table(a_node_info(taints=(a_taint("gpu", value="true"),))),
        workload_demands(
            tolerations=(a_toleration("gpu", value="yes"), a_toleration("gpu", "Exists", effect="NoExecute"))
        ),
        "n1",
        ["toleration: need gpu=true:NoSchedule, have gpu=yes, gpu:NoExecute"],
    ),
    (
        "Taints",
        "everything tolerated of another effect",
        one_node_table(a_node_info(taints=(a_taint("gpu"),))),
        workload_demands(tolerations=(a_toleration("", "Exists", effect="NoExecute"),)),
        "n1",
        ["toleration: need gpu:NoSchedule, have any:NoExecute"],
    ),
    (
        "Runtime",
        "another runtime",
        one_node_table(a_node_info(runtimes=frozenset({"process"}))),
        workload_demands(runtime="container"),
        "n1",
        ["runtime: need container, have process"],
    ),
    (
        "MachineImage",
        "another image",
        one_node_table(a_node_info(image="B-3")),
        workload_demands(image=Image(pattern="A-*")),
        "n1",
        ["machine image: need A-*, have B-3"],
    ),
    (
        "MachineImage",
        "too old",
        one_node_table(a_node_info(image="A-2.8.0")),
        workload_demands(image=Image(min_version="2.9")),
        "n1",
        ["machine image version: need 2.9 or later, have 2.8 (A-2.8.0)"],
    ),
    (
        "MachineImage",
        "unknown",
        one_node_table(a_node_info()),
        workload_demands(image=Image(min_version="2.9")),
        "n1",
        ["machine image version: need 2.9 or later, have unknown"],
    ),
    (
        "Licence",
        "another",
        one_node_table(a_node_info(licences=frozenset({"lite"}))),
        workload_demands(licences=("max", "pro")),
        "n1",
        ["licence: need max or pro, have lite"],
    ),
    (
        "VolumeZone",
        "another zone",
        one_node_table(a_node_info(zone="a")),
        workload_demands(volumes=(Volume(name="v", zone="b"),)),
        "n1",
        ["volume v: need zone=b, have zone=a"],
    ),
    (
        "VolumeZone",
        "no region",
        one_node_table(a_node_info()),
        workload_demands(volumes=(Volume(name="v", region="r"),)),
        "n1",
        ["volume v: need region=r, have no region"],
    ),
    (
        "Fit",
        "too little",
        one_node_table(a_node_info(room={"cpu": 1})),
        workload_demands({"cpu": 3}),
        "n1",
        ["cpu: need 3, have 1, missing 2"],
    ),
    (
        "Gpu",
        "too few",
        one_node_table(a_node_info(gpus=("t4",))),
        workload_demands(gpu=2),
        "n1",
        ["gpu: need 2, have 1, missing 1"],
    ),
    (
        "Gpu",
        "another model",
        one_node_table(a_node_info(gpus=("t4",))),
        workload_demands(gpu=1, models=("a100",)),
        "n1",
        ["gpu model: need a100, have t4"],
    ),
    (
        "Gpu",
        "none at all",
        one_node_table(a_node_info()),
        workload_demands(gpu=1, models=("a100",)),
        "n1",
        ["gpu model: need a100, have none"],
    ),
    (
        "HostPorts",
        "in use",
        zoned_table(PORT, "a1"),
        PORT,
        "a1",
        ["host port: need 8080/TCP free, have in use by default/placed-0"],
    ),
    (
        "WorkloadAffinity",
        "elsewhere",
        zoned_table(WEB, "b1", "b1"),
        workload_demands(affinity_terms=(near("zone", app="web"),)),
        "a1",
        ["workloads app=web in zone a: need 1 or more, have none, 2 elsewhere, missing 1"],
    ),
    (
        "WorkloadAffinity",
        "nowhere",
        zoned_table(WEB),
        workload_demands(affinity_terms=(near("zone", app="web"),)),
        "a1",
        ["workloads app=web in zone a: need 1 or more, have none anywhere, missing 1"],
    ),
    (
        "WorkloadAffinity",
        "in no zone",
        zoned_table(WEB, "b1"),
        workload_demands(affinity_terms=(near("zone", app="web"),)),
        "c1",
        ["topology key: need zone, have no zone"],
    ),
    (
        "WorkloadAffinity",
        "no such key",
        zoned_table(WEB, "b1"),
        workload_demands(affinity_terms=(near("rack", app="web"),)),
        "a1",
        ["topology key: need rack, have none on any node"],
    ),
    (
        "WorkloadAntiAffinity",
        "one of them is there",
        zoned_table(WEB, "b1"),
        workload_demands(anti_affinity_terms=(near("zone", app="web"),)),
        "b1",
        ["workloads app=web in zone b: need none, have 1: default/placed-0, missing 1 fewer"],
    ),
    (
        "WorkloadAntiAffinity",
        "many are there",
        zoned_table(WEB, "a1", "a1", "b1", "a2", "a2"),
        workload_demands(anti_affinity_terms=(near("zone", app="web"),)),
        "a2",
        [
            "workloads app=web in zone a: need none, have 4: default/placed-0, default/placed-1, default/placed-3, …, missing 4 fewer"
        ],
    ),
    (
        "WorkloadAntiAffinity",
        "kept away",
        zoned_table(REPELS_WEB, "a1"),
        WEB,
        "a2",
        [
            "workloads whose anti-affinity excludes workloads app=web in zone a: need none, have 1: default/placed-0, missing 1 fewer"
        ],
    ),
    (
        "TopologySpread",
        "too many here",
        zoned_table(SPREAD, "a1", "a2", "a2", "b1"),
        SPREAD,
        "a1",
        ["skew over zone: need at most 1, have 3 (4 in zone a with this one, 1 in zone b), missing 2 fewer"],
    ),
    (
        "TopologySpread",
        "in no zone",
        zoned_table(SPREAD),
        SPREAD,
        "c1",
        ["topology key: need zone, have no zone"],
    ),
    (
        "TopologySpread",
        "no such key",
        zoned_table(WEB),
        workload_demands(service="s", spread=(a_spread("rack"),)),
        "a1",
        ["topology key: need rack, have none on any node"],
    ),
    (
        "NodeShare",
        "as many as planned",
        zoned_table(ONE_A_NODE, "a1"),
        ONE_A_NODE,
        "a1",
        ["replicas of service s on the node: need fewer than 1, have 1, missing a further node"],
    ),
]


def test_every_filter_has_a_case() -> None:
    told = {name for name, *_ in CASES}
    assert told == {each.name for each in compile_preset().filters} == set(FILTERS)


@pytest.mark.parametrize(
    ("plugin", "table", "demands", "node", "words"),
    [pytest.param(FILTERS[name], *rest, id=f"{name}: {about}") for name, about, *rest in CASES],
)
def test_reason_detail_has_need_have_and_missing(
    plugin: Any, table: Any, demands: Demands, node: str, words: list[str]
) -> None:
    made = table()
    row = made.row_of[node]
    found = [reason for reason, mask in plugin.filter(ask(made, demands), made).items() if mask[row]]
    told: list[Shortfall] = [reason.detail(made, row) for reason in found]
    assert [str(each) for each in told] == words
    assert all(each.what and each.need and each.have and each.missing for each in told)
    assert all(reason.plugin == plugin.name and reason.summary() for reason in found)


@pytest.mark.parametrize(
    ("plugin", "table", "demands"),
    [
        pytest.param(FILTERS[name], table, demands, id=f"{name}: {about}")
        for name, about, table, demands, *_ in CASES
    ],
)
def test_batched_reason_details_equal_single_details(plugin: Any, table: Any, demands: Demands) -> None:
    made = table()
    for reason, mask in plugin.filter(ask(made, demands), made).items():
        rows = np.flatnonzero(mask)
        assert list(reason_details(reason, made, rows)) == [reason.detail(made, row) for row in rows.tolist()]
        assert list(reason_details(reason, made, rows[:0])) == []


class Watched(NodeTable):
    """A table that counts reads of whole columns."""

    looks = 0

    def label_codes(self, key: str) -> LabelCodes:
        self.looks += 1
        return super().label_codes(key)

    def free(self, resource: int) -> Any:
        self.looks += 1
        return super().free(resource)

    def column(self, name: str) -> Any:
        self.looks += 1
        return super().column(name)


APART = workload_demands(labels={"app": "web"}, anti_affinity_terms=(near("node", app="web"),))


@pytest.mark.parametrize(
    "demands",
    [
        pytest.param(workload_demands({"cpu": 99}), id="no room"),
        pytest.param(workload_demands(gpu=1, models=("v100", "a100")), id="no GPU free"),
        pytest.param(APART, id="too near, by node"),
        pytest.param(workload_demands(labels={"app": "web"}), id="kept away, by node"),
        pytest.param(
            workload_demands(anti_affinity_terms=(near("zone", app="web"),)), id="too near, by zone"
        ),
        pytest.param(
            workload_demands(affinity_terms=(near("zone", app="nobody"),)), id="no workload to be near to"
        ),
        pytest.param(
            workload_demands(labels={"app": "web"}, spread=(a_spread("node", labels={"app": "web"}),)),
            id="uneven",
        ),
    ],
)
def test_column_reads_do_not_grow_with_node_count(demands: Demands) -> None:
    looks = []
    for count in (10, 40):
        table = Watched()
        table.load(
            a_node_info(f"n{number}", zone=f"z{number % 3}", gpus=("v100", "a100")) for number in range(count)
        )
        place(table, APART, *table.names[1:])
        place(table, workload_demands({}, gpu=2), *table.names)
        decision = decide(ask(table, demands), table, compile_preset())
        table.looks = 0
        assert len(list(all_rejections(decision))) >= count - 1
        looks.append(table.looks)
    assert looks[0] == looks[1] > 0


def test_reason_equality_ignores_displayed_demands() -> None:
    """Shapes share the cached answers of a filter by its reasons."""
    tainted = nodes(a_node_info(taints=(a_taint("gpu"),)))
    patient = workload_demands(tolerations=(a_toleration("other", "Exists"),))
    first, second = (
        list(FILTERS["Taints"].filter(ask(tainted, each), tainted)) for each in (workload_demands(), patient)
    )
    assert first == second
