"""The local provider knows the runtimes of its host, also while a container runtime does not answer."""

import asyncio
from pathlib import Path

from build.virtual import VirtualClock

from lattice.errors import Unavailable
from lattice.providers.local import RUNTIME_RECHECK_S, RUNTIME_WAIT_S, LocalProvider

ALL, PROCESS = frozenset({"process", "container"}), frozenset({"process"})


class Host:
    """A host whose container runtime answers when `answer` is set; `error` replaces its answer."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock, self.answer, self.trials = VirtualClock(), asyncio.Event(), 0
        self.runtimes, self.error = ALL, ""
        self.provider = LocalProvider(tmp_path, lambda: "", self.clock, detect_runtimes=self.detect)

    async def detect(self) -> frozenset[str]:
        self.trials += 1
        await self.answer.wait()
        if self.error:
            raise Unavailable(self.error)
        return self.runtimes


async def test_runtimes_are_detected_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.answer.set()
    assert [await host.provider.runtimes() for _ in range(3)] == [ALL] * 3
    await host.clock.advance(2 * RUNTIME_RECHECK_S)
    assert (await host.provider.runtimes(), host.trials) == (ALL, 1)


async def test_hanging_container_runtime_holds_nothing_up_for_long(tmp_path: Path) -> None:
    host = Host(tmp_path)
    asked = [asyncio.create_task(host.provider.runtimes()) for _ in range(2)]
    await host.clock.advance(RUNTIME_WAIT_S - 1)
    asked.pop().cancel()
    assert not asked[0].done()
    await host.clock.advance(2)
    assert await asked[0] == PROCESS
    assert await host.provider.runtimes() == PROCESS, "later callers do not wait"
    host.answer.set()
    await host.clock.advance(1)
    assert (await host.provider.runtimes(), host.trials) == (ALL, 1)


async def test_runtime_that_was_missing_is_looked_for_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.answer.set()
    host.error = "podman did not answer within 60 s"
    assert await host.provider.runtimes() == PROCESS
    host.error = ""
    await host.clock.advance(RUNTIME_RECHECK_S - 1)
    assert (await host.provider.runtimes(), host.trials) == (PROCESS, 1)
    await host.clock.advance(1)
    await host.provider.runtimes()
    await host.clock.advance(1)
    assert (await host.provider.runtimes(), host.trials) == (ALL, 2)
