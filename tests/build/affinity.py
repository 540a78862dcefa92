"""Affinity of services, as manifests state it."""

from typing import Any


def near(service: str, key: str, **term: Any) -> dict[str, Any]:
    """Affinity to a service that is required."""
    return {"workload": {"required": [{"service": service, "topologyKey": key, **term}]}}


def apart(*services: str, key: str = "node") -> dict[str, Any]:
    """Anti-affinity to services that is required."""
    return {"antiWorkload": {"required": [{"service": name, "topologyKey": key} for name in services]}}


def preferred(service: str, key: str, *, weight: int = 10, anti: bool = False) -> dict[str, Any]:
    term = {"weight": weight, "term": {"service": service, "topologyKey": key}}
    return {"antiWorkload" if anti else "workload": {"preferred": [term]}}
