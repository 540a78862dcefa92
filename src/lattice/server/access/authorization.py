"""May this user do that? Three groups, default deny, and what only Lattice itself may write."""

from dataclasses import dataclass

import structlog

from lattice.errors import Denied, Invalid, LatticeError, Malformed, TooLarge, TooManyRequests, UnknownUser
from lattice.kinds.meta.base import Resource
from lattice.kinds.meta.stored_encoding import Object
from lattice.server.requests.call import User

ADMINS = "lattice:admins"
VIEWERS = "lattice:viewers"
SYSTEM = "lattice:system"  # Lattice's own processes: the only writers of status and of made kinds
LATTICE_COMPONENT_PREFIX = "lattice.dev/"  # how the reporting component of Lattice's own events begins

READ_VERBS = frozenset({"get", "list", "watch"})
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
USER_VERBS_ON_MANAGED_KINDS = {  # what people may do to kinds that Lattice makes
    "latticenodes.lattice.dev": frozenset(
        {"update", "patch", "delete", "deletecollection"}
    ),  # cordon, taint, remove
    "latticeworkloads.lattice.dev": frozenset(
        ALL_VERBS
    ),  # bare ones; owned ones are refused object by object
}
VERB_BY_METHOD = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}


MAX_LOGGED_CHARS = 200  # characters of an address
ACCESS_ERRORS = (UnknownUser, Denied, TooManyRequests)
INPUT_ERRORS = (Malformed, Invalid, TooLarge)
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RequestAttributes:
    """Something a user wants to do, as access reviews describe it."""

    verb: str
    group: str
    plural: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    allowed: bool
    reason: str = ""
    fix: str = ""


def check_access(user: User, deed: RequestAttributes, resource: Resource | None) -> AuthorizationDecision:
    """resource: the kind it is about, None when we serve no such kind."""
    if SYSTEM in user.groups:
        return AuthorizationDecision(True, f"group {SYSTEM}")
    if ADMINS in user.groups:
        return _check_admin_access(deed, resource)
    if VIEWERS in user.groups:
        if deed.verb not in READ_VERBS:
            return AuthorizationDecision(False, f"group {VIEWERS} may only read")
        if deed.plural == "secrets":
            return AuthorizationDecision(False, f"group {VIEWERS} may not read secrets")
        return AuthorizationDecision(True, f"group {VIEWERS}")
    return AuthorizationDecision(False, f"the user is in none of the groups {ADMINS}, {VIEWERS}")


def _check_admin_access(deed: RequestAttributes, resource: Resource | None) -> AuthorizationDecision:
    if resource is None or deed.verb in READ_VERBS:
        return AuthorizationDecision(True, f"group {ADMINS}")
    if deed.subresource == "status":
        return AuthorizationDecision(
            False, "status is written by Lattice only", "declare what you want in spec"
        )
    if resource.managed_hint and deed.verb not in USER_VERBS_ON_MANAGED_KINDS.get(resource.id, frozenset()):
        return AuthorizationDecision(
            False, f"{resource.plural} are made by Lattice only", resource.managed_hint
        )
    return AuthorizationDecision(True, f"group {ADMINS}")


def authorize(user: User, deed: RequestAttributes, resource: Resource | None) -> None:
    verdict = check_access(user, deed, resource)
    if not verdict.allowed:
        raise Denied(forbidden_message(user, deed, verdict.reason), fix=verdict.fix)


def forbidden_message(user: User, deed: RequestAttributes, why: str) -> str:
    """Kubernetes' sentence, then ours."""
    what = f"{deed.plural}/{deed.subresource}" if deed.subresource else deed.plural
    whole = f"{deed.plural}.{deed.group}" if deed.group else deed.plural
    head = f'{whole} "{deed.name}" is forbidden' if deed.name else f"{whole} is forbidden"
    scope = f'in the namespace "{deed.namespace}"' if deed.namespace else "at the cluster scope"
    return f'{head}: User "{user.name}" cannot {deed.verb} resource "{what}" in API group "{deed.group}" {scope}: {why}'


def reject_owned_workload(user: User, resource: Resource, *objects: Object | None) -> None:
    """A workload that belongs to a service is that service's to change."""
    if resource.id != "latticeworkloads.lattice.dev" or SYSTEM in user.groups:
        return
    for obj in objects:
        owner = _owner(obj) if obj is not None else ""
        if owner:
            name = obj["metadata"].get("name", "") if obj else ""
            raise Denied(
                f'latticeworkloads.lattice.dev "{name}" is forbidden: it belongs to {owner} and is written by Lattice only',
                fix=f"change {owner} instead, or declare a workload without an owner",
            )


def reject_event_change(user: User, resource: Resource, old: Object | None) -> None:
    """Lattice's own events never change; they go when their time is up."""
    if (
        old is None
        or resource.id != "events"
        or SYSTEM in user.groups
        or not str(old.get("reportingComponent")).startswith(LATTICE_COMPONENT_PREFIX)
    ):
        return
    raise Denied(
        f'events "{old["metadata"]["name"]}" is forbidden: what Lattice told stays as it was told',
        fix="create an event of your own; this one goes when its time is up",
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
    """Of those that may be an attempt to get what one must not have; being late, or second, is none."""
    if not isinstance(error, ACCESS_ERRORS + INPUT_ERRORS):
        return
    why = (
        {"why": error.message}
        if isinstance(error, ACCESS_ERRORS)
        else {"fields": [cause.field[:MAX_LOGGED_CHARS] for cause in error.causes[:20]]}
    )
    name = user.name if user is not None else ""
    log.warning(
        "refused",
        user=name,
        method=method,
        path=path[:MAX_LOGGED_CHARS],
        status=error.status,
        reason=error.reason,
        **why,
    )
