"""Clusters and services with a cost in their status."""

from typing import Any

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.service import LatticeService


def a_priced_cluster(pool: str, hourly: float) -> LatticeCluster:
    return _made(LatticeCluster, f"{pool}-001", {"pool": pool}, {"cost": {"hourly": hourly}})


def a_priced_service(name: str, hourly: float | None, **labels: str) -> LatticeService:
    status = {} if hourly is None else {"totalCost": {"hourly": hourly}}
    return _made(
        LatticeService,
        name,
        {"containers": {"main": {"command": ["x"]}}},
        status,
        namespace="shop",
        labels=labels,
    )


def _made(kind: Any, name: str, spec: Any, status: Any, **metadata: Any) -> Any:
    resource = kind.resource
    metadata |= {"name": name}
    return msgspec.convert(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "spec": spec,
            "status": status,
        },
        kind,
    )
