"""Label selectors: match labels, parse selector strings, and validate label keys, label values and names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Annotated, Any, Literal

from msgspec import Meta

from lattice.errors import Cause, Malformed
from lattice.kinds.meta.base import Part
from lattice.kinds.meta.validator import join_path

# A value is a string, or a list of strings: a list matches any of its strings.
Labels = Mapping[str, Any]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_TOKEN = re.compile(r"\s*(==|!=|[=!,()<>]|[^\s=!,()<>]+)\s*")
_OPERATORS = frozenset({"=", "==", "!=", "!", ",", "(", ")", "<", ">"})


class Requirement(Part):
    """One requirement on one label."""

    key: Annotated[str, Meta(description="Label key of the requirement.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
        Meta(
            description=(
                "Comparison of the label's value with `values`. "
                "Gt and Lt compare whole numbers and are allowed for nodes only."
            )
        ),
    ]
    values: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "Values to compare with: one or more for In and NotIn, exactly one for Gt and Lt, "
                "none for the others."
            )
        ),
    ] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether the labels satisfy the requirement."""
        label_values = _values(labels, self.key)
        match self.operator:
            case "In":
                return any(value in self.values for value in label_values)
            # An absent label satisfies NotIn, as in Kubernetes.
            case "NotIn":
                return not any(value in self.values for value in label_values)
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case "Gt":
                return any(_is_greater(value, bound) for value, bound in product(label_values, self.values))
            case "Lt":
                return any(_is_greater(bound, value) for value, bound in product(label_values, self.values))

    def problems(self, path: str, *, numeric: bool = False) -> Iterator[Cause]:
        """The causes for an invalid requirement; `numeric` permits the operators Gt and Lt."""
        if problem := label_key_problem(self.key):
            yield Cause(f"{path}.key", problem)
        if self.operator in ("Gt", "Lt") and not numeric:
            yield Cause(
                f"{path}.operator",
                f'must be In, NotIn, Exists or DoesNotExist here, got "{self.operator}"',
                "FieldValueNotSupported",
            )
        elif self.operator in ("In", "NotIn") and not self.values:
            yield Cause(f"{path}.values", f"must name at least one value for {self.operator}")
        elif self.operator in ("Gt", "Lt") and (len(self.values) != 1 or _integer(self.values[0]) is None):
            rule = f"must be exactly one whole number for {self.operator}"
            yield Cause(f"{path}.values", f"{rule}, got {list(self.values)}")
        elif self.operator in ("Exists", "DoesNotExist") and self.values:
            yield Cause(f"{path}.values", f"must be empty for {self.operator}, got {list(self.values)}")
        for index, value in enumerate(self.values):
            if problem := label_value_problem(value):
                yield Cause(f"{path}.values[{index}]", problem)

    def __str__(self) -> str:
        listed = ",".join(self.values)
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "Gt" | "Lt":
                return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{listed}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.operator == 'In' else '!='}{listed}"
        return f"{self.key} {self.operator.lower()} ({listed})"


class LabelSelector(Part):
    """Requirements on labels that must all hold; a selector without requirements matches everything."""

    match_labels: Annotated[
        dict[str, str], Meta(description="Labels that must exist with exactly these values.")
    ] = {}
    match_expressions: Annotated[
        tuple[Requirement, ...], Meta(description="Requirements that an exact value cannot express.")
    ] = ()

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The requirements of matchLabels and matchExpressions together."""
        exact = (
            Requirement(key=key, operator="In", values=(value,)) for key, value in self.match_labels.items()
        )
        return (*exact, *self.match_expressions)

    def matches(self, labels: Labels) -> bool:
        exact = all(value in _values(labels, key) for key, value in self.match_labels.items())
        return exact and all(requirement.matches(labels) for requirement in self.match_expressions)

    def problems(self, path: str) -> Iterator[Cause]:
        yield from label_problems(self.match_labels, f"{path}.matchLabels")
        for index, requirement in enumerate(self.match_expressions):
            yield from requirement.problems(f"{path}.matchExpressions[{index}]")

    def __hash__(self) -> int:
        # A dict has no hash.
        return hash((frozenset(self.match_labels.items()), self.match_expressions))

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


def parse_selector(text: str) -> LabelSelector:
    """Parse the string form of query parameters and `-l`: `a=b,c!=d,x in (a,b),y notin (z),k,!k,n>5`."""
    # _TOKEN matches every character that is not a blank, so findall drops only blanks.
    tokens = _TOKEN.findall(text)
    if not tokens:
        return LabelSelector()
    requirements = []
    while True:
        requirements.append(_requirement(tokens, text))
        if not tokens:
            return LabelSelector(match_expressions=tuple(requirements))
        if tokens.pop(0) != ",":
            raise _unreadable(text, "expected a comma between requirements")


def label_key_problem(key: str) -> str:
    """The reason that a label key is invalid; "" for a valid key."""
    prefix, slash, name = key.rpartition("/")
    if slash and (problem := subdomain_problem(prefix)):
        return f'prefix of label key "{_truncate(key)}" {problem}'
    if len(name) > 63 or not _NAME.fullmatch(name):
        return (
            'label key must be 1 to 63 letters, digits, "-", "_" or ".", '
            f'starting and ending with a letter or digit, got "{_truncate(key)}"'
        )
    return ""


def label_value_problem(value: str) -> str:
    """The reason that a label value is invalid; "" for a valid value."""
    if value and (len(value) > 63 or not _NAME.fullmatch(value)):
        return (
            'label value must be empty or at most 63 letters, digits, "-", "_" or ".", '
            f'starting and ending with a letter or digit, got "{_truncate(value)}"'
        )
    return ""


def subdomain_problem(name: str) -> str:
    """The reason that a DNS subdomain, such as the name of an object, is invalid; "" for a valid name."""
    if len(name) <= 253 and all(_DNS_LABEL.fullmatch(part) for part in name.split(".")):
        return ""
    return (
        'must be 1 to 253 lower-case letters, digits, "-" or ".", '
        f'starting and ending with a letter or digit, got "{_truncate(name)}"'
    )


def dns_label_problem(name: str) -> str:
    """The reason that a DNS label, such as the name of a namespace or container, is invalid; "" for a valid
    name."""
    if len(name) <= 63 and _DNS_LABEL.fullmatch(name):
        return ""
    return (
        'must be 1 to 63 lower-case letters, digits or "-", '
        f'starting and ending with a letter or digit, got "{_truncate(name)}"'
    )


def label_problems(labels: Mapping[str, str], path: str) -> Iterator[Cause]:
    """The causes for invalid keys and values of labels."""
    for key, value in labels.items():
        for problem in filter(None, (label_key_problem(key), label_value_problem(value))):
            yield Cause(join_path(path, key), problem)


def _values(labels: Labels, key: str) -> Iterable[str]:
    value = labels.get(key, ())
    return (value,) if isinstance(value, str) else value


def _integer(text: str) -> int | None:
    # Up to 18 digits always fit into int64.
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII) else None


def _is_greater(value: str, bound: str) -> bool:
    a, b = _integer(value), _integer(bound)
    return a is not None and b is not None and a > b


def _requirement(tokens: list[str], text: str) -> Requirement:
    negated = tokens[:1] == ["!"]
    if negated:
        tokens.pop(0)
    key = _word(tokens, text, "a label key")
    if negated:
        return _checked(Requirement(key=key, operator="DoesNotExist"), text)
    if not tokens or tokens[0] == ",":
        return _checked(Requirement(key=key, operator="Exists"), text)
    match tokens.pop(0):
        case "=" | "==":
            requirement = Requirement(key=key, operator="In", values=(_optional_word(tokens),))
        case "!=":
            requirement = Requirement(key=key, operator="NotIn", values=(_optional_word(tokens),))
        case "in":
            requirement = Requirement(key=key, operator="In", values=_parse_value_list(tokens, text))
        case "notin":
            requirement = Requirement(key=key, operator="NotIn", values=_parse_value_list(tokens, text))
        case ">":
            requirement = Requirement(key=key, operator="Gt", values=(_word(tokens, text, "a whole number"),))
        case "<":
            requirement = Requirement(key=key, operator="Lt", values=(_word(tokens, text, "a whole number"),))
        case token:
            raise _unreadable(
                text, f'expected =, !=, in, notin, < or > after "{_truncate(key)}", got "{_truncate(token)}"'
            )
    return _checked(requirement, text)


def _word(tokens: list[str], text: str, expected: str) -> str:
    if not tokens or tokens[0] in _OPERATORS:
        raise _unreadable(
            text, f"expected {expected}" + (f', got "{tokens[0]}"' if tokens else " at the end")
        )
    return tokens.pop(0)


def _optional_word(tokens: list[str]) -> str:
    # A selector such as `a=` requires an empty value.
    return tokens.pop(0) if tokens and tokens[0] not in _OPERATORS else ""


def _parse_value_list(tokens: list[str], text: str) -> tuple[str, ...]:
    if not tokens or tokens.pop(0) != "(":
        raise _unreadable(text, 'expected "(" after in or notin')
    if tokens[:1] == [")"]:
        raise _unreadable(text, "expected at least one value between ( and )")
    values = [_optional_word(tokens)]
    while tokens[:1] == [","]:
        tokens.pop(0)
        values.append(_optional_word(tokens))
    if not tokens or tokens.pop(0) != ")":
        raise _unreadable(text, 'expected "," or ")" in the list')
    # Repeated values are dropped; the others keep the order of the text.
    return tuple(dict.fromkeys(values))


def _checked(requirement: Requirement, text: str) -> Requirement:
    for cause in requirement.problems("", numeric=True):
        raise _unreadable(text, cause.message)
    return requirement


def _unreadable(text: str, problem: str) -> Malformed:
    return Malformed(
        f'cannot read the label selector "{_truncate(text, 120)}": {problem}',
        fix="write a label selector such as env=prod,tier!=db,zone in (a,b),gpu,!spot",
    )


def _truncate(text: str, max_chars: int = 70) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."
