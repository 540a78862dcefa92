"""Schemas of the kinds that the server answers without storing objects: access reviews and
CustomResourceDefinition."""

from typing import Final

from lattice.server.discovery.discovery import CRD_RESOURCE
from lattice.server.discovery.meta_schemas import (
    Schema,
    boolean,
    object_schema,
    resource_schema,
    string,
    string_list,
)

ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_RESOURCE_ATTRIBUTES = object_schema(
    "A request about objects.",
    {
        "namespace": string("Namespace; empty means all namespaces, or none for cluster-scoped kinds."),
        "verb": string("get, list, watch, create, update, patch, delete, deletecollection or `*`."),
        "group": string("API group; `*` is all."),
        "version": string("API version; `*` is all."),
        "resource": string("Plural name; `*` is all."),
        "subresource": string("Subresource, such as `status`."),
        "name": string("Name of one object; empty is all."),
        "fieldSelector": ANY_OBJECT | {"description": "Limits the request to objects with these fields."},
        "labelSelector": ANY_OBJECT | {"description": "Limits the request to objects with these labels."},
    },
)
_NON_RESOURCE_ATTRIBUTES = object_schema(
    "A request about a plain path.",
    {"path": string("The path, such as `/metrics`."), "verb": string("The HTTP method, in lower case.")},
)
_ACCESS_SPEC = {"resourceAttributes": _RESOURCE_ATTRIBUTES, "nonResourceAttributes": _NON_RESOURCE_ATTRIBUTES}
_EXTRA = {
    "type": "object",
    "description": "Additional attributes of the user.",
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
}
_USER = object_schema(
    "A user.",
    {
        "username": string("Name of the user."),
        "uid": string("Distinguishes users with the same name."),
        "groups": string_list("Groups that the user belongs to."),
        "extra": _EXTRA,
    },
)
_ACCESS_STATUS = object_schema(
    "The answer.",
    {
        "allowed": boolean("Whether the request may be made."),
        "denied": boolean("Whether it is forbidden outright."),
        "reason": string("Why."),
        "evaluationError": string("Error during the evaluation."),
    },
    ("allowed",),
)
_RULES = object_schema(
    "The answer.",
    {
        "resourceRules": {
            "type": "array",
            "description": "Permissions on objects.",
            "items": object_schema(
                "Verbs on resources.",
                {
                    "verbs": string_list("Verbs; `*` is all."),
                    "apiGroups": string_list("API groups; `*` is all."),
                    "resources": string_list("Plural names; `*` is all."),
                    "resourceNames": string_list("Names of objects; empty is all."),
                },
                ("verbs",),
            ),
        },
        "nonResourceRules": {
            "type": "array",
            "description": "Permissions on plain paths.",
            "items": object_schema(
                "Verbs on paths.",
                {
                    "verbs": string_list("Verbs."),
                    "nonResourceURLs": string_list("Paths; a last `*` is a wildcard."),
                },
                ("verbs",),
            ),
        },
        "incomplete": boolean("Whether the list of rules may be incomplete."),
        "evaluationError": string("Error during the evaluation."),
    },
    ("resourceRules", "nonResourceRules", "incomplete"),
)

VIRTUAL_SCHEMAS: Final[dict[str, Schema]] = {
    "selfsubjectreviews.authentication.k8s.io": resource_schema(
        "Returns the identity of the caller.", {"status": object_schema("The answer.", {"userInfo": _USER})}
    ),
    "tokenreviews.authentication.k8s.io": resource_schema(
        "Returns the user of a bearer token.",
        {
            "spec": object_schema(
                "The question.",
                {
                    "token": string("The bearer token."),
                    "audiences": string_list("Audiences that the token must be valid for."),
                },
            ),
            "status": object_schema(
                "The answer.",
                {
                    "authenticated": boolean("Whether the token is valid."),
                    "user": _USER,
                    "audiences": string_list("Audiences that the token is valid for."),
                    "error": string("Error if the token could not be checked."),
                },
            ),
        },
        ("spec",),
    ),
    "selfsubjectaccessreviews.authorization.k8s.io": resource_schema(
        "Checks whether the caller may make a request.",
        {"spec": object_schema("The question.", _ACCESS_SPEC), "status": _ACCESS_STATUS},
        ("spec",),
    ),
    "subjectaccessreviews.authorization.k8s.io": resource_schema(
        "Checks whether a user may make a request.",
        {
            "spec": object_schema(
                "The question.",
                _ACCESS_SPEC
                | {
                    "user": string("Name of the user."),
                    "groups": string_list("Groups of the user."),
                    "uid": string("UID of the user."),
                    "extra": _EXTRA,
                },
            ),
            "status": _ACCESS_STATUS,
        },
        ("spec",),
    ),
    "localsubjectaccessreviews.authorization.k8s.io": resource_schema(
        "Checks whether a user may make a request in one namespace.",
        {
            "spec": object_schema(
                "The question.",
                _ACCESS_SPEC
                | {
                    "user": string("Name of the user."),
                    "groups": string_list("Groups of the user."),
                    "uid": string("UID of the user."),
                    "extra": _EXTRA,
                },
            ),
            "status": _ACCESS_STATUS,
        },
        ("spec",),
    ),
    "selfsubjectrulesreviews.authorization.k8s.io": resource_schema(
        "Lists the permissions of the caller in a namespace.",
        {"spec": object_schema("The question.", {"namespace": string("The namespace.")}), "status": _RULES},
        ("spec",),
    ),
    CRD_RESOURCE.id: resource_schema(
        "Definition of a kind of this server, in the format of Kubernetes. Read-only.",
        {
            "spec": ANY_OBJECT
            | {"description": "Group, names, scope, and per version the schema, columns and subresources."},
            "status": ANY_OBJECT
            | {"description": "Accepted names, stored versions and conditions; always Established."},
        },
        ("spec",),
    ),
}
