"""The state file: consistent after a kill at any moment, one agent per folder, and clear errors when it is
unusable."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from build.assignments import a_spec, an_assignment, instance_id
from build.process_node import written

from lattice.agent.host.runtime_protocol import Handle, InstanceRecord, new_instance
from lattice.agent.state_file import AgentState, StateFile
from lattice.errors import Conflict, Full, Invalid

WRITER = """
import sys
from pathlib import Path
from build.assignments import a_spec, instance_id
from lattice.agent.host.runtime_protocol import Handle, InstanceRecord, new_instance
from lattice.agent.state_file import StateFile
file = StateFile(Path(sys.argv[1]))
for number in range(1, 1_000_000):
    spec = a_spec("x" * 2000, id=instance_id(uid=f"u{number % 20}"))
    file.write_record(InstanceRecord(spec, new_instance(spec, "Running"), Handle(pid=number)))
    print(number, flush=True)
"""


def a_record(uid: str = "u1") -> InstanceRecord:
    spec = a_spec("sleep", "60", id=instance_id(uid=uid))
    return InstanceRecord(
        spec, new_instance(spec, "Running"), Handle(42, 4711, "boot", ("/sys/fs/cgroup/x",))
    )


def test_state_survives_restart(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write_record(a_record("u1"))
    file.write_record(a_record("u2"))
    file.delete_record(instance_id(uid="u1"))
    file.save_assignments((an_assignment(term=7),), 7)
    file.close()
    again = StateFile(tmp_path)
    assert again.state == AgentState(term=7, wanted=(an_assignment(term=7),), records=(a_record("u2"),))
    again.close()


def test_state_is_readable_by_owner_only(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "agent")
    file.write_record(a_record())
    assert (file.path.stat().st_mode & 0o777, (tmp_path / "agent").stat().st_mode & 0o777) == (0o600, 0o700)
    file.close()


@pytest.mark.parametrize("after_ms", [0, 3, 9, 21, 37, 64])
def test_kill_loses_no_acknowledged_record(tmp_path: Path, after_ms: int) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env
    ) as writer:
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(3)]
        time.sleep(after_ms / 1000)
        writer.kill()
        lines += writer.stdout.readlines()
    acknowledged = max(int(line) for line in lines if line.endswith("\n"))
    newest = max(record.handle.pid for record in written(tmp_path).records)
    assert acknowledged <= newest <= acknowledged + 1
    StateFile(tmp_path).close()


def test_two_agents_cannot_share_a_folder(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    with pytest.raises(Conflict, match="another agent uses this folder"):
        StateFile(tmp_path)
    file.close()
    StateFile(tmp_path).close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "is not an agent state file", id="an empty file"),
        pytest.param(b'{"records": 5}', "is not an agent state file", id="something else"),
        pytest.param(b'{"format": 9}', "has format 9, this agent reads 1", id="a file of a later version"),
    ],
)
def test_unreadable_state_is_not_overwritten(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "state.json").write_bytes(content)
    for _ in range(2):
        with pytest.raises(Invalid, match=says):
            StateFile(tmp_path)
    assert (tmp_path / "state.json").read_bytes() == content


def test_full_disk_keeps_previous_state(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        file = StateFile(disk / "agent")
        file.write_record(a_record("u1"))
        (disk / "filler").write_bytes(bytes(40_000))
        big = a_spec("x" * 40_000, id=instance_id(uid="u2"))
        with pytest.raises(Full, match="no disk space to write the agent's state"):
            file.write_record(InstanceRecord(big, new_instance(big, "Running")))
        assert file.state.records == (a_record("u1"),)
        assert written(disk / "agent").records == (a_record("u1"),)
        file.close()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
