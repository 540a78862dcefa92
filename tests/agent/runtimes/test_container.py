"""Containers: failures from Podman's errors; ports, limits and bad images where a real Podman runs."""

import asyncio
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from build.assignments import a_spec, instance_id
from build.process_node import clock
from build.waiting import eventually

from lattice.agent.host.runtime_protocol import Instance, Limits
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes import podman
from lattice.agent.runtimes.container import ContainerRuntime
from lattice.agent.runtimes.fake import FakeMachine, FakeRuntime
from lattice.agent.runtimes.router import RuntimeRouter
from lattice.agent.state_file import StateFile
from lattice.kinds.container import Container, HttpProbe, Port, Probe

IMAGE = f"localhost/lattice-podman-test:{os.getpid()}"


@pytest.mark.parametrize(
    ("text", "reason", "retryable"),
    [
        pytest.param(
            "Error: cannot listen on the TCP port: listen tcp4 :80: bind: address already in use",
            "PORT_BIND_CONFLICT",
            False,
            id="port taken",
        ),
        pytest.param("Error: invalid reference format", "INVALID_IMAGE", False, id="no name of an image"),
        pytest.param(
            "Trying to pull x…\nError: initializing source docker://x: pinging container registry x: dial tcp: connection refused",
            "IMAGE_PULL_FAILED",
            True,
            id="registry does not answer",
        ),
        pytest.param(
            "Error: initializing source docker://x:1: reading manifest 1 in x: manifest unknown",
            "IMAGE_NOT_FOUND",
            True,
            id="no such tag",
        ),
        pytest.param(
            'Error: runc: exec: "/x": stat /x: no such file or directory: OCI runtime attempted to invoke a command that was not found',
            "COMMAND_NOT_FOUND",
            False,
            id="no such command",
        ),
        pytest.param("Error: writing blob: no space left on device", "STORAGE_ERROR", True, id="disk full"),
        pytest.param("Error: something new", "RUNTIME_ERROR", True, id="anything else may pass"),
    ],
)
def test_podman_errors_map_to_failures(text: str, reason: str, retryable: bool) -> None:
    failure = podman.failure_from_stderr(text)
    assert (failure.reason, failure.is_retryable) == (reason, retryable)
    assert not failure.message.startswith("Error")


async def test_missing_podman_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert await podman.find_podman() == "podman is not installed"


async def test_docker_is_not_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await podman.find_podman() == "podman is not installed; docker is not supported"


async def test_broken_podman_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "podman"
    broken.write_text("#!/bin/sh\n/bin/echo 'Error: no user namespaces' >&2\nexit 125\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await podman.find_podman() == "podman cannot run containers here: default: no user namespaces"


async def test_node_without_podman_rejects_images_only(tmp_path: Path) -> None:
    import random

    state = StateFile(tmp_path)
    fake = FakeRuntime(FakeMachine(clock, random.Random(1)), state)
    runtime = RuntimeRouter({"process": fake}, {"container": "podman is not installed"})
    refused = await runtime.start(a_spec(container=Container(image="nginx")))
    assert refused.failure
    assert (
        refused.failure.message
        == "runtime not available: this node has no container runtime: podman is not installed"
    )
    other = instance_id(uid="u2")
    assert (await runtime.start(a_spec("x", id=other, workload="default/api"))).is_live
    assert [(instance.id.uid, instance.is_live) for instance in await runtime.list()] == [
        ("u1", False),
        ("u2", True),
    ]
    await runtime.remove(instance_id())
    await runtime.stop(other, 0)
    assert [instance.is_live for instance in await runtime.list()] == [False]
    state.close()


@pytest.fixture(scope="module")
def real() -> Iterator[podman.Podman]:
    found, busybox = asyncio.run(podman.find_podman()), shutil.which("busybox")
    if isinstance(found, str) or busybox is None:
        pytest.skip(found if isinstance(found, str) else "busybox-static is not installed")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "bin").mkdir()
        shutil.copy(busybox, root / "bin" / "busybox")
        for name in ("sh", "sleep", "httpd", "cat"):
            (root / "bin" / name).symlink_to("busybox")
        (root / "bin" / "foreign").write_bytes(b"\x7fELF" + bytes(60))
        (root / "bin" / "foreign").chmod(0o755)
        (root / "www").mkdir()
        (root / "www" / "index.html").write_text("well")
        with tarfile.open(root / "image.tar", "w") as archive:
            archive.add(root / "bin", "bin")
            archive.add(root / "www", "www")
        subprocess.run(
            [*found.command_prefix, "import", "--quiet", str(root / "image.tar"), IMAGE],
            check=True,
            capture_output=True,
        )
    yield found
    subprocess.run([*found.command_prefix, "rmi", "--force", IMAGE], check=False, capture_output=True)


@asynccontextmanager
async def container_runtime(folder: Path, real: podman.Podman) -> AsyncIterator[ContainerRuntime]:
    """A container runtime on Podman; its instances are removed at the end."""
    state = StateFile(folder)
    runtime = ContainerRuntime(folder, state, clock, WatchdogClient(folder, clock), real)
    try:
        yield runtime
    finally:
        for instance in await runtime.list():
            await runtime.remove(instance.id)
        await runtime.close()
        state.close()


async def end_of(runtime: ContainerRuntime) -> Instance:
    async def look() -> Instance | None:
        return next((instance for instance in await runtime.list() if not instance.is_live), None)

    found: Instance = await eventually(look, 20)
    return found


async def test_container_port_is_reachable_from_host(tmp_path: Path, real: podman.Podman) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    container = Container(
        image=IMAGE,
        command=("/bin/sh", "-c", "exec httpd -f -p $PORT -h /www"),
        ports=(Port(name="http"),),
        env={"A": "b c\nd"},
    )
    async with container_runtime(tmp_path, real) as runtime:
        begun = await runtime.start(
            a_spec(container=container, ports={"http": number}, limits=Limits(200, 32 << 20))
        )
        assert begun.is_live, begun.failure
        assert begun.enforced == {"cpu": "container", "memory": "container"}

        async def answers() -> bool:
            return (
                await runtime.run_probe(instance_id(), Probe(http=HttpProbe(port="http", path="/index.html")))
            ).ok

        await eventually(answers)
        second = await runtime.start(
            a_spec(
                container=container,
                ports={"http": number},
                id=instance_id(uid="u2"),
                workload="default/other",
            )
        )
        assert second.failure
        assert second.failure.reason == "PORT_TAKEN"


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        pytest.param(Container(image="no image:::"), "INVALID_IMAGE", id="no name of an image"),
        pytest.param(
            Container(image=IMAGE, command=("/bin/foreign",)),
            "INVALID_IMAGE",
            id="a program for another machine",
        ),
        pytest.param(
            Container(image=IMAGE, command=("/bin/nothing",)),
            "COMMAND_NOT_FOUND",
            id="a command that is not in the image",
        ),
        pytest.param(
            Container(image=IMAGE, command=("/bin/sh", "-c", "exit 4")),
            "RUNTIME_ERROR",
            id="a command that fails",
        ),
    ],
)
async def test_container_start_failures_have_reasons(
    tmp_path: Path, real: podman.Podman, container: Container, reason: str
) -> None:
    async with container_runtime(tmp_path, real) as runtime:
        await runtime.start(a_spec(container=container))
        end = await end_of(runtime)
        assert end.failure
        assert end.failure.reason == reason


async def test_memory_limit_kill_is_reported(tmp_path: Path, real: podman.Podman) -> None:
    greedy = "sleep 0.5; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
    async with container_runtime(tmp_path, real) as runtime:
        await runtime.start(
            a_spec(
                container=Container(image=IMAGE, command=("/bin/sh", "-c", greedy)),
                limits=Limits(memory=16 << 20),
            )
        )
        end = await end_of(runtime)
        assert end.failure
        assert end.signal == "SIGKILL"
        assert "killed: memory limit of 16777216 bytes exceeded" in end.failure.message


async def test_watchdog_stops_container_without_podman(tmp_path: Path, real: podman.Podman) -> None:
    async with container_runtime(tmp_path, real) as runtime:
        await runtime.record_contact(clock.monotonic())
        spec = a_spec(
            container=Container(image=IMAGE, command=("/bin/sh", "-c", "while :; do sleep 1; done")),
            stop_after=2.0,
        )
        assert (await runtime.start(spec)).is_live
        (post,) = runtime.watchdog._guarded.values()
        assert post.command == ()
        assert post.start
        end = await end_of(runtime)
        assert end.failure
        assert end.failure.reason == "DISCONNECTED"


def test_own_cgroup_is_no_container_cgroup() -> None:
    from lattice.agent.runtimes.podman import cgroups_of

    assert cgroups_of(os.getpid()) == ()
    assert cgroups_of(1) == ()
