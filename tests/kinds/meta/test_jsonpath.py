"""Paths into objects, and kubectl's templates made of them."""

from decimal import Decimal

import pytest
from build.raised import raised_error
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Malformed
from lattice.kinds.meta.jsonpath import compile_path, compile_template

LISTED = {
    "kind": "List",
    "items": [
        {
            "metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x", "env": "prod"}},
            "n": 1,
            "ports": [80, 443],
        },
        {"metadata": {"name": "b"}, "n": Decimal("2.5"), "type": "Ready", "ok": True},
        {"metadata": {"name": "c"}, "n": 3, "type": "Failed", "none": None},
    ],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param(".kind", ["List"], id="a field"),
        pytest.param("kind", ["List"], id="a field without its dot"),
        pytest.param("{.kind}", ["List"], id="a path in braces"),
        pytest.param("$.kind", ["List"], id="from the root"),
        pytest.param(".items[0].metadata.name", ["a"], id="an item"),
        pytest.param(".items[-1].metadata.name", ["c"], id="the last item"),
        pytest.param(".items[9].metadata.name", [], id="an item that is not there"),
        pytest.param(".items[*].metadata.name", ["a", "b", "c"], id="every item"),
        pytest.param(".items[1:].metadata.name", ["b", "c"], id="items from the second on"),
        pytest.param(".items[0,2].n", [1, 3], id="two items"),
        pytest.param(".items[0]['n','ports']", [1, [80, 443]], id="two fields"),
        pytest.param(
            r".items[0].metadata.labels.app\.kubernetes\.io/name", ["x"], id="dots in a name, escaped"
        ),
        pytest.param(
            ".items[0].metadata.labels['app.kubernetes.io/name']", ["x"], id="dots in a name, quoted"
        ),
        pytest.param(".items[0].metadata.labels.*", ["x", "prod"], id="every value of a mapping"),
        pytest.param("..name", ["a", "b", "c"], id="a field at any depth"),
        pytest.param(
            '.items[?(@.type=="Ready")].metadata.name', ["b"], id="items for which a comparison holds"
        ),
        pytest.param(".items[?(@.type!='Ready')].metadata.name", ["c"], id="items for which it does not"),
        pytest.param(".items[?(@.n>1)].metadata.name", ["b", "c"], id="larger"),
        pytest.param(".items[?(@.n<2.5)].metadata.name", ["a"], id="smaller"),
        pytest.param(".items[?( @.n >= 2.5 )].metadata.name", ["b", "c"], id="blanks around a comparison"),
        pytest.param(".items[?(@.ok==true)].metadata.name", ["b"], id="booleans"),
        pytest.param(".items[?(@.n==true)].metadata.name", [], id="one is not true"),
        pytest.param(".items[?(@.type>1)].metadata.name", [], id="text is not larger than a number"),
        pytest.param(".items[?(@.type)].metadata.name", ["b", "c"], id="items that have a field"),
        pytest.param(".items[2].none", [None], id="null is found"),
        pytest.param(".kind.deeper", [], id="nothing below text"),
        pytest.param(".", [LISTED], id="the object itself"),
        pytest.param("@", [LISTED], id="the object itself, said otherwise"),
    ],
)
def test_paths(path, found):
    assert compile_path(path).find(LISTED) == found


@pytest.mark.parametrize(
    ("path", "what"),
    [
        pytest.param(
            ".a[",
            "expected a number, a quoted name, * or ?( inside [ ], reached the end",
            id="an open bracket",
        ),
        pytest.param(
            ".a[x]",
            "expected a number, a quoted name, * or ?( inside [ ], found 'x'",
            id="a bare word in brackets",
        ),
        pytest.param(".a[0", "expected ], reached the end", id="a bracket that is not closed"),
        pytest.param("a..", "expected a field name after the dot, reached the end", id="a dot at the end"),
        pytest.param(".a b", "expected the path to end, found ' '", id="two words"),
        pytest.param(
            ".a[?(@.x ~ 1)]", "expected ) at the end of the comparison, found '~'", id="an unknown comparison"
        ),
        pytest.param(
            ".a[?(@.x==y)]",
            "expected a quoted text, a number, true or false, found 'y'",
            id="a bare word to compare with",
        ),
        pytest.param(
            ".a[-:]",
            "expected a number, a quoted name, * or ?( inside [ ], found '-'",
            id="a slice from nothing",
        ),
        pytest.param(
            f".a[{'9' * 5000}:]",
            "expected a number, a quoted name, * or ?( inside [ ], found '9'",
            id="a slice from far away",
        ),
        pytest.param(
            f".a[?(@.x==1e{'9' * 30})]",
            "expected ) at the end of the comparison, found '9'",
            id="an exponent that fits nowhere",
        ),
        pytest.param(".a[::0]", "a slice cannot step by 0, found ':'", id="a slice that goes nowhere"),
        pytest.param(
            "[?(@" * 500, "comparisons are nested too deep, found '@'", id="comparisons without end"
        ),
    ],
)
def test_bad_path_error_names_the_position(path, what):
    with pytest.raises(Malformed) as raised:
        compile_path(path)
    assert raised.value.message == what
    assert "at character" in raised.value.where


@pytest.mark.parametrize(
    ("template", "text"),
    [
        pytest.param('{.items[*].metadata.name}{"\\n"}', "a b c\n", id="values with blanks between"),
        pytest.param('{range .items[*]}{.metadata.name}={.n}{"\\n"}{end}', "a=1\nb=2.5\nc=3\n", id="a range"),
        pytest.param(
            "{range .items[0]}{range .ports[*]}<{@}>{end}{end}", "<80><443>", id="a range in a range"
        ),
        pytest.param("{range .items[*]}{$.kind} {end}", "List List List ", id="the root inside a range"),
        pytest.param("names: {.items[0].metadata.name}!", "names: a!", id="text around"),
        pytest.param(".items[1].n", "2.5", id="a path without braces"),
        pytest.param("{.items[0].ports}", "[80,443]", id="collections as JSON"),
        pytest.param("{.items[1].ok}", "true", id="booleans as JSON"),
        pytest.param("{.missing}", "", id="what is missing is empty"),
        pytest.param("{'it''s'}", "its", id="two literals"),
        pytest.param("{.kind .items[0].n}", "List1", id="two paths in one pair of braces"),
    ],
)
def test_templates(template, text):
    assert compile_template(template).render(LISTED) == text


@pytest.mark.parametrize("template", ["{.a", "{end}", "{range .items[*]}", "{.a}{", "{=}"])
def test_bad_templates_are_refused(template):
    with pytest.raises(Malformed, match="at character"):
        compile_template(template)


@given(st.text(alphabet="ab.[]{}?()@$*'\"=<>!\\0:,-~ ") | st.text())
def test_any_template_compiles_or_is_malformed(text):
    e = raised_error(lambda: compile_template(text).render(LISTED))
    assert e is None or e.where


@given(st.dictionaries(st.text(alphabet="abc./-_", min_size=1), st.integers()))
def test_every_quoted_name_is_found(fields):
    for name, value in fields.items():
        assert compile_path(f"['{name}']").find(fields) == [value]
