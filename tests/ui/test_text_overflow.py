"""Text of the page is not cut and stays beside its marks, also on a phone."""

import re

import pytest
from build.browser import NARROW, Visitor
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]
expect.set_options(timeout=15_000)  # the first question starts a process
TORN = """() => [...document.querySelectorAll(".legend .key")].filter((key) => {
  const [mark, word] = [...key.children].map((each) => each.getBoundingClientRect());
  return mark.right > word.left || mark.bottom < word.top || mark.top > word.bottom;
}).map((key) => key.innerText)"""
CUT = """(all) => all.filter((each) => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight)
  .map((each) => each.innerText)"""


def torn(page: Page) -> list[str]:
    """Words of legends that stand on another line than what they explain, or over it."""
    found: list[str] = page.evaluate(TORN)
    return found


@pytest.mark.parametrize(("view", "words"), [("money", 5), ("fleet", 2), ("whatif?lose=south", 2)])
def test_legend_labels_stay_beside_their_marks(view: str, words: int, visit: Visitor) -> None:
    page = visit(f"#/{view}", size=NARROW)
    expect(page.locator(".legend .key")).to_have_count(words)
    assert torn(page) == []


def test_all_views_are_reachable_on_a_phone(visit: Visitor) -> None:
    for view in ("services", "events"):
        page = visit(f"#/{view}", size=NARROW)
        expect(page.locator(".top nav a[aria-current]")).to_have_count(1)
        assert page.locator(".top nav").evaluate("nav => nav.scrollWidth - nav.clientWidth") == 0
        ends = page.locator(".top nav a").last.evaluate("link => link.getBoundingClientRect().right")
        assert ends <= NARROW[0], view


ROOM = """input => {
  const drawing = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(input);
  drawing.font = style.font;
  return input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - drawing.measureText(input.placeholder).width;
}"""


def test_search_hint_is_not_cut(visit: Visitor) -> None:
    page = visit("#/services")
    assert page.get_by_role("searchbox").evaluate(ROOM) >= 20, "with room for the cross that clears it"


@pytest.mark.parametrize("size", [(1280, 800), NARROW], ids=["wide", "narrow"])
def test_whatif_map_labels_are_not_cut(size: tuple[int, int], visit: Visitor) -> None:
    page = visit("#/whatif?lose=south", size=size)
    before = page.get_by_role("group", name="Map of the fleet, before")
    expect(before.locator('[data-mark="minus"] .box-full').last).to_have_text(re.compile(r"^−\d replicas?$"))
    expect(before.locator('[data-mark="minus"] .box-name').last).to_have_text("− south-002")
    assert page.locator(".map .box-name, .map .box-full").evaluate_all(CUT) == []


def test_service_moves_are_not_cut_on_a_phone(visit: Visitor) -> None:
    page = visit("#/whatif?lose=south", size=NARROW)
    expect(page.locator('tr[data-path="default/web"]')).to_contain_text(
        "north 1, south 1 → north 1 (1 of 2 replicas)"
    )
    assert page.locator('tr[data-path="default/web"] .two > *').evaluate_all(CUT) == []
    assert page.locator('tr[data-path="default/web"]').evaluate("row => row.offsetHeight") == 60, (
        "which the table counts on"
    )


def test_candidates_and_scores_are_stacked_on_a_phone(visit: Visitor) -> None:
    page = visit("#/services/default/web", size=NARROW)
    expect(page.locator(".scores .part.deciding")).to_contain_text("Cost ×0.7143")
    assert page.locator(".matrix").count() == 3
    assert page.locator(".matrix").evaluate_all(CUT) == []
