"""The contract of providers: idempotent create and delete, machines found after a restart, and clean-up on
close."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from build.machine_specs import a_machine_spec
from build.waiting import eventually

from lattice.clock import SystemClock
from lattice.errors import Unavailable
from lattice.providers.fake import FakeProvider
from lattice.providers.local import LocalProvider
from lattice.providers.manual import ManualProvider
from lattice.providers.protocol import (
    Provider,
    ProvisioningRejected,
    ProvisioningUnavailable,
    adapter_name,
)

AGENT = Path(__file__).parents[1] / "build" / "fake_agent.py"
SOON = 0.02  # seconds
clock = SystemClock()


class Rig:
    """Machines, and a provider that can be replaced by a new one on the same state."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.made: list[str] = []
        self.provider = self.begun()

    def begun(self) -> Provider:
        """The provider of a server that has just started."""
        if self.kind == "fake":
            return FakeProvider(
                clock,
                state_file=self.folder / "note.json",
                on_created=lambda machine: self.made.append(machine.node),
            )
        return LocalProvider(
            self.folder,
            lambda: "https://nowhere.invalid",
            clock,
            command=(sys.executable, str(AGENT)),
            stop_timeout_s=2.0,
        )

    async def create(self, node: str) -> str:
        name = await self.provider.create(a_machine_spec(node))
        await eventually(lambda: self.kind == "fake" or (self.home(node) / "state.json").exists(), within=10)
        return name

    async def starts(self, node: str) -> int:
        """The number of starts of this machine, or a value that differs between two starts."""
        return self.made.count(node) if self.kind == "fake" else self.agent(node)

    def home(self, node: str) -> Path:
        return self.folder / node / "agent"

    def agent(self, node: str) -> int:
        return int((self.folder / node / "agent.pid").read_text())

    def work(self, node: str) -> int:
        pid: int = json.loads((self.home(node) / "state.json").read_text())["pid"]
        return pid

    async def lose(self, node: str) -> None:
        """The machine ends without a request."""
        if isinstance(self.provider, FakeProvider):
            return self.provider.end_machine(node)
        os.kill(self.agent(node), signal.SIGKILL)
        while [machine.state for machine in await self.provider.list() if machine.node == node] == [
            "Running"
        ]:
            await asyncio.sleep(SOON)
        return None

    async def states(self) -> list[tuple[str, str, str]]:
        return [(machine.node, machine.cluster, machine.state) for machine in await self.provider.list()]

    def sweep(self) -> None:
        for path in self.folder.glob("*/agent.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        for path in self.folder.glob("*/agent/state.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def provider_rig(kind: str, folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(kind, folder)
    try:
        yield rig
    finally:
        rig.sweep()


each_provider = pytest.mark.parametrize("kind", ["fake", "local"])


async def test_manual_provider_creates_nothing_and_says_what_to_do() -> None:
    """The promises of every provider for machines that do not exist, and a clear answer to a request."""
    provider: Provider = ManualProvider("metal")
    (await provider.available_capacity()).check("anywhere", 0)
    with pytest.raises(ProvisioningUnavailable):
        (await provider.available_capacity()).check("anywhere")
    with pytest.raises(ProvisioningRejected, match="provider metal creates no machines") as rejection:
        await provider.create(a_machine_spec("n1"))
    assert "lattice tokens create --pool" in str(rejection.value)
    await asyncio.gather(provider.delete("n1"), provider.delete("never-was"))
    assert list(await provider.list()) == []
    assert await provider.runtimes() is None, "unknown until a machine joins"
    await provider.close()


def test_names_of_adapters_say_which_provider_is_manual() -> None:
    providers: dict[str, Provider] = {"metal": ManualProvider("metal"), "cloud": FakeProvider(clock)}
    names = {adapter_name(name, provider) for name, provider in providers.items()}
    assert names == {"metal=manual", "cloud"}


@each_provider
async def test_create_is_idempotent(kind: str, tmp_path: Path) -> None:
    async with provider_rig(kind, tmp_path) as rig:
        name = await rig.create("n1")
        before = await rig.starts("n1")
        assert await rig.create("n1") == name
        assert await asyncio.gather(rig.create("n1"), rig.create("n1")) == [name, name]
        assert await rig.starts("n1") == before
        assert await rig.states() == [("n1", "rack-001", "Running")]


@each_provider
async def test_machines_are_listed_in_the_order_of_their_names(kind: str, tmp_path: Path) -> None:
    async with provider_rig(kind, tmp_path) as rig:
        assert await rig.states() == []
        for node in ("n2", "n1", "n10"):
            await rig.create(node)
        assert [node for node, _, _ in await rig.states()] == ["n1", "n10", "n2"]


@each_provider
async def test_delete_is_idempotent(kind: str, tmp_path: Path) -> None:
    async with provider_rig(kind, tmp_path) as rig:
        await rig.create("n1")
        await rig.create("n2")
        await asyncio.gather(rig.provider.delete("n1"), rig.provider.delete("n1"))
        await rig.provider.delete("n1")
        await rig.provider.delete("never-was")
        assert await rig.states() == [("n2", "rack-001", "Running")]
        await rig.create("n1")
        assert [node for node, _, _ in await rig.states()] == ["n1", "n2"]


@each_provider
async def test_new_server_finds_existing_machines(kind: str, tmp_path: Path) -> None:
    async with provider_rig(kind, tmp_path) as rig:
        await rig.create("n1")
        before = await rig.starts("n1")
        rig.provider = rig.begun()
        assert await rig.states() == [("n1", "rack-001", "Running")]
        await rig.create("n1")
        assert await rig.starts("n1") == before
        await rig.provider.delete("n1")
        assert await rig.states() == []


@each_provider
async def test_ended_machine_is_reported_and_restarted(kind: str, tmp_path: Path) -> None:
    async with provider_rig(kind, tmp_path) as rig:
        await rig.create("n1")
        before = await rig.starts("n1")
        await rig.lose("n1")
        (found,) = await rig.provider.list()
        assert (found.state, bool(found.message)) == ("Ended", True)
        await rig.create("n1")
        assert await rig.starts("n1") != before
        assert await rig.states() == [("n1", "rack-001", "Running")]


async def test_unavailable_machine_is_rejected_with_reason(
    tmp_path: Path,
) -> None:
    async with provider_rig("fake", tmp_path) as rig:
        assert isinstance(rig.provider, FakeProvider)
        rig.provider.quota, rig.provider.regions = 1, frozenset({"here"})
        await rig.create("n1")
        with pytest.raises(ProvisioningUnavailable, match="the machine quota is used up"):
            await rig.provider.create(a_machine_spec("n2"))
        rig.provider.quota = 9
        with pytest.raises(
            ProvisioningRejected, match="region there is not available; available regions: here"
        ):
            await rig.provider.create(replace(a_machine_spec("n2"), region="there"))
        assert await rig.states() == [("n1", "rack-001", "Running")]


async def test_close_stops_agents_and_restart_resumes(tmp_path: Path) -> None:
    async with provider_rig("local", tmp_path) as rig:
        for node in ("n1", "n2"):
            await rig.create(node)
        pids = [found(node) for node in ("n1", "n2") for found in (rig.agent, rig.work)]
        await rig.provider.close()
        await eventually(lambda: not any(map(lives, pids)), within=10)
        assert await rig.states() == [("n1", "rack-001", "Ended"), ("n2", "rack-001", "Ended")]
        rig.provider = rig.begun()
        await rig.create("n1")
        assert (await rig.states())[0] == ("n1", "rack-001", "Running")


@pytest.mark.parametrize(
    "case", ["does not hear that it is to end", "was killed before", "was started by an earlier server"]
)
async def test_close_stops_leftovers_of_agents(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "does not hear that it is to end":
        monkeypatch.setenv("DEAF", "1")

    async with provider_rig("local", tmp_path) as rig:
        await rig.create("n1")
        agent, work = rig.agent("n1"), rig.work("n1")
        if case == "was killed before":
            await rig.lose("n1")
        if case == "was started by an earlier server":
            os.kill(agent, signal.SIGSTOP)  # it does not end by itself
            rig.provider = rig.begun()
        assert isinstance(rig.provider, LocalProvider)
        rig.provider.stop_timeout_s = 0.3
        await rig.provider.close()
        await eventually(lambda: not lives(agent) and not lives(work), within=10)


async def test_reused_pid_is_not_killed(tmp_path: Path) -> None:
    async with provider_rig("local", tmp_path) as rig:
        await rig.create("n1")
        agent = rig.agent("n1")
        other = await asyncio.create_subprocess_exec("sleep", "1000")
        (tmp_path / "n1" / "agent.pid").write_text(str(other.pid))
        rig.provider = rig.begun()
        assert isinstance(rig.provider, LocalProvider)
        rig.provider.stop_timeout_s = 0.3
        await rig.provider.delete("n1")
        assert (lives(other.pid), lives(agent)) == (True, False)
        other.kill()
        await other.wait()


async def test_unstoppable_machine_is_reported_and_listed(tmp_path: Path) -> None:
    async with provider_rig("local", tmp_path) as rig:
        await rig.create("n1")
        await rig.lose("n1")
        work = rig.work("n1")
        (rig.home("n1") / "state.json").write_text("{")
        with pytest.raises(Unavailable, match="the workloads of n1 cannot be stopped"):
            await rig.provider.delete("n1")
        assert await rig.states() == [("n1", "rack-001", "Ended")]
        os.kill(work, signal.SIGKILL)
        (rig.home("n1") / "state.json").unlink()


async def test_agents_get_address_of_moved_server(tmp_path: Path) -> None:
    async with provider_rig("local", tmp_path) as rig:
        await rig.create("n1")
        words = Path(f"/proc/{rig.agent('n1')}/cmdline").read_bytes().decode().split("\0")
        told = Path(words[words.index("--server-file") + 1])
        assert told.read_text() == "https://nowhere.invalid"
        rig.provider = rig.begun()
        assert isinstance(rig.provider, LocalProvider)
        rig.provider.server_address = lambda: "https://elsewhere.invalid"
        assert await rig.states() == [("n1", "rack-001", "Running")]
        assert told.read_text() == "https://elsewhere.invalid"
