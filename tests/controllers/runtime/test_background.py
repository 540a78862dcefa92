"""Decisions on a background thread block neither the event loop nor the exit of the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from lattice.controllers.runtime.background import run_in_background

UNENDING = """
import asyncio, threading
from lattice.controllers.runtime.background import run_in_background

async def main():
    begun = threading.Event()
    thinking = asyncio.create_task(run_in_background(lambda: (begun.set(), threading.Event().wait())))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    thinking.cancel()

asyncio.run(main())
print("ended")
"""


async def test_event_loop_runs_while_decision_is_computed() -> None:
    hint = threading.Event()
    thinking = asyncio.create_task(run_in_background(lambda: hint.wait() and 7))
    await asyncio.sleep(0)
    hint.set()
    assert int(await thinking) == 7


async def test_exception_of_decision_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_in_background(lambda: 1 // 0)


def test_process_exits_while_decision_is_running() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNENDING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
