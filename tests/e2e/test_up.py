"""`lattice up`: the first start, restarts, Ctrl-C, a port in use, a full disk."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from build.servers import LATTICE, Server, running_server, start
from build.waiting import wait_until
from build.wire import CONFIGMAPS, Wire, configmap, refused

pytestmark = [pytest.mark.xdist_group("up"), pytest.mark.timeout(90)]

BIG = {"text": "x" * 100_000}


def _output(server: Server) -> str:
    """Everything after the first line, once it has ended."""
    assert server.process.stdout is not None
    with server.process.stdout as out:
        return out.read()


def test_first_start_prints_paths_and_next_steps(tmp_path: Path) -> None:
    server = start(tmp_path)
    assert re.fullmatch(r"https://127\.0\.0\.1:\d+", server.url)
    assert Wire(server.kubeconfig).get("/version").status == 200
    assert server.stop(signal.SIGINT) == 0
    said = _output(server)
    for words in (
        f"state       {tmp_path}/state.db",
        f"kubeconfig  {server.kubeconfig}",
        "Press Ctrl-C to stop.",
        "stopping; the state stays in",
    ):
        assert words in said
    suggested = re.findall(r"^  (\S*(?:lattice|kubectl) .+?)  +\S.*$", said, re.MULTILINE)
    assert [command.count(f" --kubeconfig {server.kubeconfig}") for command in suggested] == [1, 1, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_up_stops_cleanly_during_a_watch(number: int, tmp_path: Path) -> None:
    server = start(tmp_path)
    with Wire(server.kubeconfig).watching(CONFIGMAPS):
        began = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - began < 5
    assert "Traceback" not in _output(server) + (tmp_path / "server.log").read_text()


def test_restart_keeps_state_and_rewrites_the_kubeconfig(tmp_path: Path) -> None:
    server = start(tmp_path)
    assert Wire(server.kubeconfig).post(CONFIGMAPS, configmap("kept", {"a": "1"})).status == 201
    before = Wire(server.kubeconfig).revision
    assert server.stop() == 0
    server.kubeconfig.write_text("this: is: not\n- a kubeconfig")
    process = subprocess.Popen(
        [*LATTICE, "up", "--data-dir", str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Lattice is back up at https://")
    while "Press Ctrl-C to stop." not in process.stdout.readline():
        pass
    again = Server(process, "", server.kubeconfig, tmp_path)
    wire = Wire(again.kubeconfig)  # written anew
    assert wire.get(f"{CONFIGMAPS}/kept").value["data"] == {"a": "1"}
    assert wire.revision >= before
    assert again.stop() == 0
    _output(server), _output(again)


def test_second_server_on_one_data_dir_names_the_first(tmp_path: Path) -> None:
    with running_server(tmp_path) as first:
        command = [*LATTICE, "up", "--data-dir", str(tmp_path), "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 1
        expected = f"{tmp_path}: a server is already running on this data folder (process {first.process.pid}) at {first.url}"
        assert expected in second.stderr
        assert "fix: use the running server, stop it first, or choose another --data-dir" in second.stderr
        assert Wire(first.kubeconfig).get("/version").status == 200


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_requested_port_in_use_is_refused(by: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        flags, environment = (["--port", taken], {}) if by == "flag" else ([], {"LATTICE_PORT": taken})
        done = subprocess.run(
            [*LATTICE, "up", "--data-dir", tmp_path, *flags],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 3
        assert f"cannot listen on 127.0.0.1:{taken}" in done.stderr
        assert "address already in use" in done.stderr
        assert "fix: choose another --port" in done.stderr


def test_only_the_default_port_falls_back(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another process may hold it already
            stack.enter_context(socket.create_server(("127.0.0.1", 7443)))
        process = subprocess.Popen(
            [*LATTICE, "up", "--data-dir", tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert not process.stdout.readline().strip().endswith(":7443")
        assert process.stdout.readline() == "  (port 7443 is in use)\n"
        server = Server(process, "", tmp_path / "kubeconfig", tmp_path)
        _until_ready(server)
        assert server.stop() == 0
        _output(server)


def test_agent_port_falls_back_silently(tmp_path: Path) -> None:
    with _taken_after_a_free_one() as other:
        port = other.getsockname()[1] - 1
        command = [*LATTICE, "up", "--data-dir", tmp_path, "--port", str(port), "--controllers", "garbage"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        server = Server(process, "", tmp_path / "kubeconfig", tmp_path)
        said = _until_ready(server)
        assert said.splitlines()[0].endswith(f" up at https://127.0.0.1:{port}"), said
        assert "add_port" not in said
        assert server.stop() == 0


def _taken_after_a_free_one() -> socket.socket:
    """A listening socket on the port after a free one, both outside the ephemeral range of the kernel."""
    for port in range(20_001 + os.getpid() % 5_000, 32_000, 2):
        try:
            socket.create_server(("127.0.0.1", port - 1)).close()
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    raise AssertionError("no two ports in a row are free between 20,000 and 32,000")


def _until_ready(server: Server) -> str:
    assert server.process.stdout is not None
    said = ""
    while "Press Ctrl-C to stop." not in said:
        line = server.process.stdout.readline()
        assert line, f"the server ended with {server.process.wait()} before it was ready: {said}"
        said += line
    return said


def test_seed_is_applied_only_to_a_new_state(tmp_path: Path) -> None:
    manifest, data = tmp_path / "hello.yaml", tmp_path / "data"
    manifest.write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hello, namespace: default}\ndata: {a: '1'}\n"
    )
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as other:  # a start that fails leaves a state that is still to be seeded
        command = [
            *LATTICE,
            "up",
            "--data-dir",
            data,
            "--seed",
            manifest,
            "--port",
            str(other.getsockname()[1]),
        ]
        assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 3
    first = start(data, "--seed", str(manifest))
    assert "configmap/hello created" in _until_ready(first)
    assert Wire(first.kubeconfig).patch(f"{CONFIGMAPS}/hello", {"data": {"a": "2"}}).status == 200
    assert first.stop() == 0
    second = start(data, "--seed", str(manifest))
    said = _until_ready(second)
    assert f"state resumed; {manifest} is applied only when the state is new" in said
    assert "to apply the manifests now: " in said
    assert f" apply --kubeconfig {second.kubeconfig} -f {manifest}" in said
    assert "configmap/hello" not in said
    assert Wire(second.kubeconfig).get(f"{CONFIGMAPS}/hello").value["data"] == {"a": "2"}
    assert second.stop() == 0
    _output(first), _output(second)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param(None, 1, "cannot be read: no such file or directory", id="not there"),
        pytest.param("a: [", 1, "is not YAML", id="not YAML"),
        pytest.param(
            "{apiVersion: lattice.dev/v1alpha1, kind: LatticePool, metadata: {name: x}}",
            1,
            "spec: Required value",
            id="invalid",
        ),
    ],
)
def test_unusable_seed_is_refused_before_anything_is_created(
    text: str | None, code: int, words: str, tmp_path: Path
) -> None:
    manifest, data = tmp_path / "seed.yaml", tmp_path / "data"
    if text is not None:
        manifest.write_text(text)
    command = [*LATTICE, "up", "--data-dir", data, "--seed", manifest, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
    assert str(manifest) in done.stderr
    assert words in done.stderr
    assert not data.exists()


def test_missing_seed_fails_and_old_state_skips_the_seed(
    tmp_path: Path,
) -> None:
    manifest, data = tmp_path / "seed.yaml", tmp_path / "data"
    first = start(data)
    assert first.stop() == 0
    done = subprocess.run(
        [*LATTICE, "up", "--data-dir", data, "--seed", manifest],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, "cannot be read" in done.stderr) == (1, True), done.stderr
    manifest.write_text("{apiVersion: lattice.dev/v1alpha1, kind: LatticePool, metadata: {name: x}}")
    second = start(data, "--seed", str(manifest))
    assert "state resumed" in _until_ready(second)
    assert second.stop() == 0
    _output(first), _output(second)


@pytest.mark.parametrize("file", ["server.log", "server.lock", "state.db", "tls/server.crt", "kubeconfig"])
def test_ctrl_c_during_startup_exits_cleanly(file: str, tmp_path: Path) -> None:
    """As soon as a file is there that it makes on the way."""
    command = [*LATTICE, "up", "--data-dir", tmp_path, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not (tmp_path / file).exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode in (0, 130)
    assert told == ""


def test_apply_flag_applies_after_startup(tmp_path: Path) -> None:
    manifest = tmp_path / "hello.yaml"
    manifest.write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hello, namespace: default}\ndata: {a: '1'}\n"
    )
    server = start(tmp_path / "data", "--apply", str(manifest))
    deadline = time.monotonic() + 20
    while (
        answer := Wire(server.kubeconfig).get(f"{CONFIGMAPS}/hello")
    ).status == 404 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer.value["data"] == {"a": "1"}
    assert server.stop() == 0
    assert "configmap/hello created" in _output(server)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes. It must work in CI; elsewhere the test is skipped without the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and os.environ.get("CI"):
        pytest.fail(f"CI must be able to mount a small disk: {done.stderr}")
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_disk_refuses_writes_and_serves_reads(small_disk: Path) -> None:
    with running_server(small_disk / "data") as server:
        wire = Wire(server.kubeconfig)
        kept: list[str] = []
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"0" * 2_000_000)
        while (answer := wire.post(CONFIGMAPS, configmap(f"big-{len(kept)}", BIG))).status == 201:
            kept.append(f"big-{len(kept)}")
            assert len(kept) < 100
        refused(answer, 507, "StorageFull", "the disk is full", "fix: free disk space")
        assert wire.get(CONFIGMAPS).names == sorted(kept)
        refused(wire.post(CONFIGMAPS, configmap("still-full", BIG)), 507, "StorageFull")
        ballast.unlink()
        deadline = time.monotonic() + 5
        while (
            answer := wire.post(CONFIGMAPS, configmap("after", BIG))
        ).status == 507 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert answer.status == 201
        assert wire.get(CONFIGMAPS).names == sorted([*kept, "after"])
        assert server.stop() == 0


def test_full_disk_allows_clean_stop_and_restart_or_error(small_disk: Path) -> None:
    server = start(small_disk / "data")
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"0" * 4096)
    refused(Wire(server.kubeconfig).post(CONFIGMAPS, configmap("big", BIG)), 507, "StorageFull")
    assert server.stop() == 0
    assert "Traceback" not in _output(server)
    again = subprocess.run(
        [*LATTICE, "up", "--data-dir", str(small_disk / "data")],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert again.returncode == 3
    assert "the disk is full" in again.stderr


@pytest.mark.parametrize(
    ("name", "flags", "code", "words"),
    [
        pytest.param("good", ["--port", "99999"], 2, "must be 0 to 65535, got 99999", id="no such port"),
        pytest.param("file", [], 1, "file: cannot be used: file exists", id="the data folder is a file"),
        pytest.param(
            "junk",
            [],
            3,
            "state.db: SQLite cannot use this file: file is not a database",
            id="the state is damaged",
        ),
        pytest.param("good", ["--store", "redis://x"], 2, "'redis://x' is not a store", id="no such store"),
        pytest.param(
            "good", ["--listen", "192.0.2.1"], 3, "cannot listen on 192.0.2.1", id="not our address"
        ),
    ],
)
def test_failed_start_prints_the_reason(
    name: str, flags: list[str], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "state.db").write_bytes(b"not a database, " * 512)
    (tmp_path / "file").touch()
    command = [*LATTICE, "up", "--data-dir", str(tmp_path / name), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


STUBBORN = """
{apiVersion: lattice.dev/v1alpha1, kind: LatticeNodeClass, metadata: {name: nano},
 spec: {providers: {local: {}}, resources: {cores: 1, memoryGi: 1, storageGi: 1}, costPerHour: {local: 0.01}}}
---
{apiVersion: lattice.dev/v1alpha1, kind: LatticePool, metadata: {name: yard},
 spec: {provider: {type: local, region: yard}, capacity: {maxNodes: 1}, nodeClasses: [nano]}}
---
{apiVersion: lattice.dev/v1alpha1, kind: LatticeService, metadata: {name: stubborn, namespace: default},
 spec: {replicas: {min: 1}, placement: {resources: {cores: 0.1, memoryGi: 0.1}},
        containers: {main: {command: [sh, -c, 'trap "" TERM; while :; do sleep 1; done'], env: {SITE: "%s"}}}}}
"""


def _processes(mark: str, folder: Path) -> list[int]:
    """Agents of that folder and whatever has the mark in its environment."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            place = Path(f"/proc/{pid}")
            if (
                mark.encode() in (place / "environ").read_bytes()
                or str(folder).encode() in (place / "cmdline").read_bytes()
            ):
                found.append(pid)
    return found


def test_ctrl_c_kills_a_workload_that_ignores_sigterm(tmp_path: Path) -> None:
    manifest, data, mark = tmp_path / "stubborn.yaml", tmp_path / "data", uuid.uuid4().hex
    manifest.write_text(STUBBORN % mark)
    server = start(data, "--seed", str(manifest), "--controllers", "*", "--local-stop-within", "3")
    wait_until(
        lambda: (
            "stubborn" in server.lattice("get", "workloads").stdout and _processes(mark, tmp_path / "nowhere")
        ),
        "it runs",
    )
    assert server.stop(signal.SIGINT) == 0
    left = _processes(mark, data)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    _output(server)
