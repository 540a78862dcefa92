"""The query parameters of a request, read once and refused when they make no sense."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lattice.errors import Cause, Invalid, Malformed
from lattice.kinds.meta.selector import LabelSelector, parse_selector
from lattice.server.requests.fields import FieldSelector, parse_field_selector

Query = Mapping[str, str]
Validation = Literal["Strict", "Warn", "Ignore"]

EVERYTHING = LabelSelector()
ANY = FieldSelector()


@dataclass(frozen=True, slots=True)
class WriteOptions:
    dry_run: bool = False
    validation: Validation = "Warn"
    manager: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    dry_run: bool = False
    policy: str = "Background"
    uid: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    labels: LabelSelector = EVERYTHING
    fields: FieldSelector = ANY
    limit: int = 0
    token: str = ""
    revision: str = ""
    match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool = False
    timeout: float = 0.0

    @property
    def selects(self) -> bool:
        """Is anything left out?"""
        return self.labels is not EVERYTHING or bool(self.fields.demands)


def truthy(text: str | None) -> bool:
    """As Go reads a boolean parameter: present and neither "false" nor "0"."""
    return text is not None and text.lower() not in {"false", "0"}


def write_options(query: Query, kind: str, agent: str) -> WriteOptions:
    """kind: CreateOptions, UpdateOptions or PatchOptions, for the message."""
    validation = query.get("fieldValidation") or "Warn"
    causes = [*_dry_run_problem(query.get("dryRun"))]
    if validation not in {"Strict", "Warn", "Ignore"}:
        causes.append(_unsupported("fieldValidation", validation, ("Ignore", "Warn", "Strict")))
    manager = query.get("fieldManager") or agent.partition("/")[0]
    if len(manager) > 128 or not manager.isprintable():
        causes.append(
            Cause(
                "fieldManager",
                f"Invalid value: {manager!r}: must be printable and have 128 characters or fewer",
            )
        )
    if causes:
        raise invalid_options(kind, causes)
    return WriteOptions(
        query.get("dryRun") == "All", validation, manager or "unknown", truthy(query.get("force"))
    )  # type: ignore[arg-type]


def delete_options(query: Query, body: Mapping[str, Any]) -> DeleteOptions:
    """From the body, completed by the query, as clients send either."""
    demands = body.get("preconditions") or {}
    for name, value, shape in (("dryRun", body.get("dryRun") or [], list), ("preconditions", demands, dict)):
        if not isinstance(value, shape):
            raise Malformed(
                f"must be {'a list' if shape is list else 'an object'}",
                where=name,
                fix="send DeleteOptions, or no body",
            )
    dry_run = (body.get("dryRun") or [query.get("dryRun")])[0]
    policy = (
        body.get("propagationPolicy")
        or query.get("propagationPolicy")
        or _orphan(body.get("orphanDependents"), query)
    )
    causes = [*_dry_run_problem(dry_run)]
    if policy not in ("Background", "Foreground", "Orphan"):
        causes.append(_unsupported("propagationPolicy", policy, ("Orphan", "Background", "Foreground")))
    if causes:
        raise invalid_options("DeleteOptions", causes)
    return DeleteOptions(
        dry_run == "All", policy, demands.get("uid") or "", demands.get("resourceVersion") or ""
    )


def _orphan(body: Any, query: Query) -> str:
    orphan = body if body is not None else query.get("orphanDependents")
    return "Background" if orphan is None or not truthy(str(orphan)) else "Orphan"


def read_options(query: Query) -> ReadOptions:
    labels = parse_selector(query["labelSelector"]) if query.get("labelSelector") else EVERYTHING
    fields = parse_field_selector(query.get("fieldSelector", ""))
    options = ReadOptions(
        labels=labels,
        fields=fields,
        limit=_count(query, "limit"),
        token=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        watch=truthy(query.get("watch")),
        bookmarks=truthy(query.get("allowWatchBookmarks")),
        initial_events=truthy(query.get("sendInitialEvents")),
        timeout=float(_count(query, "timeoutSeconds")),
    )
    _refuse_odd_reads(options, "sendInitialEvents" in query)
    return options


def _refuse_odd_reads(options: ReadOptions, asked_initial: bool) -> None:
    causes = []
    if options.revision and not _is_revision(options.revision):
        raise Malformed(
            f'resourceVersion: Invalid value: "{options.revision}": must be a whole number',
            fix="use the one of a list or object",
        )
    if options.match and options.match not in {"Exact", "NotOlderThan"}:
        causes.append(_unsupported("resourceVersionMatch", options.match, ("Exact", "NotOlderThan")))
    elif options.watch and asked_initial:
        if options.match != "NotOlderThan":
            causes.append(
                Cause(
                    "resourceVersionMatch",
                    "Forbidden: sendInitialEvents needs resourceVersionMatch=NotOlderThan",
                    "FieldValueForbidden",
                )
            )
    elif asked_initial:
        causes.append(
            Cause(
                "sendInitialEvents", "Forbidden: sendInitialEvents is for watch only", "FieldValueForbidden"
            )
        )
    elif options.match and options.watch:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is given",
                "FieldValueForbidden",
            )
        )
    elif options.match and not options.revision:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                "FieldValueForbidden",
            )
        )
    elif options.match and options.token:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden when continue is provided",
                "FieldValueForbidden",
            )
        )
    elif options.match == "Exact" and options.revision == "0":
        causes.append(
            Cause(
                "resourceVersionMatch",
                'Forbidden: resourceVersionMatch "Exact" is forbidden for resourceVersion "0"',
                "FieldValueForbidden",
            )
        )
    if causes:
        raise invalid_options("ListOptions", causes)


def _is_revision(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _count(query: Query, name: str) -> int:
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Malformed(f'{name}: Invalid value: "{text}": must be a whole number, 0 or more')
    return int(text)


def _dry_run_problem(value: Any) -> list[Cause]:
    return [] if value in (None, "", "All") else [_unsupported("dryRun", value, ("All",))]


def _unsupported(field: str, value: object, choices: tuple[str, ...]) -> Cause:
    listed = ", ".join(f'"{choice}"' for choice in choices)
    return Cause(field, f'Unsupported value: "{value}": supported values: {listed}', "FieldValueNotSupported")


def invalid_options(kind: str, causes: list[Cause]) -> Invalid:
    return Invalid("is invalid", where=f"{kind}.meta.k8s.io", causes=causes)
