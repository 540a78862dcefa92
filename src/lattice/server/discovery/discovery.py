"""What can be asked of this server: the discovery documents that clients read before anything else."""

import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lattice.errors import NotFound
from lattice.kinds.meta.base import Resource
from lattice.server.requests.catalog import extra_subresources

Document = dict[str, Any]
DiscoveryVersion = Literal["", "v2", "v2beta1"]  # "": one document per group, as since Kubernetes 1.0

JSON = "application/json"
_DISCOVERY_VERSIONS: dict[str, DiscoveryVersion] = {"v2": "v2", "v2beta1": "v2beta1"}
CREATE = ("create",)
READ = ("get", "list", "watch")
SUBRESOURCE_VERBS = ("get", "patch", "update")


def _review(kind: str, group: str) -> Resource:
    return Resource(kind, f"{kind.lower()}s", group, "v1", categories=(), has_status=False, verbs=CREATE)


CRD_RESOURCE = Resource(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    "v1",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    has_status=False,
    verbs=READ,
)
VIRTUAL_RESOURCES = (
    CRD_RESOURCE,
    _review("SelfSubjectReview", "authentication.k8s.io"),
    _review("TokenReview", "authentication.k8s.io"),
    _review("SelfSubjectAccessReview", "authorization.k8s.io"),
    _review("SelfSubjectRulesReview", "authorization.k8s.io"),
    _review("SubjectAccessReview", "authorization.k8s.io"),
)


def with_virtual_resources(resources: Iterable[Resource]) -> tuple[Resource, ...]:
    """What is stored, then what is answered without being stored; a stored resource hides a virtual one of its name."""
    stored = tuple(resources)
    taken = {resource.id for resource in stored}
    return stored + tuple(virtual for virtual in VIRTUAL_RESOURCES if virtual.id not in taken)


def api_versions(address: str) -> Document:
    """GET /api; `address` is this server's host:port as clients reach it."""
    cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidrs}


def group_list(resources: Sequence[Resource]) -> Document:
    """GET /apis."""
    names = dict.fromkeys(resource.group for resource in resources if resource.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(resources, name) for name in names]}


def group(resources: Sequence[Resource], name: str) -> Document:
    """GET /apis/{group}."""
    if not name or all(resource.group != name for resource in resources):
        raise NotFound(
            f"this server has no API group {name!r}", fix="`kubectl api-versions` lists the groups"
        )
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(resources, name)}


def resource_list(resources: Sequence[Resource], api_version: str) -> Document:
    """GET /api/v1 and /apis/{group}/{version}."""
    found = [resource for resource in resources if resource.api_version == api_version]
    if not found:
        raise NotFound(
            f"this server has no API version {api_version!r}", fix="`kubectl api-versions` lists the versions"
        )
    entries = [entry for resource in found for entry in _entries(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}


def aggregated_discovery(
    resources: Sequence[Resource], *, core: bool, version: DiscoveryVersion = "v2"
) -> Document:
    """GET /api (core) or /apis for a client that asks for everything in one document."""
    names = dict.fromkeys(resource.group for resource in resources if (resource.group == "") is core)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [_group_discovery(resources, name) for name in names],
    }


def negotiate_version(accept: str) -> tuple[DiscoveryVersion, str]:
    """The form of discovery that an Accept header asks for first, and the Content-Type to answer it with."""
    for found in sorted(
        (_media_range(item) for item in accept.split(",")), key=lambda found: -_quality(found)
    ):
        asks = (found["type"], found.get("g"), found.get("as"))
        form = _DISCOVERY_VERSIONS.get(found.get("v", ""))
        if asks == (JSON, "apidiscovery.k8s.io", "APIGroupDiscoveryList") and form:
            return form, f"{JSON};g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList"
        if found["type"] in (JSON, "*/*", "application/*") and "as" not in found:
            break
    return "", JSON


def version_document(version: str) -> Document:
    """GET /version: the Kubernetes minor whose conventions we keep, with our own version as build metadata."""
    build = "".join(c if c.isalnum() or c in ".-" else "-" for c in version)
    return {
        "major": "1",
        "minor": "33",
        "gitVersion": f"v1.33.0+lattice-{build}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{sys.platform}/{platform.machine()}",
    }


def _group(resources: Sequence[Resource], name: str) -> Document:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(resources, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _versions(resources: Sequence[Resource], name: str) -> list[str]:
    return list(dict.fromkeys(resource.version for resource in resources if resource.group == name))


def _entries(resource: Resource) -> Iterable[Document]:
    entry: Document = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    yield entry
    for name, kind, verbs in _subresources(resource):
        shared = {"singularName": "", "namespaced": resource.namespaced, "verbs": verbs}
        yield {"name": f"{resource.plural}/{name}", **shared, **kind}


def _subresources(resource: Resource) -> Iterable[tuple[str, dict[str, str], list[str]]]:
    usual = [verb for verb in SUBRESOURCE_VERBS if verb in resource.verbs]
    if resource.has_status:
        yield "status", {"kind": resource.kind}, usual
    if resource.scale_path:
        yield "scale", {"group": "autoscaling", "version": "v1", "kind": "Scale"}, usual
    for name, verbs in extra_subresources(resource).items():
        yield name, {"kind": resource.kind}, list(verbs)


def _group_discovery(resources: Sequence[Resource], name: str) -> Document:
    versions = [
        {
            "version": version,
            "resources": [
                _discovery(found) for found in resources if (found.group, found.version) == (name, version)
            ],
            "freshness": "Current",
        }
        for version in _versions(resources, name)
    ]
    return {
        "metadata": {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None},
        "versions": versions,
    }


def _discovery(resource: Resource) -> Document:
    own = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    entry: Document = {
        "resource": resource.plural,
        "responseKind": own,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    below = [
        {"subresource": name, "responseKind": own | kind, "verbs": verbs}
        for name, kind, verbs in _subresources(resource)
    ]
    return entry | ({"subresources": below} if below else {})


def _media_range(item: str) -> dict[str, str]:
    kind, *parameters = item.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return {name.strip(): value.strip() for name, _, value in pairs} | {"type": kind.strip()}


def _quality(found: dict[str, str]) -> float:
    try:
        return float(found.get("q", "1"))
    except ValueError:
        return 0.0
