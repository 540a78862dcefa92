"""The moment before a command runs: enter cgroups, take limits, wait until the agent has written down who we are, become the command.

Run by path as `python -I -S launch.py STATUS GO MEMORY CGROUPS -- PROGRAM ARGS...`, so it must import next to nothing. STATUS gets "ready",
then nothing when the command began, or the error number when it could not. GO ends without a word if the agent died: then nothing ran.
A process of its own instead of code between fork and exec, because forking a program with threads (gRPC has many) is not safe.
"""

import os
import sys

NOT_STARTED = 127


def main(arguments: list[str]) -> None:
    status, go, memory = (int(word) for word in arguments[:3])
    program, command = arguments[5], arguments[5:]
    for descriptor in (status, go):
        os.set_inheritable(descriptor, False)
    try:
        _apply_limits(arguments[3].split("\n"), memory)
        os.write(status, b"ready\n")
        if os.read(go, 1) != b"g":
            os._exit(NOT_STARTED)
        _restore_signals()
        os.execv(program, command)  # noqa: S606  the command that the user gave
    except OSError as error:
        os.write(status, f"{error.errno}\n".encode())
    os._exit(NOT_STARTED)


def _apply_limits(cgroups: list[str], memory: int) -> None:
    for path in filter(None, cgroups):
        with open(f"{path}/cgroup.procs", "w") as file:
            file.write("0")
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _restore_signals() -> None:
    """Whatever the agent, or who started it, ignores: a command expects signals to end it."""
    import _signal  # type: ignore[import-not-found]  # the module `signal` costs milliseconds

    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)


if __name__ == "__main__":
    main(sys.argv[1:])
