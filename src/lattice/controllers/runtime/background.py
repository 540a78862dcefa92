"""Run CPU-bound decisions on a daemon thread, so that the event loop stays responsive and shutdown does not
wait for the decisions."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonThreadExecutor(Executor):
    """Run every submitted function in a new daemon thread, which ends with the process.

    The default executor of an event loop joins its threads at shutdown; daemon threads are not joined.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            # False: the caller cancelled the future before the thread started.
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(fn(*args, **kwargs))
                # The caller that awaits the future gets the exception, whatever its class.
                except BaseException as error:  # noqa: BLE001
                    done.set_exception(error)

        threading.Thread(target=run, name="background", daemon=True).start()
        return done


_EXECUTOR = DaemonThreadExecutor()


async def run_in_background(decide: Callable[[], Any]) -> Any:
    """Run a function on a daemon thread, with the context variables of the caller, and return the result."""
    return await asyncio.get_running_loop().run_in_executor(_EXECUTOR, contextvars.copy_context().run, decide)
