"""The launcher of a process: enter the cgroups, apply limits, wait until the agent has recorded the process,
then exec the command.

Run by path as `python -I -S launcher.py STATUS GO MEMORY CGROUPS OOM_SCORE -- PROGRAM ARGS...`, so the module must
import almost nothing. The launcher writes "ready" to STATUS, then closes STATUS when the command starts, or
writes the error number when the exec fails. If the agent dies, GO closes without data and the command never
runs. The launcher is a program of its own, because running code between fork and exec is unsafe in a process
with threads (gRPC has many).
"""

import os
import sys

NOT_STARTED_EXIT_CODE = 127


def main(arguments: list[str]) -> None:
    """Run the launcher protocol and replace the process by the command."""
    status, go, memory = (int(word) for word in arguments[:3])
    # An agent that was started before an upgrade of the package states no score.
    separator = arguments.index("--", 4)
    command, oom_score = arguments[separator + 1 :], "".join(arguments[4:separator])
    for descriptor in (status, go):
        os.set_inheritable(descriptor, False)
    try:
        for path in filter(None, arguments[3].split("\n")):
            with open(f"{path}/cgroup.procs", "w") as file:
                file.write("0")
        if oom_score:
            try:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write(oom_score)
            except OSError:
                pass  # without the permission the process keeps the score of the agent
        if memory:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        os.write(status, b"ready\n")
        if os.read(go, 1) != b"g":
            os._exit(NOT_STARTED_EXIT_CODE)
        # `_signal` instead of `signal`, whose import takes milliseconds.
        import _signal  # type: ignore[import-not-found]

        # The agent or its parent may ignore signals; a command expects signals to end the process.
        for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
            _signal.signal(number, _signal.SIG_DFL)
        # Running the user's command is the purpose, so the lint rule does not apply.
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(status, f"{error.errno}\n".encode())
    os._exit(NOT_STARTED_EXIT_CODE)


if __name__ == "__main__":
    main(sys.argv[1:])
