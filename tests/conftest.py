"""Run `async def` tests, and report which foreign programs and clients really ran."""

import asyncio
import inspect
import re
import shutil
import subprocess
from importlib.metadata import version

import pytest

ASYNC_TEST_TIMEOUT_S = 120.0
CLIENTS = ("kopf", "kubernetes", "kubernetes-asyncio", "kr8s", "lightkube")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on an event loop of its own; a test that hangs fails after the timeout."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(test(**arguments), ASYNC_TEST_TIMEOUT_S))
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    nodes = [
        report.nodeid
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
    ]
    found = (re.search(r"test_kubectl\[(\d+\.\d+\.\d+)", node) for node in nodes)
    kubectls = sorted({tuple(map(int, each[1].split("."))) for each in found if each})
    if kubectls:
        terminalreporter.write_line(
            "kubectl versions run: " + ", ".join(".".join(map(str, each)) for each in kubectls)
        )
    if any("test_clients" in node or "test_kopf" in node for node in nodes):
        terminalreporter.write_line(
            "clients run: " + ", ".join(f"{name} {version(name)}" for name in CLIENTS)
        )
    if any("etcd" in node for node in nodes) and (program := shutil.which("etcd")):
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        terminalreporter.write_line("etcd run: " + told.partition("\n")[0].removeprefix("etcd Version: "))
    skipped = sorted(
        {
            str(report.longrepr[2]).removeprefix("Skipped: ")
            for report in terminalreporter.stats.get("skipped", ())
            if isinstance(report.longrepr, tuple)
        }
    )
    for why in skipped:
        terminalreporter.write_line(f"skipped here: {why}")
