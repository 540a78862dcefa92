"""`python -m bench.page [--quick]`: measures the page in a browser: time to first use, blocked input with a
large fleet, delay of a change.

The server has no controllers, so the benchmark is the only writer. "From nothing" is a new browser, from the
first packet until the view has answered a key or a click; medians of several visits. Blocked input is the
longest task of the page by the clock, the worst of all rounds, traced from the first packet on, beside the
task's processor time.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build.browser import CHROMIUM, EXAMPLES, UiServer, a_browser, read_until
from build.servers import running_server
from build.waiting import wait_until
from playwright.sync_api import Browser

from bench import machine
from bench.page_visits import VIEWS, Blocked, Change, View, change, newcomer, open_view, watched
from bench.page_world import Size, write
from bench.report import Report
from lattice.ui import assets

VISITS = 5
ROUNDS = 3
# Objects that change, or are created, within about a second.
WORKLOADS, NODES, SERVICES, EVENTS = 200, 40, 40, 20
# Milliseconds until a view has loaded its whole list.
LISTED_MS = 2500
# Milliseconds after the changes until the page is quiet.
SETTLED_MS = 1500


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a small fleet, to see that it runs; nothing is kept"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="one visit and one round of each, to see where it stands; nothing is kept",
    )
    options = parser.parse_args(arguments)
    report = Report(machine.facts())
    if not CHROMIUM:
        sys.exit("there is no chromium here: make tools installs it where it can")
    size = Size(250, 2500, events=500) if options.quick else Size()
    visits, rounds = (1, 1) if options.quick or options.once else (VISITS, ROUNDS)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        large = Path(folder) / "large"
        # Before the browser exists, because its event loop excludes a second loop.
        write(large, size)
        browser = stack.enter_context(a_browser())
        report.begin("files")
        report.add(
            "all files of the page, compressed",
            sum(len(asset.gzipped) for asset in assets().values()) / 1024,
            "KiB",
            at_most=150,
        )
        _quickstart(report, browser, Path(folder) / "small", visits)
        report.begin(f"{size.workloads:,} workloads on {size.nodes:,} nodes, {size.events:,} events")
        with _served(large) as ui_server:
            _opening(report, browser, ui_server, (visits, rounds))
            _changing(report, browser, ui_server, (size, rounds))
    if not (options.quick or options.once):
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
        wait_until(ui_server.is_ready, "every service of the quickstart runs")
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
        blocked = [_while_opening(browser, ui_server, view) for _ in range(rounds)]
        _add_blocked(report, f"{name}: longest block while it opens and lists", blocked)


def _soon(browser: Browser, ui_server: UiServer, view: View, visits: int) -> float:
    times = []
    for _ in range(visits):
        with newcomer(browser, ui_server, view) as page:
            times.append(open_view(page, ui_server, view))
    return statistics.median(times)


def _while_opening(browser: Browser, ui_server: UiServer, view: View) -> Blocked:
    with newcomer(browser, ui_server, view) as page, watched(browser, page) as blocked:
        open_view(page, ui_server, view)
        page.wait_for_timeout(LISTED_MS)
        return blocked()


def _changing(report: Report, browser: Browser, ui_server: UiServer, times: tuple[Size, int]) -> None:
    size, rounds = times
    turns = iter(range(1, 1000))
    count = WORKLOADS + NODES + SERVICES + EVENTS
    changed_objects = f"{WORKLOADS} workloads, {NODES} nodes, {SERVICES} services, {EVENTS} new events"
    for name, view in VIEWS.items():
        blocked_times, durations = [], []
        for _ in range(rounds):
            with newcomer(browser, ui_server, view) as page:
                open_view(page, ui_server, view)
                page.wait_for_timeout(LISTED_MS)
                with watched(browser, page) as blocked:
                    durations.append(change(ui_server, _changes(next(turns), size)))
                    page.wait_for_timeout(SETTLED_MS)
                    blocked_times.append(blocked())
        _add_blocked(
            report,
            f"{name}: longest block while {count} objects change",
            blocked_times,
            f"; {changed_objects} in {max(durations):.1f} s",
        )
    shown = [_change_delay(browser, ui_server) for _ in range(rounds)]
    report.add("a change of a node is shown after", statistics.median(shown), "ms", at_most=2000)


def _changes(turn: int, size: Size) -> list[Change]:
    """Changes that the page shows: workloads move to new nodes, which is the most work for the node view."""
    changes: list[Change] = []
    for number in range(WORKLOADS):
        name = f"service-{number % (size.workloads // size.replicas):04}-{number % size.replicas}"
        status = {"binding": {"node": f"node-{(number + 31 * turn) % size.nodes:04}"}}
        changes.append(("PATCH", f"namespaces/default/latticeworkloads/{name}/status", {"status": status}))
    cordon, label = {"spec": {"unschedulable": turn % 2 == 0}}, {"metadata": {"labels": {"turn": str(turn)}}}
    changes += [("PATCH", f"latticenodes/node-{number:04}", cordon) for number in range(NODES)]
    changes += [
        ("PATCH", f"namespaces/default/latticeservices/service-{number:04}", label)
        for number in range(SERVICES)
    ]
    for number in range(EVENTS):
        involved_object = {
            "kind": "LatticeNode",
            "apiVersion": "lattice.dev/v1alpha1",
            "name": f"node-{number:04}",
        }
        body = {
            "metadata": {"name": f"came-{turn}-{number}"},
            "involvedObject": involved_object,
            "reason": "NodeReady",
            "message": "it came",
        }
        changes.append(
            (
                "POST",
                "/api/v1/namespaces/default/events",
                {"apiVersion": "v1", "kind": "Event", **body, "type": "Normal"},
            )
        )
    # Mixes the kinds.
    return sorted(changes, key=lambda change: hash(change[1]) % 97)


def _change_delay(browser: Browser, ui_server: UiServer) -> float:
    """Milliseconds by the page's clock from before the change is sent until the page shows the change."""
    with newcomer(browser, ui_server) as page:
        page.goto(f"{ui_server.url}/ui/#/nodes")
        for is_cordoned, word in ((False, "Ready"), (True, "Cordoned")):
            began = float(page.evaluate("performance.now()"))
            change(ui_server, [("PATCH", "latticenodes/node-0001", {"spec": {"unschedulable": is_cordoned}})])
            page.wait_for_selector(f"tr[data-path='/node-0001'] .badge:text('{word}')")
        return float(page.evaluate("performance.now()")) - began


def _add_blocked(report: Report, subject: str, blocked: Sequence[Blocked], suffix: str = "") -> None:
    worst = max(blocked, key=lambda sample: sample.by_clock)
    busy = max(sample.busy for sample in blocked)
    report.add(
        subject,
        worst.by_clock,
        "ms",
        at_most=100,
        note=f"by the clock; {busy:.0f} ms on the processor{suffix}",
    )


if __name__ == "__main__":
    sys.exit(main())
