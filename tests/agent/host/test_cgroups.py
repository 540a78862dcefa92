"""Cgroups: parent hierarchies of instances, and the files that are written for a limit."""

from pathlib import Path
from typing import Literal

import pytest

from lattice.agent.host.cgroups import (
    Hierarchy,
    candidate_parents,
    create_cgroups,
    limit_files,
    process_cgroups,
    weight_files,
    writable_hierarchies,
)
from lattice.agent.host.runtime_protocol import Limits

BOTH = frozenset({"cpu", "memory"})
V1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"


@pytest.mark.parametrize(
    ("limits", "version", "controllers", "expected"),
    [
        pytest.param(
            Limits(cpu=1500, memory=1024),
            2,
            BOTH,
            {"cpu.max": "150000 100000", "memory.max": "1024", "memory.swap.max": "0"},
            id="v2",
        ),
        pytest.param(
            Limits(cpu=250, memory=1024),
            1,
            BOTH,
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000", "memory.limit_in_bytes": "1024"},
            id="v1",
        ),
        pytest.param(
            Limits(cpu=1),
            2,
            BOTH,
            {"cpu.max": "1000 100000"},
            id="the kernel takes no quota below a millisecond",
        ),
        pytest.param(Limits(), 2, BOTH, {}, id="no limit, nothing to write"),
        pytest.param(Limits(cpu=1000), 2, frozenset(), {}, id="a hierarchy that cannot limit"),
    ],
)
def test_limit_files_per_cgroup_version(
    limits: Limits, version: Literal[1, 2], controllers: frozenset[str], expected: dict[str, str]
) -> None:
    assert limit_files(limits, version, controllers) == expected


@pytest.mark.parametrize(
    ("requested", "shares", "weight"),
    [
        pytest.param(None, "2", "1", id="no request gets what is left"),
        pytest.param(500, "512", "20", id="half a core"),
        pytest.param(4000, "4096", "157", id="four cores"),
        pytest.param(10_000_000, "262144", "10000", id="the bounds of the kernel"),
    ],
)
def test_cpu_share_follows_the_request(requested: int | None, shares: str, weight: str) -> None:
    assert weight_files(Limits(cpu=requested), 1, BOTH) == {"cpu.shares": shares}
    assert weight_files(Limits(cpu=requested), 2, BOTH) == {"cpu.weight": weight}


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        pytest.param(
            V1,
            "4:memory:/job/7\n1:cpu,cpuacct:/\n",
            ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory/job/7"],
            id="v1: below our own",
        ),
        pytest.param(
            V2, "0::/system.slice/lattice.service\n", ["/sys/fs/cgroup/system.slice"], id="v2: beside our own"
        ),
        pytest.param(V2, "0::/\n", ["/sys/fs/cgroup"], id="v2: below the root, if we are there"),
    ],
)
def test_parent_cgroups_of_instances(mounts: str, own: str, expected: list[str]) -> None:
    assert [str(hierarchy.path) for hierarchy in candidate_parents(mounts, own)] == expected


def test_cgroups_of_a_process() -> None:
    assert [str(hierarchy.path) for hierarchy in process_cgroups(V2, "0::/a/b\n")] == ["/sys/fs/cgroup/a/b"]


def test_unwritable_hierarchies_are_not_used(tmp_path: Path) -> None:
    plain = tmp_path / "no-cgroup"
    plain.mkdir()
    assert writable_hierarchies([Hierarchy(plain, 1, BOTH), Hierarchy(tmp_path / "missing", 2, BOTH)]) == []


def test_failed_limit_is_not_reported_as_enforced(tmp_path: Path) -> None:
    (tmp_path / "x" / "cpu.max").mkdir(parents=True)  # a folder cannot be written to
    paths, enforced = create_cgroups([Hierarchy(tmp_path, 2, BOTH)], "x", Limits(cpu=100))
    assert paths == (str(tmp_path / "x"),)
    assert enforced == {}
