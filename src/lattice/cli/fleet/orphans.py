"""What runs on, and is paid for, where supply is deleted: told with the deletion."""

from decimal import Decimal
from typing import Any

from lattice.cli.output.columns import counted
from lattice.cli.client.kind_names import Target, address
from lattice.cli.client.options import Connection
from lattice.errors import LatticeError
from lattice.kinds.meta.base import Resource
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.pool import LatticePool
from lattice.kinds.meta.quantity import micros
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import dollars, thirty_days

NAMED = 3  # of many
_OFFER = {
    LatticePool.resource.id: "pool",
    CloudInfrastructure.resource.id: "infrastructure",
    StaticInfrastructure.resource.id: "infrastructure",
}
Object = dict[str, Any]


def left_behind(connection: Connection, target: Target) -> str:
    """A sentence; "" where nothing is left, or where the caller may not see it."""
    said_in = _OFFER.get(target.resource.id)
    if said_in is None:
        return ""
    try:
        clusters = [
            each
            for each in _all(connection, LatticeCluster.resource)
            if each["spec"].get(said_in) == target.name
        ]
        services = _all(connection, LatticeService.resource) if clusters else []
    except LatticeError:
        return ""
    return _sentence(f"{target.resource.singular}/{target.name}", clusters, services) if clusters else ""


def _all(connection: Connection, resource: Resource) -> list[Object]:
    pages = connection.client.pages(address(resource, None), {"limit": "500"})
    return [item for page in pages for item in page.get("items") or []]


def _sentence(subject: str, clusters: list[Object], services: list[Object]) -> str:
    names = sorted(each["metadata"]["name"] for each in clusters)
    machines = sum(sum((each["spec"].get("nodes") or {}).values()) for each in clusters)
    told = [((each.get("status") or {}).get("cost") or {}).get("hourly") for each in clusters]
    paid = sum(micros(Decimal(str(hourly))) for hourly in told if hourly is not None)
    here = {name: count for each in services if (count := _replicas(each, names)) for name in [_name(each)]}
    replicas = (
        f"{counted(sum(here.values()), 'replica')} of {_some(sorted(here))}"
        if here
        else "no replica of a service"
    )
    goes_on = f"{'runs' if machines == 1 else 'run'} on without it, for {dollars(paid)}/h, {dollars(thirty_days(paid))}/30d"
    drain = f"`lattice drain -l lattice.dev/cluster={names[0]}`{', and so on' if len(names) > 1 else ''}"
    them = "it" if sum(here.values()) == 1 else "them"
    way = (
        f"to move {them}: {drain}"
        if here
        else "a machine that nobody is on is given back soon, unless minNodes keeps it"
    )
    return f"{subject} is in use: {counted(machines, 'machine')} in {_some(names)} with {replicas} {goes_on}; {way}"


def _replicas(service: Object, clusters: list[str]) -> int:
    placements = (service.get("status") or {}).get("placements") or []
    return sum(each.get("replicas") or 0 for each in placements if each.get("cluster") in clusters)


def _name(item: Object) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
