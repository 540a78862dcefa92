"""Visits to the page by the browser's own clock: until it answers a hand, and how long it cannot."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from build.browser import API, WIDE, UiServer
from playwright.sync_api import Browser, Page

HANDS = 6  # connections of those who change things
WRITERS = "lattice:system"  # who alone writes where workloads are
MERGE = "application/merge-patch+json"

# As soon as it is there it is used, and the answer awaited, both looked for in every frame.
USED = """(([ready, use, answered]) => {
  const look = () => {
    const found = document.querySelector(ready);
    if (!found) return void requestAnimationFrame(look);
    window.shownAt = performance.now();
    use(found);
    const wait = () => (document.querySelector(answered) ? (window.answeredAt = performance.now()) : requestAnimationFrame(wait));
    wait();
  };
  look();
})([%s, %s, %s])"""

ANSWERED = """() => new Promise((done) => {
  const look = () => (window.answeredAt ? done(window.answeredAt) : setTimeout(look, 50));
  look();
})"""


@dataclass(frozen=True)
class View:
    """What must be there to be used, how it is used, and what shows that it answered."""

    address: str
    ready: str
    use: str
    answered: str

    @property
    def script(self) -> str:
        return USED % (json.dumps(self.ready), self.use, json.dumps(self.answered))


CLICK = "(found) => found.click()"
DOWN = "(found) => found.closest('.table').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }))"
TYPE = "(found) => { found.value = 'kind'; found.dispatchEvent(new InputEvent('input', { bubbles: true })); }"
ROW = "tbody tr[data-path]"
LAST = "[role=radiogroup]:last-of-type [role=radio]:last-child"
VIEWS = {
    "fleet": View(
        "#/fleet",
        ".map .box",
        "() => document.querySelectorAll('[role=radio]')[3].click()",
        ".map[aria-label$='by memory']",
    ),
    "services": View("#/services", ROW, DOWN, f"{ROW}.active"),
    "one service": View("#/services/default/service-0001", ROW, DOWN, f"{ROW}.active"),
    "money": View(
        "#/money",
        ".budgets li",
        "() => document.querySelectorAll('[role=radio]')[1].click()",
        "[role=radio][aria-checked=true]:nth-child(2)",
    ),
    "plan": View("#/plan", "#manifests", TYPE, "button.main:not([disabled])"),
    "what-if": View("#/whatif", ".chip", CLICK, ".chip[aria-pressed=true]"),
    "nodes": View("#/nodes", ROW, DOWN, f"{ROW}.active"),
    "events": View("#/events", ROW, DOWN, f"{ROW}.active"),
}


@contextmanager
def newcomer(browser: Browser, ui_server: UiServer, view: View | None = None) -> Iterator[Page]:
    """Somebody whose browser has never been here: nothing is cached, and no connection is open. Signed in, and about to open the view."""
    context = browser.new_context(ignore_https_errors=True, viewport={"width": WIDE[0], "height": WIDE[1]})
    try:
        signed_in = context.request.post(
            f"{ui_server.url}/ui/session", headers={"X-Lattice-Page": "1"}, data={"token": ui_server.token()}
        )
        if not signed_in.ok:
            raise RuntimeError(f"signing in was answered with {signed_in.status}")
        if view is not None:
            context.add_init_script(view.script)
        yield context.new_page()
    finally:
        context.close()


def open_view(page: Page, ui_server: UiServer, view: View) -> float:
    """Milliseconds from nothing until it was used and answered."""
    page.goto(f"{ui_server.url}/ui/{view.address}")
    return float(page.evaluate(ANSWERED))


@dataclass(frozen=True)
class Blocked:
    """Milliseconds: the longest time that no key or click would have been heard, by the clock; and the longest on the processor."""

    by_clock: float
    busy: float


@contextmanager
def watched(browser: Browser, page: Page) -> Iterator[Callable[[], Blocked]]:
    """What keeps the page from listening. To be called at the end."""
    browser.start_tracing(page=page, categories=["toplevel"])
    found: list[Blocked] = []

    def blocked() -> Blocked:
        if not found:
            tasks = _tasks(json.loads(browser.stop_tracing()))
            found.append(
                Blocked(max(each["dur"] for each in tasks) / 1000, max(each["tdur"] for each in tasks) / 1000)
            )
        return found[0]

    try:
        yield blocked
    finally:
        blocked()


def _tasks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """What ran on the threads that draw pages and listen to people; microseconds."""
    events = trace["traceEvents"]
    mains = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    return [
        each
        for each in events
        if each["name"].endswith("RunTask") and "tdur" in each and (each["pid"], each["tid"]) in mains
    ]


Change = tuple[str, str, dict[str, Any]]  # method, path below the API's, body


def change(ui_server: UiServer, changes: Sequence[Change]) -> float:
    """Makes them from elsewhere, several at a time; seconds that it took."""
    ui_server.token(WRITERS)  # which is made before the clock runs
    began = time.perf_counter()
    with ThreadPoolExecutor(HANDS) as hands:
        list(
            hands.map(lambda some: _send(ui_server, some), [changes[start::HANDS] for start in range(HANDS)])
        )
    return time.perf_counter() - began


def _send(ui_server: UiServer, changes: Sequence[Change]) -> None:
    where = urlsplit(ui_server.url)
    trusting = ssl._create_unverified_context()  # noqa: S323 - its own server, on this machine
    connection = http.client.HTTPSConnection(where.hostname or "", where.port, context=trusting, timeout=30)
    try:
        for method, path, body in changes:
            kind = MERGE if method == "PATCH" else "application/json"
            headers = {"Authorization": f"Bearer {ui_server.token(WRITERS)}", "Content-Type": kind}
            connection.request(
                method, path if path.startswith("/") else f"{API}/{path}", json.dumps(body), headers
            )
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path} was answered with {answer.status}: {said[:200]!r}")
    finally:
        connection.close()
