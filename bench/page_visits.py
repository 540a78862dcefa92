"""Visits of the page by the browser's clock: time until the page answers, and time of blocked input."""

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

# Connections of the writers.
WRITER_CONNECTIONS = 6
# The group that alone may write bindings.
WRITERS = "lattice:system"
MERGE = "application/merge-patch+json"

# Uses the view as soon as the view is ready and waits for the answer; both are checked in every frame.
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
    """The selector of a ready view, the script that uses the view, and the selector of the answer."""

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
    """A page of a new browser context without caches or connections, signed in and about to open the view."""
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
    """Milliseconds from the first request until the view was used and has answered."""
    page.goto(f"{ui_server.url}/ui/{view.address}")
    return float(page.evaluate(ANSWERED))


@dataclass(frozen=True)
class Blocked:
    """Milliseconds: the longest time of blocked input by the clock, and the longest processor time of a task."""

    by_clock: float
    busy: float


@contextmanager
def watched(browser: Browser, page: Page) -> Iterator[Callable[[], Blocked]]:
    """Trace the page; the yielded function ends the trace and returns the blocked times."""
    browser.start_tracing(page=page, categories=["toplevel"])
    results: list[Blocked] = []

    def blocked() -> Blocked:
        if not results:
            tasks = _tasks(json.loads(browser.stop_tracing()))
            results.append(
                Blocked(max(task["dur"] for task in tasks) / 1000, max(task["tdur"] for task in tasks) / 1000)
            )
        return results[0]

    try:
        yield blocked
    finally:
        blocked()


def _tasks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Tasks of the browser's main threads, in microseconds."""
    events = trace["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event
        for event in events
        if event["name"].endswith("RunTask") and "tdur" in event and (event["pid"], event["tid"]) in mains
    ]


# Method, path below the API's, body.
Change = tuple[str, str, dict[str, Any]]


def change(ui_server: UiServer, changes: Sequence[Change]) -> float:
    """Send the changes over several connections; returns the seconds."""
    # Create the token before the measurement.
    ui_server.token(WRITERS)
    began = time.perf_counter()
    with ThreadPoolExecutor(WRITER_CONNECTIONS) as hands:
        list(
            hands.map(
                lambda part: _send(ui_server, part),
                [changes[start::WRITER_CONNECTIONS] for start in range(WRITER_CONNECTIONS)],
            )
        )
    return time.perf_counter() - began


def _send(ui_server: UiServer, changes: Sequence[Change]) -> None:
    url = urlsplit(ui_server.url)
    context = ssl._create_unverified_context()  # noqa: S323 - its own server, on this machine
    connection = http.client.HTTPSConnection(url.hostname or "", url.port, context=context, timeout=30)
    try:
        for method, path, body in changes:
            kind = MERGE if method == "PATCH" else "application/json"
            headers = {"Authorization": f"Bearer {ui_server.token(WRITERS)}", "Content-Type": kind}
            connection.request(
                method, path if path.startswith("/") else f"{API}/{path}", json.dumps(body), headers
            )
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path} was answered with {answer.status}: {text[:200]!r}")
    finally:
        connection.close()
