"""An error as the Status object that Kubernetes clients read."""

from typing import Any

from lattice.errors import Cause, Conflict, Gone, Invalid, LatticeError, RevisionTooNew, TooManyRequests
from lattice.kinds.meta.base import Resource

OPTIONS_GROUP = "meta.k8s.io"


def status_of(error: LatticeError, resource: Resource | None = None, name: str = "") -> dict[str, Any]:
    """The Status body of an error about an object (or about nothing in particular)."""
    details: dict[str, Any] = {}
    if options := _options_kind(error):
        details = {"group": OPTIONS_GROUP, "kind": options}
    elif resource is not None:
        kind = resource.kind if isinstance(error, Invalid) else resource.plural
        details = {"name": name, "group": resource.group, "kind": kind}
        details = {key: value for key, value in details.items() if value}
    if causes := [{"reason": c.reason, "message": c.message, "field": c.field} for c in _causes(error)]:
        details["causes"] = causes
    if isinstance(error, TooManyRequests | RevisionTooNew):
        details["retryAfterSeconds"] = 1
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message_of(error, resource, name),
        "reason": error.reason,
        "details": details,
        "code": error.status,
    }


def _options_kind(error: LatticeError) -> str:
    """CreateOptions and its like, if the error is about how something was asked and not about an object."""
    kind, _, group = error.where.partition(".")
    return kind if group == OPTIONS_GROUP else ""


def _causes(error: LatticeError) -> tuple[Cause, ...]:
    """kubectl shows nothing of an Invalid but its causes: one without any would be a riddle."""
    return (
        (Cause(error.where or "request", error.message),)
        if isinstance(error, Invalid) and not error.causes
        else error.causes
    )


def message_of(error: LatticeError, resource: Resource | None, name: str) -> str:
    """One line: what, where, and the fix. Invalid objects read as kubectl's users know them."""
    if isinstance(error, Invalid) and error.causes and resource is not None:
        listed = "; ".join(str(cause) for cause in error.causes)
        listed = f"[{listed}]" if len(error.causes) > 1 else listed
        kind = (
            error.where
            if _options_kind(error)
            else f"{resource.kind}.{resource.group}"
            if resource.group
            else resource.kind
        )
        name = "" if _options_kind(error) else name
        return f'{kind} "{name}" is invalid: {listed}'
    head = (
        f"{error.where}: {error.message}"
        if error.where and not isinstance(error, Conflict | Gone)
        else error.message
    )
    return f"{head} (fix: {error.fix})" if error.fix else head


def success_status(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    """What a delete answers when the object is gone."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {k: v for k, v in details.items() if v},
    }


def warning_header(text: str) -> str:
    """As an HTTP header says it, in the form that kubectl shows."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'


def warning_text(header: str) -> str:
    text = header.split(" ", 2)[-1].strip()
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text.startswith('"') else text
