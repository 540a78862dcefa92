"""Selection of workloads by a command-line word: one workload by name, or the replicas of a service."""

from typing import Any, NamedTuple

from lattice.cli.client.kind_names import kind_names, resource_path
from lattice.cli.client.options import Connection
from lattice.errors import NotFound, UsageError
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import SERVICE_LABEL, LatticeWorkload

Object = dict[str, Any]


class WorkloadSelection(NamedTuple):
    """Selected workloads, ready replicas first, and the service of the replicas if the word named a service."""

    workloads: list[Object]
    service: str = ""


def select_workloads(connection: Connection, word: str) -> WorkloadSelection:
    """Workloads of `workload/web-0`, `service/web`, or a bare name: first tried as a workload, then as a
    service."""
    if "/" in word:
        target = kind_names().parse_targets([word])[0]
        if target.resource.id == LatticeWorkload.resource.id:
            return WorkloadSelection([_get_workload(connection, target.name)])
        if target.resource.id == LatticeService.resource.id:
            return _service_replicas(connection, target.name)
        raise UsageError(
            f"{word} is neither a workload nor a service", fix="write workload/NAME or service/NAME"
        )
    try:
        return WorkloadSelection([_get_workload(connection, word)])
    except NotFound as error:
        try:
            return _service_replicas(connection, word)
        # A name that is neither a workload nor a service is reported as a missing workload.
        except NotFound:
            raise error from None


def _get_workload(connection: Connection, name: str) -> Object:
    path = resource_path(LatticeWorkload.resource, connection.namespace, name)
    workload: Object = connection.client.get(path)
    return workload


def _service_replicas(connection: Connection, service: str) -> WorkloadSelection:
    # A missing service is NotFound; an empty list of replicas is not.
    connection.client.get(resource_path(LatticeService.resource, connection.namespace, service))
    path = resource_path(LatticeWorkload.resource, connection.namespace)
    pages = connection.client.list_pages(
        path, {"labelSelector": f"{SERVICE_LABEL}={service}", "limit": "500"}
    )
    replicas = []
    for page in pages:
        # The label alone proves nothing, because every user may set the label: spec.service decides whether
        # the workload is a replica of the service.
        replicas += [item for item in page.get("items") or [] if item["spec"].get("service") == service]
    return WorkloadSelection(sorted(replicas, key=_health_sort_key), service)


def _health_sort_key(workload: Object) -> tuple[bool, bool, int, str]:
    """Sort key: ready replicas first, then running replicas, then by slot and name."""
    status = workload.get("status") or {}
    slot = workload["spec"].get("slot", 0)
    return not status.get("ready"), status.get("actualState") != "Running", slot, workload["metadata"]["name"]
