"""What the kinds look like that are answered without being stored: reviews and CustomResourceDefinition."""

from typing import Final

from lattice.server.discovery.discovery import CRDS
from lattice.server.discovery.meta_schemas import Schema, shape, text, texts, whole_object, yes_no

ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_RESOURCE = shape(
    "A request about objects.",
    {
        "namespace": text("Namespace; empty means all of them, or none for kinds outside namespaces."),
        "verb": text("get, list, watch, create, update, patch, delete, deletecollection or `*`."),
        "group": text("API group; `*` is all."),
        "version": text("API version; `*` is all."),
        "resource": text("Plural name; `*` is all."),
        "subresource": text("Subresource, such as `status`."),
        "name": text("Name of one object; empty is all."),
        "fieldSelector": ANY_OBJECT | {"description": "Limits the request to objects with these fields."},
        "labelSelector": ANY_OBJECT | {"description": "Limits the request to objects with these labels."},
    },
)
_PATH = shape(
    "A request about a plain path.",
    {"path": text("The path, such as `/metrics`."), "verb": text("The HTTP method, in lower case.")},
)
_ASKED = {"resourceAttributes": _RESOURCE, "nonResourceAttributes": _PATH}
_EXTRA = {
    "type": "object",
    "description": "What else is known about the user.",
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
}
_USER = shape(
    "A user.",
    {
        "username": text("Name of the user."),
        "uid": text("Tells users of the same name apart."),
        "groups": texts("Groups that the user belongs to."),
        "extra": _EXTRA,
    },
)
_VERDICT = shape(
    "The answer.",
    {
        "allowed": yes_no("Whether the request may be made."),
        "denied": yes_no("Whether it is forbidden outright."),
        "reason": text("Why."),
        "evaluationError": text("What went wrong while finding out."),
    },
    ("allowed",),
)
_RULES = shape(
    "The answer.",
    {
        "resourceRules": {
            "type": "array",
            "description": "What the user may do with objects.",
            "items": shape(
                "Verbs on resources.",
                {
                    "verbs": texts("Verbs; `*` is all."),
                    "apiGroups": texts("API groups; `*` is all."),
                    "resources": texts("Plural names; `*` is all."),
                    "resourceNames": texts("Names of objects; empty is all."),
                },
                ("verbs",),
            ),
        },
        "nonResourceRules": {
            "type": "array",
            "description": "What the user may do with plain paths.",
            "items": shape(
                "Verbs on paths.",
                {"verbs": texts("Verbs."), "nonResourceURLs": texts("Paths; a last `*` is a wildcard.")},
                ("verbs",),
            ),
        },
        "incomplete": yes_no("Whether there may be rules that are not listed."),
        "evaluationError": text("What went wrong while finding out."),
    },
    ("resourceRules", "nonResourceRules", "incomplete"),
)

VIRTUAL_SCHEMAS: Final[dict[str, Schema]] = {
    "selfsubjectreviews.authentication.k8s.io": whole_object(
        "Asks who the caller is.", {"status": shape("The answer.", {"userInfo": _USER})}
    ),
    "tokenreviews.authentication.k8s.io": whole_object(
        "Asks whose bearer token this is.",
        {
            "spec": shape(
                "The question.",
                {"token": text("The bearer token."), "audiences": texts("Whom the token must be meant for.")},
            ),
            "status": shape(
                "The answer.",
                {
                    "authenticated": yes_no("Whether the token is good."),
                    "user": _USER,
                    "audiences": texts("Whom the token is meant for."),
                    "error": text("Why it could not be checked."),
                },
            ),
        },
        ("spec",),
    ),
    "selfsubjectaccessreviews.authorization.k8s.io": whole_object(
        "Asks whether the caller may make a request.",
        {"spec": shape("The question.", _ASKED), "status": _VERDICT},
        ("spec",),
    ),
    "subjectaccessreviews.authorization.k8s.io": whole_object(
        "Asks whether somebody may make a request.",
        {
            "spec": shape(
                "The question.",
                _ASKED
                | {
                    "user": text("Name of the user."),
                    "groups": texts("Groups of the user."),
                    "uid": text("UID of the user."),
                    "extra": _EXTRA,
                },
            ),
            "status": _VERDICT,
        },
        ("spec",),
    ),
    "selfsubjectrulesreviews.authorization.k8s.io": whole_object(
        "Asks for everything that the caller may do in a namespace.",
        {"spec": shape("The question.", {"namespace": text("The namespace.")}), "status": _RULES},
        ("spec",),
    ),
    CRDS.id: whole_object(
        "How a kind of this server is presented, in the form in which a Kubernetes cluster would be told about it. Read-only.",
        {
            "spec": ANY_OBJECT
            | {"description": "Group, names, scope, and per version the schema, columns and subresources."},
            "status": ANY_OBJECT
            | {"description": "Accepted names, stored versions and conditions; always Established."},
        },
        ("spec",),
    ),
}
