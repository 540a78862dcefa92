"""The contract of runtimes: start, stop, list, adopt, logs and usage, each instance at most once."""

import asyncio
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from build.assignments import a_spec, instance_id
from build.waiting import eventually

from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceId, RunSpec, Runtime, Usage
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes import podman
from lattice.agent.runtimes.container import ContainerRuntime
from lattice.agent.runtimes.fake import Behaviour, FakeMachine, FakeRuntime
from lattice.agent.runtimes.process import ProcessRuntime
from lattice.agent.runtimes.router import RuntimeRouter
from lattice.agent.state_file import StateFile
from lattice.clock import SystemClock
from lattice.errors import Conflict
from lattice.kinds.container import Container, ExecProbe, Probe

IMAGE = f"localhost/lattice-contract:{os.getpid()}"
SCRIPTS = {
    "runs": "while :; do sleep 0.1; done",
    "fails": "exit 3",
    "ends": "exit 0",
    "is stubborn": "trap '' TERM; while :; do sleep 0.1; done",
    "prints": "exec 2>/dev/null; for i in 1 2 3 4 5; do echo line $i; done; trap 'exit 0' TERM; while :; do sleep 0.1; done",
    "cannot start": "",
}
BEHAVIOURS = {
    "runs": Behaviour(uses=Usage(1, 1024, 0)),
    "fails": Behaviour(exits_after=0.02, exit_code=3),
    "ends": Behaviour(exits_after=0.02),
    "is stubborn": Behaviour(stop_takes=1000),
    "prints": Behaviour(prints="".join(f"line {i}\n" for i in range(1, 6))),
    "cannot start": Behaviour(start_fails=Failure("COMMAND_NOT_FOUND", "no such command")),
}
clock = SystemClock()


class Rig:
    """A node whose agent can be replaced by a new one."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.machine = FakeMachine(clock, random.Random(1))
        self.runtime: Runtime
        self.state: StateFile

    async def begin(self) -> None:
        self.state = StateFile(self.folder)
        guard = WatchdogClient(self.folder, clock)
        if self.kind == "fake":
            self.runtime = FakeRuntime(self.machine, self.state)
        elif self.kind == "process":
            self.runtime = ProcessRuntime(self.folder, self.state, clock, guard)
        elif self.kind == "combined":
            self.runtime = RuntimeRouter(
                {"process": ProcessRuntime(self.folder, self.state, clock, guard)}, {"container": "left out"}
            )
        else:
            found = await podman.find_podman()
            assert isinstance(found, podman.Podman), found
            self.runtime = ContainerRuntime(self.folder, self.state, clock, guard, found)
        for record in self.state.state.records:
            await self.runtime.adopt(record)

    async def restart(self) -> None:
        await self.runtime.close()
        self.state.close()
        await self.begin()

    def spec(self, what: str, **rest: Any) -> RunSpec:
        self.machine.behaviours[rest.setdefault("workload", "default/web")] = BEHAVIOURS[what]
        command = ("/nowhere/at-all",) if what == "cannot start" else ("/bin/sh", "-c", SCRIPTS[what])
        container = Container(command=command, image=IMAGE if self.kind == "container" else "")
        return a_spec(container=container, **rest)

    async def ended(self, one: InstanceId) -> Instance:
        async def look() -> Instance | None:
            return next(
                (
                    instance
                    for instance in await self.runtime.list()
                    if instance.id == one and not instance.is_live
                ),
                None,
            )

        found: Instance = await eventually(look)
        return found


@asynccontextmanager
async def runtime_rig(kind: str, folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(kind, folder)
    await rig.begin()
    try:
        yield rig
    finally:
        for instance in await rig.runtime.list():
            await rig.runtime.remove(instance.id)
        await rig.runtime.close()
        rig.state.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image of one static program, made from this machine's own busybox."""
    busybox = shutil.which("busybox")
    found = asyncio.run(podman.find_podman())
    if isinstance(found, str) or busybox is None:
        pytest.skip(found if isinstance(found, str) else "busybox-static is not installed")
    root = tmp_path_factory.mktemp("image")
    (root / "bin").mkdir()
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "sleep", "true", "false"):
        (root / "bin" / name).symlink_to("busybox")
    with tarfile.open(root / "image.tar", "w") as archive:
        archive.add(root / "bin", "bin")
    subprocess.run(
        [*found.command_prefix, "import", "--quiet", str(root / "image.tar"), IMAGE],
        check=True,
        capture_output=True,
    )
    yield IMAGE
    subprocess.run([*found.command_prefix, "rmi", "--force", IMAGE], check=False, capture_output=True)


OpenNode = Callable[[], AbstractAsyncContextManager[Rig]]


@pytest.fixture(params=["fake", "process", "combined", "container"])
def open_node(request: pytest.FixtureRequest, tmp_path: Path) -> OpenNode:
    """Opens a node with each runtime; its instances are removed afterwards."""
    if request.param == "container":
        request.getfixturevalue("image")
    return lambda: runtime_rig(request.param, tmp_path / "node")


async def test_started_instance_runs_and_is_listed(open_node: OpenNode) -> None:
    async with open_node() as rig:
        begun = await rig.runtime.start(rig.spec("runs"))
        assert begun.is_live, begun.failure
        assert [(instance.id, instance.state) for instance in await rig.runtime.list()] == [
            (instance_id(), "Running")
        ]


async def test_start_of_running_instance_is_idempotent(open_node: OpenNode) -> None:
    async with open_node() as rig:
        first = await rig.runtime.start(rig.spec("runs"))
        again, other = await asyncio.gather(
            rig.runtime.start(rig.spec("runs", attempt=4)), rig.runtime.start(rig.spec("runs"))
        )
        assert again == other == first
        assert len(await rig.runtime.list()) == 1


async def test_concurrent_starts_make_one_instance(open_node: OpenNode) -> None:
    async with open_node() as rig:
        both = await asyncio.gather(rig.runtime.start(rig.spec("runs")), rig.runtime.start(rig.spec("runs")))
        assert both[0].started_at == both[1].started_at
        assert len(await rig.runtime.list()) == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(instance_id(revision="b2"), id="another revision"),
        pytest.param(instance_id(uid="u2"), id="an earlier workload of the same name"),
    ],
)
async def test_no_second_instance_beside_a_live_one(open_node: OpenNode, other: InstanceId) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("runs"))
        with pytest.raises(Conflict, match="must not start at the same time"):
            await rig.runtime.start(rig.spec("runs", id=other))
        await rig.runtime.stop(instance_id(), 0)
        assert (await rig.runtime.start(rig.spec("runs", id=other))).is_live


@pytest.mark.parametrize(
    ("what", "code", "reason"),
    [
        pytest.param("fails", 3, "RUNTIME_ERROR", id="an error ends in a failure that may be retried"),
        pytest.param("ends", 0, None, id="code 0 is no failure"),
    ],
)
async def test_exit_code_is_reported(open_node: OpenNode, what: str, code: int, reason: str | None) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec(what))
        end = await rig.ended(instance_id())
        assert (end.exit_code, end.failure and end.failure.reason, end.was_stopped_on_request) == (
            code,
            reason,
            False,
        )
        assert end.failure is None or end.failure.is_retryable


async def test_failed_start_is_a_result_not_an_error(open_node: OpenNode) -> None:
    async with open_node() as rig:
        end = await rig.runtime.start(rig.spec("cannot start"))
        assert not end.is_live
        assert end.failure
        assert (end.failure.reason, end.failure.is_retryable) == ("COMMAND_NOT_FOUND", False)
        assert [instance.state for instance in await rig.runtime.list()] == ["Exited"]


async def test_exited_instance_restarts_in_new_attempt_only(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("fails"))
        end = await rig.ended(instance_id())
        assert await rig.runtime.start(rig.spec("runs")) == end
        again = await rig.runtime.start(rig.spec("runs", attempt=1))
        assert again.is_live
        assert again.attempt == 1


async def test_stopped_instance_restarts_in_same_attempt(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("runs"))
        end = await rig.runtime.stop(instance_id(), 0)
        assert end
        assert (end.state, end.was_stopped_on_request, end.failure) == ("Exited", True, None)
        assert (await rig.runtime.start(rig.spec("runs"))).is_live


async def test_stop_of_missing_instance_succeeds(open_node: OpenNode) -> None:
    async with open_node() as rig:
        assert await rig.runtime.stop(instance_id(), 1) is None
        await rig.runtime.remove(instance_id())
        await rig.runtime.start(rig.spec("runs"))
        first = await rig.runtime.stop(instance_id(), 0)
        assert await rig.runtime.stop(instance_id(), 0) == first


async def test_stubborn_instance_is_killed_after_grace_period(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("is stubborn"))
        await asyncio.sleep(0.3)  # until the shell has set its trap
        before = clock.monotonic()
        end = await rig.runtime.stop(instance_id(), 1)
        assert end
        assert (end.exit_code, end.signal) == (137, "SIGKILL")
        assert 0.9 < clock.monotonic() - before < 10


async def test_stop_reason_is_recorded(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("runs"))
        end = await rig.runtime.stop(instance_id(), 0, Failure("UNHEALTHY", "liveness: no answer"))
        assert end
        assert (end.failure, end.was_stopped_on_request) == (
            Failure("UNHEALTHY", "liveness: no answer"),
            False,
        )


async def test_remove_leaves_nothing(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("runs"))
        await rig.runtime.remove(instance_id())
        assert await rig.runtime.list() == []
        assert await rig.runtime.logs(instance_id(), 5) == ""
        assert rig.state.state.records == ()
        assert not list(rig.folder.glob("instances/*"))


async def test_last_log_lines_are_kept(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("prints"))

        async def printed() -> bool:
            return await rig.runtime.logs(instance_id(), 2) == "line 4\nline 5\n"

        await eventually(printed)
        await rig.runtime.stop(instance_id(), 2)
        assert await rig.runtime.logs(instance_id(), 1) == "line 5\n"
        assert await rig.runtime.logs(instance_id(), 0) == ""


async def test_new_agent_adopts_running_instance(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("runs"))
        before = await rig.runtime.list()
        await rig.restart()
        assert await rig.runtime.list() == before
        assert await rig.runtime.start(rig.spec("runs")) == before[0]
        end = await rig.runtime.stop(instance_id(), 0)
        assert end
        assert end.state == "Exited"


async def test_new_agent_remembers_failure(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.start(rig.spec("fails"))
        end = await rig.ended(instance_id())
        await rig.restart()
        assert await rig.runtime.list() == [end]
        assert await rig.runtime.start(rig.spec("runs")) == end


async def test_new_agent_remembers_failed_start(open_node: OpenNode) -> None:
    async with open_node() as rig:
        end = await rig.runtime.start(rig.spec("cannot start"))
        await rig.restart()
        assert await rig.runtime.list() == [end]


async def test_usage_covers_live_instances_only(open_node: OpenNode) -> None:
    async with open_node() as rig:
        assert await rig.runtime.usage(instance_id()) is None
        await rig.runtime.start(rig.spec("runs"))
        await rig.runtime.usage(instance_id())
        await asyncio.sleep(0.2)
        used = await rig.runtime.usage(instance_id())
        assert used
        assert used.memory > 0
        assert 0 <= used.cpu < 1000 * (os.cpu_count() or 1) + 500
        await rig.runtime.stop(instance_id(), 0)
        assert await rig.runtime.usage(instance_id()) is None


async def test_probe_reaches_live_instances_only(open_node: OpenNode) -> None:
    async with open_node() as rig:
        well = Probe(exec=ExecProbe(command=("/bin/true",)), timeout_seconds=10)
        assert not (await rig.runtime.run_probe(instance_id(), well)).ok
        await rig.runtime.start(rig.spec("runs"))
        assert (await rig.runtime.run_probe(instance_id(), well)).ok
        await rig.runtime.stop(instance_id(), 0)
        assert not (await rig.runtime.run_probe(instance_id(), well)).ok


async def test_lost_contact_stops_strict_instances(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.record_contact(clock.monotonic())
        await rig.runtime.start(rig.spec("runs", workload="default/strict", stop_after=1.5))
        kept = instance_id(uid="u2")
        await rig.runtime.start(rig.spec("runs", workload="default/kept", id=kept))
        end = await rig.ended(instance_id())
        assert end.failure
        assert end.failure.reason == "DISCONNECTED"
        assert [instance.id for instance in await rig.runtime.list() if instance.is_live] == [kept]
        refused = await rig.runtime.start(
            rig.spec("runs", workload="default/strict", stop_after=1.5, attempt=1)
        )
        assert refused.failure
        assert refused.failure.reason == "DISCONNECTED"


async def test_contact_keeps_strict_instances_running(open_node: OpenNode) -> None:
    async with open_node() as rig:
        await rig.runtime.record_contact(clock.monotonic())
        await rig.runtime.start(rig.spec("runs", stop_after=2.5))
        for _ in range(12):
            await rig.runtime.record_contact(clock.monotonic())
            await asyncio.sleep(0.25)
        assert [instance.is_live for instance in await rig.runtime.list()] == [True]
