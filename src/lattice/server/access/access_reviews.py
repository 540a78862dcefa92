"""Access reviews: the server answers the review kinds of `kubectl auth` (own identity, permissions, tokens)
and stores no review."""

from typing import Any

from lattice.errors import Denied, Malformed, UnknownUser
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.access.authorization import (
    ADMIN_GROUP,
    ALL_VERBS,
    READ_VERBS,
    SYSTEM_GROUP,
    USER_VERBS_ON_MANAGED_KINDS,
    VIEWER_GROUP,
    AuthorizationDecision,
    RequestAttributes,
    check_access,
)
from lattice.server.requests.call import User
from lattice.server.requests.catalog import Catalog

Review = dict[str, Any]
# The review of a user's access within one namespace.
LOCAL_REVIEW = "LocalSubjectAccessReview"


async def review(catalog: Catalog, tokens: TokenAuthenticator, user: User, kind: str, body: Review) -> Review:
    """Answer one review: the request body with `status` filled in.

    Only administrators and Lattice's own processes may review a user other than themselves, or a token
    (`Denied` otherwise). `Malformed` rejects a body of the wrong shape.
    """
    spec = body.get("spec") or {}
    if not isinstance(spec, dict):
        raise Malformed("spec must be an object", where="spec")
    match kind:
        case "SelfSubjectReview":
            status: Review = {"userInfo": _info(user)}
        case "SelfSubjectAccessReview":
            status = _access(catalog, user, spec)
        case "SubjectAccessReview" | "LocalSubjectAccessReview":
            _require_admin(user, kind)
            groups = spec.get("groups") or []
            if not isinstance(groups, list):
                raise Malformed("must be a list of strings", where="spec.groups")
            subject = User(str(spec.get("user") or ""), frozenset(str(group) for group in groups))
            status = _access(catalog, subject, spec)
        case "SelfSubjectRulesReview":
            status = _rules(catalog, user)
        case "TokenReview":
            _require_admin(user, kind)
            try:
                token_user = await tokens.user_of_token(str(spec.get("token") or ""))
            except UnknownUser:
                status = {"authenticated": False, "user": {}}
            else:
                status = {"authenticated": True, "user": _info(token_user)}
        case _:
            raise Malformed(f"no such review: {kind}")
    return {
        **body,
        "kind": kind,
        "metadata": body.get("metadata") or {"creationTimestamp": None},
        "status": status,
    }


def require_review_namespace(body: Review, namespace: str) -> None:
    """Raise Malformed unless the review asks about the namespace of its path."""
    spec = body.get("spec")
    attributes = spec.get("resourceAttributes") if isinstance(spec, dict) else None
    stated = attributes.get("namespace") if isinstance(attributes, dict) else None
    if stated != namespace:
        raise Malformed(
            f'must be the namespace of the path, "{namespace}", got "{stated or ""}"',
            where="spec.resourceAttributes.namespace",
            fix="send the review to the namespace that it asks about, or use a SubjectAccessReview",
        )


def _require_admin(user: User, kind: str) -> None:
    if not user.groups & {ADMIN_GROUP, SYSTEM_GROUP}:
        raise Denied(
            f'{kind.lower()}s is forbidden: User "{user.name}" may only review its own access',
            fix=f"join {ADMIN_GROUP}, or review your own access with a SelfSubjectReview or SelfSubjectAccessReview",
        )


def _info(user: User) -> Review:
    return {"username": user.name, "groups": sorted(user.groups)} | ({"uid": user.uid} if user.uid else {})


def _access(catalog: Catalog, user: User, spec: Review) -> Review:
    if attributes := _attributes(spec, "nonResourceAttributes"):
        # Paths without a resource are documents such as /version and /openapi, open to every user.
        allowed = attributes.get("verb") == "get" or bool(user.groups & {ADMIN_GROUP, SYSTEM_GROUP})
        return {
            "allowed": allowed,
            "reason": "every authenticated user may read" if allowed else "paths are read-only",
        }
    attributes = _attributes(spec, "resourceAttributes")
    request = RequestAttributes(
        attributes.get("verb", ""),
        attributes.get("group", ""),
        attributes.get("resource", ""),
        attributes.get("subresource", ""),
        attributes.get("namespace", ""),
        attributes.get("name", ""),
    )
    verdict = _decide(catalog, user, request)
    # `denied: false` means that no rule forbids the request, but no rule allows the request either
    # (Kubernetes' default deny).
    return {"allowed": verdict.allowed, "reason": verdict.reason} | (
        {} if verdict.allowed else {"denied": False}
    )


def _attributes(spec: Review, name: str) -> dict[str, str]:
    attributes = spec.get(name) or {}
    if not isinstance(attributes, dict):
        raise Malformed("must be an object", where=f"spec.{name}")
    return {key: str(value or "") for key, value in attributes.items()}


def _decide(catalog: Catalog, user: User, request: RequestAttributes) -> AuthorizationDecision:
    is_review = request.group.endswith(".k8s.io") and request.verb == "create"
    if is_review and request.plural.startswith("selfsubject"):
        return AuthorizationDecision(True, "every user may review its own access")
    if request.verb == "impersonate":
        return AuthorizationDecision(False, "impersonation is not supported")
    wildcard = "*" in {request.verb, request.plural, request.group}
    # A wildcard names no single served kind: the groups of the user decide.
    if wildcard and SYSTEM_GROUP not in user.groups and request.verb not in READ_VERBS:
        if ADMIN_GROUP in user.groups:
            return AuthorizationDecision(True, f"group {ADMIN_GROUP}")
        return AuthorizationDecision(False, "only Lattice may write some resources")
    for served in catalog:
        if (served.resource.group, served.resource.plural) == (request.group, request.plural):
            return check_access(user, request, served.resource)
    return check_access(user, request, None)


def _rules(catalog: Catalog, user: User) -> Review:
    rules: list[Review] = []
    for served in catalog:
        resource = served.resource
        if user.groups & {SYSTEM_GROUP}:
            verbs = resource.verbs
        elif ADMIN_GROUP in user.groups:
            writable = not resource.managed_hint
            verbs = tuple(
                verb
                for verb in resource.verbs
                if writable or verb in READ_VERBS or verb in USER_VERBS_ON_MANAGED_KINDS.get(resource.id, ())
            )
        elif VIEWER_GROUP in user.groups and resource.plural != "secrets":
            verbs = tuple(verb for verb in resource.verbs if verb in READ_VERBS)
        else:
            continue
        rules.append(
            {
                "verbs": [verb for verb in ALL_VERBS if verb in verbs],
                "apiGroups": [resource.group],
                "resources": [resource.plural],
            }
        )
    readable_paths = {
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
    self_reviews = {
        "verbs": ["create"],
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    }
    return {
        "resourceRules": [*rules, self_reviews],
        "nonResourceRules": [readable_paths],
        "incomplete": False,
    }
