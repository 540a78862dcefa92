"""Label selectors agree with a plain reference implementation, in both of their forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Malformed
from lattice.kinds.meta.selector import (
    LabelSelector,
    Requirement,
    dns_label_problem,
    label_key_problem,
    label_value_problem,
    parse_selector,
    subdomain_problem,
)

LABELS = {"env": "prod", "tier": "web", "compliance": ["soc2", "hipaa"], "cores": "8"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("", True, id="nothing asked matches everything"),
        pytest.param("env=prod", True, id="equal"),
        pytest.param("env==prod", True, id="equal, written twice"),
        pytest.param("env=dev", False, id="not equal"),
        pytest.param("env!=dev", True, id="different"),
        pytest.param("gone!=dev", True, id="an absent label differs from everything"),
        pytest.param("env in (dev, prod)", True, id="one of"),
        pytest.param("env notin (dev,prod)", False, id="none of"),
        pytest.param("gone notin (a)", True, id="an absent label is none of them"),
        pytest.param("env", True, id="exists"),
        pytest.param("!env", False, id="does not exist, but it does"),
        pytest.param(" ! gone , env = prod ", True, id="spaces do not matter"),
        pytest.param("env=prod,tier=db", False, id="all demands must hold"),
        pytest.param("compliance=hipaa", True, id="a list matches what it contains"),
        pytest.param("compliance=gdpr", False, id="a list does not match what it lacks"),
        pytest.param("compliance!=hipaa", False, id="a list that contains the value does not differ from it"),
        pytest.param("cores>4,cores<16", True, id="numbers compare as numbers"),
        pytest.param("cores>10", False, id="8 is not above 10, as text would have it"),
        pytest.param("env>1", False, id="a word is above no number"),
        pytest.param("gone=", False, id="an empty value is not an absent label"),
        pytest.param("in in (in)", False, id="key words may be names"),
    ],
)
def test_string_form(text, matches):
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("env=prod,", "expected a label key at the end", id="a comma too many"),
        pytest.param("=prod", 'expected a label key, got "="', id="no key"),
        pytest.param("env in prod", 'expected "(" after in or notin', id="a list without brackets"),
        pytest.param("env in (a", 'expected "," or ")" in the list', id="a bracket left open"),
        pytest.param("env in ()", "expected at least one value", id="an empty list"),
        pytest.param(
            "env prod", 'expected =, !=, in, notin, < or > after "env", got "prod"', id="no operator"
        ),
        pytest.param("env=a b", "expected a comma between requirements", id="two values"),
        pytest.param("-env=a", "label key must be", id="a key that is no label key"),
        pytest.param("a.b_c/x=1", "prefix of label key", id="a prefix that is no domain"),
        pytest.param("cores>many", "exactly one whole number for Gt", id="more than a word"),
        pytest.param("env=" + "x" * 64, "at most 63", id="a value that is too long"),
    ],
)
def test_unreadable_string(text, says):
    with pytest.raises(Malformed) as caught:
        parse_selector(text)
    assert says in caught.value.message
    assert "env=prod" in caught.value.fix


@pytest.mark.parametrize(
    ("requirement", "where", "says"),
    [
        pytest.param(
            Requirement(key="a", operator="In"),
            "x.values",
            "at least one value for In",
            id="In without values",
        ),
        pytest.param(
            Requirement(key="a", operator="Exists", values=("b",)),
            "x.values",
            "must be empty for Exists",
            id="Exists with values",
        ),
        pytest.param(
            Requirement(key="a", operator="Gt", values=("1",)),
            "x.operator",
            'got "Gt"',
            id="Gt outside of node affinity",
        ),
        pytest.param(
            Requirement(key="a b", operator="Exists"), "x.key", "label key must be", id="a key with a space"
        ),
        pytest.param(
            Requirement(key="a", operator="In", values=("ok", "-")),
            "x.values[1]",
            "label value must be",
            id="a bad value",
        ),
    ],
)
def test_expression_problems(requirement, where, says):
    (cause,) = requirement.problems("x")
    assert cause.field == where
    assert says in cause.message


def test_gt_is_fine_in_node_affinity():
    assert not list(Requirement(key="cores", operator="Gt", values=("4",)).problems("x", numeric=True))


@pytest.mark.parametrize(
    ("check", "name", "fine"),
    [
        pytest.param(label_key_problem, "app", True, id="a plain key"),
        pytest.param(label_key_problem, "lattice.dev/pool", True, id="a key with a prefix"),
        pytest.param(label_key_problem, "Agent_1.x-y", True, id="all characters that a key may have"),
        pytest.param(label_key_problem, "x" * 63, True, id="63 characters are the most"),
        pytest.param(label_key_problem, "x" * 64, False, id="64 are too many"),
        pytest.param(
            label_key_problem,
            ".".join(["d" * 60] * 5) + "/x",
            False,
            id="a prefix of more than 253 characters",
        ),
        pytest.param(label_key_problem, "/x", False, id="an empty prefix"),
        pytest.param(label_key_problem, "a/b/c", False, id="two slashes"),
        pytest.param(label_key_problem, "", False, id="an empty key"),
        pytest.param(label_key_problem, "x\n", False, id="a line break at the end"),
        pytest.param(label_value_problem, "", True, id="an empty value"),
        pytest.param(label_value_problem, "v1.2.3", True, id="a version"),
        pytest.param(label_value_problem, "_x", False, id="a value that starts with an underscore"),
        pytest.param(label_value_problem, "ü", False, id="letters of other scripts"),
        pytest.param(subdomain_problem, "us-east.prod", True, id="a name with dots"),
        pytest.param(subdomain_problem, "US", False, id="capitals"),
        pytest.param(subdomain_problem, "a..b", False, id="an empty part"),
        pytest.param(dns_label_problem, "default", True, id="a namespace"),
        pytest.param(dns_label_problem, "a.b", False, id="a dot in a namespace"),
    ],
)
def test_grammar(check, name, fine):
    assert (check(name) == "") is fine


keys = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["", "x", "y", "1", "2", "10"])
labels = st.dictionaries(keys, values | st.lists(values, max_size=3))
requirements = st.one_of(
    st.builds(
        Requirement,
        key=keys,
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(values, min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.builds(Requirement, key=keys, operator=st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        Requirement,
        key=keys,
        operator=st.sampled_from(["Gt", "Lt"]),
        values=st.sampled_from(["0", "1", "5", "10"]).map(lambda v: (v,)),
    ),
)


def obviously(requirement, labels):
    if requirement.operator == "Exists":
        return requirement.key in labels
    if requirement.operator == "DoesNotExist":
        return requirement.key not in labels
    held = labels.get(requirement.key, [])
    held = [held] if isinstance(held, str) else held
    common = set(held) & set(requirement.values)
    if requirement.operator == "In":
        return bool(common)
    if requirement.operator == "NotIn":
        return not common
    numbers = [int(value) for value in held if value.isdigit()]
    bound = int(requirement.values[0])
    return any(number > bound if requirement.operator == "Gt" else number < bound for number in numbers)


@given(exact=st.dictionaries(keys, values), expressions=st.lists(requirements, max_size=3), labels=labels)
def test_agrees_with_the_obvious_reading(exact, expressions, labels):
    selector = LabelSelector(match_labels=exact, match_expressions=tuple(expressions))
    wanted = [
        Requirement(key=key, operator="In", values=(value,)) for key, value in exact.items()
    ] + expressions
    assert selector.matches(labels) == all(obviously(requirement, labels) for requirement in wanted)


@given(expressions=st.lists(requirements, max_size=4))
def test_format_and_parse_round_trip(expressions):
    selector = LabelSelector(match_expressions=tuple(expressions))
    assert parse_selector(str(selector)) == selector


@given(st.text(alphabet="ab=!,()<> inot-/.", max_size=25))
def test_any_text_parses_or_is_malformed(text):
    try:
        again = parse_selector(text)
    except Malformed:
        return
    assert parse_selector(str(again)) == again
