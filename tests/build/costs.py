"""Clusters and services with a cost in their status."""

from build.objects import make_object
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.service import LatticeService


def a_priced_cluster(pool: str, hourly: float) -> LatticeCluster:
    status = {"cost": {"hourly": hourly}}
    return make_object(LatticeCluster, f"{pool}-001", spec={"pool": pool}, status=status)


def a_priced_service(name: str, hourly: float | None, **labels: str) -> LatticeService:
    spec = {"containers": {"main": {"command": ["x"]}}}
    status = {} if hourly is None else {"totalCost": {"hourly": hourly}}
    return make_object(LatticeService, name, "shop", meta={"labels": labels}, spec=spec, status=status)
