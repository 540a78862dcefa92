"""DiscoveryDocuments answers requests about the API itself: discovery, OpenAPI, version,
CustomResourceDefinitions."""

import asyncio
import gc
from collections.abc import Callable
from functools import cached_property
from typing import Any

from lattice import __version__
from lattice.errors import NotFound
from lattice.kinds.meta.base import GROUP
from lattice.kinds.meta.json_body import encode
from lattice.server.discovery import crds, discovery, openapi
from lattice.server.discovery import openapi_v2_protobuf as gnostic
from lattice.server.discovery.extra_paths import add_extra_paths
from lattice.server.requests.call import JSON, Reply
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.routes import unknown_path_error

Document = dict[str, Any]


class DiscoveryDocuments:
    """The discovery and OpenAPI documents of one catalog of kinds; OpenAPI v3 and the v2 protobuf are built
    on the first request and cached."""

    def __init__(self, catalog: Catalog, address: Callable[[], str]) -> None:
        self._address = address
        self._kinds = [
            (kind.resource, kind.schema) for kind in catalog if kind.resource.id != discovery.CRD_RESOURCE.id
        ]
        self._resources = discovery.with_virtual_resources(resource for resource, _ in self._kinds)

    async def answer(self, path: str, accept: str) -> Reply:
        # kr8s requests /version/ with a trailing slash.
        if path.rstrip("/") == "/version":
            return Reply(encode(discovery.version_document(__version__)))
        if path.startswith("/openapi/"):
            # The first request builds the documents, which takes tens of milliseconds.
            return await asyncio.to_thread(self._openapi, path, accept)
        path = path.rstrip("/")
        if not path:
            return Reply(encode({"paths": self._paths}))
        discovery_version, content_type = discovery.negotiate_version(accept)
        if path in {"/api", "/apis"} and discovery_version:
            return Reply(
                encode(
                    discovery.aggregated_discovery(
                        self._resources, core=path == "/api", version=discovery_version
                    )
                ),
                content_type=content_type,
            )
        match path.strip("/").split("/"):
            case ["api"]:
                document = discovery.api_versions(self._address())
            case ["apis"]:
                document = discovery.group_list(self._resources)
            case ["api", version]:
                document = discovery.resource_list(self._resources, version)
            case ["apis", group]:
                document = discovery.group(self._resources, group)
            case ["apis", group, version]:
                document = discovery.resource_list(self._resources, f"{group}/{version}")
            case _:
                raise unknown_path_error(path)
        return Reply(encode(document))

    def _openapi(self, path: str, accept: str) -> Reply:
        if path == "/openapi/v2":
            if "proto-openapi" in accept:
                return Reply(self._v2_protobuf, content_type=gnostic.MEDIA_TYPE)
            return Reply(encode(openapi.v2_document(self._kinds, __version__)))
        if path.rstrip("/") == "/openapi/v3":
            return Reply(encode(openapi.v3_index(self._openapi_v3)))
        document = self._openapi_v3.get(path.removeprefix("/openapi/v3/"))
        if document is None:
            raise NotFound(f"no OpenAPI document {path}", fix="GET /openapi/v3 lists them")
        return Reply(document, content_type=JSON, headers={"Etag": f'"{openapi.etag(document)}"'})

    @cached_property
    def _paths(self) -> list[str]:
        """The paths that are no objects, as GET / lists them."""
        groups = {f"/apis/{resource.group}" for resource in self._resources if resource.group}
        versions = {f"/apis/{resource.api_version}" for resource in self._resources if resource.group}
        plain = {
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
        }
        return sorted(groups | versions | plain | {"/version"})

    @cached_property
    def _openapi_v3(self) -> dict[str, bytes]:
        return add_extra_paths(openapi.v3_documents(self._kinds, __version__))

    @cached_property
    def _v2_protobuf(self) -> bytes:
        protobuf = gnostic.encode_v2(openapi.v2_document(self._kinds, __version__))
        # The decoded document, megabytes of small objects, is garbage now: free the memory at once.
        gc.collect()
        return protobuf

    def crds(self, created: str) -> list[Document]:
        """Return the CustomResourceDefinitions of the Lattice API group; `created` is RFC 3339."""
        return [
            crds.served_crd(resource, schema, created)
            for resource, schema in self._kinds
            if resource.group == GROUP
        ]
