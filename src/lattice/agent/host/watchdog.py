"""The watchdog: a separate small process per agent that kills instances that must not keep running without
contact with the control plane. The watchdog works even if the agent has died.

Run as `python -m lattice.agent.host.watchdog LISTENING_SOCKET FOLDER`. The agent sends commands to guard and
release instances over a Unix socket, one line per command, answered with "ok" once the command is in force.
FOLDER/contact holds the time of the last contact; the watchdog reads the file whenever it wakes up. The
deadline of an instance is `stop_after` seconds after the last contact. At the deadline the watchdog kills all
processes of the instance; `notice` seconds earlier, it sends them SIGTERM. Time is measured since boot,
including suspend. The watchdog exits when no instance is guarded and no agent is connected; on SIGTERM it
first kills the guarded instances. The module imports little of the standard library, so that the process
stays small.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from lattice.agent.host import instance_processes

KILL_RETRY_S = 0.2  # delay until the next kill, if processes have survived a kill


def seconds_since_boot() -> float:
    """Seconds since boot, including suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_last_contact(contact_file: str, boot: str) -> float | None:
    """The time of the last contact with the control plane, in seconds since boot; None for a missing file or
    a file of an earlier boot."""
    try:
        with open(contact_file) as file:
            seconds, its_boot = file.read().split()
        return float(seconds) if its_boot == boot else None
    except (OSError, ValueError):
        return None


class GuardedInstance:
    """One guarded instance, as described by the agent's guard command."""

    __slots__ = ("cgroups", "command", "id", "marker", "notice", "pid", "start", "stop_after", "warned")

    def __init__(self, fields: list[str]) -> None:
        self.id = fields[0]
        self.pid, self.start = int(fields[1]), int(fields[2])
        self.stop_after, self.notice = float(fields[3]), float(fields[4])
        self.marker = fields[5]
        self.cgroups = [path for path in fields[6].split("|") if path]
        self.command = [word for word in fields[7].split("\x1f") if word]
        self.warned = False

    def is_empty(self) -> bool:
        """Whether no process of the instance is left; always False if the watchdog ends the instance by
        running `command`, since the watchdog does not know the processes of such an instance."""
        return not self.command and not instance_processes.instance_pids(
            self.pid, self.start, self.cgroups, self.id
        )

    def terminate(self) -> None:
        """Send SIGTERM shortly before the deadline, unless the watchdog ends the instance by running
        `command`."""
        self.warned = True
        if self.pid:
            self._write_marker()
            instance_processes.terminate(self.pid, self.start, self.cgroups, self.id)

    def _write_marker(self) -> None:
        """Write the reason of the kill for a later agent; an error such as a full disk must not prevent the
        kill."""
        with suppress(OSError), open(self.marker, "w") as file:
            file.write(f"no contact with the control plane; the limit is {self.stop_after:g} s")

    def cancel_termination(self) -> None:
        """Clear the marker after contact has returned; an instance that ignored SIGTERM keeps running."""
        if self.warned:
            self.warned = False
            with suppress(OSError):
                os.unlink(self.marker)

    def end(self) -> bool:
        """Kill the instance, or run `command`; return True when no process is left, or when the command has
        succeeded."""
        self._write_marker()
        if not self.command:
            return instance_processes.kill(self.pid, self.start, self.cgroups, self.id)
        try:
            pid = os.posix_spawnp(self.command[0], self.command, dict(os.environ))
        except OSError:
            return False
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Watchdog:
    """The guarded instances and the loop that enforces their deadlines."""

    def __init__(self, listener: int, folder: str, now: Callable[[], float] = seconds_since_boot) -> None:
        self.contact_file = f"{folder}/contact"
        self.boot = instance_processes.boot_id()
        self._last_contact = 0.0
        self.now = now
        self.instances: dict[str, GuardedInstance] = {}
        self.listener = listener
        self.clients: dict[int, bytes] = {}

    def last_contact(self) -> float:
        """The time of the last contact in seconds since boot, never decreasing. Without a contact since boot
        it is 0: the time without contact then counts from the boot."""
        self._last_contact = max(self._last_contact, read_last_contact(self.contact_file, self.boot) or 0.0)
        return self._last_contact

    def due(self) -> float | None:
        """The next time at which an instance gets SIGTERM or is killed, unless contact returns; None without
        guarded instances."""
        contact = self.last_contact()
        times = [
            contact + instance.stop_after - (0 if instance.warned else instance.notice)
            for instance in self.instances.values()
        ]
        return min(times, default=None)

    def enforce(self) -> bool:
        """Terminate or kill instances near or past their deadline; False if a kill must be repeated."""
        contact, now, done = self.last_contact(), self.now(), True
        for instance in list(self.instances.values()):
            remaining = contact + instance.stop_after - now
            if remaining > instance.notice:
                instance.cancel_termination()
            elif instance.is_empty():
                del self.instances[instance.id]
            elif remaining > 0:
                if not instance.warned:
                    instance.terminate()
            elif instance.end():
                del self.instances[instance.id]
            else:
                done = False
        return done

    def handle_command(self, line: str) -> str:
        """Execute one command line of the agent and return the answer: "ok" with the ids of the guarded
        instances."""
        verb, *fields = line.split("\t")
        if verb == "guard":
            instance = GuardedInstance(fields)
            self.instances[instance.id] = instance
        elif verb == "release":
            self.instances.pop(fields[0], None)
        return "ok\t" + " ".join(self.instances)

    def end_all(self) -> None:
        """Kill all guarded instances, however long the kill takes."""
        for instance in self.instances.values():
            while not instance.end():
                time.sleep(KILL_RETRY_S)
        self.instances.clear()

    def run(self) -> None:
        """Serve agents and enforce deadlines until no instance is guarded and no agent is connected."""
        # The module `socket` would double the memory of the process.
        import _socket

        listening = _socket.socket(fileno=self.listener)
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        # Wait this long for the agent that started the watchdog; the agent normally connects at once.
        wait: float | None = 10.0
        while True:
            for descriptor, _ in poll.poll(None if wait is None else max(0, wait) * 1000):
                if descriptor == self.listener:
                    client, _ = listening._accept()  # type: ignore[attr-defined]
                    self.clients[client] = b""
                    poll.register(client, select.POLLIN)
                elif not self._serve(descriptor):
                    poll.unregister(descriptor)
                    del self.clients[descriptor]
                    os.close(descriptor)
            done = self.enforce()
            due = self.due()
            if due is None and not self.clients:
                return
            if due is None:
                wait = None
            else:
                wait = due - self.now() + 0.001 if done else KILL_RETRY_S

    def _serve(self, client: int) -> bool:
        """Answer complete command lines of a client; return False when the client is gone."""
        try:
            block = os.read(client, 65536)
            lines = (self.clients[client] + block).split(b"\n")
            self.clients[client] = lines.pop()
            for line in lines:
                os.write(client, self.handle_command(line.decode()).encode() + b"\n")
        except OSError:
            return False
        return bool(block)


def main(listener: int, folder: str) -> None:
    """Run the watchdog until no instance is guarded and no agent is connected."""
    # Where permitted, be the last process that the kernel kills when memory is short.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-999")
    watchdog = Watchdog(listener, folder)

    def end_and_exit(number: int, frame: object) -> None:
        watchdog.end_all()
        sys.exit(0)

    # A write to a closed connection must not end the watchdog.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_and_exit)
    watchdog.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
