"""What does a converged system cost at rest, and how soon are all agents back when its server was restarted?"""

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
CALM = 5.0  # seconds without any write
PATIENCE = 600.0
HEARTBEAT = 10.0
BACK_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    agents: int = 1000
    workloads_each: int = 1
    rest: float = 60.0  # seconds measured


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
    made = asyncio.run(drive(site.at, objects.creates("calm", count)))
    assert made.count == count, made.refused
    until(lambda: all(map(_runs, site.everything(WORKLOADS))), "all workloads run", PATIENCE, 1.0)
    seconds = time.perf_counter() - began
    found = site.everything(WORKLOADS)
    assert len(found) == count, f"{count} were acknowledged, {len(found)} are there"
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
    """Until nothing was written for a while."""
    ends, since, revision = time.monotonic() + PATIENCE, time.monotonic(), site.revision()
    while time.monotonic() - since < CALM:
        assert time.monotonic() < ends, "it does not come to rest"
        time.sleep(0.5)
        if (now := site.revision()) != revision:
            since, revision = time.monotonic(), now


def _measure_rest(report: Report, size: Size, site: Site, crowd: Crowd) -> None:
    revision, server, agents, began = site.revision(), site.cpu(), crowd.cpu(), time.perf_counter()
    time.sleep(size.rest)
    seconds = time.perf_counter() - began
    used, theirs, writes = (
        (site.cpu() - server) / seconds,
        (crowd.cpu() - agents) / seconds,
        site.revision() - revision,
    )
    share = 3 if crowd.count <= SMALL else 15
    what = f"{crowd.count:,} agents, {crowd.count * size.workloads_each:,} workloads"
    note = f"heartbeats every {HEARTBEAT:g} s, {seconds:.0f} s"
    report.add(f"server's CPU, {what}", 100 * used, "% of a core", at_most=share, note=note)
    report.add(
        "agents' CPU, all together", 100 * theirs, "% of a core", note=f"{len(crowd.processes)} processes"
    )
    report.add("revisions of the store besides leases", writes, at_most=0, note=f"in {seconds:.0f} s")
    report.add("server's memory", site.resident_mib(), "MiB", at_most=300)
    report.add("agents' memory, all together", crowd.resident_mib(), "MiB")
    _no_node_lost(site, crowd.count)


def _reconnect(report: Report, site: Site, crowd: Crowd) -> None:
    """The server is stopped and started again on its data; agents come back as they find out."""
    before = {each["metadata"]["name"]: _since(each) for each in site.everything(NODES)}
    site.stop()
    stopped = time.perf_counter()
    site.start()
    served = time.perf_counter()
    first = until(
        lambda: crowd.connected() and time.perf_counter(), "the first agent is back", PATIENCE, 0.05
    )
    until(lambda: crowd.connected() == crowd.count, "all agents are back", PATIENCE, 0.1)
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
        at_most=BACK_WITHIN,
        note=spread,
    )
    lost = _no_node_lost(site, crowd.count)
    changed = sum(_since(each) != before[each["metadata"]["name"]] for each in site.everything(NODES))
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
    """When its readiness last changed."""
    return next(
        str(each["lastTransitionTime"]) for each in node["status"]["conditions"] if each["type"] == "Ready"
    )


def _no_node_lost(site: Site, nodes: int) -> int:
    """Events that say so; and all of them are ready now."""
    found = site.everything(NODES)
    ready = sum(
        each["type"] == "Ready" and each["status"] == "True"
        for node in found
        for each in node["status"]["conditions"]
    )
    assert ready == nodes, f"{ready} of {nodes} nodes are ready"
    return sum(each.get("reason") in LOST for each in site.everything(EVENTS))
