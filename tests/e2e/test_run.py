"""Services really run: real servers, agents and processes; killed, drained, updated, cut off and taken down, and looked at through /proc.

One site, and one story in the order of this file; scenes that only wait run together. Times are the shipped ones, made shorter.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import NODES, SERVICES, TIMES, WORKLOADS, Object, Site, answering, answers, together, until, watching

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.timeout(300)]

RACK = [f"rack-001-small-{number}" for number in (1, 2, 3)]
WEB = ["sh", "-c", 'exec python3 -m http.server "$PORT" --bind 127.0.0.1']
STUBBORN = ["sh", "-c", 'trap "" TERM; while :; do sleep 0.2; done']
LEAST = 2


def declared(kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def supply() -> list[Object]:
    """Three machines that are there already: their agents are started by hand."""
    size = {"cores": 4, "memoryGi": 4, "storageGi": 4}
    return [
        declared("LatticeNodeClass", "small", {"providers": {"hand": {}}, "resources": size, "costPerHour": {"hand": 0.01}}),
        declared("LatticePool", "rack", {"provider": {"type": "hand", "region": "here"}, "capacity": {"maxNodes": 3}, "nodeClasses": ["small"]}),
        declared("LatticePlacementPolicy", "three", {"selector": {"matchLabels": {"app": "web"}}, "clusterPolicy": {"minNodes": 3, "maxNodes": 3}}),
    ]


def web(site: Site, version: str = "1") -> Object:
    container = {
        "command": WEB,
        "env": {"SITE": site.mark, "VERSION": version},
        "ports": [{"name": "http"}],
        "probes": {"readiness": {"http": {"port": "http"}, "periodSeconds": 1}},
    }
    spec = {"containers": {"main": container}, "replicas": {"min": LEAST, "max": 4}, "placement": {"resources": {"cores": 0.1}}}
    return declared("LatticeService", "web", spec, namespace="default", labels={"app": "web"})


def workload(site: Site, name: str, *command: str, image: str = "", port: int | None = None, **spec: Any) -> Object:
    """One of its own, of no service."""
    container: Object = {"env": {"SITE": site.mark}, **({"image": image} if image else {"command": list(command or ("sleep", "100000"))})}
    if port is not None:
        container["ports"] = [{"name": "main", "port": port}]
    return declared("LatticeWorkload", name, {"containers": {"main": container}, "requests": {"cpu": "10m"}, **spec}, namespace="default")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.apply(*supply(), web(site))
        until(lambda: {*RACK} <= {each["metadata"]["name"] for each in site.get(NODES)["items"]}, "the cluster has its nodes")
        together(*(lambda node=node: _join(site, node) for node in RACK))
        yield site


def _join(site: Site, node: str, *flags: str) -> None:
    site.start_agent(node, site.token(node, *flags))
    until(lambda: site.condition(node).get("status") == "True", f"node {node} is ready")


def test_what_is_applied_runs_and_what_cannot_run_says_why(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        site.apply(
            workload(site, "no-command", "no-such-program"),
            workload(site, "no-port", port=taken),
            workload(site, "no-runtime", image="registry.invalid/thing:1"),
            workload(site, "crashing", "sh", "-c", "echo out of luck; exit 3"),
        )
        together(
            lambda: _answers(site),
            lambda: _fails_for_good(site, "no-command", "INVALID_SPEC"),
            lambda: _fails_for_good(site, "no-port", "PORT_BIND_CONFLICT"),
            lambda: _is_tried_five_times(site, "crashing"),
            lambda: _finds_no_node(site, "no-runtime"),
            lambda: _refuses_bad_tokens(site),
        )
    for name in ("no-command", "no-port", "no-runtime", "crashing"):
        assert not site.pids(name)
    deleted = site.lattice("delete", "workloads", "no-command", "no-port", "no-runtime", "crashing")
    assert deleted.returncode == 0, deleted.stderr
    until(lambda: not _left_of(site, "no-command", "no-port", "no-runtime", "crashing"), "nothing of them is left on the nodes")


def _answers(site: Site) -> None:
    until(lambda: len(site.ready("web")) == LEAST, "its replicas are ready")
    assert answers(site, "web") == LEAST
    until(lambda: site.get(f"{SERVICES}/web")["status"].get("phase") == "Running", "the service says so")


def _fails_for_good(site: Site, name: str, why: str) -> None:
    status = until(lambda: _when(site.status(name), "Failed"), f"{name} fails")
    assert (status["failureReason"], status["retry"]["attempts"]) == (why, status["retry"]["max"])
    assert "nextAt" not in status["retry"]
    told = until(lambda: [each for each in site.events(name) if each["reason"] == "WorkloadFailed"], "an event says so")
    assert [each["type"] for each in told] == ["Warning"]
    assert why in told[0]["message"]
    assert "RetryTriggered" not in site.reasons(name)


def _is_tried_five_times(site: Site, name: str) -> None:
    until(lambda: "WorkloadFailed" in site.reasons(name), f"{name} is given up")
    status = site.status(name)
    assert (status["actualState"], status["retry"]["attempts"], status["lastLog"]) == ("Failed", 5, "out of luck\n")
    assert site.reasons(name).count("RetryTriggered") == 4
    assert status["failureReason"] == "RUNTIME_ERROR"


def _finds_no_node(site: Site, name: str) -> None:
    told = until(lambda: [each for each in site.events(name) if each["reason"] == "FailedScheduling"], f"{name} finds no node")
    assert "container runtime" in told[-1]["message"]
    status = site.status(name)
    said = next(each for each in status["conditions"] if each["type"] == "Scheduled")
    assert (said["status"], said["reason"], status.get("binding")) == ("False", "NoNodeFits", None)


def _refuses_bad_tokens(site: Site) -> None:
    """Each with its reason; the machine has no certificate afterwards, and no node is made."""
    words = site.agents[RACK[0]].command
    used = words[words.index("--join") + 1]
    good, short = site.token("stranger"), site.token("stranger", "--ttl", "1s")
    began = time.monotonic()
    wrong = ".".join(["x" * len(part) if index == 1 else part for index, part in enumerate(good.split("."))])
    cases = [("wrong", wrong, "is not known"), ("used", used, "used"), ("late", short, "expired")]
    for name, token, why in cases:
        if name == "late":
            until(lambda: time.monotonic() > began + 2, "it is too late")
        agent = site.start_agent("stranger", token, folder=site.folder / f"stranger-{name}")
        assert agent.process.wait(60) != 0
        assert why in agent.said
        assert token.split(".")[1] not in agent.said
        assert not (agent.folder / "agent.crt").exists()
    assert not site.get(f"{NODES}/stranger")


def _when(status: Object, state: str) -> Object | None:
    return status if status.get("actualState") == state else None


def _left_of(site: Site, *names: str) -> list[str]:
    """Folders and records of these on the nodes."""
    found = []
    for agent in site.agents.values():
        state = agent.folder / "state.json"
        records = json.loads(state.read_text()) if state.exists() else {}
        found += [each["spec"]["workload"] for each in records.get("records", ())]
        found += [each["workload"] for each in records.get("wanted", ())]
    return [each for each in found if each.removeprefix("default/") in names]
