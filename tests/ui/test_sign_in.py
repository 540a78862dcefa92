"""Signing in to the page by the link that `lattice up` prints or by a token."""

import re

import pytest
from build.browser import UiServer, Visitor
from playwright.sync_api import expect

from lattice.ui import assets

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]


def test_the_printed_link_signs_in_once(visit: Visitor, ui_server: UiServer) -> None:
    page = visit(ui_server.link, group="")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    assert "code" not in page.url
    assert [each["name"] for each in page.context.cookies()] == ["__Host-lattice"]
    again = visit(ui_server.link, group="")
    expect(again.get_by_role("alert")).to_contain_text("the sign-in link was already used")
    assert "code" not in again.url
    visit.forgive("401")


def test_without_credentials_only_the_sign_in_form_is_shown(visit: Visitor) -> None:
    page = visit("#/services", group="")
    expect(page.get_by_label("Bearer token")).to_be_visible()
    expect(page.get_by_role("navigation")).to_have_count(0)


def test_wrong_token_is_refused_and_right_one_signs_in(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/nodes", group="")
    page.get_by_label("Bearer token").fill("lat-000000000000.wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("the bearer token is unknown")
    visit.forgive("401")
    page.get_by_label("Bearer token").fill(ui_server.token())
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()


def test_signing_out_leaves_nothing_behind(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/plan", fresh=True)
    page.get_by_label("Manifests").fill("kind: Secret plan")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Bearer token")).to_be_visible()
    assert page.context.cookies() == []
    page.reload()
    page.get_by_label("Bearer token").fill(ui_server.token("lattice:viewers"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("Manifests")).to_have_value("")
    page.get_by_label("Manifests").fill("kind: Another")
    page.context.clear_cookies()  # as if the session were over
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_label("Bearer token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    visit.forgive("401")


def test_sign_out_applies_to_all_tabs(visit: Visitor) -> None:
    page = visit("#/plan", fresh=True)
    other = page.context.new_page()
    other.goto(f"{visit.ui_server.url}/ui/#/plan")
    other.get_by_label("Manifests").fill("kind: Secret plan")
    page.get_by_role("button", name="Sign out").click()
    expect(other.get_by_label("Bearer token")).to_be_visible()
    assert other.evaluate("sessionStorage.length") == 0


def test_unreachable_server_alert_clears_on_reconnect(visit: Visitor) -> None:
    page = visit("#/plan")
    page.route("**/ui/live?*", lambda route: route.abort())
    page.evaluate("location.hash = '#/events'")
    told = page.get_by_role("alert").filter(has_text="The server does not respond.")
    expect(told).to_be_visible(timeout=10_000)
    expect(page.get_by_text("No response")).to_be_visible()
    page.unroute("**/ui/live?*")
    expect(told).to_have_count(0, timeout=10_000)
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    visit.forgive("ERR_FAILED")


ARE_LOADED = "(names) => names.every((name) => performance.getEntriesByName(new URL(name, location)).length)"


def test_views_open_while_the_server_is_down(visit: Visitor) -> None:
    page = visit("#/plan")
    page.wait_for_function(ARE_LOADED, arg=[path for path in assets() if path.endswith((".js", ".css"))])
    page.route("**/*", lambda route: route.abort())
    page.evaluate("location.hash = '#/whatif'")
    expect(page.get_by_role("heading", name="What if")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_text(re.compile("^The server does not respond"), timeout=10_000)
    page.unroute("**/*")
    visit.forgive("ERR_FAILED")


def test_cookie_alone_does_not_authenticate_api_requests(visit: Visitor, ui_server: UiServer) -> None:
    page = visit("#/fleet")
    without = "fetch('/apis/lattice.dev/v1alpha1/latticenodes', {credentials: 'same-origin'}).then((answer) => answer.status)"
    assert (
        page.evaluate(without) == 401
    )  # what a form, an image or a link of another site could make the browser send
    visit.forgive("401")


def test_viewer_sees_no_write_actions(visit: Visitor) -> None:
    page = visit("#/nodes", group="lattice:viewers")
    page.get_by_role("link", name="north-001-grid-1").click()
    expect(page.get_by_text("read only")).to_be_visible()
    expect(page.get_by_role("button", name="Cordon")).to_have_count(0)
