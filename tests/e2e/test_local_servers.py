"""Two servers on one etcd with local machines: agents of a killed server fail over to the other without
restarting a workload."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from build.etcd_server import free_port, running_etcds
from build.process_fleet import Server
from build.process_site import SERVICES, WORKLOADS, Object, Site
from build.servers import LATTICE
from build.waiting import wait_until
from build.wire import Wire

pytestmark = [pytest.mark.xdist_group("local-servers"), pytest.mark.timeout(180)]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/lattice-system/leases"
FLAGS = (
    "--lease-ttl",
    "3",
    "--heartbeat",
    "1",
    "--node-lost-after",
    "30",
    "--reconcile-interval",
    "1",
    "--providers",
    "local",
)


def manifests(site: Site) -> list[Object]:
    api = {"apiVersion": "lattice.dev/v1alpha1"}
    size = {"cores": 1, "memoryGi": 1, "storageGi": 1}
    container = {"command": ["sleep", "100000"], "env": {"SITE": site.mark}}
    return [
        {**api, "kind": "LatticeNodeClass", "metadata": {"name": "nano"}, "spec": {"providers": {"local": {}}, "resources": size, "costPerHour": {"local": 0.01}}},
        {**api, "kind": "LatticePool", "metadata": {"name": "yard"}, "spec": {"provider": {"type": "local", "region": "yard"}, "capacity": {"maxNodes": 1}, "nodeClasses": ["nano"]}},
        {**api, "kind": "LatticeService", "metadata": {"name": "steady", "namespace": "default"}, "spec": {"containers": {"main": container}, "placement": {"resources": {"cores": 0.1}}, "replicas": {"min": 1}}},
    ]  # fmt: skip


@contextmanager
def two_servers(folder: Path) -> Iterator[tuple[Server, Server]]:
    """The first leads; each knows of the other."""
    with ExitStack() as stack:
        (etcd,) = stack.enter_context(running_etcds(folder, 1))
        servers: list[Server] = []
        for name in ("first", "second"):
            place, port = folder / name, free_port()
            place.mkdir()
            command = [
                *LATTICE,
                "server",
                "--data-dir",
                str(place),
                "--store",
                f"etcd://{etcd.endpoint}/two",
                "--instance-id",
                name,
            ]
            server = Server(
                name, [*command, "--port", str(port), *FLAGS], place / "log", folder=place, port=port
            )
            stack.callback(lambda server=server: server.process and server.end())
            server.start()
            servers.append(server)
            wait_until(lambda: servers[0].leads, "the first leads")
        first, second = servers
        wait_until(
            lambda: _listed(first) == {first.url, second.url} == _listed(second), "each knows of the other"
        )
        yield first, second


@contextmanager
def nothing_left(site: Site) -> Iterator[None]:
    """Also if the test failed."""
    try:
        yield
    finally:
        for pid in (*_agents(site.folder), *(pid for pids in site.live().values() for pid in pids)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def create(wire: Wire, site: Site) -> None:
    for obj in manifests(site):
        plural = {"LatticeNodeClass": "latticenodeclasses", "LatticePool": "latticepools"}.get(obj["kind"])
        place = f"/apis/lattice.dev/v1alpha1/{plural}" if plural else SERVICES
        assert wire.post(place, obj).status == 201


def ready(server: Server) -> list[Object]:
    items = Wire(server.kubeconfig).get(WORKLOADS).value["items"]
    return [each for each in items if each.get("status", {}).get("ready")]


def _listed(server: Server) -> set[str]:
    found = Wire(server.kubeconfig).get(f"{LEASES}/servers")
    return (
        {*found.value["metadata"]["annotations"]["lattice.dev/servers"].split(",")}
        if found.status == 200
        else set()
    )


def _agents(folder: Path) -> list[int]:
    """The pids of agents whose data folder is below the given one."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "agent" in words and any(word.startswith(str(folder)) for word in words):
            found.append(pid)
    return found


def test_agents_fail_over_to_the_other_server_without_restarts(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)  # only to look with
    with nothing_left(site), two_servers(tmp_path) as (first, second):
        create(Wire(first.kubeconfig), site)
        wait_until(lambda: len(ready(first)) == 1, "it runs")
        (agent,), before = _agents(first.folder / "machines"), site.live()
        words = Path(f"/proc/{agent}/cmdline").read_bytes().decode().split("\0")
        assert words[words.index("--server") + 1].split(",") == [first.url, second.url]
        log = next((first.folder / "machines").glob("local/*/agent.log"))
        connected = log.read_text().count('"event": "connected"')
        first.end(signal.SIGKILL)
        wait_until(lambda: second.leads, "the second leads")
        wait_until(lambda: log.read_text().count('"event": "connected"') > connected, "the agent is with it")
        binding = ready(second)[0]["status"]["binding"]
        assert (_agents(first.folder / "machines"), site.live()) == ([agent], before), (
            "the same agent runs the same process"
        )
        assert not [*(second.folder / "machines").glob("local/*")], "and no other machine was made for it"
        first.start()
        wait_until(lambda: _listed(second) == {first.url, second.url}, "both are there again")
        assert (ready(second)[0]["status"]["binding"], site.live()) == (binding, before)
        assert (second.end(), first.end()) == (0, 0)
        wait_until(lambda: not _agents(tmp_path), "who made the machines ends them")
        assert site.live() == {}


def test_agents_reconnect_to_a_server_on_a_new_port(tmp_path: Path) -> None:
    site, place = Site(tmp_path), tmp_path / "data"
    place.mkdir()

    def a_server() -> Server:
        port = free_port()
        command = [*LATTICE, "server", "--data-dir", str(place), "--port", str(port), *FLAGS]
        server = Server("one", command, tmp_path / "log", folder=place, port=port)
        stack.callback(lambda: server.process and server.end())
        server.start()
        wait_until(lambda: server.leads, "it leads")
        return server

    with nothing_left(site), ExitStack() as stack:
        first = a_server()
        create(Wire(first.kubeconfig), site)
        wait_until(lambda: len(ready(first)) == 1, "it runs")
        (agent,), before = _agents(place / "machines"), site.live()
        log = next((place / "machines").glob("local/*/agent.log"))
        connected = log.read_text().count('"event": "connected"')
        first.end(signal.SIGKILL)
        second = a_server()
        assert second.port != first.port
        wait_until(lambda: log.read_text().count('"event": "connected"') > connected, "the agent is with it")
        wait_until(lambda: len(ready(second)) == 1, "and what it runs is ready")
        assert (_agents(place / "machines"), site.live()) == ([agent], before), (
            "the same agent runs the same process"
        )
        assert second.end() == 0
        assert site.live() == {}
