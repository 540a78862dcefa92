"""The process runtime: environment, exit, failures, limits, adoption and clean-up of processes."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from build.assignments import a_spec, instance_id, listening, shell
from build.process_node import an_agent, end_all, kill_now, running_node, written
from build.waiting import eventually

from lattice.agent.host import cgroups
from lattice.agent.host import instance_processes as groups
from lattice.agent.host.runtime_protocol import Handle, InstanceRecord, Limits, RunSpec, new_instance
from lattice.agent.runtimes.log_files import Rotation
from lattice.agent.runtimes.preflight import tag_of
from lattice.agent.runtimes.process import ProcessRuntimeOptions
from lattice.agent.runtimes.spawn import LAUNCHER
from lattice.kinds.container import Container, ExecProbe, HttpProbe, Port, Probe

WITHOUT_CGROUPS = ProcessRuntimeOptions(hierarchies=())
HAS_CGROUPS = bool(cgroups.detect())
cgroups.remove_empty_branches(cgroups.detect())
needs_cgroups = pytest.mark.skipif(not HAS_CGROUPS, reason="no cgroup is writable here")
DETACHED = "import os, time; os.fork() and os._exit(0); os.setsid(); open('child', 'w').write(str(os.getpid())); time.sleep(60)"

OF_THE_C_LIBRARY = (
    0b11 << 31
)  # signals 32 and 33: it keeps them for itself, and what `make` starts has one of them ignored


async def test_process_gets_ports_folder_and_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    ports = (Port(name="http"), Port(name="admin-api", port=9001))
    container = Container(
        command=("sh", "-c"), args=("env; pwd",), env={"COLOUR": "red", "PEER": "mine"}, ports=ports
    )
    async with running_node(tmp_path) as node:
        numbers = {"http": 31001, "admin-api": 31002}
        await node.runtime.start(
            a_spec(container=container, ports=numbers, env={"PEER": "10.0.0.1:80", "REGION": "eu"})
        )
        await node.ended(instance_id())
        lines = (await node.runtime.logs(instance_id(), 100)).splitlines()
        assert {"PORT=31001", "PORT_HTTP=31001", "PORT_ADMIN_API=31002", "COLOUR=red", "REGION=eu"} <= set(
            lines
        )
        assert "PEER=mine" in lines
        assert not any("SECRET_OF_THE_AGENT" in line for line in lines)
        assert lines[-1] == str(node.folder / "instances" / str(instance_id()) / "work")


@pytest.mark.parametrize(
    ("command", "reason", "says"),
    [
        pytest.param(
            ("no-such-program",),
            "COMMAND_NOT_FOUND",
            'command "no-such-program" was not found on PATH',
            id="a missing program",
        ),
        pytest.param(
            ("/no/such/file",),
            "COMMAND_NOT_FOUND",
            'command "/no/such/file" does not exist',
            id="a missing file",
        ),
        pytest.param(
            ("SCRIPT",),
            "COMMAND_NOT_FOUND",
            "the file or its interpreter does not exist",
            id="a script for a missing interpreter",
        ),
        pytest.param(
            ("/etc/passwd",), "INVALID_SPEC", "is not executable", id="a file that is not executable"
        ),
        pytest.param(("/etc",), "INVALID_SPEC", "is a folder", id="a folder"),
        pytest.param(("NOISE",), "INVALID_SPEC", "Exec format error", id="a program for another machine"),
        pytest.param((), "INVALID_SPEC", "has no command to run", id="nothing at all"),
        pytest.param(
            ("sh", "-c", "a\0b"), "INVALID_SPEC", "NUL character", id="an argument with a null byte"
        ),
    ],
)
async def test_impossible_start_is_not_retryable(
    tmp_path: Path, command: tuple[str, ...], reason: str, says: str
) -> None:
    for name, content in (("NOISE", b"\x7fELF" + bytes(60)), ("SCRIPT", b"#!/no/such/shell\n")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    command = tuple(str(tmp_path / word) if word in ("NOISE", "SCRIPT") else word for word in command)
    async with running_node(tmp_path / "node") as node:
        end = await node.runtime.start(a_spec(container=Container(command=command)))
        assert end.failure
        assert says in end.failure.message
        assert (end.failure.reason, end.failure.is_retryable, end.state) == (reason, False, "Exited")


async def test_an_image_needs_another_runtime(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        end = await node.runtime.start(a_spec(container=Container(image="nginx", command=("nginx",))))
        assert end.failure
        assert (end.failure.reason, end.failure.is_retryable) == ("RUNTIME_UNAVAILABLE", True)


async def test_path_traversal_in_instance_id_is_rejected(tmp_path: Path) -> None:
    async with running_node(tmp_path / "node") as node:
        bad = instance_id(uid="../../etc")
        end = await node.runtime.start(shell("true", id=bad))
        assert end.failure
        assert end.failure.message == '"../../etc" is not allowed in the name of an instance'
        assert not (node.folder / "instances").exists()


@pytest.mark.parametrize(
    ("protocol", "reason", "retryable"),
    [
        pytest.param("TCP", "PORT_TAKEN", True, id="an allocated TCP port"),
        pytest.param("UDP", "PORT_TAKEN", True, id="an allocated UDP port"),
        pytest.param("TCP", "PORT_BIND_CONFLICT", False, id="a fixed port"),
    ],
)
async def test_taken_port_fails_before_start(
    tmp_path: Path, protocol: str, reason: str, retryable: bool
) -> None:
    async with running_node(tmp_path / "node") as node:
        with socket.socket(
            socket.AF_INET, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        ) as holder:
            holder.bind(("127.0.0.1", 0))
            if protocol == "TCP":
                holder.listen()
            number = holder.getsockname()[1]
            fixed = None if retryable else number
            port = Port(name="http", port=fixed, protocol=protocol)  # type: ignore[arg-type]
            container = Container(command=("touch", str(tmp_path / "ran")), ports=(port,))
            end = await node.runtime.start(a_spec(container=container, ports={"http": number}))
        assert end.failure
        assert (end.failure.reason, end.failure.is_retryable) == (reason, retryable)
        assert (
            end.failure.message
            == f'port {number}/{protocol} ("http") is in use by another program on this node'
        )
        assert not (tmp_path / "ran").exists()


def fill(filler: Path) -> None:
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


async def test_full_disk_is_retryable(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        async with running_node(disk / "node") as node:
            filler = disk / "filler"
            fill(filler)
            end = await node.runtime.start(shell(f"touch {tmp_path}/ran; sleep 60"))
            assert end.failure
            assert (end.failure.reason, end.failure.is_retryable) == ("STORAGE_ERROR", True)
            filler.unlink()
            assert not (tmp_path / "ran").exists()
            assert (await node.runtime.start(shell("sleep 60", attempt=1))).is_live
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize(
    "options",
    [pytest.param(None, id="with cgroups", marks=needs_cgroups), pytest.param(WITHOUT_CGROUPS, id="without")],
)
@pytest.mark.parametrize(
    "how", [pytest.param("stop", id="by a stop"), pytest.param("exit", id="when the process ends by itself")]
)
async def test_grandchild_in_own_session_is_killed(
    tmp_path: Path, options: ProcessRuntimeOptions | None, how: str
) -> None:
    async with running_node(tmp_path, options) as node:
        script = f'{sys.executable} -c "{DETACHED}" & while [ ! -s child ]; do sleep 0.01; done; {"sleep 60" if how == "stop" else "exit 0"}'
        await node.runtime.start(shell(script))
        child = node.folder / "instances" / str(instance_id()) / "work" / "child"
        await eventually(lambda: child.exists() and child.read_text())
        if how == "stop":
            await node.runtime.stop(instance_id(), 5)
        await node.ended(instance_id())
        await eventually(lambda: groups.start_time(int(child.read_text())) is None, 2)
        assert node.alive(instance_id()) == set()


async def test_child_processes_get_grace_period(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        inner = (
            "trap 'sleep 0.3; echo saved > done; exit' TERM; echo set > ready; while :; do sleep 0.05; done"
        )
        await node.runtime.start(shell(f'sh -c "{inner}" & wait'))
        work = node.folder / "instances" / str(instance_id()) / "work"
        await eventually(lambda: (work / "ready").exists())
        await node.runtime.stop(instance_id(), 5)
        assert (work / "done").read_text() == "saved\n"


async def test_exit_signal_is_named(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.start(shell("kill -SEGV $$"))
        end = await node.ended(instance_id())
        assert (end.exit_code, end.signal) == (139, "SIGSEGV")
        assert end.failure
        assert end.failure.message == "killed by signal SIGSEGV"


async def test_process_has_default_signal_handlers(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.runtime.start(shell("grep SigIgn /proc/self/status; ls /proc/self/fd | tr '\\n' ' '"))
        await node.ended(instance_id())
        ignored, descriptors = (await node.runtime.logs(instance_id(), 2)).splitlines()
        assert int(ignored.split()[1], 16) & ~OF_THE_C_LIBRARY == 0
        assert descriptors.split()[:3] == ["0", "1", "2"]
        assert len(descriptors.split()) <= 4  # and the one with which ls reads


@needs_cgroups
async def test_memory_limit_kill_is_reported(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        begun = await node.runtime.start(
            a_spec(sys.executable, "-c", "x = b'x' * 200_000_000", limits=Limits(memory=50_000_000))
        )
        assert begun.enforced["memory"].startswith("cgroup-v")
        end = await node.ended(instance_id())
        assert end.failure
        assert end.failure.reason == "INSUFFICIENT_RESOURCES"
        assert end.failure.message == "killed: memory limit of 50000000 bytes exceeded"


@needs_cgroups
async def test_cpu_limit_is_enforced(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        begun = await node.runtime.start(shell("while :; do :; done", limits=Limits(cpu=200)))
        assert begun.enforced["cpu"].startswith("cgroup-v")
        await asyncio.sleep(0.3)
        await node.runtime.usage(instance_id())
        await asyncio.sleep(1.0)
        used = await node.runtime.usage(instance_id())
        assert used
        assert 50 < used.cpu < 300


@needs_cgroups
async def test_contended_cpu_goes_by_requests_and_limit_throttles(tmp_path: Path) -> None:
    """Over its limit a process is slowed down, not ended; its share of contended CPU is that of its request."""
    async with running_node(tmp_path) as node:
        spec = shell("while :; do :; done", limits=Limits(cpu=200), requests=Limits(cpu=100), qos="Burstable")
        await node.runtime.start(spec)
        (record,) = written(node.folder).records
        files = {
            path.name: path.read_text()
            for cgroup in record.handle.cgroups
            for path in Path(cgroup).glob("cpu.*")
            if path.name in ("cpu.shares", "cpu.weight")
        }
        assert files.get("cpu.shares", files.get("cpu.weight", "")).strip() in ("102", "4")
        (statistics,) = [
            path
            for cgroup in record.handle.cgroups
            for path in Path(cgroup).glob("cpu.stat")
            if "nr_throttled" in path.read_text()
        ]
        # A busy machine may leave the loop less CPU than its limit for a while.
        end = time.monotonic() + 20
        while "nr_throttled 0\n" in statistics.read_text():
            assert time.monotonic() < end, statistics.read_text()
            await asyncio.sleep(0.1)
        (instance,) = await node.runtime.list()
        assert instance.is_live


async def test_out_of_memory_order_is_that_of_the_classes(tmp_path: Path) -> None:
    """The kernel kills the highest score first; children inherit the score."""
    scores = {}
    async with running_node(tmp_path) as node:
        for qos, memory in (("BestEffort", None), ("Burstable", 1 << 30), ("Guaranteed", 1 << 30)):
            name = qos.lower()
            spec = a_spec(
                *("sh", "-c", "cat /proc/self/oom_score_adj"),
                id=instance_id(uid=name),
                workload=f"default/{name}",
                requests=Limits(memory=memory),
                qos=qos,
            )
            await node.runtime.start(spec)
            await node.ended(spec.id)
            scores[qos] = int(await node.runtime.logs(spec.id, 1))
    assert scores["BestEffort"] == 1000
    assert 1000 > scores["Burstable"] > scores["Guaranteed"]
    assert scores["Guaranteed"] <= max(0, int(Path("/proc/self/oom_score_adj").read_text()))


async def test_limits_without_cgroups_report_enforcement(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITHOUT_CGROUPS) as node:
        limits = Limits(cpu=100, memory=50_000_000)
        begun = await node.runtime.start(
            a_spec(sys.executable, "-c", "x = bytearray(200_000_000)", limits=limits)
        )
        assert begun.enforced == {"memory": "rlimit", "cpu": "none"}
        assert (await node.ended(instance_id())).exit_code == 1
        assert "MemoryError" in await node.runtime.logs(instance_id(), 5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(None, id="from cgroups", marks=needs_cgroups),
        pytest.param(WITHOUT_CGROUPS, id="from proc"),
    ],
)
async def test_busy_loop_shows_in_usage(tmp_path: Path, options: ProcessRuntimeOptions | None) -> None:
    async with running_node(tmp_path, options) as node:
        await node.runtime.start(shell("head -c 100000 /dev/zero > filled; while :; do :; done"))
        await eventually(
            lambda: (node.folder / "instances" / str(instance_id()) / "work" / "filled").exists()
        )
        await node.runtime.usage(instance_id())
        await asyncio.sleep(0.5)
        used = await node.runtime.usage(instance_id())
        assert used
        assert 200 < used.cpu < 1300  # one loop keeps at most one core busy; the machine may have other work
        assert used.memory > 50_000
        assert used.disk >= 100_000


async def test_logs_are_rotated_while_running(tmp_path: Path) -> None:
    async with running_node(
        tmp_path,
        ProcessRuntimeOptions(rotation=Rotation(max_bytes=4096, max_older_files=2), rotate_interval_s=0.02),
    ) as node:
        await node.runtime.start(
            shell("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; done; sleep 60")
        )
        log = node.folder / "instances" / str(instance_id()) / "log"

        async def finished() -> bool:
            return (await node.runtime.logs(instance_id(), 1)) == "line 3000\n"

        await eventually(finished)
        await eventually(lambda: log.stat().st_size <= 4096)
        assert sum(path.stat().st_size for path in log.parent.glob("log*")) <= 3 * 2 * 4096


async def test_probes_reach_the_process(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]

    async with running_node(tmp_path) as node:
        await node.runtime.start(
            listening(number, sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(number))
        )
        page = Probe(http=HttpProbe(port="http"), timeout_seconds=5)

        async def answers() -> bool:
            return (await node.runtime.run_probe(instance_id(), page)).ok

        await eventually(answers)
        missing = await node.runtime.run_probe(
            instance_id(), Probe(http=HttpProbe(port="http", path="/no page"))
        )
        assert (missing.ok, missing.detail) == (False, "HTTP status 404")
        here = Probe(exec=ExecProbe(command=("sh", "-c", f'test "$PORT" = {number}')), timeout_seconds=5)
        assert (await node.runtime.run_probe(instance_id(), here)).ok


async def test_new_agent_adopts_instances_of_killed_agent(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell("sleep 60")) as (agent, begun):
        assert [instance.state for instance in begun] == ["Running"]
        kill_now(agent)
    record = written(tmp_path).records[0]
    try:
        await asyncio.sleep(0.1)
        assert groups.is_alive(record.handle.pid, record.handle.start)
        with an_agent(tmp_path) as (_, adopted):
            assert adopted == begun
        async with running_node(tmp_path) as node:
            assert (await node.runtime.adopt(record)).is_live
            assert (await node.runtime.start(record.spec)).started_at == begun[0].started_at
            await node.runtime.stop(instance_id(), 5)
            assert not groups.is_alive(record.handle.pid, record.handle.start)
    finally:
        end_all(tmp_path)


def test_exit_without_agent_is_reported(tmp_path: Path) -> None:
    with an_agent(tmp_path, shell("sleep 60")) as (agent, _):
        kill_now(agent)
    end_all(tmp_path)
    with an_agent(tmp_path) as (_, adopted):
        assert adopted[0].failure
        assert (
            adopted[0].failure.message == "exited while no agent ran on this node; the exit code is unknown"
        )
        assert adopted[0].failure.is_retryable
    end_all(tmp_path)


async def test_reused_pid_is_not_killed(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        async with running_node(tmp_path) as node:
            start = groups.start_time(stranger.pid)
            assert start
            spec = shell("sleep 60")
            mistaken = InstanceRecord(
                spec, new_instance(spec, "Running"), Handle(stranger.pid, start - 1, groups.boot_id())
            )
            adopted = await node.runtime.adopt(mistaken)
            assert adopted.state == "Exited"
            await node.runtime.stop(instance_id(), 0)
            await node.runtime.remove(instance_id())
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_reboot_invalidates_recorded_pids(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        spec = shell("sleep 60")
        own = groups.start_time(os.getpid())
        assert own
        adopted = await node.runtime.adopt(
            InstanceRecord(spec, new_instance(spec, "Running"), Handle(os.getpid(), own, "another boot"))
        )
        assert adopted.state == "Exited"


@pytest.mark.parametrize(
    "score",
    [
        pytest.param([], id="an agent from before an upgrade of the package states no score"),
        pytest.param([""], id="no score"),
        pytest.param(["1000"], id="a score"),
    ],
)
def test_launcher_runs_the_program_of_every_agent(score: list[str]) -> None:
    (status, child_status), (child_go, go) = os.pipe(), os.pipe()
    program = ["/bin/sh", "-c", 'echo "$0"; cat /proc/self/oom_score_adj', "--"]
    words = [str(child_status), str(child_go), "0", "", *score, "--", *program]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", LAUNCHER, *words],
        pass_fds=(child_status, child_go),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        os.write(go, b"g")
        output, _ = process.communicate(timeout=20)
    for descriptor in (status, child_status, child_go, go):
        os.close(descriptor)
    inherited = Path("/proc/self/oom_score_adj").read_text().strip()
    assert output.split() == ["--", "".join(score) or inherited]


def test_launcher_of_dead_agent_starts_nothing(tmp_path: Path) -> None:
    """The agent is killed repeatedly during a start: every running process is in its state file."""
    for number in range(8):
        folder = tmp_path / str(number)
        spec: RunSpec = shell(f"echo $$ >> {tmp_path}/pids; sleep 60")
        with subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).parents[2] / "build" / "small_agent.py"),
                str(folder),
                "0",
                _json(spec),
            ],
            stdout=subprocess.DEVNULL,
        ) as agent:
            state = folder / "state.json"
            end = time.monotonic() + 10
            while not (folder / "instances").exists() and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(number * 0.006)
            agent.kill()
        time.sleep(0.15)
        known = {record.handle.pid for record in written(folder).records} if state.exists() else set()
        try:
            pids = (
                {int(line) for line in (tmp_path / "pids").read_text().split()}
                if (tmp_path / "pids").exists()
                else set()
            )
            assert {pid for pid in pids if groups.start_time(pid)} <= known
        finally:
            end_all(folder)


@needs_cgroups
async def test_stale_cgroups_are_removed(tmp_path: Path) -> None:
    hierarchies = cgroups.detect()
    name = tag_of(tmp_path / "instances", instance_id(uid="forgotten"))
    paths, _ = cgroups.create_cgroups(hierarchies, name, Limits())
    assert paths
    async with running_node(tmp_path):
        assert not any(Path(path).exists() for path in paths)


def _json(spec: RunSpec) -> str:
    import msgspec

    return msgspec.json.encode(spec).decode()
