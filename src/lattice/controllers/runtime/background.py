"""Where to think for long without holding up everybody else; who ends the process does not wait for the end of a thought."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreadExecutor(Executor):
    """Each in a thread of its own, which ends with the process: those of the loop's own executor are waited for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                    done.set_exception(error)

        threading.Thread(target=run, name="aside", daemon=True).start()
        return done


_EXECUTOR = DaemonThreadExecutor()


async def run_in_background(think: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_EXECUTOR, contextvars.copy_context().run, think)
