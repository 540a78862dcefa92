"""The views of the fleet, nodes and events: drill-down, live changes, keyboard, light and dark theme, and the
event stream."""

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from build.browser import NARROW, WIDE, UiServer, Visitor
from playwright.sync_api import Page, Route, expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]

PROBE = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {name: probe, namespace: default}
spec:
  containers: {main: {command: [sleep, "600"]}}
  placement:
    pools: {matchLabels: {lattice.dev/pool: nowhere}}
"""


NODE = {
    "pool": "p",
    "cluster": "c",
    "isReady": True,
    "cpu": 1000,
    "memory": 1 << 30,
    "created": "2026-01-01T00:00:00Z",
}
BROKEN = "export default () => { throw new Error('out of coins'); };"
WHY = "0 of 2 nodes: 2 without 2 cpu free"
WEB_1 = {
    "path": "default/web-1",
    "namespace": "default",
    "name": "web-1",
    "service": "web",
    "node": "",
    "state": "Pending",
}


def boxes(page: Page, depth: int) -> list[str]:
    return page.locator(f".map [data-depth='{depth}']").evaluate_all(
        "all => all.map((each) => each.getAttribute('aria-label'))"
    )


def test_fleet_map_drills_down_from_regions_to_nodes(visit: Visitor) -> None:
    page = visit("#/fleet")
    south = page.locator(".map [data-depth='0']", has_text=re.compile("^south"))
    expect(south).to_have_attribute("aria-label", re.compile(r"south · \d+% · 2 nodes, 2 cores, 3 workloads"))
    assert len(boxes(page, 0)) == 3
    south.click(position={"x": 5, "y": 5})
    expect(page.get_by_role("navigation", name="Path")).to_contain_text("south")
    expect(page.locator(".map [data-depth='0']")).to_have_count(2)
    page.locator(".map [data-depth='0']", has_text="south-002").click(position={"x": 5, "y": 5})
    expect(page.locator(".map [data-depth='0']")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(".map [data-depth='0']")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator(".map [data-depth='0']")).to_have_count(3)
    south.click(position={"x": 5, "y": 5})
    page.get_by_role("navigation", name="Path").get_by_role("link", name="All").click()
    expect(page.locator(".map [data-depth='0']")).to_have_count(3)
    page.get_by_role("radio", name="Memory").click()
    expect(page.locator(".map")).to_have_attribute("aria-label", "All, sized by memory")
    page.get_by_role("radio", name="Measured").click()
    expect(page.locator(".legend")).to_contain_text("Memory measured")
    expect(page.locator(".figures")).to_contain_text("Memory measured")
    assert page.url.endswith("by=memory&of=used")
    page.locator(".map [data-key$='lab-001-nano-1']").click()
    expect(page.get_by_role("heading", name="lab-001-nano-1")).to_be_visible()


def test_map_and_tables_are_reachable_by_keyboard(visit: Visitor) -> None:
    page = visit("#/fleet")
    page.locator(".map [data-depth='0']").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == boxes(page, 0)[1]
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="Path").get_by_role("link", name="All")).to_be_visible()
    page.evaluate("location.hash = '#/nodes'")
    page.get_by_role("region", name="Nodes").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="north-001-grid-1")).to_be_visible()


def test_focus_follows_drill_down_and_returns(visit: Visitor) -> None:
    page = visit("#/fleet")
    focused = page.locator(".map [data-depth='0']:focus")
    page.locator(".map [data-key='south']").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".map [data-depth='0']")).to_have_count(2)
    expect(focused).to_have_attribute("aria-label", boxes(page, 0)[0])
    page.keyboard.press("ArrowRight")
    left = boxes(page, 0)[1]
    page.keyboard.press("Enter")
    expect(page.locator(".map [data-depth='0']")).to_have_count(1)
    expect(focused).to_have_count(1)
    page.keyboard.press("Escape")
    expect(focused).to_have_attribute("aria-label", left)
    page.evaluate("location.hash = '#/fleet'")
    expect(focused).to_have_attribute("data-key", "south")


def test_change_is_shown_within_two_seconds(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/events?q=probe")
    expect(page.get_by_text("no matching events")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Live")
    try:
        ui_server.apply(PROBE)
        expect(page.get_by_role("link", name="service/probe").first).to_be_visible(timeout=2000)
    finally:
        ui_server.delete("probe")


def test_events_are_filtered_and_long_messages_expand(visit: Visitor) -> None:
    page = visit("#/events")
    rows = page.locator("tbody tr[data-path]")
    expect(rows.first).to_be_visible()
    page.get_by_role("radio", name="Warnings").click()
    expect(page.locator("tbody .badge", has_text="Normal")).to_have_count(0)
    page.get_by_role("radio", name="All").click()
    page.get_by_label("Filter by words").fill("NodeReady lab-001-nano-1")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("node/lab-001-nano-1")
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    message = page.locator("tbody tr[data-path] button.told")
    said = message.inner_text()
    message.click()
    expect(page.get_by_role("dialog", name="NodeReady")).to_contain_text(said)
    expect(page.get_by_role("dialog")).to_contain_text("about node/lab-001-nano-1")


def test_map_names_are_whole_where_they_fit(visit: Visitor) -> None:
    page = visit("#/fleet", size=(270, 844))
    expect(page.locator(".map [data-key='lab'] .box-name")).to_have_text("lab")
    expect(page.locator(".map [data-key='lab/lab/lab-001'] .box-name")).to_have_text("lab-001")
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    assert page.locator(".map [data-depth='0'] > .box-name").evaluate_all(cut) == []


def test_unknown_address_shows_not_found(visit: Visitor) -> None:
    page = visit("#/bogus")
    expect(page.get_by_text("There is no view “bogus”.")).to_be_visible()
    expect(page.locator("nav [aria-current=page]")).to_have_count(0)
    page.get_by_role("link", name="See the fleet").click()
    expect(page.get_by_role("heading", level=1, name="Fleet")).to_be_visible()


@pytest.mark.parametrize(
    "address", ["services/default", "services/%E0%A4%A", "services/a/b/c", "nodes/a/b", "money/a"]
)
def test_malformed_address_shows_not_found_and_page_recovers(address: str, visit: Visitor) -> None:
    page = visit(f"#/{address}")
    expect(page.get_by_role("heading", level=1, name="Not found")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(["Events"])
    expect(page.get_by_role("navigation", name="Path")).to_have_count(0)


ELSEWHERE_ONCE_DRAWN = """addEventListener("DOMContentLoaded", () => new MutationObserver((_, seen) => {
  if (!document.querySelector("nav")) return;
  seen.disconnect();
  location.hash = "#/nodes";
}).observe(document.body, { childList: true, subtree: true }))"""


def test_navigation_during_first_render_wins(visit: Visitor) -> None:
    page = visit("#/plan")
    page.add_init_script(ELSEWHERE_ONCE_DRAWN)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text(["Nodes"])


def test_broken_view_shows_an_error_and_others_work(visit: Visitor) -> None:
    page = visit("#/events")
    page.route(
        "**/ui/views/money.js", lambda route: route.fulfill(content_type="text/javascript", body=BROKEN)
    )
    # Every view is loaded soon after the first one.
    page.reload()
    page.get_by_role("link", name="Money").click()
    expect(page.get_by_role("alert")).to_contain_text("this view failed: out of coins")
    visit.forgive("out of coins")
    page.get_by_role("link", name="Nodes").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(["Nodes"])
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_page_fits_the_window(size: tuple[int, int], visit: Visitor) -> None:
    page = visit("#/fleet", size=size)
    for view, title in (
        ("fleet", "Fleet"),
        ("nodes", "Nodes"),
        ("events", "Events"),
        ("nodes/lab-001-nano-1", "lab-001-nano-1"),
    ):
        page.evaluate("hash => { location.hash = hash; }", f"#/{view}")
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], view


def test_theme_follows_the_system_until_one_is_chosen(visit: Visitor) -> None:
    page = visit("#/fleet", color_scheme="dark", fresh=True)
    shade = "getComputedStyle(document.body).backgroundColor"
    expect(page.get_by_role("button", name="Auto")).to_be_visible()
    dark = page.evaluate(shade)
    page.get_by_role("button", name="Auto").click()
    light = page.evaluate(shade)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Light")).to_be_visible()
    assert page.evaluate(shade) == light
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(shade) == dark


def tell(page: Page, *turns: dict[str, tuple[list[dict[str, Any]], bool]]) -> list[dict[str, list[str]]]:
    """Answer the page's requests for lists with these turns, repeating the last: by kind, the rows, and whether more follow.

    Returns the growing list of requests.
    """
    asked: list[dict[str, list[str]]] = []

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        if "list" in query:
            asked.append(query)
        listed = query.get("list", [""])[0].split(",")
        turn = turns[max(0, min(len(asked), len(turns)) - 1)]
        told = [
            ("rows", {"kind": kind, "rows": rows, "more": more})
            for kind, (rows, more) in turn.items()
            if kind in listed
        ]
        if not any(more for _, more in turn.values()):
            told.append(("change", {"revision": 9, "changes": {}}))
        body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/ui/live?*", answer)
    return asked


def test_object_deleted_during_a_broken_list_is_not_shown(visit: Visitor) -> None:
    page = visit("#/plan")
    went, stays = ({"path": f"/{name}", "name": name, **NODE} for name in ("went", "stays"))
    asked = tell(
        page,
        {"latticenodes": ([went, stays], True)},
        {"latticenodes": ([stays], False), "latticeworkloads": ([], False)},
    )
    page.evaluate("location.hash = '#/nodes'")
    expect(page.locator("tbody tr[data-path]")).to_have_count(1)
    expect(page.locator("tbody tr[data-path='/stays']")).to_be_visible()
    assert [each["list"] for each in asked[:2]] == [["latticenodes,latticeworkloads"]] * 2


def test_unscheduled_replica_shows_the_reason(visit: Visitor) -> None:
    page = visit("#/plan")
    service = {
        "path": "default/web",
        "namespace": "default",
        "name": "web",
        "wanted": 2,
        "ready": 1,
        "verdict": "Placed",
        "pools": ["p"],
    }
    rows = {
        "latticeservices": ([{**service, "why": "Placed in p"}], False),
        "latticeworkloads": ([{**WEB_1, "why": WHY}], False),
    }
    asked = tell(page, rows)
    page.evaluate("location.hash = '#/services?show=waiting'")
    line = page.locator("tbody tr[data-path='default/web']")
    expect(line).to_contain_text(f"web-1 has no node: {WHY}")
    expect(page.get_by_role("radio", name="Waiting 1")).to_be_visible()
    line.locator("a").click()
    row = page.locator("tbody tr[data-path='default/web-1']")
    expect(row).to_contain_text(WHY)
    assert row.get_by_text(WHY).evaluate("each => each.getBoundingClientRect().height > 10")
    scopes = [json.loads(each["only"][0])["latticeworkloads"] for each in asked if "only" in each]
    assert scopes[0] == {"unplaced": True}
    assert scopes[-1] == {"service": "default/web"}
