"""Users of a chaos run: random API operations on all servers, with a record of every reply."""

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
from lattice.sim.world.recording_client import OPERATION_ANNOTATION, OperationRecord
from lattice.sim.world.servers import catalog
from lattice.store.protocol import Key

Body = dict[str, Any]
LATTICE = "/apis/lattice.dev/v1alpha1"
POOL, CLASS, KEEPER = "rack", "small", "keeper"
# Labels of all services: services under the same policy share the cluster.
LABELS = {"labels": {"app": KEEPER}}
SERVICES = tuple(f"svc-{number}" for number in range(8))
LONE = tuple(f"lone-{number}" for number in range(12))
GANG = ("crew-0", "crew-1", "crew-2")
LIMITS = (600, 900, 2000)
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


def path_of(kind: str, name: str, subresource: str = "") -> str:
    if kind == "configmaps":
        return f"/api/v1/namespaces/default/configmaps/{name}"
    namespaced = catalog().by_id(f"{kind}.lattice.dev").resource.namespaced
    return f"{LATTICE}{'/namespaces/default' if namespaced else ''}/{kind}/{name}{f'/{subresource}' if subresource else ''}"


def key_of(kind: str, name: str) -> Key:
    if kind == "configmaps":
        return Key(ConfigMap.resource.id, "default", name)
    resource = catalog().by_id(f"{kind}.lattice.dev").resource
    return Key(resource.id, "default" if resource.namespaced else "", name)


@dataclass
class Client:
    """An API user that sends every request to a random server."""

    name: str
    wires: Sequence[tuple[str, Wire]]
    log: list[OperationRecord]
    rng: random.Random
    _count: int = 0

    def apply(self, kind: str, name: str, body: Body) -> bool:
        type_fields = {
            "apiVersion": "v1" if kind == "configmaps" else "lattice.dev/v1alpha1",
            "kind": "ConfigMap"
            if kind == "configmaps"
            else catalog().by_id(f"{kind}.lattice.dev").resource.kind,
        }
        query = {"fieldManager": "lattice", "force": "true"}
        return self._request(
            "PATCH",
            kind,
            name,
            {**type_fields, **body, "metadata": {"name": name, **body.get("metadata", {})}},
            APPLY,
            query=query,
        )

    def patch(self, kind: str, name: str, body: Body, part: str = "") -> bool:
        return self._request("PATCH", kind, name, body, MERGE, part)

    def delete(self, kind: str, name: str) -> bool:
        return self._request("DELETE", kind, name)

    def get(self, kind: str, name: str) -> bool:
        return self._request("GET", kind, name)

    def retry(self, name: str) -> bool:
        return self._request("POST", "latticeworkloads", name, part="retry")

    def _request(
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
        started = time.monotonic()
        outcome, revision, message = _answered(
            wire, method, with_query(path_of(kind, name, part), query or {}), body, form
        )
        recorded_method = "RETRY" if part == "retry" else method
        operation_record = OperationRecord(
            self.name,
            operation,
            recorded_method,
            key_of(kind, name),
            started,
            time.monotonic(),
            outcome,
            revision,
            message,
            server,
        )
        replicas = (body or {}).get("spec", {}).get("replicas") if part == "scale" else None
        self.log.append(
            replace(
                operation_record,
                carries_operation=body is not None and not part,
                was_not_found=message.startswith("404"),
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
    """A thread that performs random operations until stopped."""

    def __init__(self, client: Client, nodes: Sequence[str], pause: float) -> None:
        super().__init__(daemon=True)
        self.client, self.nodes, self.pause, self.rng = client, nodes, pause, client.rng
        self.versions: dict[str, int] = {}
        self.over = threading.Event()

    def run(self) -> None:
        actions: list[tuple[int, Callable[[], object]]] = [
            (6, self._apply_service), (4, self._scale), (2, self._delete_service), (6, self._apply_standalone), (3, self._delete_standalone),
            (1, self._gang), (2, self._cordon), (1, self._budget), (2, self._read_service),
        ]  # fmt: skip
        while not self.over.wait(self.pause * (0.5 + self.rng.random())):
            self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def _version(self, name: str, share: float) -> int:
        self.versions[name] = self.versions.get(name, 0) + (self.rng.random() < share)
        return self.versions[name]

    def _apply_service(self) -> None:
        name = self.rng.choice(SERVICES)
        options: Body = {"disconnect": self._stop_policy()} if name in SERVICES[:3] else {}
        body = churn.service_body(
            self.rng.randint(1, 5),
            self.rng.choice((0.25, 0.5)),
            self._version(name, 0.5),
            port=name == SERVICES[4],
            **options,
        )
        self.client.apply("latticeservices", name, {**body, "metadata": LABELS})

    def _stop_policy(self) -> Body:
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

    def _apply_standalone(self) -> None:
        name = self.rng.choice(LONE)
        policy = {"disconnect": self._stop_policy()} if self.rng.random() < 0.6 else {}
        body = churn.workload_body(self.rng.choice(("250m", "500m")), self._version(name, 0.3), **policy)
        self.client.apply("latticeworkloads", name, body)

    def _delete_standalone(self) -> None:
        self.client.delete("latticeworkloads", self.rng.choice(LONE))

    def _gang(self) -> None:
        is_deleted = self.rng.random() < 0.4
        for name in GANG:
            if is_deleted:
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

    def _read_service(self) -> None:
        self.client.get("latticeservices", self.rng.choice(SERVICES))


class Prober(threading.Thread):
    """A thread that writes to a server continuously; its replies show how long writes fail."""

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
    """A pool of existing machines, a policy with a fixed number of nodes, and a service that keeps the
    cluster."""
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
    """All users with the record of their operations."""

    kubeconfigs: dict[str, Path]
    rng: random.Random
    told: list[OperationRecord] = field(default_factory=list)
    threads: list[Person | Prober] = field(default_factory=list)

    def client(self, name: str, server: str = "") -> Client:
        wires = [(name, Wire(path)) for name, path in self.kubeconfigs.items() if server in ("", name)]
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

    def acknowledged(self, since: float, until: float, excluded_server: str = "") -> list[float]:
        """Times of acknowledged writes in order, without the writes of a server."""
        return sorted(
            operation.finished_at
            for operation in list(self.told)
            if operation.outcome == OK
            and operation.method == "PATCH"
            and since <= operation.finished_at <= until
            and operation.server != excluded_server
        )

    def write_down(self, path: Path) -> None:
        with path.open("w") as file:
            for operation in self.told:
                line = [
                    operation.started_at,
                    operation.finished_at,
                    operation.operation,
                    operation.server,
                    operation.method,
                    str(operation.key),
                    operation.outcome,
                    operation.revision,
                    operation.error,
                ]
                file.write(json.dumps(line) + "\n")
