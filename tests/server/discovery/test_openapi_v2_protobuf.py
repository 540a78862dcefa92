"""The protobuf form of OpenAPI v2 equals its JSON form."""

import struct
from typing import Any

import pytest
import yaml
from build.schema_samples import KINDS
from hypothesis import given
from hypothesis import strategies as st

from lattice.server.discovery.openapi import v2_document
from lattice.server.discovery.openapi_v2_protobuf import encode_v2

# A second reading of the .proto: names by number, to decode with. Capitalised: a message. A trailing * repeats.
PLACE = "required:bool in:str description:str name:str"
LIMITS = (
    "maximum:float exclusiveMaximum:bool minimum:float exclusiveMinimum:bool maxLength:int minLength:int pattern:str "
    "maxItems:int minItems:int uniqueItems:bool"
)
PROTO = {
    "Document": "swagger:str info:Info host:str basePath:str schemes:str* consumes:str* produces:str* paths:Paths definitions:Schemas",
    "Info": "title:str version:str description:str",
    "Paths": "-:Ext* path:NamedPath*",
    "NamedPath": "name:str value:PathItem",
    "PathItem": "$ref:str get:Op put:Op post:Op delete:Op options:Op head:Op patch:Op parameters:ParamItem* ext:Ext*",
    "Op": "tags:str* summary:str description:str -:Any operationId:str produces:str* consumes:str* parameters:ParamItem* "
    "responses:Responses schemes:str* deprecated:bool -:Any ext:Ext*",
    "ParamItem": "parameter:Param",
    "Param": "body:Body other:NonBody",
    "Body": "description:str name:str in:str required:bool schema:Schema ext:Ext*",
    "NonBody": "-:Any -:Any query:Query path:Path",
    "Query": f"{PLACE} allowEmptyValue:bool type:str format:str -:Any -:str default:Any {LIMITS} enum:Any* multipleOf:float ext:Ext*",
    "Path": f"{PLACE} type:str format:str -:Any -:str default:Any {LIMITS} enum:Any* multipleOf:float ext:Ext*",
    "Responses": "code:NamedResponse*",
    "NamedResponse": "name:str value:ResponseValue",
    "ResponseValue": "response:Response",
    "Response": "description:str schema:SchemaItem",
    "SchemaItem": "schema:Schema",
    "Schemas": "named:NamedSchema*",
    "NamedSchema": "name:str value:Schema",
    "Schema": f"$ref:str format:str title:str description:str default:Any multipleOf:float {LIMITS} maxProperties:int minProperties:int "
    "required:str* enum:Any* additionalProperties:Additional type:Type items:Items allOf:Schema* properties:Schemas discriminator:str "
    "readOnly:bool -:Any -:Any -:Any ext:Ext*",
    "Type": "value:str*",
    "Items": "schema:Schema*",
    "Additional": "schema:Schema boolean:bool",
    "Ext": "name:str value:Any",
    "Any": "-:bytes yaml:str",
}


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def read(name: str, data: bytes) -> dict[str, Any]:
    fields = dict(enumerate((field.split(":") for field in PROTO[name].split()), 1))
    out: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        key, how = fields[tag >> 3]
        assert key != "-", f"{name}.{tag >> 3} is never written"
        if tag & 7 == 0:
            raw, at = number(data, at)
            value: Any = bool(raw) if how == "bool" else raw
            assert how in ("bool", "int")
        elif tag & 7 == 1:
            value, at = struct.unpack("<d", data[at : at + 8])[0], at + 8
            assert how == "float"
        else:
            length, at = number(data, at)
            piece, at = data[at : at + length], at + length
            assert len(piece) == length
            value = (
                piece.decode()
                if how.startswith("str")
                else plain(how.rstrip("*"), read(how.rstrip("*"), piece))
            )
        if how.endswith("*"):
            out.setdefault(key, []).append(value)
        else:
            assert key not in out
            out[key] = value
    return out


def plain(name: str, found: dict[str, Any]) -> Any:
    """A decoded message as it is in the JSON document."""
    match name:
        case "Any":
            return yaml.safe_load(found["yaml"])
        case "Type":
            return found["value"][0] if len(found["value"]) == 1 else found["value"]
        case "Items":
            return found["schema"][0]
        case "Additional":
            return found.get("schema", found.get("boolean"))
        case "Schemas" | "Paths" | "Responses":
            return {entry["name"]: entry.get("value", {}) for entry in next(iter(found.values()), [])}
        case "ParamItem" | "ResponseValue" | "SchemaItem" | "Param" | "NonBody":
            (value,) = found.values()
            return value
    return {k: v for k, v in found.items() if k != "ext"} | {
        entry["name"]: entry["value"] for entry in found.get("ext", ())
    }


def without_zeros(node: Any) -> Any:
    """proto3 cannot distinguish zero from absent; YAML text keeps zeros."""
    if isinstance(node, dict):
        verbatim = {k: v for k, v in node.items() if k.startswith("x-") or k in ("default", "enum")}
        rest = {k: without_zeros(v) for k, v in node.items() if k not in verbatim}
        return verbatim | {k: v for k, v in rest.items() if v not in (0, False, "", [])}
    return [without_zeros(below) for below in node] if isinstance(node, list) else node


def test_the_whole_document_comes_back():
    document = v2_document(KINDS, "1.2.3")
    assert plain("Document", read("Document", encode_v2(document))) == without_zeros(document)


word = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
leaf = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean"]),
        "description": word,
        "format": word,
        "pattern": word,
        "minimum": st.floats(0.5, 9),
        "maximum": st.floats(-9, -0.5),
        "exclusiveMinimum": st.just(True),
        "maxLength": st.integers(1, 2**40),
        "enum": st.lists(word | st.integers() | st.booleans(), min_size=1, max_size=3),
        "default": st.none() | st.booleans() | st.integers(-5, 5) | word,
        "x-kubernetes-thing": st.dictionaries(word, word, max_size=2),
    },
)
schemas = st.recursive(
    leaf,
    lambda below: st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(word, below, min_size=1, max_size=3)},
            optional={"required": st.lists(word, min_size=1)},
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": below}),
        st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": below | st.booleans()}),
    ),
    max_leaves=8,
)


@given(schemas)
def test_any_schema_comes_back(schema):
    assert plain("Document", read("Document", encode_v2({"definitions": {"X": schema}})))["definitions"] == {
        "X": schema
    }


def test_vendor_extensions_are_yaml_text():
    gvk = [{"group": "lattice.dev", "kind": "LatticePool", "version": "v1alpha1"}]
    data = encode_v2({"definitions": {"X": {"x-kubernetes-group-version-kind": gvk}}})
    assert b'[{"group": "lattice.dev", "kind": "LatticePool", "version": "v1alpha1"}]\n' in data


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"openapi": "3.0.0"}, id="a v3 document"),
        pytest.param({"definitions": {"X": {"nullable": True}}}, id="a keyword that v2 lacks"),
        pytest.param(
            {"definitions": {"X": {"properties": {"a": {"oneOf": []}}}}},
            id="a keyword that v2 lacks, deep inside",
        ),
    ],
)
def test_nothing_is_lost_silently(document):
    with pytest.raises(ValueError, match="has no field"):
        encode_v2(document)
