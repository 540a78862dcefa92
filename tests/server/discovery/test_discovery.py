"""Discovery lists the same resources to every client, old and new."""

import pytest
from build.schema_samples import POOL, RESOURCES, SERVICE

from lattice.errors import NotFound
from lattice.kinds.meta.base import Resource
from lattice.server.discovery import discovery
from lattice.server.discovery.discovery import (
    CRD_RESOURCE,
    KUBERNETES_MINOR,
    VIRTUAL_RESOURCES,
    with_virtual_resources,
)

ALL = with_virtual_resources(RESOURCES)
V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
V2BETA1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"


def entries(api_version: str) -> dict[str, dict[str, object]]:
    return {entry["name"]: entry for entry in discovery.resource_list(ALL, api_version)["resources"]}


def test_the_core_version_names_the_address():
    assert discovery.api_versions("10.0.0.1:6443") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "10.0.0.1:6443"}],
    }


def test_groups_are_listed_once_and_never_the_core():
    groups = discovery.group_list(ALL)["groups"]
    names = [group["name"] for group in groups]
    assert names == [
        "lattice.dev",
        "coordination.k8s.io",
        "apiextensions.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
    ]
    assert groups[0]["preferredVersion"] == {"groupVersion": "lattice.dev/v1alpha1", "version": "v1alpha1"}


def test_one_group():
    found = discovery.group(ALL, "lattice.dev")
    assert found["kind"] == "APIGroup"
    assert found["versions"] == [{"groupVersion": "lattice.dev/v1alpha1", "version": "v1alpha1"}]


def test_a_group_keeps_its_versions_in_order():
    later = Resource("LatticePool", "latticepools", version="v1beta1")
    assert [found["version"] for found in discovery.group((POOL, later), "lattice.dev")["versions"]] == [
        "v1alpha1",
        "v1beta1",
    ]


@pytest.mark.parametrize("name", ["", "apps", "lattice"])
def test_an_unknown_group_is_not_found(name):
    with pytest.raises(NotFound, match="no API group"):
        discovery.group(ALL, name)


def test_an_unknown_version_is_not_found():
    with pytest.raises(NotFound, match=r"no API version 'lattice\.dev/v9'"):
        discovery.resource_list(ALL, "lattice.dev/v9")


def test_a_resource_says_how_to_call_it():
    assert entries("lattice.dev/v1alpha1")["latticepools"] == {
        "name": "latticepools",
        "singularName": "latticepool",
        "namespaced": False,
        "kind": "LatticePool",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["lp"],
        "categories": ["lattice", "all"],
    }


def test_status_and_scale_have_entries_of_their_own():
    found = entries("lattice.dev/v1alpha1")
    verbs = ["get", "patch", "update"]
    assert found["latticeservices/status"] == {
        "name": "latticeservices/status",
        "singularName": "",
        "namespaced": True,
        "kind": "LatticeService",
        "verbs": verbs,
    }
    scale = found["latticeservices/scale"]
    assert (scale["group"], scale["version"], scale["kind"], scale["verbs"]) == (
        "autoscaling",
        "v1",
        "Scale",
        verbs,
    )
    assert "latticepools/scale" not in found


def test_virtual_resources_allow_read_or_create_only():
    assert entries("apiextensions.k8s.io/v1")["customresourcedefinitions"]["verbs"] == [
        "get",
        "list",
        "watch",
    ]
    assert entries("apiextensions.k8s.io/v1")["customresourcedefinitions"]["shortNames"] == ["crd", "crds"]
    reviews = entries("authorization.k8s.io/v1") | entries("authentication.k8s.io/v1")
    assert sorted(reviews) == [
        "localsubjectaccessreviews",
        "selfsubjectaccessreviews",
        "selfsubjectreviews",
        "selfsubjectrulesreviews",
        "subjectaccessreviews",
        "tokenreviews",
    ]
    assert {tuple(entry["verbs"]) for entry in reviews.values()} == {("create",)}


def test_a_stored_resource_hides_the_virtual_one():
    own = Resource("CustomResourceDefinition", CRD_RESOURCE.plural, CRD_RESOURCE.group, "v1")
    assert [found for found in with_virtual_resources((own,)) if found.id == CRD_RESOURCE.id] == [own]
    assert set(with_virtual_resources(())) == set(VIRTUAL_RESOURCES)


@pytest.mark.parametrize("form", ["v2", "v2beta1"])
def test_aggregated_discovery_equals_resource_lists(form):
    for core, versions in ((True, ["v1"]), (False, sorted({r.api_version for r in ALL if r.group}))):
        document = discovery.aggregated_discovery(ALL, core=core, version=form)
        assert document["apiVersion"] == f"apidiscovery.k8s.io/{form}"
        assert sorted(flattened(document)) == sorted(row for version in versions for row in listed(version))


def flattened(document):
    for item in document["items"]:
        group = item["metadata"].get("name", "")
        for version in item["versions"]:
            prefix = f"{group}/{version['version']}" if group else version["version"]
            for found in version["resources"]:
                own = (
                    prefix,
                    found["resource"],
                    found["responseKind"]["kind"],
                    found["scope"] == "Namespaced",
                    tuple(found["verbs"]),
                )
                yield own
                for below in found.get("subresources", ()):
                    yield (
                        prefix,
                        f"{own[1]}/{below['subresource']}",
                        below["responseKind"]["kind"],
                        own[3],
                        tuple(below["verbs"]),
                    )


def listed(version):
    for entry in discovery.resource_list(ALL, version)["resources"]:
        yield version, entry["name"], entry["kind"], entry["namespaced"], tuple(entry["verbs"])


def test_aggregated_scale_answers_with_autoscaling():
    (group,) = discovery.aggregated_discovery((SERVICE,), core=False)["items"]
    (status, scale) = group["versions"][0]["resources"][0]["subresources"]
    assert status["responseKind"] == {"group": "lattice.dev", "version": "v1alpha1", "kind": "LatticeService"}
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}


@pytest.mark.parametrize(
    ("accept", "form", "content_type"),
    [
        pytest.param("", "", "application/json", id="no header: the old form"),
        pytest.param("*/*", "", "application/json", id="anything: the old form"),
        pytest.param("application/json, */*", "", "application/json", id="plain JSON: the old form"),
        pytest.param(f"{V2},{V2BETA1},application/json", "v2", V2, id="what kubectl 1.30 and later send"),
        pytest.param(f"{V2BETA1},application/json", "v2beta1", V2BETA1, id="what kubectl 1.27 sends"),
        pytest.param(f"application/json,{V2}", "", "application/json", id="the first of equals wins"),
        pytest.param(f"application/json;q=0.5, {V2};q=0.9", "v2", V2, id="quality beats order"),
        pytest.param(
            V2.replace("v=v2", "v=v9") + ",application/json",
            "",
            "application/json",
            id="a version from the future is passed over",
        ),
        pytest.param(
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            "",
            "application/json",
            id="an unknown media type",
        ),
        pytest.param("application/json;q=much", "", "application/json", id="nonsense is not an error"),
        pytest.param(V2.replace(";", " ; ").replace("=", " = "), "v2", V2, id="spaces do not matter"),
    ],
)
def test_the_accept_header_chooses(accept, form, content_type):
    assert discovery.negotiate_version(accept) == (form, content_type)


def test_version_is_semantic_and_contains_ours():
    found = discovery.version_document("0.1.0+g12.dirty_x")
    assert found["gitVersion"] == f"v1.{KUBERNETES_MINOR}.0+lattice-0.1.0-g12.dirty-x"
    assert (found["major"], found["minor"]) == ("1", str(KUBERNETES_MINOR))
    assert {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} < set(found)
    assert all(isinstance(value, str) for value in found.values())
