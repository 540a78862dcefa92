"""Logs, retry, cordon, drain, top, plain REST and gRPC against one real server with agents."""

import json
import os
import re
import select
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from build.servers import LATTICE, Server, running_server
from build.waiting import wait_until
from build.wire import Wire

from lattice.cli.client.config import read_kubeconfig
from lattice.wire import control_pb2 as pb
from lattice.wire import control_pb2_grpc as rpc

pytestmark = [pytest.mark.xdist_group("faces"), pytest.mark.timeout(180)]

API = "/apis/lattice.dev/v1alpha1"
WORKLOADS = f"{API}/namespaces/default/latticeworkloads"
SEED = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeNodeClass
metadata: {name: nano}
spec:
  providers: {local: {}}
  resources: {cores: 1, memoryGi: 1, storageGi: 1}
  costPerHour: {local: 0.01}
---
apiVersion: lattice.dev/v1alpha1
kind: LatticePool
metadata: {name: yard}
spec:
  provider: {type: local, region: yard}
  capacity: {maxNodes: 3}
  budget: {maxMonthlyCost: 50}
  nodeClasses: [nano]
---
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {name: talk}
spec:
  containers:
    main:
      command: [sh, -c, 'echo hello; n=0; while true; do n=$((n+1)); echo line $n; sleep 0.3; done']
  placement:
    resources: {cores: 0.6, memoryGi: 0.1}
  replicas: {min: 2}
"""
BAD = {
    "apiVersion": "lattice.dev/v1alpha1",
    "kind": "LatticeWorkload",
    "metadata": {"name": "bad"},
    "spec": {
        "containers": {"main": {"command": ["sh", "-c", "echo oops; exit 3"]}},
        "requests": {"cpu": "50m"},
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("faces")
    (folder / "seed.yaml").write_text(SEED)
    with running_server(
        folder / "data", "--controllers", "*", "--room-grace", "1", "--seed", str(folder / "seed.yaml")
    ) as server:
        wire = Wire(server.kubeconfig)
        wait_until(lambda: ready_replicas(wire) == 2, "both replicas are ready", 90)
        yield server


@pytest.fixture
def wire(site: Server) -> Wire:
    return Wire(site.kubeconfig)


def ready_replicas(wire: Wire) -> int:
    answer = wire.get(f"{API}/namespaces/default/latticeservices/talk")
    return (
        int((answer.value.get("status", {}).get("health") or {}).get("ready") or 0)
        if answer.status == 200
        else 0
    )


def node_of(wire: Wire, workload: str) -> str:
    return str(
        ((wire.get(f"{WORKLOADS}/{workload}").value.get("status") or {}).get("binding") or {}).get("node", "")
    )


def test_logs_of_one_replica_and_of_a_service(site: Server) -> None:
    one = site.lattice("logs", "talk-0")
    assert (one.returncode, one.stderr) == (0, "")
    assert one.stdout.startswith("hello\nline 1\n")
    few = site.lattice("logs", "workload/talk-1", "--tail", "2", "-c", "main")
    assert len(few.stdout.splitlines()) == 2
    every = site.lattice("logs", "service/talk", "--all", "--tail", "1")
    assert [line.split()[0] for line in every.stdout.splitlines()] == ["[talk-0]", "[talk-1]"]
    either = site.lattice("logs", "talk", "--tail", "1")
    assert re.match(r"showing talk-[01] of 2 replicas; --all shows all", either.stderr)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(
            ("nope",), 1, 'latticeworkloads.lattice.dev "nope" not found', id="neither workload nor service"
        ),
        pytest.param(("talk-0", "-c", "side"), 1, "there is no container 'side'", id="no such container"),
        pytest.param(("pool/yard",), 2, "pool/yard is neither a workload nor a service", id="something else"),
        pytest.param(("talk-0", "--tail", "-3"), 2, "must be -1 or more, got -3", id="fewer than none"),
    ],
)
def test_logs_error_names_the_reason(words: tuple[str, ...], code: int, told: str, site: Server) -> None:
    done = site.lattice("logs", *words)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


def follow(site: Server, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "LATTICE_KUBECONFIG": str(site.kubeconfig)}
    return subprocess.Popen(
        [*LATTICE, "logs", *words, "-f"], env=environment, stdout=subprocess.PIPE, text=True
    )


def lines_of(process: "subprocess.Popen[str]", count: int) -> list[str]:
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < count:
        assert select.select([process.stdout], [], [], 20)[0], f"nothing came after {found}"
        found.append(process.stdout.readline().rstrip("\n"))
    return found


@pytest.mark.parametrize(
    "words", [("talk-0", "--tail", "0"), ("service/talk", "--all", "--tail", "0")], ids=["one", "all"]
)
def test_logs_are_followed(words: tuple[str, ...], site: Server) -> None:
    process = follow(site, *words)
    try:
        found = lines_of(process, 6)
    finally:
        process.terminate()
        process.communicate()
    if "--all" in words:
        assert {line.split()[0] for line in found} == {"[talk-0]", "[talk-1]"}
    else:
        numbers = [int(line.split()[1]) for line in found]
        assert numbers == list(range(numbers[0], numbers[0] + 6)), "none is left out"


def test_retry_restarts_a_failed_workload(site: Server, wire: Wire) -> None:
    assert wire.post(WORKLOADS, BAD).status == 201

    def attempts() -> int:
        return int(
            ((wire.get(f"{WORKLOADS}/bad").value.get("status") or {}).get("retry") or {}).get("attempts") or 0
        )

    wait_until(lambda: attempts() >= 2)
    done = site.lattice("retry", "bad")
    assert (done.returncode, done.stdout) == (0, "workload/bad will be retried\n")
    wait_until(lambda: "RetryTriggered" in site.lattice("events", "--for", "workload/bad").stdout)
    wait_until(
        lambda: (
            "lattice.dev/retry-requested"
            not in str(wire.get(f"{WORKLOADS}/bad").value["metadata"].get("annotations"))
        )
    )
    assert "oops" in site.lattice("logs", "bad").stdout
    assert site.lattice("retry", "service/talk").stderr == "service/talk: no replica has failed\n"
    assert wire.delete(f"{WORKLOADS}/bad").status == 200


def test_plain_rest_for_workloads_and_nodes(wire: Wire) -> None:
    home = "/lattice/v1/workloads"
    job = {
        "metadata": {"name": "plain"},
        "spec": {"containers": {"main": {"command": ["sleep", "600"]}}, "requests": {"cpu": "50m"}},
    }
    assert wire.post(home, job).status == 201
    assert wire.post(home, job).status == 409
    changed = {**job, "spec": {**job["spec"], "priority": 7}}
    answer = wire.ask("PUT", f"{home}/plain", changed, content_type="application/json")
    assert (answer.status, answer.value["spec"]["priority"]) == (200, 7)

    def put_back() -> bool:
        """As it was read, with its resourceVersion: refused if it has changed since."""
        answer = wire.ask(
            "PUT", f"{home}/plain", wire.get(f"{home}/plain").value, content_type="application/json"
        )
        assert answer.status in (200, 409)
        return answer.status == 200

    wait_until(put_back)
    assert "plain" in wire.get(home).names
    assert wire.get(home, namespace="lattice-system").names == []
    assert wire.ask("POST", f"{home}/plain/retry").status == 200
    assert {node["kind"] for node in wire.get("/lattice/v1/nodes").value["items"]} == {"LatticeNode"}
    wait_until(lambda: wire.get(f"{home}/plain").value.get("status", {}).get("actualState") == "Running")
    assert wire.get(f"{home}/plain/log", accept="*/*", tail="3").raw == b""
    assert (
        wire.ask("PUT", f"{home}/talk-0", {"spec": {"priority": 1}}, content_type="application/json").status
        == 403
    )
    assert wire.delete(f"{home}/plain").status == 200
    wait_until(lambda: wire.get(f"{home}/plain").status == 404)


def test_top_shows_usage_and_cost(site: Server) -> None:
    def measured() -> Any:
        found = json.loads(site.lattice("top", "-o", "json").stdout)
        return (
            found
            if found["services"][0]["memory"]["used"]
            and sum(node["memory"]["used"] for node in found["nodes"])
            else None
        )

    found = wait_until(measured)
    (talk,) = found["services"]
    assert (talk["name"], talk["ready"], talk["wanted"], talk["pools"]) == ("talk", 2, 2, ["yard"])
    (yard,) = found["pools"]
    assert (yard["budget"]["hourlyMicros"], yard["budget"]["limitMicros"], yard["readyNodes"]) == (
        10_000 * yard["nodes"],
        50_000_000,
        yard["nodes"],
    )
    assert all(node["memory"]["used"] < node["memory"]["of"] for node in found["nodes"]), (
        "a part of a machine does not use all of it"
    )
    shown = site.lattice("top").stdout
    assert [line.split()[0] for line in shown.splitlines() if line.split() and line.split()[0].isupper()] == [
        "POOL",
        "SERVICE",
        "CLUSTER",
        "NODE",
    ]
    assert "\x1b" not in shown
    assert site.lattice("top", "node", "services").stdout.split()[0] == "SERVICE"
    wrong = site.lattice("top", "cows")
    assert (wrong.returncode, "choose from pools, services, clusters, nodes" in wrong.stderr) == (2, True)


def test_viewer_can_read_but_not_write(site: Server, wire: Wire) -> None:
    kubeconfig = str(site.mint("vic", "lattice:viewers"))
    node = node_of(wire, "talk-0")
    for words in (("logs", "talk-0", "--tail", "1"), ("top",)):
        assert site.lattice(*words, "--kubeconfig", kubeconfig).returncode == 0
    for words in (("retry", "talk-0"), ("cordon", node), ("drain", node)):
        done = site.lattice(*words, "--kubeconfig", kubeconfig)
        assert (done.returncode, "may only read" in done.stderr) == (4, True), done.stderr


def test_cordon_and_uncordon(site: Server, wire: Wire) -> None:
    node = node_of(wire, "talk-0")

    def is_cordoned() -> bool:
        return bool(wire.get(f"{API}/latticenodes/{node}").value["spec"].get("unschedulable"))

    assert site.lattice("cordon", node, "--dry-run").stdout == f"node/{node} cordoned (server dry run)\n"
    assert not is_cordoned()
    assert site.lattice("cordon", node).stdout == f"node/{node} cordoned\n"
    assert site.lattice("cordon", f"node/{node}").stdout == f"node/{node} already cordoned\n"
    assert is_cordoned()
    assert "cordoned" in site.lattice("top", "nodes").stdout
    assert site.lattice("uncordon", node).stdout == f"node/{node} uncordoned\n"
    assert not is_cordoned()
    assert site.lattice("cordon", "nowhere").returncode == 1
    assert site.lattice("cordon", "pool/yard").returncode == 2
    assert site.lattice("cordon").returncode == 2
    assert site.lattice("cordon", "-l", "no=where").stderr == "No nodes found\n"


def test_the_control_service_over_grpc(site: Server, wire: Wire) -> None:
    lease = wire.get("/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases/controllers").value
    known = read_kubeconfig(site.kubeconfig)
    credentials = grpc.ssl_channel_credentials(
        known.authority.encode(), known.key.encode(), known.certificate.encode()
    )
    assert lease["metadata"]["annotations"]["lattice.dev/api"] == site.url
    with grpc.secure_channel(lease["metadata"]["annotations"]["lattice.dev/agents"], credentials) as channel:
        stub = rpc.ControlStub(channel)
        names = [
            each.name
            for each in stub.ListWorkloads(
                pb.ListRequest(label_selector="lattice.dev/service=talk")
            ).workloads
        ]
        assert names == ["talk-0", "talk-1"]
        assert stub.GetNode(pb.NodeName(name=node_of(wire, "talk-0"))).ready
        found = stub.GetClusterSummary(pb.ClusterSummaryRequest())
        assert (
            found.ready_nodes == found.nodes,
            found.ready_workloads >= 2,
            found.requested["cpu"] >= 1200,
        ) == (True, True, True)
        events = stub.WatchEvents(
            pb.WatchEventsRequest(kind="LatticeService", name="talk", from_the_beginning=True), timeout=20
        )
        assert next(iter(events)).name == "talk"
        events.cancel()


def test_health_and_metrics(wire: Wire) -> None:
    health = wire.get("/health").value
    assert set(health) == {"status", "isLeader", "instanceId", "lastReconciliation", "pending"}
    assert (health["status"], health["isLeader"]) == ("ok", True)
    told = wire.get("/metrics", accept="*/*").raw.decode()
    lines = [line.rpartition(" ") for line in told.splitlines() if line and not line.startswith("#")]
    values = {name: float(value) for name, _, value in lines}
    missing = {
        "scheduling_attempts_total",
        "scheduling_failures_total",
        'reconciliation_actions_total{action="Apply"}',
        "retry_total",
        "node_unhealthy_total",
        'lattice_scheduling_attempts_total{result="placed",verdict="Placed"}',
        'lattice_scheduling_attempts_total{result="bound",verdict="Bound"}',
        'lattice_scheduling_duration_seconds_count{phase="decide"}',
        'lattice_scheduling_duration_seconds_count{phase="bind"}',
        'lattice_budget_spent_dollars{ledger="pool.yard",pool="yard"}',
        'lattice_budget_projected_dollars{ledger="pool.yard",pool="yard"}',
        'lattice_pool_utilization_ratio{pool="yard",resource="nodes"}',
        "lattice_plan_gap_ratio",
    } - values.keys()
    assert not missing
    assert values['lattice_budget_limit_dollars{ledger="pool.yard",pool="yard"}'] == 50
    assert 0 < values['lattice_budget_committed_dollars_per_hour{ledger="pool.yard",pool="yard"}'] < 1


def test_drain_moves_everything_off_a_node(site: Server, wire: Wire) -> None:
    node = node_of(wire, "talk-0")
    done = site.lattice("drain", node, "--timeout", "50s")
    assert (done.returncode, done.stdout) == (0, f"node/{node} draining\nnode/{node} drained\n"), done.stderr
    wait_until(lambda: ready_replicas(wire) == 2)
    assert node not in {node_of(wire, each) for each in wire.get(WORKLOADS).names}
    # Uncordoned and empty, the machine is not needed any more and may be gone before the next request.
    nodes = f"{API}/latticenodes"
    with wire.watching(nodes, resourceVersion=wire.revision, fieldSelector=f"metadata.name={node}") as events:
        assert site.lattice("uncordon", node).stdout == f"node/{node} uncordoned\n"
        specs = (event["object"]["spec"] for event in events)
        assert any("unschedulable" not in spec and "taints" not in spec for spec in specs)
