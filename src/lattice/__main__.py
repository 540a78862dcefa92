"""Where the program begins: Ctrl-C ends it quietly even while the rest of it is still being loaded."""

import os
import signal
from typing import NoReturn


def run() -> NoReturn:
    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else somebody wants it ignored, or handles it
    if ours:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from lattice.cli.main import run as run_command

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()


if __name__ == "__main__":
    run()
