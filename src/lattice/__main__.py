"""The entry point of the `lattice` program: Ctrl-C ends the process quietly even while its modules are still
loading."""

import os
import signal
from typing import NoReturn


def run() -> NoReturn:
    # The parent process may have set SIGINT to be ignored, or SIGINT may have another handler: both must
    # stay.
    is_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from lattice.cli.main import run as run_command

    if is_default_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


if __name__ == "__main__":
    run()
