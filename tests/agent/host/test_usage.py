"""Usage: milli-cores from CPU counters, and the usage of the machine from /proc."""

from pathlib import Path

import pytest
from build.virtual import VirtualClock

from lattice.agent.host.usage import (
    CpuMeter,
    NodeMeter,
    busy_ns,
    capacity,
    disk_bytes,
    memory_in_use,
    process_memory,
)
from lattice.clock import SystemClock


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        pytest.param([0, 2_000_000_000], [0, 1000], id="two seconds of work in two seconds are one core"),
        pytest.param(
            [5_000_000_000, 6_000_000_000, 6_000_000_000],
            [0, 500, 0],
            id="only what was used since the last look",
        ),
        pytest.param([2_000_000_000, 1_000_000_000], [0, 0], id="a counter that fell is not negative work"),
    ],
)
def test_milli_cores(counters: list[int], expected: list[int]) -> None:
    clock = VirtualClock()
    meter, seen = CpuMeter(clock), []
    for counter in counters:
        seen.append(meter.milli_cores("x", counter))
        clock.jump(2)
    assert seen == expected


def test_two_samples_at_same_time_give_zero() -> None:
    meter = CpuMeter(VirtualClock())
    assert [meter.milli_cores("x", 1), meter.milli_cores("x", 10**9)] == [0, 0]


def test_idle_and_iowait_are_not_busy() -> None:
    assert busy_ns("cpu  100 10 50 9999 7777 5 5 30 400 0\n") == 200 * 10_000_000


def test_available_memory_is_not_in_use() -> None:
    assert memory_in_use("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\n") == 600 * 1024


def test_node_meter_reads_this_machine(tmp_path: Path) -> None:
    used, whole = NodeMeter(SystemClock(), tmp_path).usage(), capacity(tmp_path)
    assert 0 < used.memory < whole["memory"]
    assert 0 < used.disk < whole["disk"]
    assert whole["cpu"] >= 1000


def test_disk_usage_counts_blocks(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(bytes(10_000))
    (tmp_path / "link").symlink_to("/usr")
    assert 10_000 <= disk_bytes(tmp_path) <= 20_000


def test_exited_process_uses_no_memory() -> None:
    assert process_memory([2**22 - 1]) == 0
