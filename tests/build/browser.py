"""A browser on the page of a running server: signed in, observed for errors and for requests that leave the
origin."""

import contextlib
import json
import os
import re
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from build.servers import Server

EXAMPLES = Path(__file__).parents[2] / "examples"
API = "/apis/lattice.dev/v1alpha1"
WIDE, NARROW = (1280, 800), (390, 844)
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)


@dataclass
class UiServer:
    """The quickstart, running."""

    server: Server
    said: str  # what `lattice up` printed
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def link(self) -> str:
        """The address with the one-time code, as it was printed."""
        return re.findall(r"https://\S+/ui/#code=\S+", self.said)[0]

    def get(self, path: str) -> Any:
        """Below /apis/lattice.dev/v1alpha1, as JSON."""
        return self._sent("GET", path)

    def apply(self, text: str, kind: str = "latticeservices") -> None:
        """One object, faster than the command."""
        name = yaml.safe_load(text)["metadata"]["name"]
        self._sent("PATCH", f"{_within(kind)}/{name}?fieldManager=lattice&force=true", text)

    def delete(self, name: str, kind: str = "latticeservices") -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            self._sent("DELETE", f"{_within(kind)}/{name}")

    def _sent(self, method: str, path: str, body: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self.token()}", "Content-Type": "application/apply-patch+yaml"}
        request = urllib.request.Request(
            f"{self.url}{API}/{path}", body.encode() or None, headers, method=method
        )
        with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=10) as answer:  # noqa: S323
            return json.load(answer)

    def is_ready(self) -> bool:
        services = self.get("latticeservices")["items"]
        return bool(services) and all(
            service.get("status", {}).get("phase") == "Running" for service in services
        )

    def token(self, group: str = "lattice:admins") -> str:
        """A bearer token of a user in this group."""
        if group not in self.tokens:
            config = yaml.safe_load(
                self.server.mint(f"some-{group.rpartition(':')[2]}", group, token=True).read_text()
            )
            self.tokens[group] = config["users"][0]["user"]["token"]
        return self.tokens[group]


def _within(kind: str) -> str:
    return kind if kind in {"latticenodes", "latticeplacementpolicies"} else f"namespaces/default/{kind}"


def chromium_needed() -> None:
    """In CI a missing browser is a failure; on a laptop the tests of the page are skipped, and say so."""
    if not CHROMIUM and os.environ.get("CI"):
        pytest.fail("chromium is not installed: the page must be tested in CI")
    if not CHROMIUM:
        pytest.skip("chromium is not installed: `apt-get install chromium` runs the tests of the page, too")


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Opens pages, and remembers what they should not have done."""

    browser: Browser
    ui_server: UiServer
    known: dict[str, BrowserContext] = field(
        default_factory=dict
    )  # signed in, by group: kept, with what they have cached
    wrongs: list[str] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)

    def __call__(
        self,
        address: str = "#/fleet",
        *,
        group: str = "lattice:admins",
        size: tuple[int, int] = WIDE,
        color_scheme: Literal["light", "dark"] = "light",
        fresh: bool = False,
    ) -> Page:
        """At this address below /ui/; `group=""` is nobody. `fresh`: nobody was there before, and what is done there is forgotten."""
        page = self._context(group, fresh).new_page()
        self.pages.append(page)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=color_scheme)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrongs.append(f"error: {error}"))
        page.on("request", self._request)
        page.goto(address if "://" in address else f"{self.ui_server.url}/ui/{address}")
        return page

    def _context(self, group: str, fresh: bool) -> BrowserContext:
        if group in self.known and not fresh:
            return self.known[group]
        made = self.browser.new_context(ignore_https_errors=True)
        made.set_default_timeout(10_000)
        if group:
            body = {"token": self.ui_server.token(group)}
            assert made.request.post(
                f"{self.ui_server.url}/ui/session", headers={"X-Lattice-Page": "1"}, data=body
            ).ok
            if not fresh:
                self.known[group] = made
        return made

    def _console(self, message: ConsoleMessage) -> None:
        url = message.location.get("url", "")
        lost = (
            "409 (Conflict)" in message.text and "/latticenodes/" in url
        )  # another writer changed it first: the page retries
        output = f"console: {message.text} ({url})"
        if (
            message.type in {"error", "warning"}
            and not lost
            and not any(item in output for item in self.forgiven)
        ):
            self.wrongs.append(output)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.ui_server.url}/", "data:", "blob:")):
            self.wrongs.append(f"left the origin: {request.url}")

    def forgive(self, words: str) -> None:
        """Takes what was meant to go wrong off the list, where it must be; of several that go wrong alike, some may be told later."""
        results = [wrong for wrong in self.wrongs if words in wrong]
        assert results, (words, self.wrongs)
        self.forgiven.append(words)
        self.wrongs[:] = [wrong for wrong in self.wrongs if words not in wrong]

    def close(self) -> None:
        for page in self.pages:
            if page.context in self.known.values():
                page.close()
            else:
                page.context.close()


def read_until(server: Server, words: str) -> str:
    """What a starting server prints, up to a line with these words."""
    assert server.process.stdout is not None
    output = ""
    while words not in output:
        line = server.process.stdout.readline()
        assert line, f"it ended: {output}"
        output += line
    return output
