"""How our kinds would be declared to a Kubernetes cluster: CustomResourceDefinitions, made from the same schemas."""

import uuid
from collections.abc import Iterable
from typing import Any

import yaml

from lattice.kinds.meta.base import Column, Resource

Schema = dict[str, Any]
Manifest = dict[str, Any]

CRD_API_VERSION = "apiextensions.k8s.io/v1"
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", "date")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "lattice.dev")


def crd(resource: Resource, schema: Schema) -> Manifest:
    """The CustomResourceDefinition of a kind, as it would be applied to a cluster."""
    version: Manifest = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _structural(schema)},
        "additionalPrinterColumns": [_column(column) for column in _columns(resource)],
    }
    subresources = _subresources(resource, schema)
    return {
        "apiVersion": CRD_API_VERSION,
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.id},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": _names(resource),
            "versions": [version | ({"subresources": subresources} if subresources else {})],
        },
    }


def served_crd(resource: Resource, schema: Schema, created: str, revision: str = "1") -> Manifest:
    """The same as this server shows it: established, with the same uid everywhere. `created` is RFC 3339."""
    manifest = crd(resource, schema)
    manifest["metadata"] |= {
        "uid": str(uuid.uuid5(_NAMESPACE, resource.id)),
        "resourceVersion": revision,
        "generation": 1,
        "creationTimestamp": created,
    }
    manifest["spec"]["conversion"] = {"strategy": "None"}
    manifest["status"] = {
        "acceptedNames": _names(resource),
        "storedVersions": [resource.version],
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", created),
            _condition(
                "Established", "InitialNamesAccepted", "the initial names have been accepted", created
            ),
        ],
    }
    return manifest


def dump_crds(kinds: Iterable[tuple[Resource, Schema]]) -> str:
    """All of them as one YAML file: by name, keys sorted, the same bytes every time."""
    manifests = sorted(
        (crd(resource, schema) for resource, schema in kinds),
        key=lambda found: str(found["metadata"]["name"]),
    )
    return yaml.dump_all(
        manifests, Dumper=_NoAliasDumper, sort_keys=True, explicit_start=True, width=120, allow_unicode=True
    )


class _NoAliasDumper(yaml.SafeDumper):
    """Writes equal values out in full: Kubernetes' tools do not all follow YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _names(resource: Resource) -> Manifest:
    names: Manifest = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
    }
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _columns(resource: Resource) -> Iterable[Column]:
    yield from resource.columns
    if all(column.name != AGE_COLUMN.name for column in resource.columns):
        yield AGE_COLUMN


def _column(column: Column) -> Manifest:
    path = column.path if column.path.startswith(".") else f".{column.path}"
    found: Manifest = {"name": column.name, "type": column.type, "jsonPath": path}
    if column.priority:
        found["priority"] = column.priority
    if column.description:
        found["description"] = column.description
    return found


def _subresources(resource: Resource, schema: Schema) -> Manifest:
    found: Manifest = {"status": {}} if resource.has_status else {}
    if resource.scale_path:
        scale = {"specReplicasPath": f".{resource.scale_path}", "statusReplicasPath": ".status.replicas"}
        if _has(schema, "status", "selector"):
            scale["labelSelectorPath"] = ".status.selector"
        found["scale"] = scale
    return found


def _has(schema: Schema, *path: str) -> bool:
    for name in path:
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


def _structural(schema: Schema) -> Schema:
    """Kubernetes allows a schema to say nothing about metadata but that it is an object."""
    return schema | {"properties": schema.get("properties", {}) | {"metadata": {"type": "object"}}}


def _condition(kind: str, reason: str, message: str, since: str) -> Manifest:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}
