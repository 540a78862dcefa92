"""Names of the maximum length are cut or wrapped, whole on hover, and fit the window."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from build.browser import NARROW, WIDE, UiServer, Visitor
from playwright.sync_api import Page, Route, expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]
expect.set_options(timeout=15_000)  # the first question starts a process
LABEL, NAME = "x" * 63, "y" * 253
SERVICE = {
    "apiVersion": "lattice.dev/v1alpha1",
    "kind": "LatticeService",
    "metadata": {"name": LABEL, "namespace": "default", "labels": {"team": LABEL}},
    "spec": {
        "containers": {"main": {"command": ["sleep", "600"]}},
        "placement": {"pools": {"matchLabels": {LABEL: LABEL}}},
    },
}
ROOM = {"used": 0, "of": 1000, "asked": 500}
NODE = {
    "name": NAME,
    "pool": NAME,
    "cluster": NAME,
    "region": NAME,
    "isReady": True,
    "workloads": 1,
    "cpu": ROOM,
    "memory": ROOM,
}
POOL = {"name": NAME, "region": NAME}
ROW = {
    "path": f"/{NAME}",
    "name": NAME,
    "pool": NAME,
    "cluster": NAME,
    "region": NAME,
    "class": NAME,
    "isReady": True,
    "cpu": 1,
    "memory": 1,
}
EVENT = {
    "path": f"/{NAME}",
    "name": NAME,
    "kind": "LatticeNode",
    "about": NAME,
    "reason": LABEL,
    "message": NAME,
    "count": 1,
    "by": LABEL,
}


@pytest.fixture
def service(ui_server: UiServer) -> Iterator[str]:
    """Declared, and placed nowhere."""
    ui_server.apply(json.dumps(SERVICE))
    yield LABEL
    ui_server.delete(LABEL)


def serve_long_names(page: Page) -> None:
    """Answer the page with one node, one pool and one event that have long names."""
    rows: dict[str, Any] = {
        "latticenodes": [ROW],
        "latticeworkloads": [],
        "events": [EVENT],
        "latticepools": [POOL | {"path": f"/{NAME}"}],
    }

    def live(route: Route) -> None:
        notes = [("rows", {"kind": kind, "rows": found, "more": False}) for kind, found in rows.items()]
        body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in notes)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/ui/live?*", live)
    page.route(
        "**/top?*", lambda route: route.fulfill(json={"pools": [POOL], "clusters": [], "nodes": [NODE]})
    )


def overflow(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return width


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_node_pool_and_event_names_fit_the_window(size: tuple[int, int], visit: Visitor) -> None:
    page = visit("#/plan", size=size)
    serve_long_names(page)
    for view in ("fleet", f"fleet/{NAME}/{NAME}", "nodes", f"nodes/{NAME}", "events", "whatif"):
        page.evaluate("hash => { location.hash = hash; }", f"#/{view}")
        expect(page.get_by_text("y" * 200).first).to_be_visible()
        assert overflow(page) <= 0, view
    page.evaluate("location.hash = '#/nodes'")
    expect(page.locator("tbody tr[data-path] td").first).to_have_attribute("title", NAME)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_service_names_fit_the_window(size: tuple[int, int], visit: Visitor, service: str) -> None:
    page = visit(f"#/services/default/{service}", size=size)
    expect(page.locator(".matrix").first).to_be_visible()
    assert overflow(page) <= 0
    page.evaluate("location.hash = '#/services'")
    expect(page.locator(f'tr[data-path="default/{service}"]')).to_be_visible()
    assert overflow(page) <= 0
    page.evaluate("location.hash = '#/whatif?lose=lab'")
    expect(page.locator("details", has_text="(unchanged)")).to_be_visible()
    page.locator("details > summary").first.click()
    assert overflow(page) <= 0
