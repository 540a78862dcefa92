"""`python -m bench.page [--quick]`: how soon is the page there, does it stay smooth with a large fleet, and how soon does it show a change?

In a real browser, on a server of its own. Times are medians of several visits. How long a change keeps the page from listening is told
twice: as the longest task's own time on the processor, worst of all rounds, and by the clock, which also counts what else the machine did.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from browsing import CHROMIUM, EXAMPLES, Shop, Visitor, a_browser, read_until, until
from playwright.sync_api import Browser, Page
from servers import running_server

from bench import machine
from bench.page_world import Size, write
from bench.report import Report
from lattice.ui import assets

VISITS = 5
ROUNDS = 3  # of changes
CHANGES = 40
SHOWN = """(() => {
  const look = () => (document.querySelector(%r) ? (window.shownAt = performance.now()) : requestAnimationFrame(look));
  look();
})()"""
VIEWS = {"fleet": ".map .box", "nodes": "tbody tr[data-path]", "services": "tbody tr[data-path]"}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet, to see that it runs; nothing is kept")
    quick = parser.parse_args(words).quick
    report = Report(machine.facts())
    if not CHROMIUM:
        sys.exit("there is no chromium here: make tools installs it where it can")
    size = Size(50, 500) if quick else Size()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        large = Path(folder) / "large"
        write(large, size)  # before the browser is there, whose event loop leaves no room for another
        browser = stack.enter_context(a_browser())
        report.begin("files")
        report.add("all files of the page, compressed", sum(len(each.gzipped) for each in assets().values()) / 1024, "KiB", at_most=150)
        _quickstart(report, browser, Path(folder) / "small")
        _large(report, browser, large, size)
    if not quick:
        report.save("page")
    print(f"\n{len(report.missed)} aims missed" if report.missed else "\nevery aim reached")
    return 1 if report.missed else 0


@contextmanager
def _served(folder: Path, *flags: str) -> Iterator[Shop]:
    with running_server(folder, *flags) as server:
        yield Shop(server, read_until(server, "Ctrl-C stops it."))


def _quickstart(report: Report, browser: Browser, folder: Path) -> None:
    report.begin("quickstart")
    flags = ("--controllers", "*", "--providers", "local,docker=local", "--seed", str(EXAMPLES / "quickstart"))
    with _served(folder, *flags) as shop:
        until(shop.is_ready, "every service of the quickstart runs")
        report.add("first view, from nothing until it can be used", _opened(browser, shop, "fleet"), "ms", at_most=1000)


def _large(report: Report, browser: Browser, folder: Path, size: Size) -> None:
    report.begin(f"{size.workloads:,} workloads on {size.nodes:,} nodes")
    with _served(folder) as shop:
        for view in VIEWS:
            report.add(f"{view}, from nothing until it can be used", _opened(browser, shop, view), "ms", at_most=2000)
        for view in VIEWS:
            rounds = [_changed(browser, shop, view, turn) for turn in range(ROUNDS)]
            worst = max(rounds, key=lambda each: each.busy)
            by_clock = ", ".join(f"{each.by_clock:.0f}" for each in rounds)
            what = f"{view}: longest task while {CHANGES} {_changing(view)} change"
            report.add(what, worst.busy, "ms", at_most=100, note=f"on the processor; by the clock {by_clock} ms in {ROUNDS} rounds")
            if view == "nodes":
                report.add("a change of a node is shown after", statistics.median(each.shown for each in rounds), "ms", at_most=2000)


def _opened(browser: Browser, shop: Shop, view: str) -> float:
    """By the browser's own clock, each time with nothing of the page cached."""
    times = []
    for _ in range(VISITS):
        visit = Visitor(browser, shop)
        page = visit("icon.svg", fresh=True)
        page.add_init_script(SHOWN % VIEWS[view])
        page.goto(f"{shop.url}/ui/#/{view}")
        page.wait_for_selector(VIEWS[view])
        times.append(page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(window.shownAt))))"))
        visit.close()
    return statistics.median(times)


@dataclass(frozen=True)
class Round:
    """Milliseconds: the longest task on the processor, the longest by the clock, and until a change was seen."""

    busy: float
    by_clock: float
    shown: float


def _changed(browser: Browser, shop: Shop, view: str, turn: int) -> Round:
    """Every write changes something."""
    visit = Visitor(browser, shop)
    page = visit(f"#/{view}", fresh=True)
    page.wait_for_selector(VIEWS[view])
    page.wait_for_timeout(3000)  # until everything is listed
    browser.start_tracing(page=page, categories=["toplevel"])
    for number in range(CHANGES):
        if _changing(view) == "services":
            _patch(page, ("latticeservices", "default", f"service-{number:04}"), {"metadata": {"labels": {"turn": str(turn)}}})
        else:
            _patch(page, ("latticenodes", "", f"node-{number % 10:04}"), {"spec": {"unschedulable": number // 10 % 2 == 0}})
    shown = _seen(page) if view == "nodes" else 0.0
    page.wait_for_timeout(1500)
    tasks = _tasks(json.loads(browser.stop_tracing()))
    visit.close()
    return Round(max(each["tdur"] for each in tasks) / 1000, max(each["dur"] for each in tasks) / 1000, shown)


def _seen(page: Page) -> float:
    _patch(page, ("latticenodes", "", "node-0001"), {"spec": {"unschedulable": False}})
    page.wait_for_selector("tr[data-path='/node-0001'] .badge:text('Ready')")
    began = page.evaluate("performance.now()")
    _patch(page, ("latticenodes", "", "node-0001"), {"spec": {"unschedulable": True}})
    page.wait_for_selector("tr[data-path='/node-0001'] .badge:text('Cordoned')")
    return float(page.evaluate("performance.now()")) - float(began)


def _tasks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """What ran on the threads that draw pages and listen to people; microseconds."""
    events = trace["traceEvents"]
    mains = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"}
    return [each for each in events if each["name"].endswith("RunTask") and "tdur" in each and (each["pid"], each["tid"]) in mains]


def _changing(view: str) -> str:
    return "services" if view == "services" else "nodes"


def _patch(page: Page, target: tuple[str, str, str], change: dict[str, object]) -> None:
    """By the page's own words."""
    script = """([target, change]) => import("/ui/lib/api.js")
      .then(({ patch, objectPath }) => patch(objectPath(...target), change))
      .then(() => null)"""
    page.evaluate(script, [list(target), change])


if __name__ == "__main__":
    sys.exit(main())
