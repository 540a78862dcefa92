"""Services really run: real servers, agents and processes; killed, drained, updated, cut off and taken down, and looked at through /proc.

One site, and one story in the order of this file; scenes that only wait run together. Times are the shipped ones, made shorter.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from build.process_site import NODES, SERVICES, TIMES, WORKLOADS, Object, Site, together
from build.rack import LEAST, POOL, RACK, a_rack, answering, answers, strict, web, workload
from build.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("run"), pytest.mark.timeout(300)]

TRIES = 5  # to be faster than the shortened times allow; other tests may keep the machine busy
STUBBORN = ["sh", "-c", 'trap "" TERM; while :; do sleep 0.2; done']


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_rack(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_applied_workloads_run_or_report_the_failure(site: Site) -> None:
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
            lambda: _fails_for_good(site, "no-command", "COMMAND_NOT_FOUND"),
            lambda: _fails_for_good(site, "no-port", "PORT_BIND_CONFLICT"),
            lambda: _is_tried_five_times(site, "crashing"),
            lambda: _finds_no_node(site, "no-runtime"),
            lambda: _refuses_bad_tokens(site),
        )
    for name in ("no-command", "no-port", "no-runtime", "crashing"):
        assert not site.pids(name)
    deleted = site.lattice("delete", "workloads", "no-command", "no-port", "no-runtime", "crashing")
    assert deleted.returncode == 0, deleted.stderr
    wait_until(
        lambda: not _left_of(site, "no-command", "no-port", "no-runtime", "crashing"),
        "nothing of them is left on the nodes",
    )


def _answers(site: Site) -> None:
    wait_until(lambda: len(site.ready("web")) == LEAST, "its replicas are ready")
    assert answers(site, "web") == LEAST
    wait_until(lambda: site.get(f"{SERVICES}/web")["status"].get("phase") == "Running", "the service says so")


def _fails_for_good(site: Site, name: str, why: str) -> None:
    status = wait_until(lambda: _when(site.status(name), "Failed"), f"{name} fails")
    assert (status["failureReason"], status["retry"]["attempts"], status["retry"]["final"]) == (why, 1, True)
    assert "nextAt" not in status["retry"]
    told = wait_until(
        lambda: [each for each in site.events(name) if each["reason"] == "WorkloadFailed"], "an event says so"
    )
    assert [each["type"] for each in told] == ["Warning"]
    assert why in told[0]["message"]
    assert "RetryTriggered" not in site.reasons(name)


def _is_tried_five_times(site: Site, name: str) -> None:
    wait_until(lambda: "WorkloadFailed" in site.reasons(name), f"{name} is given up")
    status = site.status(name)
    assert (status["actualState"], status["failureReason"], status["retry"]["attempts"]) == (
        "Failed",
        "RUNTIME_ERROR",
        5,
    )
    assert (status["failureMessage"], status["lastLog"]) == ("exited with code 3", "out of luck\n" * 5)
    assert "RUNTIME_ERROR: exited with code 3; back-off after 1 failure" in [
        each["message"] for each in site.events(name)
    ]
    assert site.reasons(name).count("RetryTriggered") == 4


def _finds_no_node(site: Site, name: str) -> None:
    told = wait_until(
        lambda: [each for each in site.events(name) if each["reason"] == "FailedScheduling"],
        f"{name} finds no node",
    )
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
    cases = [("wrong", wrong, "is unknown"), ("used", used, "used"), ("late", short, "expired")]
    for name, token, why in cases:
        if name == "late":
            wait_until(lambda: time.monotonic() > began + 2, "it is too late")
        agent = site.start_agent("stranger", token, folder=site.folder / f"stranger-{name}")
        assert agent.process.wait(60) != 0
        assert why in agent.said
        assert token.split(".")[1] not in agent.said
        assert not (agent.folder / "agent.crt").exists()
    assert not site.get(f"{NODES}/stranger")


def _when(status: Object, state: str) -> Object | None:
    return status if status.get("actualState") == state else None


def _left_of(site: Site, *names: str) -> set[str]:
    """Those that some node still has a record of."""
    return {each for node in RACK for each in _left_of_node(site, node)} & {*names}


def test_workloads_restart_scale_and_are_deleted(site: Site) -> None:
    site.apply(workload(site, "phoenix"), workload(site, "doomed", *STUBBORN))
    together(
        lambda: _rises_again(site, "phoenix"),
        lambda: _goes_from_the_node_first(site, "doomed"),
        lambda: _scales(site),
    )


def _rises_again(site: Site, name: str) -> None:
    """Each failure is counted and reported; after a long enough run, the count is reset."""
    for failures in (1, 2):
        wait_until(lambda: site.is_running(name), f"{name} runs")
        killed = site.pid(name)
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda failures=failures: site.reasons(name).count("RetryTriggered") == failures,
            "it is tried again",
        )
        wait_until(lambda killed=killed: site.pids(name) - {killed} and site.is_running(name), "another runs")
    counted = [each["message"] for each in site.events(name) if each["reason"] == "WorkloadBackOff"]
    assert counted[0] == "RUNTIME_ERROR: killed by signal SIGKILL; back-off after 1 failure"
    wait_until(lambda: "WorkloadSteady" in site.reasons(name), "it counts as steady")
    status = wait_until(lambda: site.status(name), "it is there")
    assert (status["retry"]["attempts"], status.get("failureReason", "")) == (0, "")


def _goes_from_the_node_first(site: Site, name: str) -> None:
    """It does not want to end, so there is time to look."""
    wait_until(lambda: site.is_running(name), f"{name} runs")
    assert site.lattice("delete", "workload", name, "--wait=false").returncode == 0
    assert site.pids(name)
    wait_until(lambda: not site.workload(name), "its record is gone")
    assert not site.pids(name)
    assert "WorkloadDeleted" in site.reasons(name)
    wait_until(lambda: not _left_of(site, name), "nothing of it is left on its node")


def _scales(site: Site) -> None:
    for wanted in (4, LEAST):
        changed = site.wire.patch(f"{SERVICES}/web/scale", {"spec": {"replicas": wanted}})
        assert changed.status == 200, changed.raw
        wait_until(
            lambda wanted=wanted: len(site.ready("web")) == len(site.replicas("web")) == wanted,
            f"there are {wanted} replicas",
        )
        wait_until(lambda wanted=wanted: len(_live_replicas(site)) == wanted, "and so many processes")
    assert {"ScaledUp", "ScaledDown"} <= {*site.reasons("web")}


def _live_replicas(site: Site) -> dict[str, set[int]]:
    return {name: pids for name, pids in site.live().items() if name.startswith("web-")}


@contextlib.contextmanager
def _single(site: Site) -> Iterator[None]:
    """There are never two live copies of anything meanwhile."""
    site.most.clear()
    yield
    assert site.most
    assert {name: most for name, most in site.most.items() if most > 1} == {}


def test_update_and_drain_keep_min_available(site: Site) -> None:
    """A new revision, replica after replica; then everything off a node, and nothing new onto it."""
    wait_until(lambda: answers(site, "web") >= LEAST, "those that were started last listen, too")
    with _single(site), answering(site, "web") as counts:
        site.apply(web(site, version="2"))
        wait_until(lambda: "RolloutDone" in site.reasons("web"), "all replicas are replaced")
        wait_until(
            lambda: len(site.replicas("web")) == LEAST == len(site.ready("web")),
            "as many as before are ready",
        )
        assert {
            site.environment(pid)["VERSION"] for pids in _live_replicas(site).values() for pid in pids
        } == {"2"}
        node = next(each["status"]["binding"]["node"] for each in site.ready("web"))
        drained = site.lattice("drain", node, "--timeout", "60s")
        assert drained.returncode == 0, drained.stderr
        assert f"node/{node} drained" in drained.stdout
    assert min(counts) >= LEAST, counts
    assert not [
        each for each in site.get(WORKLOADS)["items"] if each["status"].get("binding", {}).get("node") == node
    ]
    site.apply(*(workload(site, f"late-{number}") for number in range(3)))
    wait_until(lambda: all(site.is_running(f"late-{number}") for number in range(3)), "others run")
    assert node not in {site.node_of(f"late-{number}") for number in range(3)}
    assert site.lattice("delete", "workloads", *(f"late-{number}" for number in range(3))).returncode == 0
    assert site.lattice("uncordon", node).returncode == 0


def test_restarted_agent_takes_over_running_processes(site: Site) -> None:
    site.apply(workload(site, "steady"), strict(site))
    for _ in range(TRIES):
        wait_until(
            lambda: (
                len(site.ready("web")) == LEAST and site.is_running("steady") and site.is_running("strict")
            ),
            "everything runs",
        )
        before, agent = site.live(), site.agents[site.node_of("steady")]
        began, connections = time.monotonic(), agent.connections
        agent.start_again()
        wait_until(
            lambda agent=agent, connections=connections: agent.connections > connections, "the agent is back"
        )
        if time.monotonic() < began + float(TIMES["node-lost-after"]):
            break  # else its node was lost, as it should be on a machine that is so busy
    assert agent.said.count('"event": "adopted"') >= 1
    _is_untouched(site, before, "strict")


def _is_untouched(site: Site, before: dict[str, set[int]], *but: str) -> None:
    """The same processes, before and after the control plane has looked at each of them."""
    kept = {name: pids for name, pids in before.items() if name not in but}
    assert {name: pids for name, pids in site.live().items() if name not in but} == kept
    wait_until(
        lambda: all(site.condition(node).get("status") == "True" for node in RACK), "all nodes are ready"
    )
    wait_until(lambda: all(site.pids(name) and site.is_running(name) for name in before), "everything runs")
    assert {name: pids for name, pids in site.live().items() if name not in but} == kept


def test_wall_clock_jump_changes_nothing(site: Site) -> None:
    """By an hour, forward and back, of the server and of one node: time is measured by another clock."""
    wait_until(lambda: site.is_running("phoenix") or site.apply(workload(site, "phoenix")), "phoenix runs")
    wait_until(
        lambda: all(site.is_running(each["metadata"]["name"]) for each in site.get(WORKLOADS)["items"]),
        "so does everything else",
    )
    before, term = {name: pids for name, pids in site.live().items() if name != "phoenix"}, site.leadership
    for seconds in (3600, -3600, 0):
        site.set_clock(seconds, site.node_of("phoenix"))
        killed = site.pid("phoenix")
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda killed=killed: site.is_running("phoenix") and site.pids("phoenix") - {killed},
            "it is started again",
        )
    assert {name: pids for name, pids in site.live().items() if name != "phoenix"} == before
    assert site.leadership == term
    assert all(site.condition(node)["status"] == "True" for node in RACK)


def test_server_outage_keeps_workloads_that_may_run_alone(site: Site) -> None:
    """The server is killed, for longer than a silent node is waited for."""
    before, marks = site.live(), {name: _history(site, name) for name in site.live()}
    connections = {node: site.agents[node].connections for node in RACK}
    site.kill_server()
    killed = time.monotonic()
    wait_until(lambda: not site.pids("strict"), "what may not run alone is ended by its node")
    wait_until(
        lambda: time.monotonic() > killed + float(TIMES["replace-after"]) + 1, "it is away for long enough"
    )
    assert site.live() == {name: pids for name, pids in before.items() if name != "strict"}
    site.start_server()
    wait_until(
        lambda: all(site.agents[node].connections > connections[node] for node in RACK), "all agents are back"
    )
    _is_untouched(site, before, "strict")
    assert site.pids("strict") != before["strict"]
    assert site.status("strict")["retry"]["attempts"] == 0, "it ended through no fault of its own"
    del marks["strict"]
    assert {name: _history(site, name) for name in marks} == marks


def _history(site: Site, name: str) -> tuple[int, str]:
    """How often it was started, and where it is."""
    status = site.status(name)
    return status["retry"]["run"], status["binding"]["node"]


@dataclass(frozen=True)
class Loss:
    """A node whose agent was killed, and its workloads; one of them is `kept`."""

    node: str
    workloads: frozenset[str]
    kept: int  # pid


@pytest.fixture(scope="module")
def loss(site: Site) -> Loss:
    """A while passes until it has been replaced: others may use it."""
    lost = site.node_of("strict")
    others = [node for node in RACK if node != lost]
    assert site.lattice("cordon", *others).returncode == 0
    site.apply(workload(site, "kept"))
    wait_until(lambda: site.is_running("kept"), "it runs")
    assert site.lattice("uncordon", *others).returncode == 0
    assert site.node_of("kept") == lost, "the others are cordoned"
    here = [
        each["metadata"]["name"]
        for each in site.get(WORKLOADS)["items"]
        if each["status"]["binding"]["node"] == lost
    ]
    found = Loss(lost, frozenset(here), site.pid("kept"))
    site.most.clear()
    site.agents[lost].process.kill()
    return found


def test_silent_node_is_lost(site: Site, loss: Loss) -> None:
    wait_until(lambda: site.condition(loss.node).get("reason") == "HeartbeatMissed", "its node is lost")
    assert "NodeLost" in site.reasons(loss.node)
    wait_until(
        lambda: site.status("kept")["actualState"] == "Unknown" or site.node_of("kept") != loss.node,
        "nobody knows how its workloads are",
    )


def test_full_disk_fails_only_new_starts(site: Site) -> None:
    """The agent keeps running and reports the reason; with free space, the start is retried. The machine has a node of its own."""
    try:
        place = site.small_disk("tiny", "2m")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system of a known size needs the right to mount one")
    agent = site.start_agent("tiny", site.token("tiny", "--label", "disk=tiny"), folder=place)
    wait_until(lambda: site.condition("tiny").get("status") == "True", "node tiny is ready")
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    site.apply(workload(site, "cramped", constraints={"nodeSelector": {"disk": "tiny"}}))
    wait_until(lambda: site.status("cramped").get("failureReason") == "STORAGE_ERROR", "it cannot start")
    assert site.status("cramped")["retry"]["attempts"] >= 1
    assert "STORAGE_ERROR" in next(
        each["message"] for each in site.events("cramped") if each["type"] == "Warning"
    )
    assert not site.pids("cramped")
    assert (agent.process.poll(), site.condition("tiny")["status"]) == (None, "True")
    filler.unlink()
    assert site.lattice("retry", "cramped").returncode == 0
    wait_until(lambda: site.is_running("cramped"), "it runs")
    done = site.lattice("delete", "node", "tiny", "--timeout", "60s")
    assert done.returncode == 0, done.stderr
    assert not site.pids("cramped")
    assert [*(place / "instances").iterdir()] == [], "nothing of it is left there"
    assert site.node_of("cramped") == ""
    assert site.lattice("delete", "workload", "cramped").returncode == 0


def test_lost_replicas_are_replaced_and_stopped_on_return(site: Site, loss: Loss) -> None:
    wait_until(
        lambda: site.node_of("kept") not in (loss.node, "") and site.is_running("kept"),
        "another copy runs elsewhere",
    )
    assert loss.kept in site.pids("kept"), "with `keep` the cut-off copy runs on"
    wait_until(
        lambda: site.node_of("strict") not in (loss.node, "") and site.is_running("strict"),
        "so does the strict one",
    )
    assert {"Rescheduled"} <= {*site.reasons("kept")} & {*site.reasons("strict")}
    site.agents[loss.node].start_again()
    wait_until(lambda: site.condition(loss.node).get("status") == "True", "the node is back")
    wait_until(
        lambda: all(len(site.pids(name)) == 1 for name in loss.workloads), "the surplus copies are stopped"
    )
    assert loss.kept not in site.pids("kept"), "it is the one that was cut off that goes"
    assert (site.most["strict"], site.most["kept"]) == (1, 2), "a strict one never has two live copies"
    wait_until(lambda: all(site.is_running(name) for name in loss.workloads), "everything runs")
    wait_until(
        lambda: not _left_of_node(site, loss.node) & loss.workloads,
        "and nothing of them is left where they were",
    )


def _left_of_node(site: Site, node: str) -> set[str]:
    """What its agent still has a record of."""
    records = json.loads((site.agents[node].folder / "state.json").read_text())["records"]
    return {each["spec"]["workload"].removeprefix("default/") for each in records}


@pytest.mark.parametrize("way", ["delete", "leave"])
def test_node_removal_drains_first_and_machine_can_rejoin(site: Site, way: str) -> None:
    node = site.node_of("strict")
    agent = site.agents[node]
    leave = ("agent", "--data-dir", str(agent.folder), "--leave")
    with _single(site), answering(site, "web") as counts:
        done = site.lattice(
            *(leave if way == "leave" else ("delete", "node", node, "--timeout", "60s")), within=90
        )
        assert done.returncode == 0, done.stderr
        assert not _left_of_node(site, node), "nothing was left on it when it went"
    assert min(counts) >= LEAST, counts
    code = agent.process.wait(60)
    assert (code == 0) is (way == "leave"), "its agent ends: it is no node any more"
    if way == "leave":
        assert "this machine has left" in done.stderr
        again = site.lattice(*leave)
        assert "this machine has not joined" in again.stderr
    else:
        assert "then start the agent with --server and --join" in agent.said
    assert not site.get(f"{NODES}/{node}"), "Lattice makes no other machine"
    assert agent.start_again() is None
    assert agent.process.wait(60) != 0, "its token is used up"
    agent.command[agent.command.index("--join") + 1] = site.token(node, "--pool", POOL)
    agent.start_again()
    wait_until(lambda: site.condition(node).get("status") == "True", "the machine is a node again")
    wait_until(
        lambda: all(site.is_running(each["metadata"]["name"]) for each in site.get(WORKLOADS)["items"]),
        "everything runs",
    )


def test_teardown_leaves_nothing(site: Site) -> None:
    assert site.lattice("delete", "service", "web").returncode == 0
    assert site.lattice("delete", "workloads", "--all").returncode == 0
    wait_until(lambda: not site.get(WORKLOADS)["items"], "all records are gone")
    assert site.live() == {}
    wait_until(lambda: not any(_left_of_node(site, node) for node in RACK), "nothing is left on the nodes")
    for node in RACK:
        assert [*(site.agents[node].folder / "instances").iterdir()] == []
    wait_until(lambda: not site.watchdogs(), "nobody is watched over")
