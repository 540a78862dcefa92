"""Clients that write while servers come and go, and record the acknowledged writes."""

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from build.wire import CONFIGMAPS, Wire, configmap

WORKLOADS = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeworkloads"
PAUSE = 0.1  # seconds between two writes of one writer
KEPT = 3  # a third of what a writer may have there stays for ever; the rest comes and goes

Verb = Literal["create", "delete"]


def bare(name: str, cpu: str = "200m") -> dict[str, Any]:
    """A workload without a service."""
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeWorkload",
        "metadata": {"name": name},
        "spec": {"containers": {"main": {"command": ["serve"]}}, "requests": {"cpu": cpu}},
    }


@dataclass(frozen=True)
class AcknowledgedWrite:
    """A write that was acknowledged."""

    verb: Verb
    path: str  # in the API
    server: str
    revision: int  # of what was created
    at: float


@dataclass
class WriteLog:
    """The outcomes of the writes of all writers."""

    done: list[AcknowledgedWrite] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)  # paths of objects about which a question is open
    refused: list[str] = field(default_factory=list)  # rejections, none of which is expected

    def longest_wait(self, since: float, until: float, *, but: str = "") -> float:
        """The longest time in seconds without an acknowledgement, not counting those of the server `but`."""
        times = [
            since,
            *sorted(deed.at for deed in self.done if since <= deed.at <= until and deed.server != but),
            until,
        ]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def kept(self) -> dict[str, AcknowledgedWrite]:
        """By path: created, and never asked to be deleted."""
        gone = {deed.path for deed in self.done if deed.verb == "delete"} | self.unanswered
        return {deed.path: deed for deed in self.done if deed.verb == "create" and deed.path not in gone}

    def deleted(self) -> set[str]:
        return {deed.path for deed in self.done if deed.verb == "delete"}


class Writer(threading.Thread):
    """Creates at one server, one object after the other, and deletes some of them when there are more than `most`."""

    def __init__(self, server: str, kubeconfig: Path, ledger: WriteLog, place: str, most: int) -> None:
        super().__init__(daemon=True)
        self._server, self._wire, self._ledger, self._place, self._most = (
            server,
            Wire(kubeconfig),
            ledger,
            place,
            most,
        )
        self._rng = random.Random(f"{server}{place}")
        self._number = 0
        self._kept = 0
        self._passing: list[str] = []  # names of those that may go
        self._there = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(PAUSE):
            with contextlib.suppress(OSError, http.client.HTTPException), self._wire.connected() as line:
                line.connect()
                self._write_while_answered(line)

    def stop(self) -> None:
        self._over.set()

    def _write_while_answered(self, line: http.client.HTTPSConnection) -> None:
        while not self._over.wait(PAUSE):
            if self._there >= self._most and self._passing:
                self._remove(line, self._passing.pop(self._rng.randrange(len(self._passing))))
            else:
                self._make(line)

    def _make(self, line: http.client.HTTPSConnection) -> None:
        self._number += 1
        name = f"{self._server}-{self._number:05d}"
        body = configmap(name, {"by": self._server}) if self._place == CONFIGMAPS else bare(name)
        self._there += 1
        if not self._ask(line, "create", name, body):
            return
        if self._kept < self._most // KEPT:
            self._kept += 1
        else:
            self._passing.append(name)

    def _remove(self, line: http.client.HTTPSConnection, name: str) -> None:
        self._there -= 1
        self._ask(line, "delete", name)

    def _ask(self, line: http.client.HTTPSConnection, verb: Verb, name: str, body: Any = None) -> bool:
        """Whether it was acknowledged. Without an answer, or with one that says so, it may have happened."""
        path = f"{self._place}/{name}"
        self._ledger.unanswered.add(path)
        method, where = ("POST", self._place) if verb == "create" else ("DELETE", path)
        line.request(
            method, where, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        response = line.getresponse()
        answer = json.loads(response.read())
        if response.status >= 500:
            return False
        self._ledger.unanswered.discard(path)
        if response.status >= 400:
            self._ledger.refused.append(f"{verb} {path} at {self._server}: {answer}")
            return False
        revision = int(answer["metadata"].get("resourceVersion", 0)) if verb == "create" else 0
        self._ledger.done.append(AcknowledgedWrite(verb, path, self._server, revision, time.monotonic()))
        return True
