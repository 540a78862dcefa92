"""`make screenshots`: every view of the page at both widths, from a running quickstart, into docs/images."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from build.browser import EXAMPLES, NARROW, WIDE, UiServer, Visitor, a_browser, read_until
from build.servers import running_server
from build.waiting import wait_until
from playwright.sync_api import Page, expect

IMAGES = EXAMPLES.parent / "docs" / "images"
FLAGS = ("--controllers", "*", "--providers", "local,docker=local", "--heartbeat", "2")
VAULT = (EXAMPLES / "vault.yaml").read_text()
SAFE = VAULT[VAULT.index("apiVersion") :].replace("vault", "safe").replace("[fedramp]", "[gdpr]")


def _fleet(page: Page) -> None:
    expect(page.locator(".map .box").first).to_be_visible()


def _rows(page: Page) -> None:
    expect(page.locator("tbody tr[data-path]").first).to_be_visible()


def _why(page: Page) -> None:
    expect(page.locator(".matrix").first).to_be_visible(timeout=30_000)
    expect(page.locator("[data-test=fit] .fits > li").first).to_be_visible(timeout=30_000)


def _placed(page: Page) -> None:
    expect(page.locator(".scores .part.deciding").first).to_be_visible(timeout=30_000)
    expect(page.get_by_role("table", name="Replicas")).to_contain_text("Running")


def _money(page: Page) -> None:
    expect(page.locator(".chart canvas").first).to_be_visible(timeout=30_000)
    expect(page.get_by_role("table", name="Cost by pool")).to_contain_text("south")


def _plan(page: Page) -> None:
    page.get_by_label("Manifests").fill(SAFE)
    page.get_by_label("Manifests").evaluate("area => { area.scrollTop = 0; }")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_contain_text("1 service placed", timeout=30_000)


def _whatif(page: Page) -> None:
    page.get_by_role("button", name="south", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_be_visible(timeout=30_000)


VIEWS: dict[str, tuple[str, Callable[[Page], None]]] = {
    "fleet": ("#/fleet", _fleet),
    "services": ("#/services", _rows),
    "service": ("#/services/default/vault", _why),
    "placed": ("#/services/default/web", _placed),
    "money": ("#/money", _money),
    "plan": ("#/plan", _plan),
    "whatif": ("#/whatif", _whatif),
    "nodes": ("#/nodes", _rows),
    "node": ("#/nodes/south-002-solar-1", _fleet),
    "events": ("#/events", _rows),
}


def take(visit: Visitor) -> None:
    for name, (address, wait) in VIEWS.items():
        for size in (WIDE, NARROW):
            page = visit(address, size=size)
            wait(page)
            page.wait_for_timeout(500)  # bars grow into their place
            page.screenshot(path=IMAGES / f"{name}-{size[0]}.png", full_page=True)
            page.close()
            print(f"docs/images/{name}-{size[0]}.png", flush=True)
    page = visit("#/fleet", color_scheme="dark")
    _fleet(page)
    page.screenshot(path=IMAGES / "fleet-dark-1280.png")
    assert visit.wrongs == [], visit.wrongs


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder), *FLAGS, "--seed", str(EXAMPLES / "quickstart")) as server,
        a_browser() as browser,
    ):
        ui_server = UiServer(server, read_until(server, "Press Ctrl-C to stop."))
        wait_until(ui_server.is_ready, "every service of the quickstart runs")
        ui_server.apply(VAULT)
        take(Visitor(browser, ui_server))


if __name__ == "__main__":
    main()
