"""Query parameters of a request, parsed into options and rejected when invalid."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lattice.errors import Cause, Invalid, Malformed
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.selector import LabelSelector, parse_selector

SELECTABLE_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
# The fields, besides name and namespace, by which objects of a kind can be selected.
SELECTABLE_FIELDS_BY_RESOURCE = {
    "events": frozenset(
        f"involvedObject.{part}"
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    )
    | {"reason", "type", "source", "reportingComponent"},
    "events.events.k8s.io": frozenset(
        f"regarding.{part}"
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    )
    | {"reason", "type", "reportingController"},
    "secrets": frozenset({"type"}),
    "namespaces": frozenset({"status.phase"}),
    "latticeworkloads.lattice.dev": frozenset({"spec.cluster", "status.binding.node", "status.actualState"}),
    "latticenodes.lattice.dev": frozenset({"spec.cluster", "spec.pool"}),
}


Query = Mapping[str, str]
FieldValidation = Literal["Strict", "Warn", "Ignore"]
# One shared instance: `is_filtered` compares by identity.
MATCH_ALL_LABELS = LabelSelector()


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Requirements (path, value, whether equality is required); an object must satisfy every requirement."""

    requirements: tuple[tuple[str, str, bool], ...] = ()

    def validate_for(self, resource: Resource) -> None:
        """Raise `Malformed` if the selector uses a field that the kind cannot be selected by."""
        selectable = SELECTABLE_FIELDS | SELECTABLE_FIELDS_BY_RESOURCE.get(resource.id, frozenset())
        for path, _, _ in self.requirements:
            if path not in selectable:
                choices = ", ".join(sorted(selectable))
                raise Malformed(
                    f"field label not supported: {path}",
                    fix=f"select {resource.plural} by one of {choices}, or by label with -l",
                )

    @property
    def exact_name(self) -> str:
        """The required object name, or an empty string if the selector does not fix the name."""
        return next(
            (value for path, value, equal in self.requirements if path == "metadata.name" and equal), ""
        )

    def matches(self, obj: dict[str, Any]) -> bool:
        return all((_field_text(obj, path) == value) is equal for path, value, equal in self.requirements)


def _field_text(obj: dict[str, Any], path: str) -> str:
    """The text of the field at a dotted path; an empty string if the object has no such field."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    # In an event, Kubernetes selects `source` by the source's component.
    if path == "source" and isinstance(value, dict):
        value = value.get("component")
    return "" if value is None else str(value)


def parse_field_selector(text: str) -> FieldSelector:
    """Parse a field selector such as `metadata.name=api,type!=Normal`; `==` equals `=`."""
    requirements = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        path, sign, value = part.partition("!=")
        if not sign:
            path, sign, value = part.partition("==")
        if not sign:
            path, sign, value = part.partition("=")
        if not sign:
            raise Malformed(
                f'cannot read the field selector "{part}"',
                fix="write a field selector such as metadata.name=api,type!=Normal",
            )
        requirements.append((path.strip(), value.strip(), "!=" not in part))
    return FieldSelector(tuple(requirements))


MATCH_ALL_FIELDS = FieldSelector()


@dataclass(frozen=True, slots=True)
class WriteOptions:
    dry_run: bool = False
    validation: FieldValidation = "Warn"
    manager: str = ""
    force: bool = False


DELETE_OPTION_TYPES: dict[str, type] = {
    "dryRun": list,
    "preconditions": dict,
    "gracePeriodSeconds": int,
    "orphanDependents": bool,
    "propagationPolicy": str,
}
JSON_TYPE_NAMES: dict[type, str] = {
    list: "a list",
    dict: "an object",
    int: "a whole number",
    bool: "true or false",
    str: "a string",
}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    dry_run: bool = False
    propagation_policy: str = "Background"
    uid: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    labels: LabelSelector = MATCH_ALL_LABELS
    fields: FieldSelector = MATCH_ALL_FIELDS
    limit: int = 0
    continue_token: str = ""
    revision: str = ""
    revision_match: str = ""
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool = False
    timeout_s: float = 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether a selector may exclude objects."""
        return self.labels is not MATCH_ALL_LABELS or bool(self.fields.requirements)


def truthy(text: str | None) -> bool:
    """Whether a boolean query parameter is true as in Kubernetes: present, and neither "false" nor "0"."""
    return text is not None and text.lower() not in {"false", "0"}


def write_options(query: Query, kind: str, agent: str) -> WriteOptions:
    """Options of a write. `kind` (CreateOptions, UpdateOptions or PatchOptions) appears in error messages.

    Without `fieldManager`, the field manager is the first part of the user agent.
    """
    validation = query.get("fieldValidation") or "Warn"
    causes = [*_dry_run_problem(query.get("dryRun"))]
    if validation not in {"Strict", "Warn", "Ignore"}:
        causes.append(_unsupported("fieldValidation", validation, ("Ignore", "Warn", "Strict")))
    # As in Kubernetes: without a field manager, the product name of the user agent counts.
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
        query.get("dryRun") == "All",
        validation,  # type: ignore[arg-type]
        manager or "unknown",
        truthy(query.get("force")),
    )


def delete_options(query: Query, body: Mapping[str, Any]) -> DeleteOptions:
    """Options of a delete: the body first, then the query, because clients send either."""
    _check_types(body, DELETE_OPTION_TYPES, "")
    preconditions = body.get("preconditions") or {}
    _check_types(preconditions, {"uid": str, "resourceVersion": str}, "preconditions.")
    causes = [
        Cause(
            "propagationPolicy",
            f'Invalid value: "{source["propagationPolicy"]}": orphanDependents and propagationPolicy cannot be'
            " both set",
        )
        for source in (body, query)
        if source.get("orphanDependents") is not None and source.get("propagationPolicy")
    ]
    grace_period = body.get("gracePeriodSeconds")
    if isinstance(grace_period, int) and grace_period < 0:
        causes.append(Cause("gracePeriodSeconds", f"Invalid value: {grace_period}: must be 0 or more"))
    dry_run = (body.get("dryRun") or [query.get("dryRun")])[0]
    policy = body.get("propagationPolicy") or query.get("propagationPolicy")
    if not policy:
        # The older form of the propagation policy.
        orphan = body.get("orphanDependents")
        orphan = query.get("orphanDependents") if orphan is None else orphan
        policy = "Orphan" if orphan is not None and truthy(str(orphan)) else "Background"
    causes += _dry_run_problem(dry_run)
    if policy not in ("Background", "Foreground", "Orphan"):
        causes.append(_unsupported("propagationPolicy", policy, ("Orphan", "Background", "Foreground")))
    if causes:
        raise invalid_options("DeleteOptions", causes)
    return DeleteOptions(
        dry_run == "All", policy, preconditions.get("uid") or "", preconditions.get("resourceVersion") or ""
    )


def _check_types(values: Mapping[str, Any], types: Mapping[str, type], prefix: str) -> None:
    """Raise Malformed for a field of another JSON type."""
    for name, expected in types.items():
        value = values.get(name)
        # In Python a bool is an int; in JSON the types differ.
        if value is not None and (
            not isinstance(value, expected) or (expected is int and isinstance(value, bool))
        ):
            raise Malformed(
                f"must be {JSON_TYPE_NAMES[expected]}",
                where=f"{prefix}{name}",
                fix="send DeleteOptions, or no body",
            )


def read_options(query: Query) -> ReadOptions:
    """Options of a get, list or watch. `Malformed` or `Invalid` rejects values that Kubernetes would
    reject."""
    labels = parse_selector(query["labelSelector"]) if query.get("labelSelector") else MATCH_ALL_LABELS
    fields = parse_field_selector(query.get("fieldSelector", ""))
    options = ReadOptions(
        labels=labels,
        fields=fields,
        limit=_count(query, "limit"),
        continue_token=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        revision_match=query.get("resourceVersionMatch", ""),
        watch=truthy(query.get("watch")),
        bookmarks=truthy(query.get("allowWatchBookmarks")),
        initial_events=truthy(query.get("sendInitialEvents")),
        timeout_s=float(_count(query, "timeoutSeconds")),
    )
    _validate_read_options(options, "sendInitialEvents" in query)
    return options


def require_readable_revision(revision: str) -> None:
    """Raise Malformed for a resourceVersion that no server of Lattice or Kubernetes returned."""
    # 19 digits: the longest 64-bit integer.
    if revision and not (revision.isascii() and revision.isdigit() and len(revision) <= 19):
        raise Malformed(
            f'resourceVersion: Invalid value: "{revision}": must be a whole number',
            fix="use the resourceVersion of a list or an object",
        )


def _validate_read_options(options: ReadOptions, has_initial_events: bool) -> None:
    causes = []
    require_readable_revision(options.revision)
    # The rules of Kubernetes for ListOptions.
    if options.revision_match and options.revision_match not in {"Exact", "NotOlderThan"}:
        causes.append(_unsupported("resourceVersionMatch", options.revision_match, ("Exact", "NotOlderThan")))
    elif options.watch and has_initial_events:
        if options.revision_match != "NotOlderThan":
            causes.append(
                Cause(
                    "resourceVersionMatch",
                    "Forbidden: sendInitialEvents needs resourceVersionMatch=NotOlderThan",
                    "FieldValueForbidden",
                )
            )
    elif has_initial_events:
        causes.append(
            Cause(
                "sendInitialEvents", "Forbidden: sendInitialEvents is for watch only", "FieldValueForbidden"
            )
        )
    elif options.revision_match and options.watch:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is given",
                "FieldValueForbidden",
            )
        )
    elif options.revision_match and not options.revision:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                "FieldValueForbidden",
            )
        )
    elif options.revision_match and options.continue_token:
        causes.append(
            Cause(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden when continue is provided",
                "FieldValueForbidden",
            )
        )
    elif options.revision_match == "Exact" and options.revision == "0":
        causes.append(
            Cause(
                "resourceVersionMatch",
                'Forbidden: resourceVersionMatch "Exact" is forbidden for resourceVersion "0"',
                "FieldValueForbidden",
            )
        )
    if causes:
        raise invalid_options("ListOptions", causes)


def _count(query: Query, name: str) -> int:
    text = query.get(name) or "0"
    # At most 18 digits, so that the number fits into 64 bits.
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
