"""Ends what must not outlive contact with the control plane, also when the agent is dead: a small process of its own, one per agent.

Run as `python -m lattice.agent.host.watchdog LISTENING_SOCKET FOLDER`. The agent says over a unix socket what to guard and what no longer, one
line each, answered with "ok" once it holds. FOLDER/contact tells when the control plane was last heard; it is read when somebody's time
seems to be up. At the deadline everything of the instance is dead; shortly before, it is asked to end. Time is that since boot, which also
counts while the machine sleeps. It goes when nothing is guarded and nobody is connected; asked to end (SIGTERM), it first ends what it
guards. Standard library only and little of that, to stay small.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from lattice.agent.host import instance_processes as groups

KILL_RETRY_S = 0.2  # seconds until a kill that left somebody is repeated


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read_last_contact(contact_file: str, boot: str) -> float | None:
    """When the control plane was last heard, in seconds since this boot; what an earlier boot left does not count."""
    try:
        with open(contact_file) as file:
            seconds, its_boot = file.read().split()
        return float(seconds) if its_boot == boot else None
    except (OSError, ValueError):
        return None


class GuardedInstance:
    """One guarded instance, as the agent described it."""

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
        return not self.command and not groups.members(self.pid, self.start, self.cgroups, self.id)

    def terminate(self) -> None:
        self.warned = True
        if self.pid:
            self._write_marker()
            groups.terminate(self.pid, self.start, self.cgroups, self.id)

    def _write_marker(self) -> None:
        """Why it ended, for the agent that comes back; a full disk must not keep us from ending it."""
        with suppress(OSError), open(self.marker, "w") as file:
            file.write(f"no contact with the control plane for {self.stop_after:g} s")

    def cancel_termination(self) -> None:
        """Contact came back; one that did not mind being asked to end lives on."""
        if self.warned:
            self.warned = False
            with suppress(OSError):
                os.unlink(self.marker)

    def end(self) -> bool:
        """True when nothing of it is left."""
        self._write_marker()
        if self.command:
            return _run(self.command)
        return groups.kill(self.pid, self.start, self.cgroups, self.id)


def _run(command: list[str]) -> bool:
    try:
        pid = os.posix_spawnp(command[0], command, dict(os.environ))
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Watchdog:
    def __init__(self, listener: int, folder: str, now: Callable[[], float] = since_boot) -> None:
        self.contact_file = f"{folder}/contact"
        self.boot = groups.boot_id()
        self._last_contact = 0.0
        self.now = now
        self.instances: dict[str, GuardedInstance] = {}
        self.listener = listener
        self.clients: dict[int, bytes] = {}

    def last_contact(self) -> float:
        """0 when nobody ever said that there was contact: no reason to let anything run on. What was read once is not taken back."""
        self._last_contact = max(self._last_contact, read_last_contact(self.contact_file, self.boot) or 0.0)
        return self._last_contact

    def due(self) -> float | None:
        """When somebody's time may be up; None when nobody is guarded."""
        contact = self.last_contact()
        times = [
            contact + post.stop_after - (0 if post.warned else post.notice)
            for post in self.instances.values()
        ]
        return min(times, default=None)

    def enforce(self) -> bool:
        """End whose time is up; False when somebody withstood and it has to be tried again."""
        contact, now, done = self.last_contact(), self.now(), True
        for post in list(self.instances.values()):
            left = contact + post.stop_after - now
            if left > post.notice:
                post.cancel_termination()
            elif post.is_empty():
                del self.instances[post.id]
            elif left > 0:
                if not post.warned:
                    post.terminate()
            elif post.end():
                del self.instances[post.id]
            else:
                done = False
        return done

    def handle_command(self, line: str) -> str:
        verb, *fields = line.split("\t")
        if verb == "guard":
            post = GuardedInstance(fields)
            self.instances[post.id] = post
        elif verb == "release":
            self.instances.pop(fields[0], None)
        return "ok\t" + " ".join(self.instances)

    def end_all(self) -> None:
        for post in self.instances.values():
            while not post.end():
                time.sleep(KILL_RETRY_S)
        self.instances.clear()

    def run(self) -> None:
        import _socket  # the module `socket` would double our memory

        listening = _socket.socket(fileno=self.listener)
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        wait: float | None = 10.0  # whoever started us connects at once
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
            wait = None if due is None else due - self.now() + 0.001 if done else KILL_RETRY_S

    def _serve(self, client: int) -> bool:
        """Answer whole lines; False when the agent is gone."""
        try:
            block = os.read(client, 65536)
            lines = (self.clients[client] + block).split(b"\n")
            self.clients[client] = lines.pop()
            for line in lines:
                os.write(client, self.handle_command(line.decode()).encode() + b"\n")
        except OSError:
            return False
        return bool(block)


def _lower_oom_score() -> None:
    """Last to be killed when memory is short, where we may ask for that."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-999")


def main(listener: int, folder: str) -> None:
    _lower_oom_score()
    dog = Watchdog(listener, folder)

    def leave(number: int, frame: object) -> None:
        dog.end_all()
        sys.exit(0)

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    dog.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
