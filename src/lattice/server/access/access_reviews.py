"""What may I do, and who am I? The review kinds that `kubectl auth` asks; answered, never stored."""

from typing import Any

from lattice.errors import Denied, Malformed, UnknownUser
from lattice.kinds.meta.base import Resource
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.authorization import (
    ADMINS,
    ALL_VERBS,
    READ_VERBS,
    SYSTEM,
    USER_VERBS_ON_MANAGED_KINDS,
    VIEWERS,
    AuthorizationDecision,
    RequestAttributes,
    check_access,
)
from lattice.server.requests.call import User
from lattice.server.requests.catalog import Catalog

Review = dict[str, Any]


async def review(catalog: Catalog, tokens: TokenAuthenticator, user: User, kind: str, body: Review) -> Review:
    """The body with its status filled in."""
    spec = body.get("spec") or {}
    if not isinstance(spec, dict):
        raise Malformed("spec must be an object", where="spec")
    match kind:
        case "SelfSubjectReview":
            status: Review = {"userInfo": _info(user)}
        case "SelfSubjectAccessReview":
            status = _access(catalog, user, spec)
        case "SubjectAccessReview":
            _require_admin(user, kind)
            groups = spec.get("groups") or []
            if not isinstance(groups, list):
                raise Malformed("must be a list of names", where="spec.groups")
            other = User(str(spec.get("user") or ""), frozenset(str(group) for group in groups))
            status = _access(catalog, other, spec)
        case "SelfSubjectRulesReview":
            status = _rules(catalog, user)
        case "TokenReview":
            _require_admin(user, kind)
            status = await _token(tokens, spec)
        case _:
            raise Malformed(f"no such review: {kind}")
    return {
        **body,
        "kind": kind,
        "metadata": body.get("metadata") or {"creationTimestamp": None},
        "status": status,
    }


def _require_admin(user: User, kind: str) -> None:
    if not user.groups & {ADMINS, SYSTEM}:
        raise Denied(
            f'{kind.lower()}s is forbidden: User "{user.name}" may ask about itself only',
            fix=f"join {ADMINS}, or ask about yourself with a SelfSubjectReview or SelfSubjectAccessReview",
        )


def _info(user: User) -> Review:
    return {"username": user.name, "groups": sorted(user.groups)} | ({"uid": user.uid} if user.uid else {})


def _access(catalog: Catalog, user: User, spec: Review) -> Review:
    if about := _attributes(spec, "nonResourceAttributes"):
        allowed = about.get("verb") == "get" or bool(user.groups & {ADMINS, SYSTEM})
        return {
            "allowed": allowed,
            "reason": "reading is open to every known user" if allowed else "paths are read-only",
        }
    about = _attributes(spec, "resourceAttributes")
    asked = RequestAttributes(
        about.get("verb", ""),
        about.get("group", ""),
        about.get("resource", ""),
        about.get("subresource", ""),
        about.get("namespace", ""),
        about.get("name", ""),
    )
    verdict = _decide(catalog, user, asked)
    return {"allowed": verdict.allowed, "reason": verdict.reason} | (
        {} if verdict.allowed else {"denied": False}
    )


def _attributes(spec: Review, name: str) -> dict[str, str]:
    found = spec.get(name) or {}
    if not isinstance(found, dict):
        raise Malformed("must be an object", where=f"spec.{name}")
    return {key: str(value or "") for key, value in found.items()}


def _decide(catalog: Catalog, user: User, asked: RequestAttributes) -> AuthorizationDecision:
    if asked.group.endswith(".k8s.io") and asked.verb == "create" and asked.plural.startswith("selfsubject"):
        return AuthorizationDecision(True, "anyone may ask about themselves")
    if asked.verb == "impersonate":
        return AuthorizationDecision(False, "impersonation is not supported")
    found = next(
        (
            each.resource
            for each in catalog
            if (each.resource.group, each.resource.plural) == (asked.group, asked.plural)
        ),
        None,
    )
    wildcard = "*" in {asked.verb, asked.plural, asked.group}
    if wildcard and SYSTEM not in user.groups and asked.verb not in READ_VERBS:
        return (
            AuthorizationDecision(False, "some things are written by Lattice only")
            if ADMINS not in user.groups
            else AuthorizationDecision(True, f"group {ADMINS}")
        )
    return check_access(user, asked, found)


def _rules(catalog: Catalog, user: User) -> Review:
    listed = [_rule(user, each.resource) for each in catalog]
    known = [
        {
            "verbs": ["get"],
            "nonResourceURLs": [
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/openapi/*",
                "/readyz",
                "/version",
            ],
        }
    ]
    asking = {
        "verbs": ["create"],
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    }
    return {
        "resourceRules": [rule for rule in listed if rule] + [asking],
        "nonResourceRules": known,
        "incomplete": False,
    }


def _rule(user: User, resource: Resource) -> Review | None:
    if user.groups & {SYSTEM}:
        verbs = resource.verbs
    elif ADMINS in user.groups:
        writable = not resource.managed_hint
        verbs = tuple(
            verb
            for verb in resource.verbs
            if writable or verb in READ_VERBS or verb in USER_VERBS_ON_MANAGED_KINDS.get(resource.id, ())
        )
    elif VIEWERS in user.groups and resource.plural != "secrets":
        verbs = tuple(verb for verb in resource.verbs if verb in READ_VERBS)
    else:
        return None
    return {
        "verbs": [verb for verb in ALL_VERBS if verb in verbs],
        "apiGroups": [resource.group],
        "resources": [resource.plural],
    }


async def _token(tokens: TokenAuthenticator, spec: Review) -> Review:
    try:
        user = await tokens.user_of_token(str(spec.get("token") or ""))
    except UnknownUser:
        return {"authenticated": False, "user": {}}
    return {"authenticated": True, "user": _info(user)}
