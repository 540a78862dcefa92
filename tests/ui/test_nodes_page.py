"""The page of a node: its workloads, cordon, drain and uncordon, on a machine of its own beside the
quickstart."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from build.browser import UiServer, Visitor
from build.servers import LATTICE
from build.waiting import wait_until
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]

GUEST = {
    "apiVersion": "lattice.dev/v1alpha1",
    "kind": "LatticeWorkload",
    "metadata": {"name": "guest", "namespace": "default"},
    "spec": {
        "containers": {"main": {"command": ["sleep", "600"]}},
        "requests": {"cpu": "250m", "memory": "64Mi"},
        "constraints": {"nodeSelector": {"rack": "spare"}},
    },
}


@pytest.fixture
def spare(ui_server: UiServer, tmp_path: Path) -> Iterator[str]:
    """A machine that joined by itself, with one workload on it that may run nowhere else."""
    token = ui_server.server.lattice(
        "tokens", "create", "--node", "spare", "--label", "rack=spare"
    ).stdout.strip()
    flags = [
        "--server",
        ui_server.url,
        "--join",
        token,
        "--data-dir",
        str(tmp_path),
        "--cpu",
        "1",
        "--memory",
        "256Mi",
        "--runtime",
        "fake",
    ]
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen([*LATTICE, "agent", *flags], stdout=log, stderr=log)
    ui_server.apply(json.dumps(GUEST), "latticeworkloads")
    try:
        wait_until(lambda: bound_to(ui_server, "spare"), "the workload is on the spare node")
        yield "spare"
    finally:
        ui_server.delete("guest", "latticeworkloads")
        ui_server.delete("spare", "latticenodes")
        wait_until(
            lambda: (
                "spare" not in [each["metadata"]["name"] for each in ui_server.get("latticenodes")["items"]]
            ),
            "the spare node is gone",
        )
        agent.terminate()
        agent.wait(20)


def bound_to(ui_server: UiServer, node: str) -> list[str]:
    found = ui_server.get(f"latticeworkloads?fieldSelector=status.binding.node%3D{node}")["items"]
    return [each["metadata"]["name"] for each in found]


def test_node_is_cordoned_drained_and_uncordoned_from_the_page(
    visit: Visitor, ui_server: UiServer, spare: str
) -> None:
    fleet = visit("#/fleet")
    box = fleet.locator(f".map [data-key$='{spare}']")
    expect(box).to_have_attribute("aria-label", "spare · 25% · 1 core, 1 workload")
    page = visit(f"#/nodes/{spare}")
    state = page.locator(".figures .badge")
    expect(
        page.get_by_role("group", name="Workloads on spare").get_by_role("link", name="guest")
    ).to_be_visible()
    page.get_by_role("button", name="Cordon").click()
    expect(state).to_have_text("Cordoned")
    expect(box).to_have_attribute("data-mark", "held")
    page.get_by_role("button", name="Drain…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Drain…").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "1 workload without a service will stop: default/guest. Lattice starts no replacement first"
    )
    expect(page.get_by_role("dialog")).not_to_contain_text("starts its replacement first")
    expect(page.get_by_role("dialog")).not_to_contain_text("its cluster")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(state).to_have_text("Draining")
    expect(page.get_by_text("drained: no workloads remain")).to_be_visible()
    assert bound_to(ui_server, spare) == []
    page.get_by_role("button", name="Uncordon").click()
    expect(state).to_have_text("Ready")
    expect(page.locator("tbody tr[data-path='default/guest']")).to_be_visible()
    page.evaluate("location.hash = '#/nodes/lab-001-nano-1'")
    expect(page.locator("tbody tr[data-path]")).to_have_count(1)
    page.get_by_role("button", name="Drain…").click()
    expect(page.get_by_role("dialog")).to_contain_text(
        "1 replica will move to other nodes: default/lab-notes-0. Lattice moves one replica of a service at a time"
    )
    expect(page.get_by_role("dialog")).not_to_contain_text("without a service")
    expect(page.get_by_role("dialog")).to_contain_text(
        "If no other node of the cluster has enough free capacity, Lattice creates new machines"
    )
    expect(page.get_by_role("dialog")).to_contain_text(
        "When the node is empty, its cluster lab-001 may decommission it"
    )
