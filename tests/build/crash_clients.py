"""Clients that write at full speed and record the outcome of every write."""

import contextlib
import http.client
import json
import random
import ssl
import tempfile
import threading
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from build.wire import CONFIGMAPS, configmap
from lattice.cli.client.config import read_kubeconfig

NAMES = 60  # few enough that writers meet one another
Outcome = Literal["ok", "refused", "unknown"]


@dataclass
class WriteRecord:
    """One write as its client saw it. `doomed`: sent in the knowledge that it must be refused."""

    verb: str
    name: str
    marker: str  # in the object that it writes; a delete has none
    expects: int  # the revision it replaces or deletes; 0 creates
    floor: int  # the newest acknowledged revision when it was sent
    doomed: bool = False
    outcome: Outcome = "unknown"
    revision: int = 0  # as acknowledged; a delete returns none


@dataclass
class WriteHistory:
    """Everything that was done and said, shared by all writers."""

    deeds: list[WriteRecord] = field(default_factory=list)
    newest: int = 0
    known: dict[str, int] = field(default_factory=dict)  # name -> its newest acknowledged revision
    outdated: dict[str, int] = field(default_factory=dict)  # name -> a revision that it had before
    failures: list[Any] = field(default_factory=list)  # answers that say the server itself failed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, rng: random.Random) -> tuple[WriteRecord, dict[str, Any] | None]:
        """The next write and its body."""
        with self.lock:
            deed, body = self._choose(
                rng, f"name-{rng.randrange(NAMES):03d}", f"marker-{len(self.deeds):07d}."
            )
            self.deeds.append(deed)
            return deed, body

    def _choose(
        self, rng: random.Random, name: str, marker: str
    ) -> tuple[WriteRecord, dict[str, Any] | None]:
        there, data = self.known.get(name, 0), {"marker": marker}
        stale = self.outdated.get(name, 0)
        dice = rng.random()
        if dice < 0.08:
            wrong = configmap(f"{name}-wrong", {"marker": marker, "number": 7})  # type: ignore[dict-item]
            return WriteRecord("create", f"{name}-wrong", marker, 0, self.newest, doomed=True), wrong
        if dice < 0.16 and stale:
            return WriteRecord("update", name, marker, stale, self.newest, doomed=True), configmap(
                name, data, resourceVersion=str(stale)
            )
        if not there or dice < 0.24:
            return WriteRecord("create", name, marker, 0, self.newest), configmap(name, data)
        if dice < 0.8:
            return WriteRecord("update", name, marker, there, self.newest), configmap(
                name, data, resourceVersion=str(there)
            )
        return WriteRecord("delete", name, "", there, self.newest), {
            "preconditions": {"resourceVersion": str(there)}
        }

    def learn(self, deed: WriteRecord, status: int, answer: Any) -> None:
        with self.lock:
            if status >= 500:
                self.failures.append(answer)
                return  # it may have happened
            if status >= 400:
                deed.outcome = "refused"
                if not deed.doomed:
                    self.known.pop(deed.name, None)
                return
            deed.outcome = "ok"
            if deed.verb == "delete":
                self.known.pop(deed.name, None)
            else:
                deed.revision = int(answer["metadata"]["resourceVersion"])
                self.newest = max(self.newest, deed.revision)
                self.known[deed.name] = deed.revision
            if deed.expects:
                self.outdated[deed.name] = deed.expects

    def ask_again(self, deed: WriteRecord, found: int) -> None:
        """After a refusal: what is there now."""
        with self.lock:
            if found:
                self.known[deed.name] = max(found, self.known.get(deed.name, 0))


class Writer(threading.Thread):
    """Writes until the server is gone."""

    def __init__(self, kubeconfig: Path, memory: WriteHistory, seed: int) -> None:
        super().__init__(daemon=True)
        self._server = read_kubeconfig(kubeconfig)
        self._memory = memory
        self._rng = random.Random(seed)

    def run(self) -> None:
        address = urllib.parse.urlsplit(self._server.url)
        connection = http.client.HTTPSConnection(
            address.hostname or "", address.port, context=self._tls(), timeout=10
        )
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            while True:
                deed, body = self._memory.plan(self._rng)
                status, answer = self._ask(connection, deed, body)
                self._memory.learn(deed, status, answer)
                if deed.outcome == "refused" and not deed.doomed:
                    status, answer = self._request(connection, "GET", f"{CONFIGMAPS}/{deed.name}")
                    self._memory.ask_again(
                        deed, int(answer["metadata"]["resourceVersion"]) if status == 200 else 0
                    )

    def _ask(self, connection: http.client.HTTPSConnection, deed: WriteRecord, body: Any) -> tuple[int, Any]:
        method = {"create": "POST", "update": "PUT", "delete": "DELETE"}[deed.verb]
        return self._request(
            connection, method, CONFIGMAPS if deed.verb == "create" else f"{CONFIGMAPS}/{deed.name}", body
        )

    def _request(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: Any = None
    ) -> tuple[int, Any]:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._server.authority)
        with tempfile.NamedTemporaryFile("w") as pair:
            pair.write(f"{self._server.certificate}\n{self._server.key}\n")
            pair.flush()
            context.load_cert_chain(pair.name)
        return context
