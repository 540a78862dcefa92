"""OpenAPI documents have what clients need for explain, validation and dry runs."""

import json
from typing import Any

import pytest
from build.schema_samples import KINDS, LATTICE, POOL, POOL_SCHEMA

from lattice.kinds import KINDS as EVERY_KIND
from lattice.kinds.meta.schema import structural_schema
from lattice.server.discovery.openapi import GVK, etag, v2_document, v3_documents, v3_index
from lattice.server.discovery.openapi_v2_protobuf import encode_v2
from lattice.server.discovery.operations import PARAMETERS, definition_name, operations

V3 = {path: json.loads(document) for path, document in v3_documents(KINDS, "1.2.3").items()}
V2 = v2_document(KINDS, "1.2.3")
REAL = [(kind.resource, structural_schema(kind)) for kind in EVERY_KIND]
REAL_V3 = {path: json.loads(document) for path, document in v3_documents(REAL, "1.2.3").items()}
REAL_V2 = v2_document(REAL, "1.2.3")
LATTICE_V3 = V3["apis/lattice.dev/v1alpha1"]
DOCUMENTS = [
    pytest.param(V2, id="toys in v2"),
    pytest.param(REAL_V2, id="every kind in v2"),
    *(pytest.param(document, id=f"toys in {path}") for path, document in V3.items()),
    *(pytest.param(document, id=f"every kind in {path}") for path, document in REAL_V3.items()),
]
POOLS = "/apis/lattice.dev/v1alpha1/latticepools"
SERVICES = "/apis/lattice.dev/v1alpha1/namespaces/{namespace}/latticeservices"


def nodes(node: Any):
    if isinstance(node, dict):
        yield node
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(below)


def definitions(document):
    return document["definitions"] if "swagger" in document else document["components"]["schemas"]


def every_operation(document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method, operation


def query_parameters(operation):
    return {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}


def test_the_index_points_at_every_document_by_its_hash():
    documents = v3_documents(KINDS, "1.2.3")
    paths = v3_index(documents)["paths"]
    assert sorted(paths) == [
        "api/v1",
        "apis/apiextensions.k8s.io/v1",
        "apis/authentication.k8s.io/v1",
        "apis/authorization.k8s.io/v1",
        "apis/coordination.k8s.io/v1",
        "apis/lattice.dev/v1alpha1",
    ]
    assert paths["api/v1"]["serverRelativeURL"] == f"/openapi/v3/api/v1?hash={etag(documents['api/v1'])}"


def test_documents_are_stable_and_change_with_schema():
    assert v3_documents(KINDS, "1") == v3_documents(KINDS, "1")
    other = v3_documents([(POOL, POOL_SCHEMA | {"description": "Other."})], "1")["apis/lattice.dev/v1alpha1"]
    assert etag(other) != etag(v3_documents([(POOL, POOL_SCHEMA)], "1")["apis/lattice.dev/v1alpha1"])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_reference_resolves(document):
    prefix = "#/definitions/" if "swagger" in document else "#/components/schemas/"
    targets = {node["$ref"] for node in nodes(document) if isinstance(node.get("$ref"), str)}
    assert targets
    assert targets <= {prefix + name for name in definitions(document)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_additional_properties_are_schemas_never_true(document):
    assert not [node for node in nodes(document) if isinstance(node.get("additionalProperties"), bool)]


def test_open_objects_stay_open_without_saying_true():
    schema = {"type": "object", "properties": {"spec": {"type": "object", "additionalProperties": True}}}
    document = json.loads(v3_documents([(POOL, schema)], "1")["apis/lattice.dev/v1alpha1"])
    spec = document["components"]["schemas"]["dev.lattice.v1alpha1.LatticePool"]["properties"]["spec"]
    assert spec == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_patches_declare_dry_run_and_field_validation(document):
    patches = [operation for _, method, operation in every_operation(document) if method == "patch"]
    assert all(
        {"dryRun", "fieldManager", "fieldValidation", "force"} <= query_parameters(operation)
        for operation in patches
    )
    assert all(set(operation[GVK]) == {"group", "version", "kind"} for operation in patches)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_operation_ids_are_unique_and_actions_named(document):
    found = [operation for _, _, operation in every_operation(document)]
    assert len({operation["operationId"] for operation in found}) == len(found)
    assert all(operation["x-kubernetes-action"] and operation["description"] for operation in found)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_declare_what_they_hold(document):
    for path, item in document["paths"].items():
        declared = {parameter["name"] for parameter in item["parameters"]}
        assert declared == {name for name in ("name", "namespace") if f"{{{name}}}" in path}
        assert all(parameter["required"] and parameter["in"] == "path" for parameter in item["parameters"])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_definitions_and_metadata_have_descriptions(document):
    for name, schema in definitions(document).items():
        assert schema["description"], name
    meta = definitions(document)["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    assert all(field.get("description") for field in meta["properties"].values())


def test_v2_and_v3_hold_the_same_operations():
    v3 = {
        (path, method, op["operationId"])
        for document in V3.values()
        for path, method, op in every_operation(document)
    }
    assert v3 == {(path, method, op["operationId"]) for path, method, op in every_operation(V2)}


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        pytest.param(POOLS, {"get", "post", "delete"}, id="a collection outside namespaces"),
        pytest.param(f"{POOLS}/{{name}}", {"get", "put", "patch", "delete"}, id="one object"),
        pytest.param(f"{POOLS}/{{name}}/status", {"get", "put", "patch"}, id="its status"),
        pytest.param(SERVICES, {"get", "post", "delete"}, id="a collection in a namespace"),
        pytest.param(
            "/apis/lattice.dev/v1alpha1/latticeservices", {"get"}, id="over all namespaces only a list"
        ),
        pytest.param(
            f"{SERVICES}/{{name}}/scale",
            {"get", "put", "patch"},
            id="scale where there is something to scale",
        ),
        pytest.param(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", {"get"}, id="read-only kinds"
        ),
        pytest.param(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"post"}, id="reviews are only created"
        ),
    ],
)
def test_methods(path, methods):
    assert set(V2["paths"][path]) - {"parameters"} == methods


def test_paths_without_operations_are_not_listed():
    assert f"{POOLS}/{{name}}/scale" not in V2["paths"]
    assert all(len(item) > 1 for item in V2["paths"].values())


def test_lists_can_be_watched_paged_and_selected():
    asked = {
        "watch",
        "limit",
        "continue",
        "labelSelector",
        "fieldSelector",
        "timeoutSeconds",
        "resourceVersion",
        "sendInitialEvents",
    }
    assert asked <= query_parameters(LATTICE_V3["paths"][POOLS]["get"])


def test_only_core_kinds_take_a_strategic_merge():
    strategic = "application/strategic-merge-patch+json"
    for document in V3.values():
        for path, method, operation in every_operation(document):
            if method == "patch":
                kinds = set(operation["requestBody"]["content"])
                assert {
                    "application/apply-patch+yaml",
                    "application/json-patch+json",
                    "application/merge-patch+json",
                } <= kinds
                assert (strategic in kinds) == ("lattice.dev" not in path), path


def test_scale_is_autoscaling():
    assert LATTICE_V3["paths"][f"{SERVICES}/{{name}}/scale"]["patch"][GVK] == {
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
    }


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        *((resource, f"dev.lattice.v1alpha1.{resource.kind}") for resource, _ in LATTICE),
        (KINDS[2][0], "io.k8s.api.core.v1.Namespace"),
        (KINDS[3][0], "io.k8s.api.core.v1.ConfigMap"),
        (KINDS[4][0], "io.k8s.api.coordination.v1.Lease"),
    ],
)
def test_definitions_have_the_names_that_kubectl_knows(resource, name):
    assert definition_name(resource) == name
    for kind in ("", "List"):
        assert V2["definitions"][name + kind][GVK] == [
            {"group": resource.group, "version": resource.version, "kind": resource.kind + kind}
        ]


def test_metadata_is_a_reference_in_both():
    name, target = "dev.lattice.v1alpha1.LatticePool", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    v3 = LATTICE_V3["components"]["schemas"][name]["properties"]["metadata"]
    assert v3["allOf"] == [{"$ref": f"#/components/schemas/{target}"}]
    assert V2["definitions"][name]["properties"]["metadata"]["$ref"] == f"#/definitions/{target}"


def spec(document, field):
    return definitions(document)["dev.lattice.v1alpha1.LatticePool"]["properties"]["spec"]["properties"][
        field
    ]


def test_v2_approximates_inexpressible_shapes():
    assert spec(V2, "provider") == {
        "type": "object",
        "description": "Somebody else's.",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert "type" not in spec(V2, "labels")["additionalProperties"], (
        "kubectl 1.20 would refuse text where it reads `object`"
    )
    assert (spec(V2, "port")["type"], spec(V2, "port")["format"]) == ("string", "int-or-string")
    assert "nullable" not in json.dumps(V2)


def test_v3_keeps_the_whole_schema():
    assert spec(LATTICE_V3, "maxNodes") == POOL_SCHEMA["properties"]["spec"]["properties"]["maxNodes"]
    assert spec(LATTICE_V3, "classes")["x-kubernetes-list-type"] == "set"
    assert spec(LATTICE_V3, "port")["allOf"] == [
        {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.util.intstr.IntOrString"}
    ]


def test_the_given_schemas_are_left_as_they_are():
    before = json.dumps(POOL_SCHEMA)
    v2_document(KINDS, "1")
    v3_documents(KINDS, "1")
    assert json.dumps(POOL_SCHEMA) == before


def test_every_parameter_that_is_used_is_described():
    for resource, _ in KINDS:
        for operation in operations(resource):
            assert set(operation.parameters) <= set(PARAMETERS)


def test_every_kind_fits_the_protobuf_form():
    assert len(encode_v2(REAL_V2)) > 100_000
