"""Run `async def` tests, and report which foreign programs and clients really ran."""

import asyncio
import functools
import inspect
import re
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

import pytest

ASYNC_TEST_TIMEOUT_S = 120.0
CLIENTS = ("kopf", "kubernetes", "kubernetes-asyncio", "kr8s", "lightkube")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on an event loop of its own; a test that hangs fails after the timeout.

    Hypothesis calls the test function itself, once an example: each example runs on its own loop.
    """
    test = pyfuncitem.obj
    property_test = getattr(test, "hypothesis", None)
    if property_test is not None:
        if inspect.iscoroutinefunction(property_test.inner_test):
            property_test.inner_test = _run_on_own_loop(property_test.inner_test)
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run_on_own_loop(test)(**arguments)
    return True


def _run_on_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **options), ASYNC_TEST_TIMEOUT_S))

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    node_ids = [
        report.nodeid
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
    ]
    matches = (re.search(r"test_kubectl\[(\d+\.\d+\.\d+)", node_id) for node_id in node_ids)
    kubectl_versions = sorted({tuple(map(int, match[1].split("."))) for match in matches if match})
    if kubectl_versions:
        terminalreporter.write_line(
            "kubectl versions run: "
            + ", ".join(".".join(map(str, kubectl_version)) for kubectl_version in kubectl_versions)
        )
    if any("test_clients" in node_id or "test_kopf" in node_id for node_id in node_ids):
        terminalreporter.write_line(
            "clients run: " + ", ".join(f"{client} {version(client)}" for client in CLIENTS)
        )
    if any("etcd" in node_id for node_id in node_ids) and (program := shutil.which("etcd")):
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        terminalreporter.write_line("etcd run: " + output.partition("\n")[0].removeprefix("etcd Version: "))
    skip_reasons = sorted(
        {
            str(report.longrepr[2]).removeprefix("Skipped: ")
            for report in terminalreporter.stats.get("skipped", ())
            if isinstance(report.longrepr, tuple)
        }
    )
    for skip_reason in skip_reasons:
        terminalreporter.write_line(f"skipped here: {skip_reason}")
