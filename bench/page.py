"""`python -m bench.page [--quick]`: how soon is the page there, does it stay smooth with a large fleet, and how soon does it show a change?

In a real browser, on a server of its own whose controllers are off: nobody writes but the benchmark. "From nothing" is a browser that
was never here, from the first packet until the view has answered a key or a click; medians of several visits. What blocks input is the
longest task of the page by the clock, worst of all rounds, traced from the first packet on; its time on the processor stands beside it.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build.browser import CHROMIUM, EXAMPLES, UiServer, a_browser, read_until, until
from build.servers import running_server
from playwright.sync_api import Browser

from bench import machine
from bench.page_visits import VIEWS, Blocked, Change, View, change, newcomer, open_view, watched
from bench.page_world import Size, write
from bench.report import Report
from lattice.ui import assets

VISITS = 5
ROUNDS = 3
WORKLOADS, NODES, SERVICES, EVENTS = 200, 40, 40, 20  # that change, or come, within about a second
LISTED = 2500  # milliseconds until everything that a view lists is there
SETTLED = 1500


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a small fleet, to see that it runs; nothing is kept"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="one visit and one round of each, to see where it stands; nothing is kept",
    )
    given = parser.parse_args(words)
    report = Report(machine.facts())
    if not CHROMIUM:
        sys.exit("there is no chromium here: make tools installs it where it can")
    size = Size(250, 2500, events=500) if given.quick else Size()
    visits, rounds = (1, 1) if given.quick or given.once else (VISITS, ROUNDS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        large = Path(folder) / "large"
        write(large, size)  # before the browser is there, whose event loop leaves no room for another
        browser = stack.enter_context(a_browser())
        report.begin("files")
        report.add(
            "all files of the page, compressed",
            sum(len(each.gzipped) for each in assets().values()) / 1024,
            "KiB",
            at_most=150,
        )
        _quickstart(report, browser, Path(folder) / "small", visits)
        report.begin(f"{size.workloads:,} workloads on {size.nodes:,} nodes, {size.events:,} events")
        with _served(large) as ui_server:
            _opening(report, browser, ui_server, (visits, rounds))
            _changing(report, browser, ui_server, (size, rounds))
    if not (given.quick or given.once):
        report.save("page")
    print(f"\n{len(report.missed)} aims missed" if report.missed else "\nevery aim reached")
    return 1 if report.missed else 0


@contextmanager
def _served(folder: Path, *flags: str) -> Iterator[UiServer]:
    with running_server(folder, *flags) as server:
        yield UiServer(server, read_until(server, "Press Ctrl-C to stop."))


def _quickstart(report: Report, browser: Browser, folder: Path, visits: int) -> None:
    report.begin("quickstart")
    flags = (
        "--controllers",
        "*",
        "--providers",
        "local,docker=local",
        "--seed",
        str(EXAMPLES / "quickstart"),
    )
    with _served(folder, *flags) as ui_server:
        until(ui_server.is_ready, "every service of the quickstart runs")
        report.add(
            "fleet, from nothing until it answers",
            _soon(browser, ui_server, VIEWS["fleet"], visits),
            "ms",
            at_most=1000,
        )


def _opening(report: Report, browser: Browser, ui_server: UiServer, times: tuple[int, int]) -> None:
    visits, rounds = times
    for name, view in VIEWS.items():
        report.add(
            f"{name}, from nothing until it answers",
            _soon(browser, ui_server, view, visits),
            "ms",
            at_most=2000,
        )
    for name, view in VIEWS.items():
        found = [_while_opening(browser, ui_server, view) for _ in range(rounds)]
        _add_blocked(report, f"{name}: longest block while it opens and lists", found)


def _soon(browser: Browser, ui_server: UiServer, view: View, visits: int) -> float:
    times = []
    for _ in range(visits):
        with newcomer(browser, ui_server, view) as page:
            times.append(open_view(page, ui_server, view))
    return statistics.median(times)


def _while_opening(browser: Browser, ui_server: UiServer, view: View) -> Blocked:
    with newcomer(browser, ui_server, view) as page, watched(browser, page) as blocked:
        open_view(page, ui_server, view)
        page.wait_for_timeout(LISTED)
        return blocked()


def _changing(report: Report, browser: Browser, ui_server: UiServer, times: tuple[Size, int]) -> None:
    size, rounds = times
    turns = iter(range(1, 1000))
    whole = WORKLOADS + NODES + SERVICES + EVENTS
    many = f"{WORKLOADS} workloads, {NODES} nodes, {SERVICES} services, {EVENTS} new events"
    for name, view in VIEWS.items():
        found, took = [], []
        for _ in range(rounds):
            with newcomer(browser, ui_server, view) as page:
                open_view(page, ui_server, view)
                page.wait_for_timeout(LISTED)
                with watched(browser, page) as blocked:
                    took.append(change(ui_server, _changes(next(turns), size)))
                    page.wait_for_timeout(SETTLED)
                    found.append(blocked())
        _add_blocked(
            report,
            f"{name}: longest block while {whole} objects change",
            found,
            f"; {many} in {max(took):.1f} s",
        )
    shown = [_seen(browser, ui_server) for _ in range(rounds)]
    report.add("a change of a node is shown after", statistics.median(shown), "ms", at_most=2000)


def _changes(turn: int, size: Size) -> list[Change]:
    """Each changes something that is shown: workloads are on other nodes then, which is the most work for who draws nodes."""
    found: list[Change] = []
    for number in range(WORKLOADS):
        name = f"service-{number % (size.workloads // size.replicas):04}-{number % size.replicas}"
        to = {"binding": {"node": f"node-{(number + 31 * turn) % size.nodes:04}"}}
        found.append(("PATCH", f"namespaces/default/latticeworkloads/{name}/status", {"status": to}))
    held, labelled = {"spec": {"unschedulable": turn % 2 == 0}}, {"metadata": {"labels": {"turn": str(turn)}}}
    found += [("PATCH", f"latticenodes/node-{number:04}", held) for number in range(NODES)]
    found += [
        ("PATCH", f"namespaces/default/latticeservices/service-{number:04}", labelled)
        for number in range(SERVICES)
    ]
    for number in range(EVENTS):
        about = {"kind": "LatticeNode", "apiVersion": "lattice.dev/v1alpha1", "name": f"node-{number:04}"}
        body = {
            "metadata": {"name": f"came-{turn}-{number}"},
            "involvedObject": about,
            "reason": "NodeReady",
            "message": "it came",
        }
        found.append(
            (
                "POST",
                "/api/v1/namespaces/default/events",
                {"apiVersion": "v1", "kind": "Event", **body, "type": "Normal"},
            )
        )
    return sorted(found, key=lambda each: hash(each[1]) % 97)  # all kinds among one another


def _seen(browser: Browser, ui_server: UiServer) -> float:
    """By the page's own clock, from before the change is sent."""
    with newcomer(browser, ui_server) as page:
        page.goto(f"{ui_server.url}/ui/#/nodes")
        for is_held, word in ((False, "Ready"), (True, "Cordoned")):
            began = float(page.evaluate("performance.now()"))
            change(ui_server, [("PATCH", "latticenodes/node-0001", {"spec": {"unschedulable": is_held}})])
            page.wait_for_selector(f"tr[data-path='/node-0001'] .badge:text('{word}')")
        return float(page.evaluate("performance.now()")) - began


def _add_blocked(report: Report, what: str, found: Sequence[Blocked], more: str = "") -> None:
    worst = max(found, key=lambda each: each.by_clock)
    busy = max(each.busy for each in found)
    report.add(
        what, worst.by_clock, "ms", at_most=100, note=f"by the clock; {busy:.0f} ms on the processor{more}"
    )


if __name__ == "__main__":
    sys.exit(main())
