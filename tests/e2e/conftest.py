"""What end-to-end tests share: the servers of tests/, and a line that says which kubectl versions really ran."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # servers.py


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    ids = (re.search(r"test_kubectl\[(\d+\.\d+\.\d+)", report.nodeid) for report in reports)
    versions = sorted({tuple(map(int, found[1].split("."))) for found in ids if found})
    if versions:
        terminalreporter.write_line("kubectl versions run: " + ", ".join(".".join(map(str, version)) for version in versions))
