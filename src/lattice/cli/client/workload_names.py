"""Which workloads does a word mean: one by its name, or the replicas of a service?"""

from typing import Any, NamedTuple

from lattice.cli.client.kind_names import address, names
from lattice.cli.client.options import Connection
from lattice.usage import Misused
from lattice.errors import NotFound
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

SERVICE_LABEL = "lattice.dev/service"
Object = dict[str, Any]


class Meant(NamedTuple):
    """The workloads, those that are well first; and the service that they are the replicas of."""

    workloads: list[Object]
    service: str = ""


def meant(connection: Connection, word: str) -> Meant:
    """`workload/web-0`, `service/web`, or a bare name: a workload's, else a service's."""
    if "/" in word:
        target = names().targets([word])[0]
        if target.resource.id == LatticeWorkload.resource.id:
            return Meant([_workload(connection, target.name)])
        if target.resource.id == LatticeService.resource.id:
            return _replicas(connection, target.name)
        raise Misused(
            f"{word} is neither a workload nor a service", fix="write workload/NAME or service/NAME"
        )
    try:
        return Meant([_workload(connection, word)])
    except NotFound as error:
        try:
            return _replicas(connection, word)
        except NotFound:
            raise error from None


def _workload(connection: Connection, name: str) -> Object:
    found: Object = connection.client.get(address(LatticeWorkload.resource, connection.namespace, name))
    return found


def _replicas(connection: Connection, service: str) -> Meant:
    connection.client.get(address(LatticeService.resource, connection.namespace, service))
    path = address(LatticeWorkload.resource, connection.namespace)
    pages = connection.client.pages(path, {"labelSelector": f"{SERVICE_LABEL}={service}", "limit": "500"})
    found = [
        each for page in pages for each in page.get("items") or [] if each["spec"].get("service") == service
    ]
    return Meant(sorted(found, key=_ill), service)


def _ill(workload: Object) -> tuple[bool, bool, int, str]:
    status = workload.get("status") or {}
    slot = workload["spec"].get("slot", 0)
    return not status.get("ready"), status.get("actualState") != "Running", slot, workload["metadata"]["name"]
