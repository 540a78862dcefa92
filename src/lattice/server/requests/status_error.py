"""Errors as the Status objects that Kubernetes clients read."""

from typing import Any

from lattice.errors import Cause, Conflict, Gone, Invalid, LatticeError, RevisionTooNew, TooManyRequests
from lattice.kinds.meta.base import Resource

OPTIONS_GROUP = "meta.k8s.io"


def status_of(error: LatticeError, resource: Resource | None = None, name: str = "") -> dict[str, Any]:
    """The Status body of an error about an object, or about no object in particular."""
    details: dict[str, Any] = {}
    if options := _options_kind(error):
        details = {"group": OPTIONS_GROUP, "kind": options}
    elif error.object_kind:
        details = {"name": error.object_name, "kind": error.object_kind}
    elif resource is not None:
        kind = resource.kind if isinstance(error, Invalid) else resource.plural
        details = {"name": name, "group": resource.group, "kind": kind}
        details = {key: value for key, value in details.items() if value}
    causes = error.causes
    if isinstance(error, Invalid) and not causes:
        # kubectl shows only the causes of an Invalid error, so an Invalid error must have a cause.
        causes = (Cause(error.where or "request", error.message),)
    if causes:
        details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    # Clients of Kubernetes wait this long and retry.
    if isinstance(error, TooManyRequests | RevisionTooNew):
        details["retryAfterSeconds"] = 1
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": error.continue_token}
        if isinstance(error, Gone) and error.continue_token
        else {},
        "status": "Failure",
        "message": message_of(error, resource, name),
        "reason": error.reason,
        "details": details,
        "code": error.status,
    }


def _options_kind(error: LatticeError) -> str:
    """The options kind (for example CreateOptions) if the error concerns the request's options, else an empty
    string."""
    kind, _, group = error.where.partition(".")
    return kind if group == OPTIONS_GROUP else ""


def message_of(error: LatticeError, resource: Resource | None, name: str) -> str:
    """One line with problem, location and fix. Errors about invalid objects have the wording of
    Kubernetes."""
    if isinstance(error, Invalid) and error.causes and resource is not None:
        listed = "; ".join(str(cause) for cause in error.causes)
        listed = f"[{listed}]" if len(error.causes) > 1 else listed
        if _options_kind(error):
            return f'{error.where} "" is invalid: {listed}'
        kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
        return f'{kind} "{name}" is invalid: {listed}'
    head = error.message
    if error.where and not isinstance(error, Conflict | Gone):
        head = f"{error.where}: {error.message}"
    return f"{head} (fix: {error.fix})" if error.fix else head


def success_status(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    """The Status body of a delete request after the object is gone."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {k: v for k, v in details.items() if v},
    }


def warning_header(text: str) -> str:
    """A warning as a Warning header (code 299), which kubectl prints."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'


def warning_text(header: str) -> str:
    """The text of a Warning header: the inverse of `warning_header`."""
    text = header.split(" ", 2)[-1].strip()
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text.startswith('"') else text
