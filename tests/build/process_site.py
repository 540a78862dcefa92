"""A small site of real processes: one server, agents and their workloads; observed through the API and /proc,
ended by pid."""

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from build.servers import LATTICE
from build.waiting import wait_until
from build.wire import Wire

LATTICE_API = "/apis/lattice.dev/v1alpha1"
WORKLOADS = f"{LATTICE_API}/namespaces/default/latticeworkloads"
SERVICES = f"{LATTICE_API}/namespaces/default/latticeservices"
NODES = f"{LATTICE_API}/latticenodes"
EVENTS = "/api/v1/events"
PATIENCE = 60.0  # seconds; long, since the machine may be busy with something else
LOOK = 0.05  # seconds between two looks at the machine
SHIFTED = Path(__file__).parents[1] / "e2e" / "shifted"
# The shipped times, made shorter together: heartbeat 10 s, lost 40 s, replaced 120 s, retried after 5 s to 120 s.
TIMES = {
    "heartbeat": "0.5",
    "node-lost-after": "3",
    "replace-after": "10",
    "evictions-per-second": "10",
    "retry-first": "0.3",
    "retry-longest": "3",
    "retry-service-longest": "3",
    "retry-reset": "6",
    "retry-attempts": "5",
    "missing-grace": "5",
    "reconcile-interval": "0.5",
    "lease-ttl": "5",
}
Object = dict[str, Any]


def together(*scenes: Callable[[], None]) -> None:
    """Run the scenes concurrently, since each mostly waits; the first failure is raised."""
    with ThreadPoolExecutor(len(scenes)) as pool:
        for item in [pool.submit(scene) for scene in scenes]:
            item.result()


def end(process: "subprocess.Popen[Any]", number: int = signal.SIGTERM, within: float = 20.0) -> None:
    """Ended, whatever it takes."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@dataclass
class Agent:
    """One `lattice agent` and its folder; it can be ended and started again as the same node."""

    node: str
    folder: Path
    command: list[str]
    process: "subprocess.Popen[bytes]"

    def start_again(self) -> None:
        end(self.process)
        self.process = _started(self.command, self.folder.with_suffix(".log"))

    @property
    def said(self) -> str:
        return self.folder.with_suffix(".log").read_text()

    @property
    def connections(self) -> int:
        """How often it reached a leader so far."""
        return self.said.count('"event": "connected"')


def _started(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """With a wall clock that can be set wrong; see `set_clock`."""
    shift = _shift(log)
    if not shift.exists():
        shift.write_text("0")
    path = os.pathsep.join([str(SHIFTED), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("ab") as file:
        environment = {**os.environ, "PYTHONPATH": path, "CLOCK_SHIFT": str(shift)}
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)


def _shift(log: Path) -> Path:
    return log.with_suffix(".shift")


@dataclass
class Site:
    folder: Path
    times: Mapping[str, str] = field(default_factory=lambda: dict(TIMES))
    port: int = 0
    mark: str = field(
        default_factory=lambda: uuid.uuid4().hex
    )  # in the environment of everything that runs here
    agents: dict[str, Agent] = field(default_factory=dict)
    server: "subprocess.Popen[bytes] | None" = None
    most: dict[str, int] = field(
        default_factory=dict
    )  # copies of each workload that lived at one moment; see `watched`
    _mounts: list[Path] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing outlives the test, also if it failed."""
        for item in (
            *(agent.process for agent in self.agents.values()),
            *([self.server] if self.server else []),
        ):
            end(item)
        for pid in [pid for pids in self.live().values() for pid in pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.watchdogs():
            wait_until(
                lambda pid=pid: not Path(f"/proc/{pid}").exists() or _killed(pid), "its watchdog ends", 10
            )  # type: ignore[misc]
        for place in self._mounts:
            subprocess.run(["umount", "-l", place], check=False)

    # The server

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @cached_property
    def wire(self) -> Wire:
        return Wire(self.folder / "server" / "kubeconfig")

    def start_server(self) -> None:
        log = self.folder / "server.log"
        flags = [word for name, value in self.times.items() for word in (f"--{name}", value)]
        command = [
            *LATTICE,
            "server",
            "--data-dir",
            str(self.folder / "server"),
            "--port",
            str(self.port),
            "--providers",
            "hand=manual",
            *flags,
        ]
        seen = log.stat().st_size if log.exists() else 0
        self.server = _started(command, log)
        line = wait_until(lambda: self._serving(log, seen), "the server says where it serves")
        self.port = int(line["url"].rpartition(":")[2])

    def _serving(self, log: Path, seen: int) -> Object | None:
        text = log.read_bytes()[seen:].decode()
        assert self.server is not None
        assert self.server.poll() is None, text
        lines = [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line.startswith("{") and line.endswith("\n")
        ]
        return next((line for line in lines if line.get("event") == "serving"), None)

    def kill_server(self) -> None:
        assert self.server is not None
        end(self.server, signal.SIGKILL)

    def set_clock(self, seconds: float, *nodes: str) -> None:
        """The wall clocks of the server and of the agents of these nodes are wrong by so many seconds from now on."""
        for log in (
            self.folder / "server.log",
            *(self.agents[node].folder.with_suffix(".log") for node in nodes),
        ):
            draft = log.with_suffix(".draft")
            draft.write_text(str(seconds))
            draft.rename(_shift(log))

    def lattice(
        self, *words: str, stdin: str = "", within: float = PATIENCE
    ) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "LATTICE_KUBECONFIG": str(self.folder / "server" / "kubeconfig"),
            "NO_COLOR": "1",
        }
        return subprocess.run(
            [*LATTICE, *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def token(self, node: str, *flags: str) -> str:
        made = self.lattice("tokens", "create", "--node", node, *flags)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    # Agents

    def start_agent(self, node: str, token: str, *flags: str, folder: Path | None = None) -> Agent:
        """As that node, from now on."""
        place = folder or self.folder / node
        command = [
            *LATTICE, "agent", "--server", self.url, "--join", token, "--data-dir", str(place), "--name", node, "--runtime", "process",
            "--cpu", "4", "--memory", "4Gi", "--disk", "4Gi", "--address", "127.0.0.1", "--grace", "2s", *flags,
        ]  # fmt: skip
        agent = self.agents[node] = Agent(node, place, command, _started(command, place.with_suffix(".log")))
        return agent

    def small_disk(self, name: str, size: str) -> Path:
        """A file system of its own."""
        place = self.folder / name
        place.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True, capture_output=True
        )
        self._mounts.append(place)
        return place

    # What the API says

    def apply(self, *objects: Object) -> None:
        done = self.lattice(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def get(self, path: str) -> Object:
        """Empty if it is not there."""
        answer = self.wire.get(path)
        assert answer.status in (200, 404), answer.raw
        result: Object = answer.value
        return result if answer.status == 200 else {}

    def workload(self, name: str) -> Object:
        return self.get(f"{WORKLOADS}/{name}")

    def status(self, name: str) -> Object:
        """Of a workload; empty if there is none."""
        result: Object = self.workload(name).get("status", {})
        return result

    def replicas(self, service: str) -> list[Object]:
        return [item for item in self.get(WORKLOADS)["items"] if item["spec"].get("service") == service]

    def ready(self, service: str) -> list[Object]:
        return [replica for replica in self.replicas(service) if replica.get("status", {}).get("ready")]

    def node_of(self, name: str) -> str:
        node: str = (self.status(name).get("binding") or {}).get("node", "")
        return node

    def condition(self, node: str, kind: str = "Ready") -> Object:
        result = self.get(f"{NODES}/{node}").get("status", {}).get("conditions", ())
        return next((item for item in result if item["type"] == kind), {})

    def events(self, name: str) -> list[Object]:
        """About the object of that name, oldest first."""
        results = [item for item in self.get(EVENTS)["items"] if item["involvedObject"]["name"] == name]
        return sorted(results, key=lambda item: int(item["metadata"]["resourceVersion"]))

    def reasons(self, name: str) -> list[str]:
        return [event["reason"] for event in self.events(name)]

    @property
    def leadership(self) -> tuple[str, int]:
        """The leader and its term."""
        spec = self.get("/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases/controllers")["spec"]
        return spec["holderIdentity"], spec["leaseTransitions"]

    def is_running(self, name: str) -> bool:
        status = self.status(name)
        return status.get("actualState") == "Running" and bool(status.get("ready"))

    @property
    def shown(self) -> str:
        """Everything, as people see it; for when it is not as it should be."""
        return "\n".join(
            self.lattice(*words, "-A").stdout
            for words in (("get", "nodes,workloads,services", "-o", "wide"), ("events",))
        )

    # What the machine says

    def live(self) -> dict[str, set[int]]:
        """By workload: the processes that lead a session, one for each copy that lives."""
        results: dict[str, set[int]] = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            environment = self.environment(pid)
            if environment.get("SITE") == self.mark and _leads(pid):
                results.setdefault(
                    environment.get("LATTICE_WORKLOAD", "").removeprefix("default/"), set()
                ).add(pid)
        return results

    def environment(self, pid: int) -> dict[str, str]:
        """Empty when it is gone."""
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return {}
        return dict(part.decode(errors="replace").split("=", 1) for part in text.split(b"\0") if b"=" in part)  # type: ignore[misc]

    def pids(self, name: str) -> set[int]:
        return self.live().get(name, set())

    def pid(self, name: str) -> int:
        """Of the one copy that there is."""
        (result,) = self.pids(name)
        return result

    def watchdogs(self) -> list[int]:
        """Of our agents; they outlive them while something is guarded."""
        folders = {str(agent.folder).encode() for agent in self.agents.values()}
        results = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"lattice.agent.host.watchdog" in words and folders & set(words):
                    results.append(pid)
        return results


def _killed(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return False


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
