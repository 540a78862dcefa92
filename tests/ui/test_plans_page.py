"""The pages of plans, what-if and money: budgets, cost over time and pasted plans."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from build.browser import EXAMPLES, NARROW, UiServer, Visitor
from playwright.sync_api import expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]
expect.set_options(timeout=15_000)  # the first question starts a process
VAULT = (EXAMPLES / "vault.yaml").read_text()
SAFE = VAULT.replace("vault", "safe").replace("[fedramp]", "[gdpr]")


@pytest.fixture
def leftovers(ui_server: UiServer) -> Iterator[None]:
    yield
    ui_server.delete("safe")


@pytest.mark.usefixtures("leftovers")
def test_money_page_shows_budgets_and_cost_live(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/money")
    north = page.locator(".budgets li").filter(has_text="pool north")
    # The calendar month binds on the first days of a month of 31 days.
    expect(north).to_contain_text(
        re.compile(r"(29|30)% of \$60\.00 by the (30-day run rate|calendar month), hard")
    )
    expect(north).to_contain_text("committed $0.024/h, $17.28 in 30 days")
    expect(north).to_contain_text("$0.059/h left for more machines")
    marks = [each.get_attribute("title") for each in north.locator(".track-mark").all()]
    assert marks == ["committed $17.28 in 30 days", "alert at $48.00", "limit $60.00"]
    expect(page.locator(".budgets li").filter(has_text="pool lab")).to_contain_text("no limit")
    expect(page.get_by_role("table", name="Cost by pool")).to_contain_text("south")
    chart = page.locator(".chart")
    expect(chart.locator("canvas")).to_be_visible()
    expect(page.get_by_role("img", name="Cost over time by pool")).to_have_attribute(
        "aria-label", "Cost over time by pool: south $0.036/h, north $0.024/h, lab $0.004/h"
    )
    page.get_by_role("radio", name="By service").click()
    expect(page.get_by_role("table", name="Cost by service")).to_contain_text("default/web")
    expect(chart.locator(".u-legend")).to_contain_text("default/web")
    page.get_by_role("radio", name="By label app").click()
    expect(page.get_by_role("table", name="Cost by app")).to_contain_text("(no label app)")
    page.get_by_role("button", name="Pending changes").click()
    expect(page.get_by_text("No changes are pending")).to_be_visible()
    page.get_by_role("button", name="Find savings").click()
    expect(page.get_by_text("No move would save money")).to_be_visible(timeout=20_000)
    page.get_by_role("radio", name="By service").click()
    expect(page.get_by_role("table", name="Cost by service")).to_contain_text("default/web")
    ui_server.apply(SAFE)
    expect(page.get_by_role("table", name="Cost by service")).to_contain_text("default/safe", timeout=5000)


@pytest.mark.usefixtures("leftovers")
def test_pasted_plan_equals_the_cli_plan_and_can_be_applied(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/plan")
    page.get_by_label("Manifests").fill(SAFE)
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_contain_text("1 service placed")
    document = json.loads(ui_server.server.lattice("plan", "-f", "-", "-o", "json", stdin=SAFE).stdout)
    assert page.locator("[data-test=plan-id]").inner_text() == document["id"]
    where = document["services"][-1]["after"][0]["cluster"]
    expect(
        page.get_by_role("group", name="Map of the fleet, after").locator(f'[data-key="after/{where}"]')
    ).to_have_attribute("data-mark", "plus")
    expect(page.get_by_role("group", name="Map of the fleet, before").locator("[data-mark]")).to_have_count(0)
    expect(page.locator('tr[data-path="default/safe"]')).to_contain_text("+ new")
    assert page.locator('tr[data-path="(empty nodes)"]').count() == bool(
        document["overhead"]["change"]["hourlyMicros"]
    )
    page.get_by_role("button", name="Apply this plan").click()
    asked = page.get_by_role("dialog", name="Apply this plan?")
    expect(asked).to_contain_text("1 service placed")
    asked.get_by_role("button", name="Cancel").click()
    expect(asked).to_have_count(0)
    assert "safe" not in [each["metadata"]["name"] for each in ui_server.get("latticeservices")["items"]]
    page.get_by_role("button", name="Apply this plan").click()
    asked.get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_text("1 object applied")).to_be_visible()
    page.get_by_role("link", name="LatticeService/safe").click()
    expect(page.locator("[data-test=verdict]")).to_contain_text("Placed in south", timeout=10_000)


WEB = next(
    each
    for each in (EXAMPLES / "quickstart" / "services.yaml").read_text().split("---\n")
    if "name: web\n" in each
)


def test_plan_and_confirmation_show_what_is_overwritten(visit: Visitor) -> None:
    page = visit("#/plan")
    page.get_by_label("Manifests").fill(WEB.replace("hello from web", "good evening"))
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_contain_text("1 service restarted replica by replica, ")
    expect(page.locator(".figures")).to_contain_text("Services changed1")
    declared = page.get_by_role("region", name="Declared")
    expect(declared).to_contain_text("LatticeService/default/web")
    expect(declared.locator("del")).to_contain_text("hello from web")
    expect(declared.locator("ins")).to_contain_text("good evening")
    page.get_by_role("button", name="Apply this plan").click()
    asked = page.get_by_role("dialog", name="Apply this plan?")
    expect(asked).to_contain_text("1 service is changed: web (spec.containers.main.command)")


DROPPED = """texts => {
  const held = new DataTransfer();
  texts.forEach((text, at) => held.items.add(new File([text], `${at}.yaml`, { type: "text/yaml" })));
  return held;
}"""


def test_plan_of_dropped_or_chosen_files(visit: Visitor) -> None:
    page = visit("#/plan")
    held = page.evaluate_handle(DROPPED, [SAFE.replace("safe", name) for name in ("safe-1", "safe-2")])
    place = page.locator(".drop")
    place.dispatch_event("dragover", {"dataTransfer": held})
    expect(place).to_have_attribute("data-over", "")
    place.dispatch_event("drop", {"dataTransfer": held})
    expect(page.locator("[data-test=summary]")).to_contain_text("2 services placed")
    expect(place).not_to_have_attribute("data-over", "")
    chosen: Any = {"name": "safe.yaml", "mimeType": "text/yaml", "buffer": SAFE.encode()}
    page.locator("input[type=file]").set_input_files([chosen])
    expect(page.locator("[data-test=summary]")).to_contain_text("1 service placed")


def test_manifest_error_is_shown_once_at_its_line(visit: Visitor) -> None:
    page = visit("#/plan")
    page.get_by_label("Manifests").fill(SAFE.replace("min: 1", "min: -1"))
    page.get_by_label("Manifests").press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("yaml:16 spec.replicas.min")
    visit.forgive("422")
    page.get_by_label("Manifests").fill("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    page.get_by_label("Manifests").press("Control+Enter")
    told = page.get_by_role("alert")
    expect(told).to_contain_text("1 error in the manifests")
    assert (
        told.inner_text().count("there is no kind Pod"),
        told.inner_text().count("declare a LatticeService (apiVersion: lattice.dev/v1alpha1)"),
    ) == (1, 1)
    visit.forgive("404")
    page.get_by_label("Manifests").fill("apiVersion: v1\nspec: [\n")
    page.get_by_label("Manifests").press("Control+Enter")
    expect(told.locator("strong")).to_contain_text("line 2 is not YAML")
    visit.forgive("400")


def test_viewer_can_plan_but_not_apply(visit: Visitor) -> None:
    page = visit("#/plan", group="lattice:viewers")
    page.get_by_label("Manifests").fill(SAFE)
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("An administrator can apply this plan")).to_be_visible()
    expect(page.get_by_role("button", name="Apply this plan")).to_have_count(0)


@pytest.fixture
def vault(ui_server: UiServer) -> Iterator[None]:
    """A service that fits nowhere, whatever else is planned."""
    ui_server.apply(VAULT)
    yield
    ui_server.delete("vault")


@pytest.mark.usefixtures("vault")
def test_new_problems_come_first_and_old_ones_are_collapsed(visit: Visitor) -> None:
    page = visit("#/whatif?lose=south")
    fresh = page.get_by_role("region", name="Not fully placed")
    old = page.locator("details", has_text="1 service is not fully placed (unchanged)")
    expect(fresh).to_contain_text("default/api")
    expect(fresh).not_to_contain_text("default/vault")
    expect(old.get_by_role("link", name="default/vault")).not_to_be_visible()
    tables = page.get_by_role("table", name="Services")
    below = "(one, other) => one.compareDocumentPosition(other) === Node.DOCUMENT_POSITION_FOLLOWING"
    assert tables.evaluate(below, old.element_handle())
    old.locator("summary").click()
    expect(old.get_by_role("link", name="default/vault")).to_be_visible()


CONTRASTED = """async () => (await import("/ui/lib/declared.js")).contrasted("a".repeat(200) + "old", "a".repeat(200) + "new")"""


def test_long_values_are_cut_to_the_difference(visit: Visitor) -> None:
    assert visit("#/plan").evaluate(CONTRASTED) == [f"…{'a' * 20}old", f"…{'a' * 20}new"]


@pytest.fixture
def policy(ui_server: UiServer) -> Iterator[str]:
    """A placement policy that selects no service."""
    spec = {"selector": {"matchLabels": {"app": "nobody"}}, "requirements": {"minRegions": 1}}
    kind = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticePlacementPolicy",
        "metadata": {"name": "idle"},
    }
    yield json.dumps(kind | {"spec": spec})
    ui_server.delete("idle", "latticeplacementpolicies")


def test_whatif_of_lost_pool_prices_and_compliance(visit: Visitor, ui_server: UiServer, policy: str) -> None:
    page = visit("#/whatif")
    page.get_by_role("button", name="south", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_contain_text("Without south: ")
    expect(page.get_by_role("region", name="Not fully placed")).to_contain_text("default/api")
    expect(page.locator('tr[data-path="default/orders"]')).to_contain_text("south 1 → north 1")
    expect(
        page.get_by_role("group", name="Map of the fleet, before").locator('[data-mark="minus"]')
    ).to_have_count(2)
    expect(page.get_by_text("The fleet has changed since this result.")).to_have_count(0)
    ui_server.apply(policy, "latticeplacementpolicies")
    expect(page.get_by_text("The fleet has changed since this result.")).to_be_visible(timeout=3000)
    page.get_by_role("button", name="Compute again").click()
    expect(page.get_by_text("The fleet has changed since this result.")).to_have_count(0)
    page.get_by_role("button", name="Lose each pool in turn").click()
    expect(page.locator("[data-test=summary]")).to_contain_text(
        "The loss of 3 of 3 pools would leave services not fully placed"
    )
    page.locator('tr[data-path="north"]').click()
    expect(page.locator("[data-test=summary]")).to_contain_text("Without north: ")
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("slider").fill("50")
    expect(page.locator("[data-test=summary]")).to_contain_text(
        "With prices +50 %: 4 services changed; $0.064/h → $0.096/h"
    )
    page.get_by_label("Pool", exact=True).select_option("south")
    page.get_by_label("Compliance").fill("gdpr")
    page.get_by_role("button", name="Drop", exact=True).click()
    expect(page.locator("[data-test=summary]")).to_contain_text(
        "Without compliance gdpr in south, with prices +50 %"
    )
    expect(page.get_by_role("region", name="Not fully placed")).to_contain_text("default/api")


ARRANGED = """async () => {
  const { stacked, budgetBar, beforeAfter, serviceRows } = await import("/ui/lib/answers.js");
  return {
    stacked: stacked([{ points: [[10, 2e6], [30, 1e6]] }, { points: [[20, 5e6]] }], 40),
    over: budgetBar({ spentMicros: 50, projectedMicros: 200, limitMicros: 100, alertMillionths: 800000 }),
    unlimited: budgetBar({ spentMicros: 50, projectedMicros: 200, limitMicros: null, alertMillionths: 800000 }),
    shrunk: beforeAfter([{ name: "a-1", pool: "a", nodes: 3 }], { clusters: [{ name: "a-1", pool: "a", mark: "~", before: { big: 3 }, after: { big: 1 } }], services: [] }),
    rows: serviceRows({ services: [{ name: "a", before: [], after: [{}], cost: { change: { hourlyMicros: 66 } } }], overhead: { change: { hourlyMicros: -18 } } }),
    full: serviceRows({ services: [], overhead: { change: { hourlyMicros: 0 } } }),
    bound: budgetBar({ spentMicros: 1, projectedMicros: 2, limitMicros: 720, alertMillionths: 800000, hourlyMicros: 2 }),
  };
}"""


def test_chart_series_add_up(visit: Visitor) -> None:
    found = visit("#/whatif").evaluate(ARRANGED)
    assert found["stacked"] == {"times": [10, 20, 30, 40], "columns": [[2, 2, 1, 1], [2, 7, 6, 6]]}
    assert found["over"] == {
        "spent": 0.25,
        "projected": 1,
        "alert": 0.4,
        "limit": 0.5,
        "committed": 0,
        "used": 2,
    }
    assert (found["bound"]["committed"], found["bound"]["limit"]) == (1, 0.5), (
        "what runs for 30 days passes the limit"
    )
    assert sum(each["cost"]["change"]["hourlyMicros"] for each in found["rows"]) == 66 - 18
    assert ([each["name"] for each in found["rows"]], found["full"]) == (["a", "(empty nodes)"], [])
    assert (found["unlimited"]["limit"], found["unlimited"]["used"]) == (None, None)
    (pool,) = found["shrunk"]["before"]
    assert (pool["weight"], pool["children"][0]["mark"], found["shrunk"]["nodesAfter"]) == (3, "minus", 1)


def test_page_fits_a_phone_screen(visit: Visitor) -> None:
    page = visit("#/money", size=NARROW, color_scheme="dark")
    expect(page.locator(".chart canvas")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    page.get_by_role("link", name="What-if").click()
    page.get_by_role("button", name="south", exact=True).click()
    expect(page.get_by_role("table", name="Clusters")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    services = page.get_by_role("table", name="Services")
    expect(services).to_contain_text("south 1 → north 1")
    assert (
        page.get_by_role("region", name="Services").evaluate("each => each.scrollWidth - each.clientWidth")
        == 0
    )
