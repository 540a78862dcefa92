"""One running quickstart and one browser for all tests of the page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from build.browser import EXAMPLES, UiServer, Visitor, a_browser, chromium_needed, read_until
from build.servers import running_server
from build.waiting import wait_until
from playwright.sync_api import Browser, BrowserContext

FLAGS = ("--controllers", "*", "--providers", "local,docker=local", "--heartbeat", "1")


@pytest.fixture(scope="session")
def ui_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    folder: Path = tmp_path_factory.mktemp("shop")
    with running_server(folder, *FLAGS, "--seed", str(EXAMPLES / "quickstart")) as server:
        made = UiServer(server, read_until(server, "Press Ctrl-C to stop."))
        wait_until(made.is_ready, "every service of the quickstart runs")
        yield made


@pytest.fixture(
    scope="module"
)  # as long as it is open its event loop runs, and tests of others could start none
def browser() -> Iterator[Browser]:
    chromium_needed()
    with a_browser() as found:
        yield found


@pytest.fixture(scope="module")
def signed_in() -> dict[str, BrowserContext]:
    """By group: signing in anew for every test would only take time."""
    return {}


@pytest.fixture
def visit(browser: Browser, ui_server: UiServer, signed_in: dict[str, BrowserContext]) -> Iterator[Visitor]:
    """Opens the page; afterwards nothing may have gone wrong on any that was opened."""
    visitor = Visitor(browser, ui_server, signed_in)
    yield visitor
    visitor.close()
    assert visitor.wrongs == []
