"""The CustomResourceDefinitions are what a Kubernetes cluster accepts, and the same bytes every time."""

import copy
import json

import pytest
import yaml
from build.schema_samples import LATTICE, POOL, POOL_SCHEMA, SERVICE, SERVICE_SCHEMA

from lattice.kinds import LATTICE_KINDS
from lattice.kinds.meta.base import Column, Resource
from lattice.kinds.meta.schema import structural_schema
from lattice.server.discovery.crds import crd, dump_crds, served_crd

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def structural_problems(schema, path=""):
    """Violations of Kubernetes' structural schema rules."""
    open_ended = schema.get("x-kubernetes-int-or-string") or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if "$ref" in schema:
        yield f"{path}: $ref"
    if "type" not in schema and not open_ended:
        yield f"{path}: no type"
    if schema.get("x-kubernetes-int-or-string") and "type" in schema:
        yield f"{path}: int-or-string with a type"
    if isinstance(schema.get("type"), list):
        yield f"{path}: several types"
    if "additionalProperties" in schema and "properties" in schema:
        yield f"{path}: properties and additionalProperties"
    if schema.get("additionalProperties") is False:
        yield f"{path}: additionalProperties false"
    if schema.get("uniqueItems"):
        yield f"{path}: uniqueItems"
    if any(
        isinstance(schema.get(key), (int, float)) and not isinstance(schema[key], bool)
        for key in ("exclusiveMinimum", "exclusiveMaximum")
    ):
        yield f"{path}: exclusive limits are booleans"
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield f"{path}: array without items"
    yield from list_problems(schema, path)
    if "default" in schema:
        yield from value_problems(schema, schema["default"], f"{path}(default)")
    for name, below in schema.get("properties", {}).items():
        yield from structural_problems(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from structural_problems(schema[key], f"{path}[{key}]")


def list_problems(schema, path):
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    if kind and schema.get("type") != "array":
        yield f"{path}: list type on no list"
    if kind == "set" and schema["items"].get("type") in ("object", "array"):
        yield f"{path}: set of objects"
    if (kind == "map") != bool(keys):
        yield f"{path}: list map and its keys go together"
    for key in keys or ():
        item = schema["items"]
        found = item.get("properties", {}).get(key)
        if found is None or found.get("type") not in ("string", "integer", "boolean", "number"):
            yield f"{path}: key {key} is no scalar property"
        elif key not in item.get("required", ()) and "default" not in found:
            yield f"{path}: key {key} may be absent"


def value_problems(schema, value, path):
    if value is None:
        if not schema.get("nullable"):
            yield f"{path}: null"
        return
    wanted = schema.get("type")
    if wanted and (not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        yield f"{path}: {value!r} is no {wanted}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} not in enum"
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value and "default" not in properties.get(name, {}):
                yield f"{path}: {name} missing"
        for name, item in value.items():
            below = properties.get(name, schema.get("additionalProperties"))
            if below is None:
                yield f"{path}: {name} unknown"
            else:
                yield from value_problems(below, item, f"{path}.{name}")


def version_of(manifest):
    (version,) = manifest["spec"]["versions"]
    return version


def test_names_and_scope():
    pool, service = crd(POOL, POOL_SCHEMA), crd(SERVICE, SERVICE_SCHEMA)
    assert pool["metadata"] == {"name": "latticepools.lattice.dev"}
    assert pool["spec"]["names"] == {
        "kind": "LatticePool",
        "listKind": "LatticePoolList",
        "plural": "latticepools",
        "singular": "latticepool",
        "shortNames": ["lp"],
        "categories": ["lattice", "all"],
    }
    assert (pool["spec"]["scope"], service["spec"]["scope"]) == ("Cluster", "Namespaced")


def test_columns_come_from_the_kind_and_end_with_the_age():
    assert version_of(crd(POOL, POOL_SCHEMA))["additionalPrinterColumns"] == [
        {"name": "Region", "type": "string", "jsonPath": ".spec.region"},
        {
            "name": "Max",
            "type": "integer",
            "jsonPath": ".spec.maxNodes",
            "priority": 1,
            "description": "Ceiling.",
        },
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def test_an_own_age_column_is_not_doubled():
    own = Resource("LatticeX", "latticexs", columns=(Column("Age", "metadata.creationTimestamp", "date"),))
    assert version_of(crd(own, {"type": "object"}))["additionalPrinterColumns"] == [
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    ]


def test_subresources():
    assert version_of(crd(POOL, POOL_SCHEMA))["subresources"] == {"status": {}}
    scale = {"specReplicasPath": ".spec.replicas.min", "statusReplicasPath": ".status.replicas"}
    assert version_of(crd(SERVICE, SERVICE_SCHEMA))["subresources"] == {"status": {}, "scale": scale}
    with_selector = copy.deepcopy(SERVICE_SCHEMA)
    with_selector["properties"]["status"]["properties"]["selector"] = {"type": "string"}
    assert (
        version_of(crd(SERVICE, with_selector))["subresources"]["scale"]["labelSelectorPath"]
        == ".status.selector"
    )
    bare = Resource("LatticeX", "latticexs", has_status=False)
    assert "subresources" not in version_of(crd(bare, {"type": "object"}))


REAL = [pytest.param(kind.resource, structural_schema(kind), id=kind.__name__) for kind in LATTICE_KINDS]


@pytest.mark.parametrize(("resource", "schema"), [*LATTICE, *REAL])
def test_schemas_are_structural(resource, schema):
    found = version_of(crd(resource, schema))["schema"]["openAPIV3Schema"]
    assert found["properties"]["metadata"] == {"type": "object"}
    assert list(structural_problems(found)) == []


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        pytest.param({"$ref": "#/x", "type": "object"}, ": $ref", id="references"),
        pytest.param({"description": "x"}, ": no type", id="a node without a type"),
        pytest.param({"type": "object", "properties": {}, "additionalProperties": {}}, "properties and", id="both forms of object"),
        pytest.param({"type": "integer", "exclusiveMinimum": 0}, "exclusive limits", id="JSON Schema 2020 limits"),
        pytest.param({"type": "integer", "default": "x"}, "is no integer", id="a default of another type"),
        pytest.param({"type": "string", "default": None}, "null", id="a null default"),
        pytest.param(
            {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}},
             "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]},
            "may be absent",
            id="a list map whose key may be absent",
        ),
    ],
)  # fmt: skip
def test_structural_schema_checker_finds_errors(schema, problem):
    assert any(problem in found for found in structural_problems(schema))


@pytest.mark.parametrize(("resource", "schema"), REAL)
def test_scale_moves_an_integer_that_the_schema_has(resource, schema):
    for path in version_of(crd(resource, schema)).get("subresources", {}).get("scale", {}).values():
        node = schema
        for name in path.strip(".").split("."):
            node = node["properties"][name]
        assert node["type"] == ("string" if path.endswith("selector") else "integer")


def test_served_form_is_established_and_stable():
    served = served_crd(POOL, POOL_SCHEMA, "2026-01-02T03:04:05Z", "7")
    assert served["metadata"] == {
        "name": "latticepools.lattice.dev",
        "uid": served_crd(POOL, POOL_SCHEMA, "2030-01-01T00:00:00Z")["metadata"]["uid"],
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    assert served["metadata"]["uid"] != served_crd(SERVICE, SERVICE_SCHEMA, "")["metadata"]["uid"]
    assert {(found["type"], found["status"]) for found in served["status"]["conditions"]} == {
        ("Established", "True"),
        ("NamesAccepted", "True"),
    }
    assert served["status"]["acceptedNames"] == served["spec"]["names"]
    assert {key: served["spec"][key] for key in crd(POOL, POOL_SCHEMA)["spec"]} == crd(POOL, POOL_SCHEMA)[
        "spec"
    ]


def test_the_dump_is_sorted_stable_and_reads_back():
    dumped = dump_crds(reversed(LATTICE))
    assert dumped == dump_crds(LATTICE)
    assert list(yaml.safe_load_all(dumped)) == [crd(resource, schema) for resource, schema in LATTICE]
    assert dumped.startswith("---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n")
    assert "&id" not in dumped
    assert "!!" not in dumped


def test_the_given_schema_is_left_as_it_is():
    before = json.dumps(POOL_SCHEMA)
    served_crd(POOL, POOL_SCHEMA, "")
    assert json.dumps(POOL_SCHEMA) == before
