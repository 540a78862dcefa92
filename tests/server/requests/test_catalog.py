"""Subresources of workloads are in discovery, in OpenAPI and in the routes."""

import json

import pytest

from lattice.errors import NotFound
from lattice.kinds import KINDS
from lattice.kinds.meta.schema import structural_schema
from lattice.kinds.workload import LatticeWorkload
from lattice.server.discovery import discovery
from lattice.server.discovery.extra_paths import add_extra_paths
from lattice.server.discovery.openapi import v3_documents
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.routes import request_attributes, resolve_target

CATALOG = Catalog(KINDS)
HOME = "/apis/lattice.dev/v1alpha1"
JOB = f"{HOME}/namespaces/default/latticeworkloads/job"


def test_discovery_lists_workload_subresources() -> None:
    resources = discovery.with_virtual_resources(kind.resource for kind in KINDS)
    found = {
        each["name"]: each for each in discovery.resource_list(resources, "lattice.dev/v1alpha1")["resources"]
    }
    assert found["latticeworkloads/log"]["verbs"] == ["get"]
    assert found["latticeworkloads/retry"]["verbs"] == ["create"]
    assert found["latticeworkloads/status"]["verbs"] == ["get", "patch", "update"]
    assert "latticenodes/log" not in found
    below = {
        part["subresource"]: part["verbs"]
        for group in discovery.aggregated_discovery(resources, core=False)["items"]
        for version in group["versions"]
        for resource in version["resources"]
        if resource["resource"] == "latticeworkloads"
        for part in resource["subresources"]
    }
    assert below == {"status": ["get", "patch", "update"], "log": ["get"], "retry": ["create"]}


def test_openapi_describes_workload_subresources() -> None:
    documents = add_extra_paths(
        v3_documents([(kind.resource, structural_schema(kind)) for kind in KINDS], "1")
    )
    paths = json.loads(documents[HOME.removeprefix("/")])["paths"]
    item = f"{HOME}/namespaces/{{namespace}}/latticeworkloads/{{name}}"
    assert {parameter["name"] for parameter in paths[f"{item}/log"]["get"]["parameters"]} == {
        "container",
        "tail",
        "follow",
    }
    assert list(paths[f"{item}/retry"]) == ["parameters", "post"]
    assert "get" in paths[f"{HOME}/top"]
    assert "get" in paths[f"{HOME}/spending"]
    assert set(paths[f"{item}/log"]["get"]["responses"]["200"]["content"]) == {"text/plain"}


@pytest.mark.parametrize(("part", "method", "verb"), [("log", "GET", "get"), ("retry", "POST", "create")])
def test_routes_resolve_workload_subresources(part: str, method: str, verb: str) -> None:
    target = resolve_target(CATALOG, f"{JOB}/{part}")
    assert (target.served.resource, target.name, target.subresource) == (
        LatticeWorkload.resource,
        "job",
        part,
    )
    assert request_attributes(method, target, watching=False).verb == verb


@pytest.mark.parametrize(
    "path", [f"{JOB}/cow", f"{HOME}/latticenodes/n1/log", f"{HOME}/latticeworkloads/job/log"]
)
def test_other_subresources_are_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        resolve_target(CATALOG, path)
