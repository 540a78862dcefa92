"""Discovery documents: the API groups, versions and resources of the server, in the formats that Kubernetes
clients request first."""

import platform
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lattice.errors import NotFound
from lattice.kinds.meta.base import Resource
from lattice.server.requests.call import JSON
from lattice.server.requests.catalog import extra_subresources

Document = dict[str, Any]
# "" selects one document per group, the only format before aggregated discovery.
DiscoveryVersion = Literal["", "v2", "v2beta1"]

_DISCOVERY_VERSIONS: dict[str, DiscoveryVersion] = {"v2": "v2", "v2beta1": "v2beta1"}
# The minor version of Kubernetes whose API server the answers were compared with. kubectl warns when its own version
# is more than one minor away: raise this with the newest kubectl that the tests run.
KUBERNETES_MINOR = 37
CREATE_VERBS = ("create",)
READ_VERBS = ("get", "list", "watch")
SUBRESOURCE_VERBS = ("get", "patch", "update")


def _review(kind: str, group: str, *, namespaced: bool = False) -> Resource:
    return Resource(
        kind,
        f"{kind.lower()}s",
        group,
        "v1",
        categories=(),
        namespaced=namespaced,
        has_status=False,
        verbs=CREATE_VERBS,
    )


CRD_RESOURCE = Resource(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    "v1",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    has_status=False,
    verbs=READ_VERBS,
)
VIRTUAL_RESOURCES = (
    CRD_RESOURCE,
    _review("SelfSubjectReview", "authentication.k8s.io"),
    _review("TokenReview", "authentication.k8s.io"),
    _review("SelfSubjectAccessReview", "authorization.k8s.io"),
    _review("SelfSubjectRulesReview", "authorization.k8s.io"),
    _review("SubjectAccessReview", "authorization.k8s.io"),
    _review("LocalSubjectAccessReview", "authorization.k8s.io", namespaced=True),
)


def with_virtual_resources(resources: Iterable[Resource]) -> tuple[Resource, ...]:
    """Append the virtual resources, which the server answers without storing objects, to the stored
    resources.

    A stored resource hides a virtual resource of the same id.
    """
    stored = tuple(resources)
    stored_ids = {resource.id for resource in stored}
    return stored + tuple(virtual for virtual in VIRTUAL_RESOURCES if virtual.id not in stored_ids)


def api_versions(address: str) -> Document:
    """Answer GET /api; `address` is the host:port at which clients reach the server."""
    cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": cidrs}


def group_list(resources: Sequence[Resource]) -> Document:
    """Answer GET /apis."""
    names = dict.fromkeys(resource.group for resource in resources if resource.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(resources, name) for name in names]}


def group(resources: Sequence[Resource], name: str) -> Document:
    """Answer GET /apis/{group}, or raise NotFound for an unknown group."""
    if not name or all(resource.group != name for resource in resources):
        raise NotFound(
            f"this server has no API group {name!r}", fix="`kubectl api-versions` lists the groups"
        )
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(resources, name)}


def resource_list(resources: Sequence[Resource], api_version: str) -> Document:
    """Answer GET /api/v1 and /apis/{group}/{version}, or raise NotFound for an unknown version."""
    matching = [resource for resource in resources if resource.api_version == api_version]
    if not matching:
        raise NotFound(
            f"this server has no API version {api_version!r}", fix="`kubectl api-versions` lists the versions"
        )
    entries: list[Document] = []
    for resource in matching:
        entry: Document = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        entries.append(entry | _optional_names(resource))
        for name, kind, verbs in _subresources(resource):
            shared = {"singularName": "", "namespaced": resource.namespaced, "verbs": verbs}
            entries.append({"name": f"{resource.plural}/{name}", **shared, **kind})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}


def aggregated_discovery(
    resources: Sequence[Resource], *, core: bool, version: DiscoveryVersion = "v2"
) -> Document:
    """Answer GET /api (core) or /apis for a client that requests aggregated discovery: every group in one
    document."""
    groups: list[Document] = []
    for name in dict.fromkeys(resource.group for resource in resources if (resource.group == "") is core):
        versions = []
        for api_version in _versions(resources, name):
            members = [
                resource
                for resource in resources
                if (resource.group, resource.version) == (name, api_version)
            ]
            entries = [_aggregated_entry(resource) for resource in members]
            versions.append({"version": api_version, "resources": entries, "freshness": "Current"})
        # The core group has no name.
        metadata = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
        groups.append({"metadata": metadata, "versions": versions})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": groups,
    }


def negotiate_version(accept: str) -> tuple[DiscoveryVersion, str]:
    """Return the discovery format that the Accept header prefers, and the Content-Type of the response.

    An empty format stands for the unaggregated documents.
    """
    media_ranges: list[dict[str, str]] = []
    for item in accept.split(","):
        media_type, *parameters = item.split(";")
        pairs = (parameter.partition("=") for parameter in parameters)
        media_range = {name.strip(): value.strip() for name, _, value in pairs}
        media_ranges.append(media_range | {"type": media_type.strip()})
    for media_range in sorted(media_ranges, key=lambda media_range: -_quality(media_range)):
        requested = (media_range["type"], media_range.get("g"), media_range.get("as"))
        version = _DISCOVERY_VERSIONS.get(media_range.get("v", ""))
        if requested == (JSON, "apidiscovery.k8s.io", "APIGroupDiscoveryList") and version:
            return version, f"{JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        # The client prefers plain JSON to every media range that follows.
        if media_range["type"] in (JSON, "*/*", "application/*") and "as" not in media_range:
            break
    return "", JSON


def version_document(version: str) -> Document:
    """Answer GET /version: the Kubernetes minor version whose conventions the API follows, with the Lattice
    version as build metadata."""
    build = "".join(c if c.isalnum() or c in ".-" else "-" for c in version)
    return {
        "major": "1",
        "minor": str(KUBERNETES_MINOR),
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+lattice-{build}",
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


def _optional_names(resource: Resource) -> Document:
    names: Document = {}
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _subresources(resource: Resource) -> Iterable[tuple[str, dict[str, str], list[str]]]:
    verbs_of_object = [verb for verb in SUBRESOURCE_VERBS if verb in resource.verbs]
    if resource.has_status:
        yield "status", {"kind": resource.kind}, verbs_of_object
    if resource.scale_path:
        yield "scale", {"group": "autoscaling", "version": "v1", "kind": "Scale"}, verbs_of_object
    for name, verbs in extra_subresources(resource).items():
        yield name, {"kind": resource.kind}, list(verbs)


def _aggregated_entry(resource: Resource) -> Document:
    response_kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    entry: Document = {
        "resource": resource.plural,
        "responseKind": response_kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
        **_optional_names(resource),
    }
    subresources = [
        {"subresource": name, "responseKind": response_kind | kind, "verbs": verbs}
        for name, kind, verbs in _subresources(resource)
    ]
    return entry | ({"subresources": subresources} if subresources else {})


def _quality(media_range: dict[str, str]) -> float:
    try:
        return float(media_range.get("q", "1"))
    # A malformed quality ranks last instead of failing the request.
    except ValueError:
        return 0.0
