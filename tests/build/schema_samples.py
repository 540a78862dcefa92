"""Schemas of two Lattice kinds and three core kinds, small but with every shape of a real schema."""

from typing import Any

from lattice.kinds.meta.base import Column, Resource

META: dict[str, Any] = {"type": "object"}
HEAD: dict[str, Any] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": META}
CONDITIONS: dict[str, Any] = {
    "type": "array",
    "description": "What is the case.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "description": "One aspect.",
        "required": ["type", "status"],
        "properties": {
            "type": {"type": "string", "description": "Which aspect."},
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition is true: True, False or Unknown.",
            },
        },
    },
}

POOL = Resource(
    "LatticePool",
    "latticepools",
    short_names=("lp",),
    categories=("lattice", "all"),
    columns=(
        Column("Region", ".spec.region"),
        Column("Max", ".spec.maxNodes", "integer", priority=1, description="Ceiling."),
    ),
)
POOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Capacity and budget in one region of one provider.",
    "required": ["spec"],
    "properties": HEAD
    | {
        "spec": {
            "type": "object",
            "description": "What the platform engineer offers.",
            "required": ["region"],
            "properties": {
                "region": {
                    "type": "string",
                    "minLength": 1,
                    "pattern": "^[a-z]",
                    "description": "Where it is.",
                },
                "maxNodes": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "default": 3,
                    "description": "Ceiling on machines.",
                },
                "threshold": {
                    "type": "number",
                    "minimum": 0,
                    "exclusiveMinimum": True,
                    "maximum": 1.5,
                    "description": "When to tell.",
                },
                "open": {"type": "boolean", "default": True, "description": "Whether it takes new work."},
                "labels": {
                    "type": "object",
                    "description": "Text, or a list of it.",
                    "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
                },
                "provider": {
                    "type": "object",
                    "description": "Somebody else's.",
                    "x-kubernetes-preserve-unknown-fields": True,
                },
                "port": {"x-kubernetes-int-or-string": True, "description": "A number or a name."},
                "classes": {
                    "type": "array",
                    "description": "Machine templates.",
                    "items": {"type": "string", "enum": ["small", "large"]},
                    "x-kubernetes-list-type": "set",
                },
            },
        },
        "status": {"type": "object", "description": "What is.", "properties": {"conditions": CONDITIONS}},
    },
}
SERVICE = Resource(
    "LatticeService",
    "latticeservices",
    short_names=("lsvc",),
    namespaced=True,
    scale_path="spec.replicas.min",
)
SERVICE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What a team runs.",
    "required": ["spec"],
    "properties": HEAD
    | {
        "spec": {
            "type": "object",
            "description": "What is wanted.",
            "properties": {
                "replicas": {
                    "type": "object",
                    "description": "How many.",
                    "default": {},
                    "properties": {
                        "min": {
                            "type": "integer",
                            "format": "int64",
                            "default": 1,
                            "description": "At least.",
                        },
                        "max": {
                            "type": "integer",
                            "format": "int64",
                            "nullable": True,
                            "description": "At most.",
                        },
                    },
                },
                "env": {
                    "type": "object",
                    "description": "Environment.",
                    "additionalProperties": {"type": "string"},
                },
            },
        },
        "status": {
            "type": "object",
            "description": "What is.",
            "properties": {"replicas": {"type": "integer", "format": "int64"}, "conditions": CONDITIONS},
        },
    },
}
NAMESPACE = Resource("Namespace", "namespaces", "", "v1", short_names=("ns",), categories=())
CONFIG_MAP = Resource(
    "ConfigMap", "configmaps", "", "v1", short_names=("cm",), categories=(), namespaced=True, has_status=False
)
LEASE = Resource(
    "Lease", "leases", "coordination.k8s.io", "v1", categories=(), namespaced=True, has_status=False
)
NAMESPACE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A room for objects.",
    "properties": HEAD
    | {
        "spec": {
            "type": "object",
            "properties": {"finalizers": {"type": "array", "items": {"type": "string"}}},
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}
TEXT_MAP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "Text by name.",
}
CONFIG_MAP_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Settings.",
    "properties": HEAD | {"data": TEXT_MAP, "binaryData": TEXT_MAP, "immutable": {"type": "boolean"}},
}
LEASE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": HEAD
    | {
        "spec": {
            "type": "object",
            "properties": {
                "holderIdentity": {"type": "string"},
                "renewTime": {"type": "string", "format": "date-time"},
            },
        }
    },
}

LATTICE: tuple[tuple[Resource, dict[str, Any]], ...] = ((POOL, POOL_SCHEMA), (SERVICE, SERVICE_SCHEMA))
KINDS = (*LATTICE, (NAMESPACE, NAMESPACE_SCHEMA), (CONFIG_MAP, CONFIG_MAP_SCHEMA), (LEASE, LEASE_SCHEMA))
RESOURCES = tuple(resource for resource, _ in KINDS)
