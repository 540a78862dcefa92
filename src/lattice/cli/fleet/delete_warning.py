"""Warning of `lattice delete` about machines and replicas that keep running, and costing, after their pool is
deleted."""

from decimal import Decimal
from typing import Any

from lattice.cli.client.kind_names import Target, resource_path
from lattice.cli.client.options import Connection
from lattice.errors import LatticeError
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.quantity import dollars_to_micros, format_cents, format_hourly, pluralize
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.placement.inputs.ledger_math import rate_per_30_days

# Names of clusters or services listed in the warning.
MAX_NAMES_INLINE = 3
# Field of a cluster's spec that names the deleted object.
_CLUSTER_FIELDS = {
    LatticePool.resource.id: "pool",
    CloudInfrastructure.resource.id: "infrastructure",
    StaticInfrastructure.resource.id: "infrastructure",
}
Object = dict[str, Any]


def delete_warning(connection: Connection, target: Target) -> str:
    """One sentence about the orphaned machines and replicas; empty if the object has no clusters or the user
    may not list clusters."""
    spec_field = _CLUSTER_FIELDS.get(target.resource.id)
    if spec_field is None:
        return ""
    try:
        clusters = [
            cluster
            for cluster in _list_all(connection, LatticeCluster.resource)
            if cluster["spec"].get(spec_field) == target.name
        ]
        services = _list_all(connection, LatticeService.resource) if clusters else []
    # The warning is a courtesy: a user without the right to list clusters may still delete.
    except LatticeError:
        return ""
    return (
        _orphan_sentence(f"{target.resource.singular}/{target.name}", clusters, services) if clusters else ""
    )


def _list_all(connection: Connection, resource: Resource) -> list[Object]:
    items: list[Object] = []
    for page in connection.client.list_pages(resource_path(resource, None), {"limit": "500"}):
        items += page.get("items") or []
    return items


def _orphan_sentence(subject: str, clusters: list[Object], services: list[Object]) -> str:
    names = sorted(cluster["metadata"]["name"] for cluster in clusters)
    machines = sum(sum((cluster["spec"].get("nodes") or {}).values()) for cluster in clusters)
    rates = [((cluster.get("status") or {}).get("cost") or {}).get("hourly") for cluster in clusters]
    paid = sum(dollars_to_micros(Decimal(str(hourly))) for hourly in rates if hourly is not None)
    orphaned: dict[str, int] = {}
    for service in services:
        count = 0
        for placement in (service.get("status") or {}).get("placements") or ():
            if placement.get("cluster") in names:
                count += placement.get("replicas") or 0
        if count:
            orphaned[f"{service['metadata']['namespace']}/{service['metadata']['name']}"] = count
    replicas = (
        f"{pluralize(sum(orphaned.values()), 'replica')} of {_truncated_list(sorted(orphaned))}"
        if orphaned
        else "no replica of a service"
    )
    cost = f"{format_hourly(paid)}/h, {format_cents(rate_per_30_days(paid))}/30d"
    consequence = f"{'keeps running and costs' if machines == 1 else 'keep running and cost'} {cost}"
    drain = f"`lattice drain -l lattice.dev/cluster={names[0]}`{', and the same for each other cluster' if len(names) > 1 else ''}"
    pronoun = "it" if sum(orphaned.values()) == 1 else "them"
    remedy = (
        f"if another pool accepts {pronoun}, {drain} moves {pronoun}"
        if orphaned
        else "Lattice removes empty machines soon, unless minNodes requires the machines"
    )
    return (
        f"{subject} is in use: {pluralize(machines, 'machine')} in {_truncated_list(names)} "
        f"with {replicas} {consequence}; {remedy}"
    )


def _truncated_list(names: list[str]) -> str:
    hidden = len(names) - MAX_NAMES_INLINE
    return ", ".join(names[:MAX_NAMES_INLINE]) + (f" and {hidden} more" if hidden > 0 else "")
