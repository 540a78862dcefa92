"""Pruning, defaulting and validating against a schema, and the schema that a class gives."""

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from lattice.kinds import KINDS
from lattice.kinds.meta.base import LIST_MAP_BY_NAME, LIST_SET, Kind, Part, Resource
from lattice.kinds.meta.schema import structural_schema
from lattice.kinds.meta.validator import Findings, compile_schema


class Port(Part):
    """A port."""

    name: str
    number: Annotated[int, Meta(ge=1, le=65535)] | None = None


class Spec(Part):
    """What is wanted."""

    color: Annotated[Literal["red", "green"], Meta(description="Its colour.")]
    count: Annotated[int, Meta(gt=0, lt=10, extra_json_schema={"default": 3})] = 3
    price: Annotated[Decimal, Meta(extra_json_schema={"minimum": 0})] | None = None
    size: int | str | None = None
    tags: Annotated[tuple[str, ...], LIST_SET] = ()
    ports: Annotated[tuple[Port, ...], LIST_MAP_BY_NAME] = ()
    labels: dict[str, str] = {}
    extra: dict[str, Any] = {}
    title: Annotated[str, Meta(min_length=2, max_length=5, pattern="^[a-z]+$")] = "abc"


class Thing(Kind):
    """A thing."""

    resource: ClassVar[Resource] = Resource(kind="Thing", plural="things")
    spec: Spec


SCHEMA = structural_schema(Thing)
WALK = compile_schema(SCHEMA)


def walked(**spec: Any) -> tuple[dict[str, Any], Findings]:
    found = Findings()
    kept = WALK(
        {
            "apiVersion": "lattice.dev/v1alpha1",
            "kind": "Thing",
            "metadata": {},
            "spec": {"color": "red", **spec},
        },
        "",
        found,
    )
    return kept["spec"], found


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param(
            {"color": "blue"},
            'spec.color: Unsupported value: "blue": supported values: "green", "red"',
            id="a word not in the list",
        ),
        pytest.param(
            {"count": 0}, "spec.count: Invalid value: 0: must be more than 0", id="an exclusive minimum"
        ),
        pytest.param(
            {"count": 10}, "spec.count: Invalid value: 10: must be less than 10", id="an exclusive maximum"
        ),
        pytest.param(
            {"count": "five"},
            'spec.count: Invalid value: "five": must be an integer',
            id="a word for a number",
        ),
        pytest.param(
            {"count": True}, "spec.count: Invalid value: true: must be an integer", id="true is not one"
        ),
        pytest.param(
            {"count": Decimal("1.5")},
            "spec.count: Invalid value: 1.5: must be an integer",
            id="a half is not whole",
        ),
        pytest.param(
            {"count": 1 << 63},
            f"spec.count: Invalid value: {1 << 63}: must fit in 64 bits",
            id="more than 64 bits",
        ),
        pytest.param(
            {"price": Decimal("-0.1")},
            "spec.price: Invalid value: -0.1: must be 0 or more",
            id="a negative price",
        ),
        pytest.param(
            {"size": []},
            "spec.size: Invalid value: []: must be a number or a string",
            id="a list for a quantity",
        ),
        pytest.param(
            {"tags": "a"},
            'spec.tags: Invalid value: "a": must be a list, such as ["a"]',
            id="one for many",
        ),
        pytest.param(
            {"tags": "python3 -m http.server 'two words'"},
            "spec.tags: Invalid value: \"python3 -m http.server 'two words'\": must be a list, such as "
            '["python3","-m","http.server","two words"]',
            id="a command as one string",
        ),
        pytest.param(
            {"tags": 'echo "open'},
            'spec.tags: Invalid value: "echo \\"open": must be a list, such as ["echo","\\"open"]',
            id="a string with an open quote",
        ),
        pytest.param(
            {"tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"', id="a set holds each value once"
        ),
        pytest.param(
            {"ports": [{"name": "a"}, {"name": "a"}]},
            'spec.ports[1]: Duplicate value: {"name":"a"}',
            id="a list-map holds each key once",
        ),
        pytest.param({"ports": [{}]}, "spec.ports[0].name: Required value", id="a required field in a list"),
        pytest.param(
            {"ports": [{"name": "a", "number": 70000}]},
            "spec.ports[0].number: Invalid value: 70000: must be 65535 or less",
            id="a maximum in a list",
        ),
        pytest.param(
            {"labels": {"app.io/x": 1}},
            "spec.labels[app.io/x]: Invalid value: 1: must be a string",
            id="a map key with a slash is bracketed",
        ),
        pytest.param(
            {"labels": []},
            "spec.labels: Invalid value: []: must be a map, written as `name: value` lines",
            id="a list for a map",
        ),
        pytest.param(
            {"title": "x"}, 'spec.title: Invalid value: "x": must have 2 characters or more', id="too short"
        ),
        pytest.param(
            {"title": "ABC"}, 'spec.title: Invalid value: "ABC": must match ^[a-z]+$', id="a pattern"
        ),
    ],
)
def test_invalid_value_is_reported_with_its_path(spec: dict[str, Any], complaint: str) -> None:
    _, found = walked(**spec)
    assert [str(cause) for cause in found.causes] == [complaint]


def test_all_problems_are_reported_at_once() -> None:
    _, found = walked(color="blue", count=0, tags="a", nope=1)
    assert [cause.field for cause in found.causes] == ["spec.color", "spec.count", "spec.tags"]
    assert found.unknown_fields == ["spec.nope"]


def test_unknown_fields_are_pruned_and_reported() -> None:
    kept, found = walked(ports=[{"name": "a", "colour": 1}], extra={"anything": {"goes": [1]}})
    assert found.unknown_fields == ["spec.ports[0].colour"]
    assert kept["ports"] == [{"name": "a"}]
    assert kept["extra"] == {"anything": {"goes": [1]}}


def test_missing_required_field_is_reported() -> None:
    found = Findings()
    WALK({"metadata": {}, "spec": {}}, "", found)
    assert [(cause.field, cause.reason) for cause in found.causes] == [("spec.color", "FieldValueRequired")]


def test_defaults_come_from_the_schema_and_only_when_asked() -> None:
    kept, _ = walked()
    assert kept["count"] == 3
    quiet = Findings(defaulting=False)
    assert "count" not in WALK({"metadata": {}, "spec": {"color": "red"}}, "", quiet)["spec"]


def test_null_equals_an_absent_field() -> None:
    kept, found = walked(price=None, tags=None)
    assert found.causes == []
    assert "price" not in kept


def test_a_whole_decimal_is_an_integer() -> None:
    kept, found = walked(count=Decimal("4.0"))
    assert found.causes == []
    assert kept["count"] == 4
    assert isinstance(kept["count"], int)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70000) | st.text(max_size=6) | st.decimals(-2, 12, places=1),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "number", "a", "app.io/x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
specs = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(SCHEMA["properties"]["spec"]["properties"], json_values)
)


@given(spec=specs)
def test_schema_and_class_agree(spec: dict[str, Any]) -> None:
    found = Findings()
    obj = WALK(
        {"apiVersion": "lattice.dev/v1alpha1", "kind": "Thing", "metadata": {}, "spec": spec}, "", found
    )
    if not found.causes:
        msgspec.convert(obj, Thing)


@given(spec=specs)
def test_validation_is_idempotent(spec: dict[str, Any]) -> None:
    first, second = Findings(), Findings()
    once = WALK({"metadata": {}, "spec": spec}, "", first)
    again = WALK(once, "", second)
    assert second.unknown_fields == []
    if not first.causes:
        assert again == once


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_every_kind_is_described(kind: type[Kind]) -> None:
    def bare(schema: dict[str, Any], path: str) -> list[str]:
        found = []
        for name, field in schema.get("properties", {}).items():
            here = f"{path}.{name}"
            if not field.get("description") and here != ".metadata":
                found.append(here)
            found += bare(field, here) + bare(field.get("items", {}), f"{here}[]")
            values = field.get("additionalProperties", {})
            found += bare(values, f"{here}.*")
        return found

    assert bare(structural_schema(kind), "") == []
