"""Tests of filters that evaluate one node at a time: the nodes they reject and the text of their reasons."""

from typing import Any

import pytest
from build.node_tables import (
    a_node_info,
    a_taint,
    a_toleration,
    ask,
    node_term,
    nodes,
    place,
    requirement,
    ruled_out,
    workload_demands,
)

from lattice.engine.decide import decide
from lattice.engine.explain import rejections_of
from lattice.engine.plugin import Shortfall
from lattice.kinds.cluster import RESERVE_LABEL
from lattice.kinds.constraints import MachineImage as Image
from lattice.kinds.constraints import Volume
from lattice.scheduling.cycle.profile import FILTERS, compile_preset
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.filters.fit import Fit, InsufficientResource
from lattice.scheduling.plugins.filters.gpu import Gpu
from lattice.scheduling.plugins.filters.host_ports import HostPorts
from lattice.scheduling.plugins.filters.in_cluster import InCluster
from lattice.scheduling.plugins.filters.licence import Licence
from lattice.scheduling.plugins.filters.machine_image import MachineImage, version_in
from lattice.scheduling.plugins.filters.node_affinity import NodeAffinity
from lattice.scheduling.plugins.filters.node_selector import NodeSelector
from lattice.scheduling.plugins.filters.ready import Ready
from lattice.scheduling.plugins.filters.reserved_nodes import ReservedNodes
from lattice.scheduling.plugins.filters.runtime import Runtime
from lattice.scheduling.plugins.filters.taints import Taints, taint_evictions
from lattice.scheduling.plugins.filters.volume_zone import VolumeZone
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.workload_ask import Demands


def reasons_against(plugin: Any, node: NodeInfo, demands: Demands) -> list[str]:
    return ruled_out(plugin, nodes(node), demands).get(node.name, [])


def details(plugin: Any, node: NodeInfo, demands: Demands) -> list[str]:
    table = nodes(node)
    return [
        str(reason.detail(table, 0))
        for reason, mask in plugin.filter(ask(table, demands), table).items()
        if mask[0]
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        pytest.param({}, [], id="a node that is well takes workloads"),
        pytest.param({"is_ready": False}, ["not ready"], id="one that is not ready takes none"),
        pytest.param({"is_cordoned": True}, ["cordoned"], id="a cordoned one takes no new ones"),
        pytest.param({"is_draining": True}, ["draining"], id="a draining one takes no new ones"),
        pytest.param(
            {"is_ready": False, "is_draining": True}, ["not ready", "draining"], id="every reason is given"
        ),
    ],
)
def test_ready(facts: dict[str, Any], words: list[str]) -> None:
    assert reasons_against(Ready(), a_node_info(**facts), workload_demands()) == words


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        pytest.param("", [], id="no cluster asked for: any node will do"),
        pytest.param("east", [], id="a node of the cluster will do"),
        pytest.param("west", ["outside cluster west"], id="a node of another will not"),
    ],
)
def test_in_cluster(cluster: str, words: list[str]) -> None:
    assert (
        reasons_against(InCluster(), a_node_info(cluster="east"), workload_demands(cluster=cluster)) == words
    )


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        pytest.param({}, [], id="an unreserved node"),
        pytest.param({RESERVE_LABEL: "dc"}, ["reserved for certain services"], id="a reserved node"),
    ],
)
def test_bare_workload_is_kept_off_reserved_nodes(labels: dict[str, str], words: list[str]) -> None:
    assert reasons_against(ReservedNodes(), a_node_info(labels=labels), workload_demands()) == words


def test_reserved_nodes_filter_skips_service_replicas() -> None:
    assert not ReservedNodes().applies(ask(nodes(a_node_info()), workload_demands(service="api")))


@pytest.mark.parametrize(
    ("room", "requests", "words"),
    [
        pytest.param(
            {"cpu": 2, "memory": "1Gi"}, {"cpu": 2, "memory": "1Gi"}, [], id="just enough is enough"
        ),
        pytest.param(
            {"cpu": 1, "memory": "8Gi"},
            {"cpu": "1500m", "memory": "1Gi"},
            ["without 1500m cpu free"],
            id="too little cpu",
        ),
        pytest.param(
            {"cpu": 1},
            {"cpu": 1, "memory": "1Gi"},
            ["without 1Gi memory free"],
            id="a node that names no memory has none",
        ),
        pytest.param({"cpu": 1, "disk": "1Gi"}, {"disk": "2Gi"}, ["without 2Gi disk free"], id="disk counts"),
        pytest.param(
            {"ephemeral-storage": "1Gi"},
            {"ephemeral-storage": "3Gi"},
            ["without 3Gi ephemeral-storage free"],
            id="ephemeral storage counts",
        ),
        pytest.param(
            {"hugepages-2Mi": "4Mi"},
            {"hugepages-2Mi": "6Mi"},
            ["without 6Mi hugepages-2Mi free"],
            id="huge pages of any size",
        ),
        pytest.param(
            {"example.com/fpga": 1},
            {"example.com/fpga": 2},
            ["without 2 example.com/fpga free"],
            id="extended resources by any name",
        ),
        pytest.param(
            {"cpu": 1, "workloads": 0}, {"cpu": 1}, ["without a free workload slot"], id="slots run out"
        ),
        pytest.param({"cpu": 1}, {"cpu": 1}, [], id="a node that names no slots takes any number"),
        pytest.param(
            {"cpu": 1, "memory": "1Gi"},
            {"cpu": 2, "memory": "2Gi"},
            ["without 2 cpu free", "without 2Gi memory free"],
            id="every short resource is named",
        ),
    ],
)
def test_fit(room: dict[str, Any], requests: dict[str, Any], words: list[str]) -> None:
    assert reasons_against(Fit(), a_node_info(room=room), workload_demands(requests)) == words


def test_fit_counts_placed_workloads_in_shortfall() -> None:
    table = nodes(a_node_info(room={"cpu": 8, "memory": "8Gi"}))
    place(table, workload_demands({"memory": "6Gi"}), "n1")
    asked = ask(table, workload_demands({"memory": "3Gi"}))
    (reason,) = [reason for reason, mask in Fit().filter(asked, table).items() if mask[0]]
    assert str(reason.detail(table, 0)) == "memory: need 3Gi, have 2Gi, missing 1Gi"


def test_fit_counts_dynamic_ports() -> None:
    table = nodes(a_node_info(port_range=(100, 102)))
    place(table, workload_demands(ports=2), "n1")
    assert ruled_out(Fit(), table, workload_demands(ports=1)) == {}
    assert ruled_out(Fit(), table, workload_demands(ports=2)) == {"n1": ["without 2 free ports"]}
    assert InsufficientResource("ports", 1).summary() == "without a free port"


@pytest.mark.parametrize(
    ("gpus", "gpu", "models", "words"),
    [
        pytest.param((), 1, (), ["without a GPU"], id="no GPU at all"),
        pytest.param(("v100", "v100"), 2, (), [], id="as many whole ones as asked"),
        pytest.param(("v100", ("v100", 900)), 2, (), ["without 2 gpu free"], id="a used one is not whole"),
        pytest.param(
            (("v100", 400), ("v100", 400)),
            "500m",
            (),
            ["without 500m of one gpu free"],
            id="parts of two do not make one part",
        ),
        pytest.param((("v100", 500),), "500m", (), [], id="a part of one"),
        pytest.param(("v100",), 1, ("v100", "a100"), [], id="one of the named models"),
        pytest.param(
            ("t4",), 1, ("v100", "a100"), ["without a GPU of model v100 or a100"], id="another model"
        ),
    ],
)
def test_gpu(gpus: tuple[Any, ...], gpu: Any, models: tuple[str, ...], words: list[str]) -> None:
    assert reasons_against(Gpu(), a_node_info(gpus=gpus), workload_demands(gpu=gpu, models=models)) == words


def test_gpu_shortfall() -> None:
    assert details(Gpu(), a_node_info(gpus=("v100",)), workload_demands(gpu=3)) == [
        "gpu: need 3, have 1, missing 2"
    ]
    assert details(Gpu(), a_node_info(gpus=(("v100", 200),)), workload_demands(gpu="500m")) == [
        "part of one gpu: need 500m, have 200m, missing 300m"
    ]
    assert details(Gpu(), a_node_info(gpus=("t4",)), workload_demands(gpu=1, models=("v100",))) == [
        "gpu model: need v100, have t4"
    ]


def test_node_selector_names_each_missing_label() -> None:
    node = a_node_info(labels={"disk": "hdd", "gpu": "yes"})
    assert reasons_against(
        NodeSelector(), node, workload_demands(node_selector={"disk": "ssd", "gpu": "yes", "x": "1"})
    ) == [
        "without label disk=ssd",
        "without label x=1",
    ]
    assert details(NodeSelector(), node, workload_demands(node_selector={"disk": "ssd"})) == [
        "label: need disk=ssd, have disk=hdd"
    ]
    assert details(NodeSelector(), node, workload_demands(node_selector={"x": "1"})) == [
        "label: need x=1, have no label x"
    ]


@pytest.mark.parametrize(
    ("labels", "terms", "fits"),
    [
        pytest.param({"zone": "a"}, [[("zone", "In", "a", "b")]], True, id="In: one of the values"),
        pytest.param({"zone": "c"}, [[("zone", "In", "a", "b")]], False, id="In: none of them"),
        pytest.param({}, [[("zone", "In", "a")]], False, id="In: no such label"),
        pytest.param({"zone": "c"}, [[("zone", "NotIn", "a")]], True, id="NotIn: another value"),
        pytest.param({"zone": "a"}, [[("zone", "NotIn", "a")]], False, id="NotIn: this value"),
        pytest.param({}, [[("zone", "NotIn", "a")]], True, id="NotIn: no such label is fine"),
        pytest.param({"gpu": ""}, [[("gpu", "Exists")]], True, id="Exists: whatever its value"),
        pytest.param({}, [[("gpu", "Exists")]], False, id="Exists: not there"),
        pytest.param({}, [[("gpu", "DoesNotExist")]], True, id="DoesNotExist: not there"),
        pytest.param({"gpu": "1"}, [[("gpu", "DoesNotExist")]], False, id="DoesNotExist: there"),
        pytest.param({"size": "10"}, [[("size", "Gt", "9")]], True, id="Gt: by number, not by letter"),
        pytest.param({"size": "9"}, [[("size", "Gt", "9")]], False, id="Gt: equal is not greater"),
        pytest.param({"size": "big"}, [[("size", "Gt", "9")]], False, id="Gt: no number"),
        pytest.param({"size": "8"}, [[("size", "Lt", "9")]], True, id="Lt: lower"),
        pytest.param({"size": "10"}, [[("size", "Lt", "9")]], False, id="Lt: higher"),
        pytest.param({}, [[("size", "Lt", "9")]], False, id="Lt: no such label"),
        pytest.param(
            {"a": "1"}, [[("a", "In", "1"), ("b", "Exists")]], False, id="all expressions of a term must hold"
        ),
        pytest.param({"b": "1"}, [[("a", "Exists")], [("b", "Exists")]], True, id="one term is enough"),
    ],
)
def test_node_affinity(labels: dict[str, str], terms: list[list[tuple[Any, ...]]], fits: bool) -> None:
    demands = workload_demands(
        node_terms=tuple(node_term(*(requirement(*each) for each in term)) for term in terms)
    )
    assert (reasons_against(NodeAffinity(), a_node_info(labels=labels), demands) == []) is fits


def test_node_affinity_shortfall() -> None:
    demands = workload_demands(
        node_terms=(node_term(requirement("zone", "In", "a", "b")), node_term(requirement("gpu", "Exists")))
    )
    assert reasons_against(NodeAffinity(), a_node_info(zone="c"), demands) == [
        "without labels zone in (a,b) or gpu"
    ]
    assert details(NodeAffinity(), a_node_info(zone="c"), demands) == [
        "labels: need zone in (a,b) or gpu, have zone=c, no label gpu"
    ]


TAINTED = "with untolerated taint k=v:NoSchedule"


@pytest.mark.parametrize(
    ("taint", "tolerations", "words"),
    [
        pytest.param(a_taint("k", "NoSchedule", "v"), (), [TAINTED], id="NoSchedule keeps away"),
        pytest.param(
            a_taint("k", "NoExecute"),
            (),
            ["with untolerated taint k:NoExecute"],
            id="NoExecute keeps away too",
        ),
        pytest.param(a_taint("k", "PreferNoSchedule"), (), [], id="PreferNoSchedule only scores"),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("k", value="v"),),
            [],
            id="Equal: same key and value",
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("k", value="w"),),
            [TAINTED],
            id="Equal: another value",
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"), (a_toleration("k", "Exists"),), [], id="Exists: any value"
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("l", "Exists"),),
            [TAINTED],
            id="Exists: another key",
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("", "Exists"),),
            [],
            id="Exists without key: everything",
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("k", "Exists", effect="NoExecute"),),
            [TAINTED],
            id="another effect",
        ),
        pytest.param(
            a_taint("k", "NoSchedule", "v"),
            (a_toleration("k", "Exists", effect="NoSchedule"),),
            [],
            id="the same effect",
        ),
    ],
)
def test_taints(taint: Any, tolerations: tuple[Any, ...], words: list[str]) -> None:
    assert (
        reasons_against(Taints(), a_node_info(taints=(taint,)), workload_demands(tolerations=tolerations))
        == words
    )


def test_each_untolerated_taint_is_named_per_node() -> None:
    table = nodes(
        a_node_info("n1", taints=(a_taint("a"), a_taint("b"))),
        a_node_info("n2", taints=(a_taint("b"),)),
        a_node_info("n3"),
    )
    words = ["with untolerated taint a:NoSchedule", "with untolerated taint b:NoSchedule"]
    assert ruled_out(Taints(), table, workload_demands()) == {"n1": words, "n2": words[1:]}


@pytest.mark.parametrize(
    ("taints", "tolerations", "leaves"),
    [
        pytest.param((), (), None, id="no taint: it stays"),
        pytest.param((a_taint("k"),), (), None, id="NoSchedule lets stay what is there"),
        pytest.param((a_taint("k", "NoExecute"),), (), 0, id="NoExecute: out at once"),
        pytest.param(
            (a_taint("k", "NoExecute"),), (a_toleration("k", "Exists"),), None, id="tolerated for ever"
        ),
        pytest.param(
            (a_taint("k", "NoExecute"),),
            (a_toleration("k", "Exists", toleration_seconds=60),),
            60,
            id="tolerated for a minute",
        ),
        pytest.param(
            (a_taint("k", "NoExecute"), a_taint("l", "NoExecute")),
            (
                a_toleration("k", "Exists", toleration_seconds=60),
                a_toleration("l", "Exists", toleration_seconds=30),
            ),
            30,
            id="the least patience of several taints",
        ),
        pytest.param(
            (a_taint("k", "NoExecute"), a_taint("l", "NoExecute")),
            (a_toleration("k", "Exists"),),
            0,
            id="one of two untolerated",
        ),
        pytest.param(
            (a_taint("k", "NoExecute"),),
            (a_toleration("k", "Exists", toleration_seconds=5), a_toleration("", "Exists")),
            None,
            id="the most patient toleration counts",
        ),
    ],
)
def test_no_execute_taint_evictions(
    taints: tuple[Any, ...], tolerations: tuple[Any, ...], leaves: int | None
) -> None:
    table = nodes(a_node_info())
    place(table, workload_demands(tolerations=tolerations), "n1")
    gone = taint_evictions(a_node_info(taints=taints), table.placements.values())
    assert {name: each.after_seconds for name, each in gone.items()} == (
        {} if leaves is None else {"default/placed-0": leaves}
    )


def test_taint_eviction_names_its_taint() -> None:
    node = a_node_info(taints=(a_taint("k", "NoExecute"), a_taint("l", "NoExecute", "v")))
    table = nodes(node)
    place(table, workload_demands(tolerations=(a_toleration("k", "Exists"),)), "n1")
    patient = (a_toleration("k", "Exists"), a_toleration("l", "Exists", toleration_seconds=60))
    place(table, workload_demands(tolerations=patient), "n1")
    assert [str(each) for each in taint_evictions(node, table.placements.values()).values()] == [
        "immediately: the workload does not tolerate taint l=v:NoExecute",
        "60 s after taint l=v:NoExecute was added: the toleration ends then",
    ]


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        pytest.param(Volume(name="v", zone="a", region="r"), [], id="same zone and region"),
        pytest.param(Volume(name="v", zone="b"), ["outside zone b of volume v"], id="another zone"),
        pytest.param(Volume(name="v", region="s"), ["outside region s of volume v"], id="another region"),
        pytest.param(Volume(name="v"), [], id="a volume that can be reached from anywhere"),
    ],
)
def test_volume_zone(volume: Volume, words: list[str]) -> None:
    assert (
        reasons_against(VolumeZone(), a_node_info(zone="a", region="r"), workload_demands(volumes=(volume,)))
        == words
    )


def test_node_without_zone_is_outside_volume_zone() -> None:
    assert reasons_against(
        VolumeZone(), a_node_info(), workload_demands(volumes=(Volume(name="v", zone="a"),))
    ) == ["outside zone a of volume v"]


@pytest.mark.parametrize(
    ("runtimes", "wanted", "words"),
    [
        pytest.param((), "container", [], id="a node that does not say takes any"),
        pytest.param(("process", "container"), "container", [], id="a node that can"),
        pytest.param(("process",), "container", ["without a container runtime"], id="a node that cannot"),
        pytest.param(("container",), "", [], id="a workload that does not care"),
    ],
)
def test_runtime(runtimes: tuple[str, ...], wanted: str, words: list[str]) -> None:
    assert (
        reasons_against(
            Runtime(), a_node_info(runtimes=frozenset(runtimes)), workload_demands(runtime=wanted)
        )
        == words
    )


@pytest.mark.parametrize(
    ("image", "wanted", "words"),
    [
        pytest.param("CML-2.9.1", Image(pattern="CML-2.9.*"), [], id="the pattern fits"),
        pytest.param(
            "CML-2x9",
            Image(pattern="CML-2.9*"),
            ["without a machine image like CML-2.9*"],
            id="a dot is a dot",
        ),
        pytest.param(
            "CML-3.0",
            Image(pattern="CML-2.9.*"),
            ["without a machine image like CML-2.9.*"],
            id="the pattern does not fit",
        ),
        pytest.param(
            "CML-2.10.0", Image(min_version="2.9"), [], id="versions compare by number, not by letter"
        ),
        pytest.param("CML-2.9", Image(min_version="2.9.0"), [], id="trailing zeros say nothing"),
        pytest.param(
            "CML-2.8.5", Image(min_version="2.9"), ["with a machine image below version 2.9"], id="too old"
        ),
        pytest.param(
            "CML",
            Image(min_version="1"),
            ["with a machine image below version 1"],
            id="no version in the name",
        ),
        pytest.param(
            "", Image(min_version="0"), ["with a machine image below version 0"], id="an unknown image"
        ),
    ],
)
def test_machine_image(image: str, wanted: Image, words: list[str]) -> None:
    assert reasons_against(MachineImage(), a_node_info(image=image), workload_demands(image=wanted)) == words


def test_image_version_is_its_dotted_number() -> None:
    assert [version_in(image) for image in ("x86-ubuntu-22.04", "debian12", "none", "a-2.0")] == [
        (22, 4),
        (12,),
        (),
        (2,),
    ]


@pytest.mark.parametrize(
    ("held", "wanted", "words"),
    [
        pytest.param(("pro",), (), [], id="none needed"),
        pytest.param(("pro",), ("max", "pro"), [], id="one of them is enough"),
        pytest.param((), ("max", "pro"), ["without licence max or pro"], id="none held"),
    ],
)
def test_licence(held: tuple[str, ...], wanted: tuple[str, ...], words: list[str]) -> None:
    assert (
        reasons_against(Licence(), a_node_info(licences=frozenset(held)), workload_demands(licences=wanted))
        == words
    )


def test_host_ports_are_freed_with_their_workload() -> None:
    table = nodes(a_node_info("n1"), a_node_info("n2"))
    web, dns = (
        workload_demands(host_ports=((80, "TCP"),)),
        workload_demands(host_ports=((80, "UDP"), (443, "TCP"))),
    )
    place(table, web, "n1")
    assert ruled_out(HostPorts(), table, web) == {"n1": ["with port 80/TCP in use"]}
    assert ruled_out(HostPorts(), table, dns) == {}
    table.forget("default/placed-0")
    assert ruled_out(HostPorts(), table, web) == {}


def test_every_filter_has_wake_events() -> None:
    assert all(each.wakes_on and ClusterEvent.NODE_ADDED in each.wakes_on for each in FILTERS.values())
    assert ClusterEvent.WORKLOAD_GONE in Fit.wakes_on
    assert ClusterEvent.NODE_READY in Ready.wakes_on
    assert ClusterEvent.WORKLOAD_ADDED in FILTERS["WorkloadAffinity"].wakes_on
    assert ClusterEvent.WORKLOAD_ADDED not in FILTERS["WorkloadAntiAffinity"].wakes_on


@pytest.mark.parametrize(
    ("left", "need", "shown"),
    [
        pytest.param(
            {"cpu": "400m"},
            {"cpu": "100m"},
            Shortfall("cpu", "100m", "-500m", "600m"),
            id="a node that shrank owes the rest too",
        ),
        pytest.param(
            {"cpu": 1, "memory": "1Gi"},
            {"memory": "1Gi"},
            Shortfall("memory", "1Gi", "-1Gi", "2Gi"),
            id="memory likewise",
        ),
        pytest.param({"cpu": "900m"}, {"cpu": "100m"}, Shortfall("cpu", "100m", "0", "100m"), id="just full"),
    ],
)
def test_shortfall_on_overcommitted_node_includes_excess(
    left: dict[str, Any], need: dict[str, Any], shown: Shortfall
) -> None:
    table = nodes(a_node_info("n", {"cpu": 1, "memory": "4Gi"}))
    place(table, workload_demands({"cpu": "900m", "memory": "2Gi"}), "n")
    table.put_node(a_node_info("n", {"cpu": 1, "memory": "4Gi", **left}))
    decision = decide(ask(table, workload_demands(need)), table, compile_preset())
    assert rejections_of(decision, "n") == [shown]
