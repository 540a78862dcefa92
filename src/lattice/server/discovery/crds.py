"""CustomResourceDefinitions of the Lattice kinds, derived from the schemas that validate the API."""

import uuid
from collections.abc import Iterable
from typing import Any

import yaml

from lattice.kinds.meta.base import Column, Resource

Schema = dict[str, Any]
Manifest = dict[str, Any]

CRD_API_VERSION = "apiextensions.k8s.io/v1"
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", "date")
# Derives the uid from the name, so that every server of every installation shows the same uid.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "lattice.dev")


def crd(resource: Resource, schema: Schema) -> Manifest:
    """Return the CustomResourceDefinition of a kind as a manifest for a Kubernetes cluster."""
    version: Manifest = {
        "name": resource.version,
        "served": True,
        "storage": True,
        # Kubernetes accepts no schema of metadata beyond "type: object".
        "schema": {
            "openAPIV3Schema": schema
            | {"properties": schema.get("properties", {}) | {"metadata": {"type": "object"}}}
        },
        "additionalPrinterColumns": _printer_columns(resource),
    }
    subresources: Manifest = {"status": {}} if resource.has_status else {}
    if resource.scale_path:
        scale = {"specReplicasPath": f".{resource.scale_path}", "statusReplicasPath": ".status.replicas"}
        status_schema = schema.get("properties", {}).get("status", {})
        if "selector" in status_schema.get("properties", {}):
            scale["labelSelectorPath"] = ".status.selector"
        subresources["scale"] = scale
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
    """Return the CustomResourceDefinition as the server lists the object: established, with a stable uid.
    `created` is RFC 3339."""
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
    """Return the CustomResourceDefinitions of all kinds as one YAML file, sorted by name and key: equal input
    gives equal bytes."""
    manifests = sorted(
        (crd(resource, schema) for resource, schema in kinds),
        key=lambda manifest: str(manifest["metadata"]["name"]),
    )
    return yaml.dump_all(
        manifests, Dumper=_NoAliasDumper, sort_keys=True, explicit_start=True, width=120, allow_unicode=True
    )


class _NoAliasDumper(yaml.SafeDumper):
    """A YAML dumper that writes equal values out in full, because not every Kubernetes tool follows YAML
    anchors."""

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


def _printer_columns(resource: Resource) -> list[Manifest]:
    columns = list(resource.columns)
    # A Kubernetes server adds an age column only to a kind without columns.
    if all(column.name != AGE_COLUMN.name for column in columns):
        columns.append(AGE_COLUMN)
    manifests: list[Manifest] = []
    for column in columns:
        path = column.path if column.path.startswith(".") else f".{column.path}"
        manifest: Manifest = {"name": column.name, "type": column.type, "jsonPath": path}
        if column.priority:
            manifest["priority"] = column.priority
        if column.description:
            manifest["description"] = column.description
        manifests.append(manifest)
    return manifests


def _condition(condition_type: str, reason: str, message: str, since: str) -> Manifest:
    return {
        "type": condition_type,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }
