"""Cells of the tables that `get` prints."""

from datetime import UTC, datetime
from typing import Any

import pytest

from lattice.kinds.workload import LatticeWorkload
from lattice.server.resources.table_rows import TableOptions, table

LONG = "dial tcp: lookup registry.invalid on 10.255.255.53:53: no such host"


@pytest.mark.parametrize(
    ("ready", "cells"),
    [
        pytest.param(False, ["IMAGE_PULL_FAILED", f"{LONG[:59]}…"], id="a failure, and its details cut"),
        pytest.param(True, ["", ""], id="a workload that is ready again"),
    ],
)
def test_failure_is_shown_until_the_workload_is_ready(ready: bool, cells: list[str]) -> None:
    status = {"ready": ready, "failureReason": "IMAGE_PULL_FAILED", "failureMessage": LONG}
    workload: dict[str, Any] = {"metadata": {"name": "web-0"}, "spec": {}, "status": status}
    options = TableOptions(LatticeWorkload.resource, datetime(2026, 11, 15, tzinfo=UTC))
    shown = table(options, [workload], {})
    names = [column["name"] for column in shown["columnDefinitions"]]
    (row,) = shown["rows"]
    assert [row["cells"][names.index(name)] for name in ("Reason", "How")] == cells
