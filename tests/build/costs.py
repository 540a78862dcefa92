"""Ledgers, nodes and workloads of a bill, and rates of a spend history."""

from build.objects import make_object
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.live.spend_history import SpendRates


def a_paid_pool(pool: str, *hourly: float, node_class: str = "m") -> LatticeLedger:
    """The ledger of a pool that pays for one machine in each of its clusters, in dollars per hour."""
    micros = [round(price * 1_000_000) for price in hourly]
    machines = {
        f"{pool}-{number:03}": [{"nodeClass": node_class, "count": 1, "micros": price}]
        for number, price in enumerate(micros, 1)
    }
    status = {
        "committedMicros": sum(micros),
        "month": "2026-01",
        "asOf": "2026-01-01T00:00:00.000000Z",
        "machines": machines,
    }
    return make_object(
        LatticeLedger, f"pool.{pool}", spec={"budget": {"kind": "LatticePool", "name": pool}}, status=status
    )


def a_running_service(name: str, node: str, cluster: str, **labels: str) -> list[Kind]:
    """A service in namespace shop with one replica, alone on its node of class m."""
    containers = {"main": {"command": ["x"]}}
    spec = {"containers": containers, "service": name, "cluster": cluster, "requests": {"cpu": "1"}}
    return [
        make_object(LatticeService, name, "shop", meta={"labels": labels}, spec={"containers": containers}),
        make_object(
            LatticeNode,
            node,
            spec={"cluster": cluster, "nodeClass": "m"},
            status={"allocatable": {"cpu": 4000}},
        ),
        make_object(LatticeWorkload, f"{name}-0", "shop", spec=spec, status={"binding": {"node": node}}),
    ]


def rates(
    pools: dict[str, float], services: dict[str, float] | None = None, **labels: dict[str, str]
) -> SpendRates:
    """Rates in dollars per hour; services are in namespace shop, with labels by service."""
    return SpendRates(
        {name: round(rate * 1_000_000) for name, rate in pools.items()},
        {f"shop/{name}": round(rate * 1_000_000) for name, rate in (services or {}).items()},
        {f"shop/{name}": labels.get(name, {}) for name in services or {}},
    )
