"""Measures a list of 10,000 objects, and the delay of small requests during the list."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from build.servers import Server, running_server

from bench import objects
from bench.load import drive, target
from bench.prober import probing
from bench.report import Report
from bench.scale import Scale
from bench.wire import Line

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
# Objects per page of kubectl.
PAGE = 500
SMALL = f"{objects.SERVICES}/long-000000"
MAX_WAIT_MS = 50.0
OTHER_FORMS = (
    ("one Table without pages", objects.SERVICES, TABLE),
    ("metadata only", objects.SERVICES, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
    ("the opening of a watch", f"{objects.SERVICES}?watch=1&timeoutSeconds=1", "application/json"),
    ("the opening of a watch as a Table", f"{objects.SERVICES}?watch=1&timeoutSeconds=1", TABLE),
)


def measure(report: Report, scale: Scale, folder: Path) -> None:
    with running_server(folder / "data") as server:
        result = asyncio.run(drive(target(server.kubeconfig), objects.creates("long", scale.objects)))
        assert result.count == scale.objects, result.refused
        with probing(server.kubeconfig, SMALL) as quiet:
            time.sleep(1)
        report.add(
            "longest wait of a small get, nothing else going on",
            quiet.longest,
            "ms",
            note=f"median {quiet.median:.1f} ms",
        )
        _measure_list(report, scale, server)
        _measure_pages(report, scale, server)
        for name, path, accept in OTHER_FORMS:
            _measure_form(report, scale, server, (name, path, accept))


def _measure_list(report: Report, scale: Scale, server: Server) -> None:
    line = Line(target(server.kubeconfig))

    def read() -> int:
        body = line.ask(objects.SERVICES)
        return len(body)

    seconds, size, longest = _under_probe(server, scale.lists, read)
    assert len(json.loads(line.ask(objects.SERVICES))["items"]) == scale.objects
    report.add(
        f"list of {scale.objects:,} objects, slowest of {scale.lists}",
        max(seconds),
        "s",
        at_most=0.6,
        note=f"{size:,} bytes",
    )
    report.add("longest wait of a small get meanwhile", longest, "ms", at_most=MAX_WAIT_MS)


def _measure_pages(report: Report, scale: Scale, server: Server) -> None:
    line = Line(target(server.kubeconfig))

    def read() -> int:
        size, rows, token = 0, 0, ""
        while True:
            body = line.ask(
                f"{objects.SERVICES}?limit={PAGE}" + (f"&continue={token}" if token else ""), TABLE
            )
            page = json.loads(body)
            size, rows, token = (
                size + len(body),
                rows + len(page["rows"]),
                page["metadata"].get("continue", ""),
            )
            if not token:
                assert rows == scale.objects
                return size

    seconds, size, longest = _under_probe(server, scale.lists, read)
    report.add(
        f"the same as a Table in pages of {PAGE}, slowest of {scale.lists}",
        max(seconds),
        "s",
        note=f"{size:,} bytes",
    )
    report.add("longest wait of a small get meanwhile", longest, "ms", at_most=MAX_WAIT_MS)


def _measure_form(report: Report, scale: Scale, server: Server, form: tuple[str, str, str]) -> None:
    name, path, accept = form
    line = Line(target(server.kubeconfig))
    _, _, longest = _under_probe(server, min(3, scale.lists), lambda: len(line.ask(path, accept)))
    report.add(f"longest wait of a small get during {name}", longest, "ms", at_most=MAX_WAIT_MS)


def _under_probe(server: Server, times: int, read: Callable[[], int]) -> tuple[list[float], int, float]:
    seconds, size = [], 0
    with probing(server.kubeconfig, SMALL) as probe:
        for _ in range(times):
            began = time.perf_counter()
            size = read()
            seconds.append(time.perf_counter() - began)
    return seconds, size, probe.longest
