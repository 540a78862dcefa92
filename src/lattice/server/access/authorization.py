"""Authorization: three groups, default deny, and the status, kinds and events that only Lattice itself
writes."""

from dataclasses import dataclass

import structlog

from lattice.errors import Denied, Invalid, LatticeError, Malformed, TooLarge, TooManyRequests, UnknownUser
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.stored_encoding import Object
from lattice.server.requests.call import User

ADMIN_GROUP = "lattice:admins"
VIEWER_GROUP = "lattice:viewers"
# The group of Lattice's own processes: the only writers of status and of managed kinds.
SYSTEM_GROUP = "lattice:system"
# Prefix of the reporting component in events that Lattice records.
LATTICE_COMPONENT_PREFIX = "lattice.dev/"

READ_VERBS = frozenset({"get", "list", "watch"})
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
# What administrators may do to objects of managed kinds.
USER_VERBS_ON_MANAGED_KINDS = {
    # Cordon, taint and remove a node.
    "latticenodes.lattice.dev": frozenset({"update", "patch", "delete", "deletecollection"}),
    # Workloads without an owner; `reject_owned_workload` rejects writes to owned workloads object by object.
    "latticeworkloads.lattice.dev": frozenset(ALL_VERBS),
}
VERB_BY_METHOD = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}

# A log line holds at most this many characters of a path or field name that the client sent.
MAX_LOGGED_CHARS = 200
# Errors that may show an attempt to gain access; the log line holds the message.
ACCESS_ERRORS = (UnknownUser, Denied, TooManyRequests)
# Errors in what the client sent; the log line holds field names, never values.
INPUT_ERRORS = (Malformed, Invalid, TooLarge)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """The verb and resource of a request, with the fields of Kubernetes' `resourceAttributes`."""

    verb: str
    group: str
    plural: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    """The outcome of an access check: allowed or denied, the reason, and a fix for the user."""

    allowed: bool
    reason: str = ""
    fix: str = ""


def check_access(user: User, request: RequestAttributes, resource: Resource | None) -> AuthorizationDecision:
    """Decide whether the user may perform the request. `resource` is the served kind, or None if the server
    serves no such kind."""
    if SYSTEM_GROUP in user.groups:
        return AuthorizationDecision(True, f"group {SYSTEM_GROUP}")
    if ADMIN_GROUP in user.groups:
        if resource is not None and request.verb not in READ_VERBS:
            allowed_verbs = USER_VERBS_ON_MANAGED_KINDS.get(resource.id, frozenset())
            if request.subresource == "status":
                problem = "only Lattice may write status"
                return AuthorizationDecision(False, problem, "write the desired state into spec")
            if resource.managed_hint and request.verb not in allowed_verbs:
                problem = f"only Lattice may write {resource.plural}"
                return AuthorizationDecision(False, problem, resource.managed_hint)
        return AuthorizationDecision(True, f"group {ADMIN_GROUP}")
    if VIEWER_GROUP in user.groups:
        if request.verb not in READ_VERBS:
            return AuthorizationDecision(False, f"members of group {VIEWER_GROUP} may only read")
        if request.plural == "secrets":
            return AuthorizationDecision(False, f"members of group {VIEWER_GROUP} may not read secrets")
        return AuthorizationDecision(True, f"group {VIEWER_GROUP}")
    return AuthorizationDecision(False, f"the user is in none of the groups {ADMIN_GROUP}, {VIEWER_GROUP}")


def authorize(user: User, request: RequestAttributes, resource: Resource | None) -> None:
    """Raise `Denied` unless the user may perform the request."""
    verdict = check_access(user, request, resource)
    if not verdict.allowed:
        raise Denied(forbidden_message(user, request, verdict.reason), fix=verdict.fix)


def forbidden_message(user: User, request: RequestAttributes, reason: str) -> str:
    """The sentence of a Kubernetes API server for a forbidden request, followed by Lattice's reason."""
    target = f"{request.plural}/{request.subresource}" if request.subresource else request.plural
    full_name = f"{request.plural}.{request.group}" if request.group else request.plural
    head = f'{full_name} "{request.name}" is forbidden' if request.name else f"{full_name} is forbidden"
    scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    return (
        f'{head}: User "{user.name}" cannot {request.verb} resource "{target}"'
        f' in API group "{request.group}" {scope}: {reason}'
    )


def reject_owned_workload(user: User, resource: Resource, *objects: Object | None) -> None:
    """Reject a user's write to a workload owned by a service: only Lattice writes owned workloads."""
    if resource.id != "latticeworkloads.lattice.dev" or SYSTEM_GROUP in user.groups:
        return
    for obj in objects:
        owner = _owner(obj) if obj is not None else ""
        if owner:
            name = obj["metadata"].get("name", "") if obj else ""
            raise Denied(
                f'latticeworkloads.lattice.dev "{name}" is forbidden:'
                f" it belongs to {owner}, and only Lattice may write it",
                fix=f"change {owner} instead, or declare a workload without an owner",
            )


def reject_event_change(user: User, resource: Resource, old: Object | None) -> None:
    """Reject a user's change of an event that Lattice recorded. Lattice deletes such events after their time
    to live."""
    if (
        old is None
        or resource.kind != "Event"
        or SYSTEM_GROUP in user.groups
        # The name of the component in the core form, and in the form of events.k8s.io.
        or not str(old.get("reportingComponent") or old.get("reportingController")).startswith(
            LATTICE_COMPONENT_PREFIX
        )
    ):
        return
    raise Denied(
        f'events "{old["metadata"]["name"]}" is forbidden: events of Lattice cannot be changed',
        fix="create another event; Lattice deletes this event when its lifetime ends",
    )


def _owner(obj: Object) -> str:
    spec = obj.get("spec")
    service = spec.get("service") if isinstance(spec, dict) else None
    if service:
        return f"latticeservice {service}"
    references = obj["metadata"].get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("kind") == "LatticeService":
            return f"latticeservice {reference.get('name', '')}"
    return ""


def log_rejected_request(error: LatticeError, user: User | None, method: str, path: str) -> None:
    """Log the rejection of a request that may be an attempt to gain access. Conflicts and timeouts are not
    logged."""
    if not isinstance(error, ACCESS_ERRORS + INPUT_ERRORS):
        return
    details: dict[str, str | list[str]]
    if isinstance(error, ACCESS_ERRORS):
        details = {"why": error.message}
    else:
        details = {"fields": [cause.field[:MAX_LOGGED_CHARS] for cause in error.causes[:20]]}
    name = user.name if user is not None else ""
    log.warning(
        "request rejected",
        user=name,
        method=method,
        path=path[:MAX_LOGGED_CHARS],
        status=error.status,
        reason=error.reason,
        **details,
    )
