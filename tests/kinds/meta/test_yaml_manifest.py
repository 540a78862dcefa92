"""Manifests are YAML 1.2 or strict JSON, parsed quickly; every error names its line."""

import json
import time
from decimal import Decimal

import pytest
from build.raised import raised_error
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Malformed, TooLarge
from lattice.kinds.meta.yaml_manifest import MAX_VALUES, decode_stored, encode, load_documents, parse_json


def only(text, **options):
    (document,) = load_documents(text, "f.yaml", **options)
    return document


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param("NO", "NO", id="NO is Norway, not false"),
        pytest.param("on", "on", id="on stays a word"),
        pytest.param("yes", "yes", id="yes stays a word"),
        pytest.param("y", "y", id="y stays a word"),
        pytest.param("True", True, id="True is a boolean"),
        pytest.param("false", False, id="false is a boolean"),
        pytest.param("22:22", "22:22", id="22:22 is not a number in base 60"),
        pytest.param("0o17", 15, id="octal is written with 0o"),
        pytest.param("0x1F", 31, id="hexadecimal is written with 0x"),
        pytest.param("1_000", "1_000", id="underscores make text"),
        pytest.param("2026-11-15", "2026-11-15", id="a date stays text"),
        pytest.param("2026-11-15T07:40:00Z", "2026-11-15T07:40:00Z", id="a timestamp stays text"),
        pytest.param("~", None, id="a tilde is null"),
        pytest.param("", None, id="nothing is null"),
        pytest.param("'5'", "5", id="quoted digits are text"),
        pytest.param("!!str 5", "5", id="the tag for text makes text"),
        pytest.param("-0", 0, id="minus zero is zero"),
        pytest.param("+7", 7, id="a plus sign is allowed"),
        pytest.param("9223372036854775807", 2**63 - 1, id="the largest 64-bit integer fits"),
        pytest.param("-9223372036854775808", -(2**63), id="the smallest 64-bit integer fits"),
        pytest.param("1.50", Decimal("1.50"), id="decimals keep their digits"),
        pytest.param("0.1", Decimal("0.1"), id="a tenth is exactly a tenth"),
        pytest.param(".5", Decimal("0.5"), id="a decimal may begin with its point"),
        pytest.param("1e3", Decimal("1E+3"), id="an exponent needs no point"),
        pytest.param("500m", "500m", id="a quantity is text"),
        pytest.param("1.2.3", "1.2.3", id="a version is text"),
        pytest.param("=", "=", id="an equals sign is text"),
    ],
)
def test_scalars_follow_yaml_1_2(written, meant):
    value = only(f"a: {written}\n").value["a"]
    assert value == meant
    assert type(value) is type(meant)


def test_decimals_are_kept_digit_by_digit():
    assert str(only("a: 1.50").value["a"]) == "1.50"
    assert encode(parse_json(b'{"a":1.50}').value) == b'{"a":1.50}'


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        pytest.param(
            "a: 1\nb:\n  c: 1\n  c: 2\n",
            "f.yaml:4",
            'the key "c" appears twice, first on line 3',
            id="duplicate keys",
        ),
        pytest.param("a: &x [1]\nb: *x\n", "f.yaml:1", "the anchor &x is not supported", id="anchors"),
        pytest.param("a: 1\nb: *x\n", "f.yaml:2", "the alias *x is not supported", id="aliases"),
        pytest.param("a: 1\n1: x\n", "f.yaml:2", "a key must be text, got 1", id="numbers as keys"),
        pytest.param("a: 1\ntrue: x\n", "f.yaml:2", "a key must be text, got true", id="booleans as keys"),
        pytest.param("? [a]\n: b\n", "f.yaml:1", "a key must be text, got a list", id="lists as keys"),
        pytest.param("<<: {a: 1}\n", "f.yaml:1", "merge keys (<<) are not supported", id="merge keys"),
        pytest.param("\na: .nan\n", "f.yaml:2", ".nan is not a finite number", id="not a number"),
        pytest.param("a: -.inf\n", "f.yaml:1", "-.inf is not a finite number", id="infinity"),
        pytest.param(
            "a: 1e999\n", "f.yaml:1", "the number 1e999 is out of range", id="numbers that overflow"
        ),
        pytest.param(
            "a: 1e9999999999999999999\n",
            "f.yaml:1",
            "the number 1e9999999999999999999 is out of range",
            id="an exponent that fits nowhere",
        ),
        pytest.param(
            "a: 0e999999999\n",
            "f.yaml:1",
            "the number 0e999999999 is out of range",
            id="zero with an absurd exponent",
        ),
        pytest.param(
            "a: 9223372036854775808\n",
            "f.yaml:1",
            "the integer 9223372036854775808 does not fit in 64 bits",
            id="65-bit integers",
        ),
        pytest.param(
            "a: 0644\n",
            "f.yaml:1",
            "0644 is octal to some YAML readers and decimal to others",
            id="leading zeros",
        ),
        pytest.param("a: !!binary aGk=\n", "f.yaml:1", "the tag !!binary is not supported", id="binary"),
        pytest.param("a: !!set {b}\n", "f.yaml:1", "the tag !!set is not supported", id="sets"),
        pytest.param(
            "a: !!python/object:os.system x\n",
            "f.yaml:1",
            "the tag !!python/object:os.system is not supported",
            id="foreign tags",
        ),
        pytest.param("- a\n", "f.yaml:1", "a manifest is a mapping, got a list", id="a list at the top"),
        pytest.param(
            "---\nhello\n", "f.yaml:2", "a manifest is a mapping, got 'hello'", id="a word at the top"
        ),
        pytest.param(
            "a:\n\t- b\n", "f.yaml:2", "is not YAML: found character that cannot start any token", id="tabs"
        ),
        pytest.param(
            "a: [1\n", "f.yaml:1", "is not YAML: did not find expected ',' or ']'", id="an open bracket"
        ),
        pytest.param(b"a: \xff\n", "f.yaml", "is not UTF-8 text", id="other encodings"),
    ],
)
def test_malformed_yaml_names_its_line(text, where, what):
    with pytest.raises(Malformed) as raised:
        load_documents(text, "f.yaml")
    assert (raised.value.where, raised.value.message) == (where, what)
    assert raised.value.fix


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="flow lists"),
        pytest.param("{a: " * 100_000, id="flow mappings"),
        pytest.param("- " * 100_000, id="block lists"),
        pytest.param("\n".join(" " * i + "a:" for i in range(1_000)), id="block mappings"),
    ],
)
def test_absurd_depth_is_refused_at_once(text):
    began = time.thread_time()
    with pytest.raises(Malformed, match="nested deeper than 32"):
        load_documents(text)
    assert time.thread_time() - began < 0.1


def test_nesting_limit_is_32_levels():
    assert load_documents("a: " + "[" * 31 + "]" * 31)
    with pytest.raises(Malformed, match="nested deeper"):
        load_documents("a: " + "[" * 32 + "]" * 32)


def test_an_object_has_at_most_ten_thousand_values():
    with pytest.raises(TooLarge, match="more than 10,000 values"):
        load_documents("a: [" + "1," * MAX_VALUES + "]")


def test_limits_hold_for_each_item_of_a_list():
    item = "- {kind: A, a: [" + "1," * (MAX_VALUES // 2) + "]}\n"
    text = "kind: List\nitems:\n" + item * 4
    assert len(load_documents(text)) == 4
    with pytest.raises(TooLarge):
        load_documents(text, expand_lists=False)


def test_an_object_of_more_than_a_mebibyte_is_refused():
    with pytest.raises(TooLarge, match="larger than 1 MiB"):
        load_documents("a: 1\nb: " + "x" * (1 << 20))


def test_several_documents_and_empty_ones():
    found = load_documents("# only a comment\n---\n---\na: 1\n---\n~\n---\nb: 2\n", "f.yaml")
    assert [(d.value, d.line) for d in found] == [({"a": 1}, 4), ({"b": 2}, 8)]
    assert load_documents("") == []


def test_lists_are_expanded_where_they_stand():
    found = load_documents(
        "apiVersion: v1\nitems:\n- kind: A\n  x: 1\n- kind: B\n  x: 2\nkind: List\n---\nkind: C\n", "f.yaml"
    )
    assert [(d.value["kind"], d.location("x")) for d in found] == [
        ("A", "f.yaml:4"),
        ("B", "f.yaml:6"),
        ("C", "f.yaml:9"),
    ]


MANIFEST = """\
kind: LatticeService
metadata:
  name: api
  labels:
    app.kubernetes.io/name: api
    app: x
spec:
  containers:
    main:
      ports:
        - name: http
          containerPort: 70000
        - {name: b, containerPort: 1}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param("spec.containers.main.ports[0].containerPort", 12, id="a field in a list"),
        pytest.param("spec.containers.main.ports[1].containerPort", 13, id="a field in a list on one line"),
        pytest.param(
            "spec.containers.main.ports[7].containerPort", 10, id="a missing item is where its list begins"
        ),
        pytest.param("spec.containers.main.image", 9, id="a missing field is where its parent begins"),
        pytest.param("spec.placement.resources", 7, id="a missing branch is where the last ancestor begins"),
        pytest.param("metadata.labels.app.kubernetes.io/name", 5, id="a key with dots"),
        pytest.param("metadata.labels[app.kubernetes.io/name]", 5, id="a key in brackets"),
        pytest.param('metadata.labels["app"]', 6, id="a key in quotes"),
        pytest.param("", 1, id="the whole object"),
        pytest.param("nothing.here", 1, id="a field that is nowhere near"),
    ],
)
def test_fields_have_lines(path, line):
    assert only(MANIFEST).line_of(path) == line


def test_json_files_may_escape_surrogate_pairs():
    assert only('{"a": "\\ud83d\\ude00"}').value == {"a": "😀"}


@settings(max_examples=300, deadline=None)
@given(st.text() | st.binary() | st.text(alphabet="ab:-[]{}&*!?|>'\"#%@\n \t<~0.e9,"))
def test_any_text_loads_or_is_malformed(text):
    e = raised_error(lambda: load_documents(text))
    assert e is None or e.fix


@settings(max_examples=300, deadline=None)
@given(
    st.binary()
    | st.text(alphabet='{}[]",:\\udDabc0123.eE+-NaInfity \n').map(lambda t: t.encode("utf-8", "replace"))
)
def test_any_body_parses_or_is_malformed(body):
    e = raised_error(lambda: encode(parse_json(body).value))
    assert e is None or e.fix


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.decimals(-(10**9), 10**9, places=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
def test_encoded_values_round_trip(value):
    body = encode(value)
    assert parse_json(body) == (value, [])
    assert decode_stored(body) == value


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 9) | st.text(max_size=3), min_size=1, max_size=4),
    st.data(),
)
def test_repeated_keys_are_reported_and_the_last_wins(fields, data):
    again = data.draw(st.sampled_from(sorted(fields)))
    pairs = [*fields.items(), (again, "last")]
    body = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in pairs) + "}"
    assert parse_json(body.encode()) == ({**fields, again: "last"}, [again])


def test_repeated_keys_are_named_by_path():
    assert parse_json(b'{"spec":{"replicas":1,"replicas":2,"ports":[{"name":1,"name":2}]}}').duplicates == [
        "spec.replicas",
        "spec.ports[0].name",
    ]


@pytest.mark.parametrize(
    ("body", "where", "what"),
    [
        pytest.param(b'{"a": NaN}', "line 1, column 7", "NaN is not a finite number", id="NaN"),
        pytest.param(
            b"NaNs, --00",
            "line 1, column 1",
            "NaN is not a finite number",
            id="NaN before what is no number either",
        ),
        pytest.param(
            b'{"a": -Infinity}', "line 1, column 7", "-Infinity is not a finite number", id="infinity"
        ),
        pytest.param(
            b'{"a": 1e9999999999999999999}',
            "line 1, column 7",
            "the number 1e9999999999999999999 is out of range",
            id="an exponent that fits nowhere",
        ),
        pytest.param(
            b'{"NaN": 1,\n "a": 1e999}', "line 2, column 7", "the number 1e999 is out of range", id="overflow"
        ),
        pytest.param(
            b'{"a": 9223372036854775808}',
            "line 1, column 7",
            "the integer 9223372036854775808 does not fit in 64 bits",
            id="65 bits",
        ),
        pytest.param(
            b"[" + b"9" * 5000 + b"]",
            "line 1, column 2",
            f"the integer {'9' * 24}… does not fit in 64 bits",
            id="5,000 digits",
        ),
        pytest.param(
            b'{"a":1,}',
            "line 1, column 8",
            "the body is not JSON: expecting property name enclosed in double quotes",
            id="a comma too many",
        ),
        pytest.param(b"", "line 1, column 1", "the body is not JSON: expecting value", id="nothing"),
        pytest.param(
            b"\xef\xbb\xbf{}",
            "line 1, column 1",
            "the body is not JSON: expecting value",
            id="a byte order mark",
        ),
        pytest.param(
            b'{"a":"\\ud800"}',
            "body",
            "a string in the body has an incomplete surrogate pair",
            id="half a character",
        ),
        pytest.param(b"{\xff}", "byte 1", "the body is not UTF-8 text", id="not UTF-8"),
        pytest.param(
            b"[" * 41 + b"]" * 41, "body", "the body is nested deeper than 40 levels", id="41 levels"
        ),
    ],
)
def test_malformed_json_names_its_position(body, where, what):
    with pytest.raises(Malformed) as raised:
        parse_json(body)
    assert (raised.value.where, raised.value.message) == (where, what)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(b"[" * 100_000, Malformed, id="open lists"),
        pytest.param(b'{"a":' * 100_000, Malformed, id="open objects"),
        pytest.param(b'{"a":1,"a":' * 20_000, Malformed, id="open objects with repeated keys"),
        pytest.param(b"[" + b"1," * 500_000 + b"1]", TooLarge, id="half a million numbers"),
        pytest.param(
            b"{" + b",".join(b'"%d":1' % i for i in range(80_000)) + b"}", TooLarge, id="80,000 keys"
        ),
        pytest.param(b" " * (3 << 20) + b"{}", TooLarge, id="more than three mebibytes"),
    ],
)
def test_absurd_bodies_are_refused_quickly(body, kind):
    began = time.thread_time()
    with pytest.raises(kind):
        parse_json(body)
    assert time.thread_time() - began < 0.5  # 0.1 s alone on a core; room for a busy one


@pytest.mark.parametrize("text", ["1E+3", "1.0", "-0", "1E-7", "0E+5", "123456789.000000001"])
def test_decimals_are_written_as_valid_json(text):
    assert json.loads(encode([Decimal(text)]), parse_float=Decimal, parse_int=Decimal) == [Decimal(text)]
