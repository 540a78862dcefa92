"""Measures a converged system at rest, and the reconnection of all agents after a restart of the server."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from bench import control_objects as objects
from bench.control_agents import Crowd, a_crowd
from bench.control_site import NODES, WORKLOADS, Object, Site, a_site, until
from bench.load import drive
from bench.report import Report

EVENTS = "/api/v1/events"
LOST = ("NodeLost", "NodeNotReady")
SMALL = 20
# Seconds without any write.
CALM_S = 5.0
TIMEOUT_S = 600.0
HEARTBEAT_S = 10.0
BACK_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    agents: int = 1000
    workloads_each: int = 1
    # Seconds of the measurement at rest.
    rest: float = 60.0


def measure(report: Report, size: Size, folder: Path) -> None:
    _rest(report, size, folder / "small", min(SMALL, size.agents))
    _rest(report, size, folder / "large", size.agents)


def _rest(report: Report, size: Size, folder: Path, agents: int) -> None:
    report.begin(f"At rest, {agents:,} agents (SQLite)")
    with a_site(folder, "sqlite") as site, a_crowd(site, agents) as crowd:
        assert crowd.streams() == agents, f"{crowd.streams()} connections of {agents} agents"
        _run_workloads(report, site, agents * size.workloads_each)
        calm(site)
        _measure_rest(report, size, site, crowd)
        if agents > SMALL:
            _reconnect(report, site, crowd)


def _run_workloads(report: Report, site: Site, count: int) -> None:
    began = time.perf_counter()
    created = asyncio.run(drive(site.at, objects.creates("calm", count)))
    assert created.count == count, created.refused
    until(lambda: all(map(_runs, site.everything(WORKLOADS))), "all workloads run", TIMEOUT_S, 1.0)
    seconds = time.perf_counter() - began
    workloads = site.everything(WORKLOADS)
    assert len(workloads) == count, f"{count} were acknowledged, {len(workloads)} are there"
    report.add(
        f"{count:,} workloads: created, bound, started, told to be running",
        count / seconds,
        "/s",
        note="looked at once a second",
    )


def _runs(workload: Object) -> bool:
    return (
        workload.get("status", {}).get("actualState") == "Running" and workload["status"].get("ready") is True
    )


def calm(site: Site) -> None:
    """Wait until the store has had no write for CALM_S."""
    deadline, since, revision = time.monotonic() + TIMEOUT_S, time.monotonic(), site.revision()
    while time.monotonic() - since < CALM_S:
        assert time.monotonic() < deadline, "it does not come to rest"
        time.sleep(0.5)
        if (current := site.revision()) != revision:
            since, revision = time.monotonic(), current


def _measure_rest(report: Report, size: Size, site: Site, crowd: Crowd) -> None:
    revision, server, agents, began = site.revision(), site.cpu(), crowd.cpu(), time.perf_counter()
    time.sleep(size.rest)
    seconds = time.perf_counter() - began
    used, agents_used, writes = (
        (site.cpu() - server) / seconds,
        (crowd.cpu() - agents) / seconds,
        site.revision() - revision,
    )
    max_percent = 3 if crowd.count <= SMALL else 15
    subject = f"{crowd.count:,} agents, {crowd.count * size.workloads_each:,} workloads"
    note = f"heartbeats every {HEARTBEAT_S:g} s, {seconds:.0f} s"
    report.add(f"server's CPU, {subject}", 100 * used, "% of a core", at_most=max_percent, note=note)
    report.add(
        "agents' CPU, all together",
        100 * agents_used,
        "% of a core",
        note=f"{len(crowd.processes)} processes",
    )
    report.add("revisions of the store besides leases", writes, at_most=0, note=f"in {seconds:.0f} s")
    report.add("server's memory", site.resident_mib(), "MiB", at_most=300)
    report.add("agents' memory, all together", crowd.resident_mib(), "MiB")
    _no_node_lost(site, crowd.count)


def _reconnect(report: Report, site: Site, crowd: Crowd) -> None:
    """Restart the server on its data and measure until all agents are connected."""
    previous_times = {node["metadata"]["name"]: _since(node) for node in site.everything(NODES)}
    site.stop()
    stopped = time.perf_counter()
    site.start()
    served = time.perf_counter()
    first = until(
        lambda: crowd.connected() and time.perf_counter(), "the first agent is back", TIMEOUT_S, 0.05
    )
    until(lambda: crowd.connected() == crowd.count, "all agents are back", TIMEOUT_S, 0.1)
    back = time.perf_counter()
    server = site.cpu()
    calm(site)
    report.add("server restarted: until it serves", served - stopped, "s")
    spread = (
        f"all within {back - first:.1f} s of the first; {server:.1f} s of the server's CPU since its start"
    )
    report.add(
        f"then until all {crowd.count:,} agents are back",
        back - served,
        "s",
        at_most=BACK_WITHIN_S,
        note=spread,
    )
    lost = _no_node_lost(site, crowd.count)
    changed = sum(_since(node) != previous_times[node["metadata"]["name"]] for node in site.everything(NODES))
    report.add("nodes told to be lost, though they were not", lost + changed, at_most=0)
    assert all(map(_runs, site.everything(WORKLOADS))), "a workload does not run after the restart"
    report.add("server's memory then", site.resident_mib(), "MiB", at_most=300)
    report.add(
        "TCP connections at the agents' port then",
        crowd.streams(),
        at_most=crowd.count,
        note="one each, none left over",
    )


def _since(node: Object) -> str:
    """The time of the last change of the Ready condition."""
    return next(
        str(condition["lastTransitionTime"])
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    )


def _no_node_lost(site: Site, nodes: int) -> int:
    """Events of lost nodes. Asserts that all nodes are ready now."""
    ready = 0
    for node in site.everything(NODES):
        ready += sum(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in node["status"]["conditions"]
        )
    assert ready == nodes, f"{ready} of {nodes} nodes are ready"
    return sum(event.get("reason") in LOST for event in site.everything(EVENTS))
