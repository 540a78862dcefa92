"""Nodes and workloads by one builder of each kind, and any kind from the fields of its manifest."""

from typing import Any, TypeVar

import msgspec

from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

K = TypeVar("K", bound=Kind)
NODE_MEMORY_BYTES = 1 << 36


def make_object(
    kind: type[K], name: str, namespace: str = "", *, meta: dict[str, Any] | None = None, **parts: Any
) -> K:
    """An object from the fields of a manifest: `meta` goes to the metadata; `spec` and `status` are parts."""
    resource = kind.resource
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **(meta or {})}
    return msgspec.convert(
        {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **parts}, kind
    )


def a_node(
    name: str = "n1",
    cpu: int = 4000,
    *,
    ports: tuple[int, int] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **meta: Any,
) -> LatticeNode:
    """A ready node with `cpu` milli-cores; `ports` is the range for allocated ports; `status` overrides."""
    stored: dict[str, Any] = {
        "allocatable": {"cpu": cpu, "memory": NODE_MEMORY_BYTES},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    if ports is not None:
        stored["portRange"] = {"first": ports[0], "last": ports[1]}
    return make_object(LatticeNode, name, meta=meta, spec=spec or {}, status=stored | (status or {}))


def a_workload(
    name: str = "w",
    cpu: int = 1000,
    *,
    ports: tuple[str | tuple[str, int], ...] = (),
    meta: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> LatticeWorkload:
    """A workload of one container that requests `cpu` milli-cores; `ports` are names of ports to be allocated,
    or (name, number)."""
    listed = [
        {"name": port} if isinstance(port, str) else {"name": port[0], "port": port[1]} for port in ports
    ]
    main = {"command": ["sleep", "1"], "ports": listed, "resources": {"requests": {"cpu": f"{cpu}m"}}}
    return make_object(
        LatticeWorkload,
        name,
        "default",
        meta=meta,
        spec={"containers": {"main": main}, **spec},
        status=status or {},
    )


def a_service_with_resources(
    name: str, resources: dict[str, Any] | None = None, namespace: str = "default"
) -> LatticeService:
    """A service of one container that declares these resources, such as its dependencies on services."""
    spec = {"containers": {"main": {"command": ["true"]}}, "resources": resources or {}}
    service = make_object(LatticeService, name, namespace, spec=spec)
    assert not list(service.problems())
    return service


def a_ledger(pool: str, limit_micros: int, *, hard: bool = True, **status: Any) -> LatticeLedger:
    """The ledger of a pool's budget; `status` in manifest notation."""
    spec = {"budget": {"kind": "LatticePool", "name": pool}, "limitMicros": limit_micros, "hard": hard}
    return make_object(LatticeLedger, f"pool.{pool}", spec=spec, status=status)
