"""Objects of a sample kind, applied and updated as on a Kubernetes API server, with their managed fields."""

import copy
from typing import Any

from lattice.server.apply.managed_fields import compile_types, format_path, iter_paths
from lattice.server.apply.server_side_apply import (
    FieldManager,
    managed_fields_of,
    server_side_apply,
    track_update,
)

TEXT = {"type": "string"}
ITEM = {"type": "object", "properties": {"name": TEXT, "value": TEXT, "note": TEXT}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "image": TEXT,
                "class": TEXT,
                "replicas": {
                    "type": "object",
                    "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
                },
                "env": {"type": "object", "additionalProperties": TEXT},
                "containers": {"type": "object", "additionalProperties": ITEM},
                "args": {"type": "array", "items": TEXT},
                "zones": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
                "items": {
                    "type": "array",
                    "items": ITEM,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": TEXT}},
    },
}
TYPES = compile_types(SCHEMA)
VERSION = "lattice.dev/v1alpha1"
NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"


def thing(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    out = {"apiVersion": VERSION, "kind": "Thing", "metadata": {"name": "a", **metadata}}
    return out if spec is None else {**out, "spec": spec}


def updater(name: str = "edit", subresource: str = "") -> FieldManager:
    return FieldManager(name, "Update", VERSION, subresource)


def apply(
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    by: str = "ann",
    *,
    force: bool = False,
    now: str = NOW,
) -> dict[str, Any]:
    """Server-side apply that also checks that its inputs are unchanged."""
    before = copy.deepcopy((live, applied))
    out = server_side_apply(live, applied, TYPES, FieldManager(by, "Apply", VERSION, force=force), now)
    assert (live, applied) == before
    return out


def update(
    live: dict[str, Any] | None,
    new: dict[str, Any],
    by: str = "edit",
    *,
    subresource: str = "",
    now: str = NOW,
) -> dict[str, Any]:
    """`new` as stored after an Update, with its managed fields."""
    before = copy.deepcopy((live, new))
    entries = track_update(live, new, TYPES, updater(by, subresource), now)
    assert (live, new) == before
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}}


def with_spec(live: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**live, "spec": {**live["spec"], **spec}}


def owners(obj: dict[str, Any]) -> dict[str, list[str]]:
    """Owned paths by manager, as Kubernetes prints them."""
    return {
        entry["manager"]: [format_path(path) for path in iter_paths(entry["fieldsV1"])]
        for entry in managed_fields_of(obj)
    }
