"""After freezing and killing processes in any order, each workload runs once; a strict workload never has two
live copies."""

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from build.process_site import TIMES, WORKLOADS, Site
from build.rack import LEAST, RACK, a_rack, strict, web, workload
from build.waiting import wait_until

pytestmark = [pytest.mark.prove, pytest.mark.xdist_group("run"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with a_rack(tmp_path_factory.mktemp("site")) as site:
        yield site


def _begin(site: Site) -> None:
    """Something of every sort runs, whichever scenes went before."""
    site.apply(web(site), workload(site, "steady"), strict(site))
    _converges(site)
    site.most.clear()


def _converges(site: Site) -> None:
    """Every node is there, every workload runs, each of them once."""
    try:
        wait_until(
            lambda: all(site.condition(node).get("status") == "True" for node in RACK), "all nodes are ready"
        )
        wait_until(
            lambda: len(site.ready("web")) == len(site.replicas("web")) == LEAST,
            "the service has its replicas",
        )
        names = [each["metadata"]["name"] for each in site.get(WORKLOADS)["items"]]
        wait_until(
            lambda: all(site.is_running(name) and len(site.pids(name)) == 1 for name in names),
            f"{names} run once each",
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{site.live()}\n{site.shown}") from error


def test_frozen_agent_does_not_revive_replaced_workloads(site: Site) -> None:
    _begin(site)
    lost = site.node_of("strict")
    site.agents[lost].process.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: site.node_of("strict") not in (lost, "") and site.is_running("strict"),
        "the strict one runs elsewhere",
    )
    site.agents[lost].process.send_signal(signal.SIGCONT)
    _converges(site)
    assert site.most["strict"] == 1, "never two live copies"


def test_frozen_server_declares_no_node_lost(site: Site) -> None:
    _begin(site)
    before = site.live()
    assert site.server is not None
    site.server.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    wait_until(
        lambda: time.monotonic() > frozen + float(TIMES["replace-after"]) + 2, "it is frozen for long enough"
    )
    site.server.send_signal(signal.SIGCONT)
    wait_until(lambda: site.pids("strict") - before["strict"], "the strict one is started again")
    _converges(site)
    assert {name: pids for name, pids in site.live().items() if name != "strict"} == {
        name: pids for name, pids in before.items() if name != "strict"
    }
    assert site.most["strict"] == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_kills_converge_to_one_copy_each(site: Site, seed: int) -> None:
    _begin(site)
    rng = random.Random(seed)

    def kill_a_workload() -> None:
        for pid in site.pids(rng.choice(["web-0", "web-1", "steady", "strict"])):
            os.kill(pid, signal.SIGKILL)

    def kill_an_agent() -> None:
        agent = site.agents[rng.choice(RACK)]
        agent.process.kill()
        _wait(rng.uniform(0, 9))
        agent.start_again()

    def freeze_an_agent() -> None:
        process = site.agents[rng.choice(RACK)].process
        process.send_signal(signal.SIGSTOP)
        _wait(rng.uniform(0, 9))
        process.send_signal(signal.SIGCONT)

    def kill_the_server() -> None:
        site.kill_server()
        _wait(rng.uniform(0, 5))
        site.start_server()

    for _ in range(10):
        rng.choice([kill_a_workload, kill_an_agent, freeze_an_agent, kill_the_server])()
        _wait(rng.uniform(0, 2))
    _converges(site)
    assert site.most["strict"] == 1, "never two live copies"


def _wait(seconds: float) -> None:
    """Time that passes while something is broken."""
    ends = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= ends, "time passes")
