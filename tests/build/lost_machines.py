"""A machine of `lattice up` that is lost for good, and how long services and the bill take to return."""

import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.process_site import LATTICE_API, NODES, SERVICES, WORKLOADS
from build.servers import Server
from build.waiting import wait_until
from build.wire import Wire

LEDGERS = f"{LATTICE_API}/latticeledgers"


@dataclass(frozen=True)
class Loss:
    """One lost machine: seconds from the loss until all services were ready, and from then until the bill was what it was
    before; None: not in time. Money in micro-dollars per hour."""

    machine: str
    replicas: tuple[str, ...]
    ready_after_s: float | None
    bill_back_after_s: float | None
    bill_before: int
    highest_bill: int
    bill_after: int
    new_machines: tuple[str, ...]

    @property
    def is_healed(self) -> bool:
        return self.ready_after_s is not None and self.bill_back_after_s is not None


class QuickstartSite:
    """A server with the quickstart, observed through its API."""

    def __init__(self, server: Server) -> None:
        self.server, self.wire = server, Wire(server.kubeconfig)
        self.machines = server.data_dir / "machines" / "local"

    def apply(self, folder: Path) -> None:
        done = self.server.lattice("apply", "-f", str(folder))
        assert done.returncode == 0, done.stderr

    def items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.wire.get(path).value["items"]
        return items

    def are_services_ready(self) -> bool:
        services = self.items(SERVICES)
        replicas = self.items(WORKLOADS)
        for service in services:
            desired = (service["spec"].get("replicas") or {}).get("min") or 1
            ready = [
                replica
                for replica in replicas
                if replica["spec"].get("service") == service["metadata"]["name"]
                and replica["status"].get("ready")
                and not replica["metadata"].get("deletionTimestamp")
            ]
            if len(ready) < desired or len({replica["status"]["binding"]["node"] for replica in ready}) == 0:
                return False
        return bool(services)

    def bill(self) -> int:
        """What the ledgers pay."""
        return sum(ledger["status"].get("committedMicros", 0) for ledger in self.items(LEDGERS))

    def shown_cost(self) -> int:
        done = self.server.lattice("cost", "-o", "json")
        assert done.returncode == 0, done.stderr
        import json

        return int(json.loads(done.stdout)["total"]["hourlyMicros"])

    def nodes(self) -> set[str]:
        return {node["metadata"]["name"] for node in self.items(NODES)}

    def replicas_on(self, node: str) -> tuple[str, ...]:
        return tuple(
            sorted(
                replica["metadata"]["name"]
                for replica in self.items(WORKLOADS)
                if (replica["status"].get("binding") or {}).get("node") == node
            )
        )

    def lose_for_good(self, node: str) -> None:
        """Break the disk of the machine, so that no agent can start on it again, and kill the agent and its processes."""
        folder = self.machines / node
        agent = folder / "agent"
        agent.rename(self.server.data_dir / f"lost-{node}-{time.monotonic_ns()}")
        agent.write_text("broken")
        while pids := _processes_of(folder, self.server.data_dir):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def lose_and_watch(self, node: str, ready_within: float, bill_within: float) -> Loss:
        before, replicas, nodes = self.bill(), self.replicas_on(node), self.nodes()
        highest, began = before, time.monotonic()
        self.lose_for_good(node)
        ready_after = bill_back_after = None
        # The server takes the services for ready until it has missed the heartbeats.
        wait_until(lambda: not self.are_services_ready(), "the server notices the loss", within=ready_within)
        while ready_after is None and time.monotonic() - began < ready_within:
            highest = max(highest, self.bill())
            if self.are_services_ready():
                ready_after = time.monotonic() - began
            time.sleep(0.2)
        ready_at = time.monotonic()
        while (
            ready_after is not None and bill_back_after is None and time.monotonic() - ready_at < bill_within
        ):
            bill = self.bill()
            highest = max(highest, bill)
            if bill == before and node not in self.nodes() and self.shown_cost() == before:
                bill_back_after = time.monotonic() - ready_at
            time.sleep(0.2)
        new = tuple(sorted(self.nodes() - nodes))
        return Loss(node, replicas, ready_after, bill_back_after, before, highest, self.bill(), new)


def _processes_of(folder: Path, data_dir: Path) -> list[int]:
    """Processes that run in the folder of the machine, or name it on their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
            directory = os.readlink(f"/proc/{entry}/cwd")
        except OSError:
            continue
        # The folder was renamed: the working directories of the workloads show its new name.
        if str(folder) + "/" in words or directory.startswith(f"{data_dir}/lost-{folder.name}-"):
            found.append(int(entry))
    return found


def table(losses: Sequence[Loss]) -> str:
    head = (
        "try",
        "lost machine",
        "replicas",
        "ready after",
        "bill back after",
        "before",
        "highest",
        "after",
        "new machines",
    )
    rows = [head]
    for number, loss in enumerate(losses, 1):
        rows.append(
            (
                str(number),
                loss.machine,
                ", ".join(loss.replicas),
                _seconds(loss.ready_after_s),
                _seconds(loss.bill_back_after_s),
                _dollars(loss.bill_before),
                _dollars(loss.highest_bill),
                _dollars(loss.bill_after),
                ", ".join(loss.new_machines),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:.3f}"


def remove_lost_disks(data_dir: Path) -> None:
    for folder in data_dir.glob("lost-*"):
        shutil.rmtree(folder, ignore_errors=True)
