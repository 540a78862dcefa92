"""Runs a short command beside an instance, as exec probes do, and leaves nothing of it behind."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path


async def run(words: tuple[str, ...], env: dict[str, str], folder: Path, timeout: float) -> int | None:
    """Exit code; None when it took longer than `timeout` and was killed. Raises OSError when it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return await asyncio.wait_for(process.wait(), timeout)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
