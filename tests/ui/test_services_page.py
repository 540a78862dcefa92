"""The page of services: placement, reasons of unplaced services, suggestions; updated live."""

from collections.abc import Iterator

import pytest
from build.browser import EXAMPLES, NARROW, UiServer, Visitor
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]
expect.set_options(timeout=15_000)  # the first question starts a process
SERVICE = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {{name: {name}, namespace: default}}
spec:
  containers: {{main: {{command: [sleep, "600"]}}}}
  placement: {placement}
  replicas: {{min: {replicas}}}
"""
CUT_OFF = "(() => { const frame = document.querySelector('.table'); return frame.scrollWidth - frame.clientWidth; })()"
VAULT = (EXAMPLES / "vault.yaml").read_text()


@pytest.fixture(scope="module")
def vault(ui_server: UiServer) -> Iterator[None]:
    """A service that fits nowhere."""
    ui_server.apply(VAULT)
    yield
    ui_server.delete("vault")


@pytest.fixture
def crypt(ui_server: UiServer) -> Iterator[str]:
    """The same service with requests in its container, to be applied and changed."""
    yield VAULT.replace("vault", "crypt").replace(
        "    main:\n", "    main:\n      resources: {requests: {cpu: 150m, memory: 64Mi}}\n"
    )
    ui_server.delete("crypt")


@pytest.fixture
def crowd(ui_server: UiServer) -> Iterator[None]:
    """For which the lab is too small by two machines; and one that is wrong for the lab in three ways."""
    places = "{pools: {matchLabels: {tier: lab}}, resources: {cores: 0.4, memoryGi: 0.0625}}"
    ui_server.apply(SERVICE.format(name="crowd", placement=places, replicas=3))
    places = "{pools: {matchLabels: {tier: production}}, resources: {cores: 8, memoryGi: 0.0625}, compliance: [fedramp]}"
    ui_server.apply(SERVICE.format(name="giant", placement=places, replicas=1))
    yield
    ui_server.delete("crowd")
    ui_server.delete("giant")


@pytest.fixture
def hoard(ui_server: UiServer) -> Iterator[None]:
    """Which wants more compliance standards than are ever tried to be added at once."""
    places = "{resources: {cores: 0.1, memoryGi: 0.0625}, compliance: [fedramp, hipaa, pci, itar, iso27001]}"
    ui_server.apply(SERVICE.format(name="hoard", placement=places, replicas=1))
    yield
    ui_server.delete("hoard")


def row(page: Page, name: str) -> list[str]:
    return page.locator(f'tr[data-path="default/{name}"] td').all_inner_texts()


def test_service_row_shows_health_placement_cost_and_verdict(visit: Visitor) -> None:
    page = visit("#/services")
    expect(page.locator('tr[data-path="default/web"]')).to_be_visible()
    name, namespace, ready, health, where, hourly, month, verdict, why, _ = row(page, "web")
    assert (name, namespace, ready, health, where, verdict) == (
        "web",
        "default",
        "2/2",
        "Running",
        "north, south",
        "Placed",
    )
    assert (hourly, month) == ("$0.042", "$30.24")
    expect(page.locator(".figures")).to_contain_text("in 30 days, without empty machines")
    assert why == "Placed in north and south per minRegions of policy/shop-policy"
    page.get_by_role("searchbox").fill("app=shop")
    expect(page.locator("tbody tr[data-path]")).to_have_count(1)
    assert page.url.endswith("find=app%3Dshop")
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("app=shop")
    expect(page.locator("tbody tr[data-path]")).to_have_count(1)
    for width in (1280, 1024, 760):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(CUT_OFF) <= 0, f"a column is cut off at {width} pixels"


def test_service_that_fits_by_now_is_shown_as_fitting(visit: Visitor) -> None:
    said = "async () => (await import('/ui/lib/answers.js')).nothingFits({ isPlaced: true, suggestions: [] })"
    assert visit("#/services").evaluate(said) == "The service fits without changes."


def test_service_changes_are_shown_live(visit: Visitor, ui_server: UiServer, crypt: str) -> None:
    page = visit("#/services?show=waiting")
    expect(page.locator("h1")).to_have_text("Services")
    ui_server.apply(crypt)
    line = page.locator('tr[data-path="default/crypt"]')
    expect(line).to_be_visible(timeout=2000)
    expect(line).to_contain_text("Never")
    line.locator("a").click()
    expect(page.locator("[data-test=verdict]")).to_contain_text("Why it is not placed")
    ui_server.apply(crypt.replace("[fedramp]", "[gdpr]"))
    expect(page.locator("[data-test=verdict]")).to_contain_text("Placed in south")
    expect(page.locator(".timeline")).to_contain_text("in cluster south-")
    expect(page.locator('[data-path="default/crypt-0"]')).to_contain_text("0.15 cpu, 64 MiB")
    page.get_by_role("link", name="Services").first.click()
    expect(line).to_contain_text("Placed")
    ui_server.delete("crypt")
    expect(line).to_have_count(0)


@pytest.mark.usefixtures("vault", "crowd")
def test_unplaced_service_shows_rejections_and_suggestions(visit: Visitor) -> None:
    page = visit("#/services/default/vault")
    expect(page.locator("[data-test=verdict]")).to_contain_text("0 of 3 pools: 3 without compliance fedramp")
    first = page.locator('tr[data-pool="north"] td[data-first]')
    expect(first).to_have_count(1)
    assert (first.text_content() or "").startswith("✗ compliance first filter that rejects the pool")
    assert first.locator("dd").all_inner_texts() == ["fedramp", "soc2", "fedramp"]
    assert first.evaluate("cell => cell.cellIndex") == page.locator("thead th").all_inner_texts().index(
        "Compliance\n3 out"
    )
    assert (
        page.locator('tr[data-pool="north"] td.pass').count() == page.locator(".matrix thead th").count() - 2
    )
    fits = page.locator("[data-test=fit] .fits > li")
    expect(fits).to_have_count(3)
    told = fits.first.inner_text()
    assert "add compliance fedramp to lab" in told
    assert "platform" in told
    assert "$0.00/h" in told
    assert "LatticePool/lab spec.labels.compliance: nothing → fedramp" in told
    page.evaluate("location.hash = '#/services/default/giant'")
    expect(page.locator("[data-test=verdict]")).to_contain_text("8")
    cells = page.locator('tr[data-pool="lab"] td')
    failing = [
        at
        for at, style in enumerate(cells.evaluate_all("all => all.map((each) => each.className)"))
        if "fail" in style
    ]
    assert len(failing) >= 3
    assert cells.evaluate_all("all => all.map((each) => 'first' in each.dataset)").index(True) == failing[0]
    expect(page.locator('tr[data-pool="lab"] td[data-first]')).to_have_count(1)
    page.evaluate("location.hash = '#/services/default/crowd'")
    larger = fits.filter(has_text="raise maxNodes of lab by 2 to 4")
    expect(larger.locator(".price")).to_have_text("+$0.008/h +$5.76 in 30 days")


@pytest.mark.usefixtures("hoard")
def test_insufficient_changes_are_worded_as_by_the_cli(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/services/default/hoard")
    expect(page.locator("[data-test=verdict]")).to_contain_text("Fits without")
    shown = page.locator("[data-test=fit] p")
    expect(shown).to_contain_text("5 requirements would have to change together")
    said = " ".join(ui_server.server.lattice("fit", "service/hoard").stdout.split())
    assert shown.inner_text().removesuffix(".").lower() in said.lower()


def test_placed_service_shows_the_parts_of_every_score(visit: Visitor) -> None:
    page = visit("#/services/default/web")
    expect(page.locator("[data-test=verdict]")).to_contain_text("Placed in north and south")
    assert (
        page.locator(".matrix tr[data-pool][data-chosen] th").all_inner_texts()[0].split("\n")[1]
        == "chosen for 1"
    )
    expect(page.locator('tr[data-pool="lab"] td[data-first]')).to_contain_text("tier=production")
    assert [each.split("\n")[0] for each in page.locator(".step h3").all_inner_texts()] == [
        "Replica 1 anywhere",
        "Replica 2 outside south",
    ]
    assert page.locator(".part.deciding").count() == 1
    expect(page.locator('[data-path="default/web-0"]')).to_contain_text("Running")
    assert "ScaledUp" in page.locator(".timeline").inner_text()


def test_missing_service_is_shown_as_not_found(visit: Visitor) -> None:
    page = visit("#/services")
    with page.expect_response("**/fleet/why", timeout=30_000):
        page.goto(f"{visit.ui_server.url}/ui/#/services/default/nobody")
    expect(page.get_by_text("There is no service nobody in default.")).to_be_visible()
    expect(page.get_by_role("link", name="See all services")).to_have_attribute("href", "#/services")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    visit.forgive("404")


@pytest.mark.usefixtures("vault")
def test_page_fits_a_phone_screen(visit: Visitor) -> None:
    page = visit("#/services", size=NARROW, color_scheme="dark")
    expect(page.locator('tr[data-path="default/vault"]')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    page.locator('tr[data-path="default/vault"] a').click()
    expect(page.locator(".matrix").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    matrix = page.get_by_role("region", name="Candidates by filters")
    assert matrix.evaluate("each => each.scrollWidth - each.clientWidth") == 0, (
        "what rules a pool out is stacked"
    )
    expect(matrix.locator("tr[data-pool=north] td.fail")).to_be_visible()
    assert matrix.locator("td.pass:visible").count() == 0


CRASHES = """
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {name: crashes, namespace: default}
spec:
  containers: {main: {command: [sh, -c, "echo no such table; exit 3"]}}
  placement: {pools: {matchLabels: {tier: lab}}, resources: {cores: 0.05, memoryGi: 0.03125}}
"""


@pytest.fixture
def crashing(ui_server: UiServer) -> Iterator[None]:
    """A service whose only replica fails again and again."""
    ui_server.apply(CRASHES)
    yield
    ui_server.delete("crashes")


@pytest.mark.usefixtures("crashing")
def test_failing_service_shows_cause_exit_code_and_log_first(visit: Visitor) -> None:
    page = visit("#/services/default/crashes", size=(1280, 800))
    health = page.locator("[data-test=health]")
    expect(health).to_contain_text("RUNTIME_ERROR: exited with code 3", timeout=30_000)
    expect(health).to_contain_text("exit code 3")
    expect(health.locator(".log")).to_contain_text("no such table")
    expect(health).to_contain_text("What would help")
    box = health.bounding_box()
    assert box is not None
    assert box["y"] + 100 < 800, "above the fold"
    replicas = page.get_by_role("table", name="Replicas")
    expect(replicas).to_contain_text("RUNTIME_ERROR, exit code 3")
    page.goto(page.url.partition("#")[0] + "#/services?show=unwell")
    expect(page.locator("tbody tr[data-path='default/crashes']")).to_be_visible()
    page.goto(page.url.partition("#")[0] + "#/fleet")
    wrong = page.locator("[data-test=wrong]")
    expect(wrong).to_contain_text("service/crashes")
    wrong.get_by_role("link", name="service/crashes").click()
    expect(page.locator("[data-test=health]")).to_be_visible()
