"""A rack of three nodes with a web service, and observers of its live and answering replicas."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from build.process_site import LOOK, Object, Site, together
from build.waiting import wait_until

POOL = "rack"
RACK = [f"rack-{number}" for number in (1, 2, 3)]
WEB = ["sh", "-c", 'exec python3 -m http.server "$PORT" --bind 127.0.0.1']
LEAST = 2


def declared(kind: str, name: str, spec: Object, **metadata: Any) -> Object:
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def supply() -> list[Object]:
    """A pool for machines that are there already and join it."""
    return [declared("LatticePool", POOL, {"provider": {"type": "hand", "region": "here"}})]


def web(site: Site, version: str = "1") -> Object:
    container = {
        "command": WEB,
        "env": {"SITE": site.mark, "VERSION": version},
        "ports": [{"name": "http"}],
        "probes": {"readiness": {"http": {"port": "http"}, "periodSeconds": 1}},
    }
    spec = {
        "containers": {"main": container},
        "replicas": {"min": LEAST, "max": 4},
        "placement": {"resources": {"cores": 0.1}},
    }
    return declared("LatticeService", "web", spec, namespace="default", labels={"app": "web"})


def strict(site: Site) -> Object:
    """One that never has two live copies: cut off, its node ends it."""
    return workload(site, "strict", disconnect={"policy": "stop", "stopAfter": "7s"})


def workload(
    site: Site, name: str, *command: str, image: str = "", port: int | None = None, **spec: Any
) -> Object:
    """One of its own, of no service."""
    container: Object = {
        "env": {"SITE": site.mark},
        **({"image": image} if image else {"command": list(command or ("sleep", "100000"))}),
    }
    if port is not None:
        container["ports"] = [{"name": "main", "port": port}]
    return declared(
        "LatticeWorkload",
        name,
        {"containers": {"main": container}, "requests": {"cpu": "10m"}, **spec},
        namespace="default",
    )


@contextlib.contextmanager
def a_rack(folder: Path) -> Iterator[Site]:
    """A server, the service, and three machines that joined a pool; everything that lives is counted, look after look."""
    with Site(folder) as site:
        site.apply(*supply(), web(site))
        together(*(lambda node=node: join(site, node) for node in RACK))
        with watched(site):
            yield site


def join(site: Site, node: str) -> None:
    site.start_agent(node, site.token(node, "--pool", POOL))
    wait_until(lambda: site.condition(node).get("status") == "True", f"node {node} is ready")


@contextlib.contextmanager
def watched(site: Site) -> Iterator[None]:
    """Count the live copies of each workload every 50 ms."""

    def look() -> None:
        for name, pids in site.live().items():
            site.most[name] = max(site.most.get(name, 0), len(pids))

    with _repeated(look):
        yield


@contextlib.contextmanager
def _repeated(look: Callable[[], None]) -> Iterator[None]:
    stop = threading.Event()
    troubles: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(LOOK):
                look()
        except Exception as error:  # noqa: BLE001 - raised below
            troubles.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if troubles:
        raise troubles[0]


@contextlib.contextmanager
def answering(site: Site, service: str) -> Iterator[list[int]]:
    """How many replicas of the service answered, look after look."""
    counts: list[int] = []

    def look() -> None:
        result = answers(site, service)
        if counts and result < counts[-1]:  # where they are may have been read before one of them moved
            result = max(result, answers(site, service))
        counts.append(result)

    with _repeated(look):
        yield counts


def answers(site: Site, service: str) -> int:
    ports = [
        port
        for replica in site.replicas(service)
        for port in replica.get("status", {}).get("allocatedPorts", {}).values()
    ]
    return sum(answer(port) == 200 for port in ports)


def answer(port: int) -> int:
    """The answer of a web server on this machine; 0 without an answer."""
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        asking.request("GET", "/")
        return asking.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        asking.close()
