"""What runs on, and is paid for, where supply is deleted: told with the deletion."""

from decimal import Decimal
from typing import Any

from lattice.cli.client.kind_names import Target, resource_path
from lattice.cli.client.options import Connection
from lattice.cli.output.table_renderer import pluralize
from lattice.errors import LatticeError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import format_dollars, rate_per_30_days

MAX_NAMES_INLINE = 3  # of many
_CLUSTER_FIELDS = {
    LatticePool.resource.id: "pool",
    CloudInfrastructure.resource.id: "infrastructure",
    StaticInfrastructure.resource.id: "infrastructure",
}
Object = dict[str, Any]


def orphan_warning(connection: Connection, target: Target) -> str:
    """A sentence; "" where nothing is left, or where the caller may not see it."""
    said_in = _CLUSTER_FIELDS.get(target.resource.id)
    if said_in is None:
        return ""
    try:
        clusters = [
            each
            for each in _list_all(connection, LatticeCluster.resource)
            if each["spec"].get(said_in) == target.name
        ]
        services = _list_all(connection, LatticeService.resource) if clusters else []
    except LatticeError:
        return ""
    return (
        _orphan_sentence(f"{target.resource.singular}/{target.name}", clusters, services) if clusters else ""
    )


def _list_all(connection: Connection, resource: Resource) -> list[Object]:
    pages = connection.client.list_pages(resource_path(resource, None), {"limit": "500"})
    return [item for page in pages for item in page.get("items") or []]


def _orphan_sentence(subject: str, clusters: list[Object], services: list[Object]) -> str:
    names = sorted(each["metadata"]["name"] for each in clusters)
    machines = sum(sum((each["spec"].get("nodes") or {}).values()) for each in clusters)
    told = [((each.get("status") or {}).get("cost") or {}).get("hourly") for each in clusters]
    paid = sum(dollars_to_micros(Decimal(str(hourly))) for hourly in told if hourly is not None)
    here = {
        name: count
        for each in services
        if (count := _replicas_in(each, names))
        for name in [_namespaced_name(each)]
    }
    replicas = (
        f"{pluralize(sum(here.values()), 'replica')} of {_truncated_list(sorted(here))}"
        if here
        else "no replica of a service"
    )
    goes_on = f"{'runs' if machines == 1 else 'run'} on without it, for {format_dollars(paid)}/h, {format_dollars(rate_per_30_days(paid))}/30d"
    drain = f"`lattice drain -l lattice.dev/cluster={names[0]}`{', and so on' if len(names) > 1 else ''}"
    them = "it" if sum(here.values()) == 1 else "them"
    way = (
        f"to move {them}: {drain}"
        if here
        else "a machine that nobody is on is given back soon, unless minNodes keeps it"
    )
    return f"{subject} is in use: {pluralize(machines, 'machine')} in {_truncated_list(names)} with {replicas} {goes_on}; {way}"


def _replicas_in(service: Object, clusters: list[str]) -> int:
    placements = (service.get("status") or {}).get("placements") or []
    return sum(each.get("replicas") or 0 for each in placements if each.get("cluster") in clusters)


def _namespaced_name(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _truncated_list(names: list[str]) -> str:
    more = len(names) - MAX_NAMES_INLINE
    return ", ".join(names[:MAX_NAMES_INLINE]) + (f" and {more} more" if more > 0 else "")
