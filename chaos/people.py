"""People at work through the API of whichever server, as in the simulator; every operation and what they were told is kept."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build.wire import APPLY, MERGE, Wire, with_query

from lattice.kinds.core import ConfigMap
from lattice.sim.world import user_actions as churn
from lattice.sim.world.client import OPERATION_ANNOTATION, OperationRecord
from lattice.sim.world.servers import catalog
from lattice.store.protocol import Key

Body = dict[str, Any]
LATTICE = "/apis/lattice.dev/v1alpha1"
POOL, CLASS, KEEPER = "rack", "small", "keeper"
LABELS = {"labels": {"app": KEEPER}}  # of all services: those under one policy share the cluster
SERVICES = tuple(f"svc-{number}" for number in range(8))
LONE = tuple(f"lone-{number}" for number in range(12))
GANG = ("crew-0", "crew-1", "crew-2")
LIMITS = (600, 900, 2000)
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


def path_of(kind: str, name: str, part: str = "") -> str:
    if kind == "configmaps":
        return f"/api/v1/namespaces/default/configmaps/{name}"
    namespaced = catalog().by_id(f"{kind}.lattice.dev").resource.namespaced
    return f"{LATTICE}{'/namespaces/default' if namespaced else ''}/{kind}/{name}{f'/{part}' if part else ''}"


def key_of(kind: str, name: str) -> Key:
    if kind == "configmaps":
        return Key(ConfigMap.resource.id, "default", name)
    resource = catalog().by_id(f"{kind}.lattice.dev").resource
    return Key(resource.id, "default" if resource.namespaced else "", name)


@dataclass
class Client:
    """One person, who asks one server after the other."""

    name: str
    wires: Sequence[tuple[str, Wire]]
    log: list[OperationRecord]
    rng: random.Random
    _count: int = 0

    def apply(self, kind: str, name: str, body: Body) -> bool:
        words = {
            "apiVersion": "v1" if kind == "configmaps" else "lattice.dev/v1alpha1",
            "kind": "ConfigMap"
            if kind == "configmaps"
            else catalog().by_id(f"{kind}.lattice.dev").resource.kind,
        }
        query = {"fieldManager": "lattice", "force": "true"}
        return self._ask(
            "PATCH",
            kind,
            name,
            {**words, **body, "metadata": {"name": name, **body.get("metadata", {})}},
            APPLY,
            query=query,
        )

    def patch(self, kind: str, name: str, body: Body, part: str = "") -> bool:
        return self._ask("PATCH", kind, name, body, MERGE, part)

    def delete(self, kind: str, name: str) -> bool:
        return self._ask("DELETE", kind, name)

    def get(self, kind: str, name: str) -> bool:
        return self._ask("GET", kind, name)

    def retry(self, name: str) -> bool:
        return self._ask("POST", "latticeworkloads", name, part="retry")

    def _ask(
        self,
        method: str,
        kind: str,
        name: str,
        body: Body | None = None,
        form: str = "",
        part: str = "",
        query: Any = None,
    ) -> bool:
        self._count += 1
        operation = f"{self.name}.{self._count}"
        if body is not None and not part:
            marked = {**body.get("metadata", {}), "annotations": {OPERATION_ANNOTATION: operation}}
            body = {**body, "metadata": marked}
        server, wire = self.rng.choice(self.wires)
        asked = time.monotonic()
        outcome, revision, why = _answered(
            wire, method, with_query(path_of(kind, name, part), query or {}), body, form
        )
        noted = "RETRY" if part == "retry" else method
        told = OperationRecord(
            self.name,
            operation,
            noted,
            key_of(kind, name),
            asked,
            time.monotonic(),
            outcome,
            revision,
            why,
            server,
        )
        replicas = (body or {}).get("spec", {}).get("replicas") if part == "scale" else None
        self.log.append(
            replace(
                told,
                carries_operation=body is not None and not part,
                was_not_found=why.startswith("404"),
                replicas=replicas,
            )
        )
        return outcome == OK


def _answered(wire: Wire, method: str, path: str, body: Body | None, form: str) -> tuple[str, int, str]:
    try:
        answer = wire.ask(method, path, body, **({"content_type": form} if form else {}))
        value = answer.value
    except (OSError, http.client.HTTPException, ValueError) as error:
        return UNKNOWN, 0, repr(error)
    if answer.status >= 500:
        return UNKNOWN, 0, f"{answer.status} {value.get('message', '')}"
    if answer.status >= 400:
        return REFUSED, 0, f"{answer.status} {value.get('message', '')}"
    return OK, int(value.get("metadata", {}).get("resourceVersion", 0) or 0), ""


class Person(threading.Thread):
    """Does one thing after the other until told to go home."""

    def __init__(self, client: Client, nodes: Sequence[str], pause: float) -> None:
        super().__init__(daemon=True)
        self.client, self.nodes, self.pause, self.rng = client, nodes, pause, client.rng
        self.versions: dict[str, int] = {}
        self.over = threading.Event()

    def run(self) -> None:
        deeds: list[tuple[int, Callable[[], object]]] = [
            (6, self._service), (4, self._scale), (2, self._delete_service), (6, self._lone), (3, self._delete_lone),
            (1, self._gang), (2, self._cordon), (1, self._budget), (2, self._look),
        ]  # fmt: skip
        while not self.over.wait(self.pause * (0.5 + self.rng.random())):
            self.rng.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]()

    def _version(self, name: str, share: float) -> int:
        self.versions[name] = self.versions.get(name, 0) + (self.rng.random() < share)
        return self.versions[name]

    def _service(self) -> None:
        name = self.rng.choice(SERVICES)
        options: Body = {"disconnect": self._strict()} if name in SERVICES[:3] else {}
        body = churn.service_body(
            self.rng.randint(1, 5),
            self.rng.choice((0.25, 0.5)),
            self._version(name, 0.5),
            port=name == SERVICES[4],
            **options,
        )
        self.client.apply("latticeservices", name, {**body, "metadata": LABELS})

    def _strict(self) -> Body:
        return {"policy": "stop", "stopAfter": f"{self.rng.randint(8, 26)}s"}

    def _scale(self) -> None:
        self.client.patch(
            "latticeservices",
            self.rng.choice(SERVICES),
            {"spec": {"replicas": self.rng.randint(0, 6)}},
            "scale",
        )

    def _delete_service(self) -> None:
        self.client.delete("latticeservices", self.rng.choice(SERVICES))

    def _lone(self) -> None:
        name = self.rng.choice(LONE)
        policy = {"disconnect": self._strict()} if self.rng.random() < 0.6 else {}
        body = churn.workload_body(self.rng.choice(("250m", "500m")), self._version(name, 0.3), **policy)
        self.client.apply("latticeworkloads", name, body)

    def _delete_lone(self) -> None:
        self.client.delete("latticeworkloads", self.rng.choice(LONE))

    def _gang(self) -> None:
        leaves = self.rng.random() < 0.4
        for name in GANG:
            if leaves:
                self.client.delete("latticeworkloads", name)
            else:
                body = churn.workload_body("500m", group={"name": "crew", "minMember": len(GANG)}, priority=5)
                self.client.apply("latticeworkloads", name, body)

    def _cordon(self) -> None:
        self.client.patch(
            "latticenodes", self.rng.choice(self.nodes), {"spec": {"unschedulable": self.rng.random() < 0.4}}
        )

    def _budget(self) -> None:
        self.client.patch(
            "latticepools", POOL, {"spec": {"budget": {"maxMonthlyCost": self.rng.choice(LIMITS)}}}
        )

    def _look(self) -> None:
        self.client.get("latticeservices", self.rng.choice(SERVICES))


class Prober(threading.Thread):
    """Writes to one server all the time: how long nobody is answered is read from what it was told."""

    def __init__(self, client: Client, pause: float) -> None:
        super().__init__(daemon=True)
        self.client, self.pause = client, pause
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.over.wait(self.pause):
            number += 1
            self.client.apply("configmaps", self.client.name, {"data": {"count": str(number)}})


def supply(nodes: int) -> list[tuple[str, str, Body]]:
    """A pool of machines that are there already, kept whatever comes and goes, and a service that holds them."""
    machine = {
        "providers": {"hand": {}},
        "resources": {"cores": 4, "memoryGi": 4, "storageGi": 4},
        "costPerHour": {"hand": 0.01},
    }
    pool = {
        "provider": {"type": "hand", "region": "here"},
        "capacity": {"maxNodes": nodes},
        "budget": {"maxMonthlyCost": LIMITS[-1]},
        "nodeClasses": [CLASS],
    }
    policy = {
        "selector": {"matchLabels": {"app": KEEPER}},
        "clusterPolicy": {"minNodes": nodes, "maxNodes": nodes},
    }
    keeper = churn.service_body(3, 0.25)
    return [
        ("latticenodeclasses", CLASS, {"spec": machine}),
        ("latticepools", POOL, {"spec": pool}),
        ("latticeplacementpolicies", KEEPER, {"spec": policy}),
        ("latticeservices", KEEPER, {**keeper, "metadata": LABELS}),
    ]


@dataclass
class Crowd:
    """Everybody who asks for something, and what all of them were told."""

    kubeconfigs: dict[str, Path]
    rng: random.Random
    told: list[OperationRecord] = field(default_factory=list)
    threads: list[Person | Prober] = field(default_factory=list)

    def client(self, name: str, server: str = "") -> Client:
        wires = [(each, Wire(path)) for each, path in self.kubeconfigs.items() if server in ("", each)]
        return Client(name, wires, self.told, random.Random(self.rng.getrandbits(64)))

    def begin(self, nodes: Sequence[str], people: int) -> None:
        self.threads = [Person(self.client(f"person-{number}"), nodes, 1.5) for number in range(people)]
        self.threads += [Prober(self.client(f"probe-{server}", server), 0.3) for server in self.kubeconfigs]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        for thread in self.threads:
            thread.over.set()
        for thread in self.threads:
            thread.join(30)

    def acknowledged(self, since: float, until: float, but: str = "") -> list[float]:
        """When writes were, in order, by any server but one."""
        return sorted(
            each.finished_at
            for each in list(self.told)
            if each.outcome == OK
            and each.method == "PATCH"
            and since <= each.finished_at <= until
            and each.server != but
        )

    def write_down(self, path: Path) -> None:
        with path.open("w") as file:
            for each in self.told:
                line = [
                    each.started_at,
                    each.finished_at,
                    each.operation,
                    each.server,
                    each.method,
                    str(each.key),
                    each.outcome,
                    each.revision,
                    each.error,
                ]
                file.write(json.dumps(line) + "\n")
