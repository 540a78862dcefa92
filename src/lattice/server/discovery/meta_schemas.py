"""Schemas that all kinds of the API share: metadata, Status, options, Scale. Definitions carry the names of
Kubernetes.

The schemas write a reference as {"$ref": NAME}; openapi.py converts the reference to the form of the OpenAPI
version.
"""

from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

META_PACKAGE: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META, LIST_META, STATUS = (
    f"{META_PACKAGE}.ObjectMeta",
    f"{META_PACKAGE}.ListMeta",
    f"{META_PACKAGE}.Status",
)
DELETE_OPTIONS, PATCH, TIME, MICRO_TIME = (
    f"{META_PACKAGE}.DeleteOptions",
    f"{META_PACKAGE}.Patch",
    f"{META_PACKAGE}.Time",
    f"{META_PACKAGE}.MicroTime",
)
SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"

API_VERSION_SCHEMA = {
    "type": "string",
    "description": "The group and version of the schema that this object is written in. "
    "The server refuses versions it does not know.",
}
KIND_SCHEMA = {
    "type": "string",
    "description": "What the object is, in CamelCase. "
    "It follows from the endpoint it is sent to and cannot be changed.",
}


def string(description: str, **keywords: Any) -> Schema:
    return {"type": "string", "description": description, **keywords}


def integer(description: str, form: str = "int64") -> Schema:
    return {"type": "integer", "format": form, "description": description}


def boolean(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def string_list(description: str, **keywords: Any) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description, **keywords}


def string_map(description: str) -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": description}


def ref(name: str, description: str) -> Schema:
    return {"$ref": name, "description": description}


def ref_list(name: str, description: str, **keywords: Any) -> Schema:
    return {"type": "array", "items": {"$ref": name}, "description": description, **keywords}


def object_schema(
    description: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()
) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": dict(properties)}
    return schema | ({"required": list(required)} if required else {})


def resource_schema(
    description: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()
) -> Schema:
    """Return the schema of a top-level object: the properties, with apiVersion, kind and metadata."""
    type_fields = {
        "apiVersion": API_VERSION_SCHEMA,
        "kind": KIND_SCHEMA,
        "metadata": ref(OBJECT_META, "Name, labels and the server's own notes."),
    }
    return object_schema(description, type_fields | dict(properties), required)


# Extensions of a list that server-side apply and strategic merge treat as a map by uid.
_MERGED_BY_UID = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["uid"],
    "x-kubernetes-patch-merge-key": "uid",
    "x-kubernetes-patch-strategy": "merge",
}
_DRY_RUN = string_list(
    "`All`: go through every check and answer as usual, but keep nothing.",
    **{"x-kubernetes-list-type": "atomic"},
)

SCHEMAS: Final[dict[str, Schema]] = {
    TIME: string("A moment to the second, in RFC 3339.", format="date-time"),
    MICRO_TIME: string("A moment to the microsecond, in RFC 3339.", format="date-time"),
    INT_OR_STRING: {"description": "A whole number or text.", "x-kubernetes-int-or-string": True},
    PATCH: {
        "type": "object",
        "description": "A change to an object, in the form that the Content-Type names.",
    },
    f"{META_PACKAGE}.FieldsV1": {
        "type": "object",
        "description": "A set of fields, as a tree whose keys start with f:, k: or v:.",
    },
    f"{META_PACKAGE}.OwnerReference": object_schema(
        "An object in the same namespace, or one without a namespace, that this object goes away with.",
        {
            "apiVersion": string("API version of the owner."),
            "kind": string("Kind of the owner."),
            "name": string("Name of the owner."),
            "uid": string("UID of the owner: a later object of the same name is not the owner."),
            "controller": boolean("Whether this owner is the one that manages the object; at most one may."),
            "blockOwnerDeletion": boolean(
                "Whether a foreground deletion of the owner waits for this object to go first."
            ),
        },
        ("apiVersion", "kind", "name", "uid"),
    )
    | {"x-kubernetes-map-type": "atomic"},
    f"{META_PACKAGE}.ManagedFieldsEntry": object_schema(
        "The fields that one manager has set, and how.",
        {
            "manager": string("Who set the fields."),
            "operation": string("How: `Apply` (server-side apply) or `Update` (any other write)."),
            "apiVersion": string("The version that the field names belong to."),
            "time": ref(TIME, "When the set of fields last changed."),
            "fieldsType": string("The form of the set; always `FieldsV1`."),
            "fieldsV1": ref(f"{META_PACKAGE}.FieldsV1", "The fields."),
            "subresource": string(
                "The subresource that was written to, such as `status`; empty for the object itself."
            ),
        },
    ),
    OBJECT_META: object_schema(
        "What every object carries besides its own content: its identity, its labels and what the "
        "server notes about it.",
        {
            "name": string("Unique among the objects of its kind in its namespace. It cannot be changed."),
            "generateName": string("Start of a name that the server completes when `name` is empty."),
            "namespace": string(
                "The namespace that the object lives in; empty for kinds outside namespaces. It "
                "cannot be changed."
            ),
            "labels": string_map("Keys and values to select objects by."),
            "annotations": string_map("Keys and values for tools and people; nothing selects by them."),
            "uid": string(
                "Set by the server: tells this object from earlier and later ones of the same name."
            ),
            "resourceVersion": string(
                "Set by the server: the revision of the last change. Send it back to refuse "
                "overwriting a newer one."
            ),
            "generation": integer("Set by the server: grows by one with each change of what is wanted."),
            "creationTimestamp": ref(TIME, "Set by the server: when the object was created, in UTC."),
            "deletionTimestamp": ref(
                TIME,
                "Set by the server: when deletion was asked for. The object stays until "
                "`finalizers` is empty.",
            ),
            "deletionGracePeriodSeconds": integer(
                "Set by the server: seconds that the object was given to end in good order."
            ),
            "finalizers": string_list(
                "What must be done before the object may go; whoever does it removes its entry.",
                **{"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"},
            ),
            "ownerReferences": ref_list(
                f"{META_PACKAGE}.OwnerReference", "Objects that this one goes away with.", **_MERGED_BY_UID
            ),
            "managedFields": ref_list(
                f"{META_PACKAGE}.ManagedFieldsEntry",
                "Who set which fields. The server keeps it.",
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "selfLink": string("No longer set."),
        },
    ),
    LIST_META: object_schema(
        "What a list says about itself.",
        {
            "resourceVersion": string("The revision that the list shows; a watch from here misses nothing."),
            "continue": string(
                "Send it back to read the next page of the same revision; empty on the last page."
            ),
            "remainingItemCount": integer("How many objects come on later pages, where that is known."),
            "selfLink": string("No longer set."),
        },
    ),
    f"{META_PACKAGE}.StatusCause": object_schema(
        "One thing that is wrong.",
        {
            "field": string("Path of the field, such as `spec.maxNodes`."),
            "message": string("What is wrong with it."),
            "reason": string("The same for programs, such as `FieldValueInvalid`."),
        },
    ),
    f"{META_PACKAGE}.StatusDetails": object_schema(
        "What the answer is about.",
        {
            "name": string("Name of the object."),
            "group": string("API group of the object."),
            "kind": string("Kind or resource name of the object."),
            "uid": string("UID of the object."),
            "causes": ref_list(
                f"{META_PACKAGE}.StatusCause",
                "Everything that is wrong.",
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "retryAfterSeconds": integer("Seconds to wait before asking again.", "int32"),
        },
    ),
    STATUS: object_schema(
        "The answer to a request that yields no object: what happened and why.",
        {
            "apiVersion": API_VERSION_SCHEMA,
            "kind": KIND_SCHEMA,
            "metadata": ref(LIST_META, "Empty."),
            "status": string("`Success` or `Failure`."),
            "code": integer("The HTTP status code.", "int32"),
            "reason": string("Why, in one word for programs."),
            "message": string("Why, for people."),
            "details": ref(f"{META_PACKAGE}.StatusDetails", "What it is about."),
        },
    ),
    f"{META_PACKAGE}.Preconditions": object_schema(
        "What must hold for a deletion to happen.",
        {
            "uid": string("The object must have this UID."),
            "resourceVersion": string("The object must still be at this revision."),
        },
    ),
    DELETE_OPTIONS: object_schema(
        "How to delete.",
        {
            "apiVersion": API_VERSION_SCHEMA,
            "kind": KIND_SCHEMA,
            "dryRun": _DRY_RUN,
            "gracePeriodSeconds": integer("Seconds to end in good order; 0 deletes at once."),
            "orphanDependents": boolean("Older form of propagationPolicy: true is `Orphan`."),
            "preconditions": ref(f"{META_PACKAGE}.Preconditions", "What must hold, else 409 Conflict."),
            "propagationPolicy": string(
                "What happens to owned objects: `Background` (go later), `Foreground` (go first) or "
                "`Orphan` (stay)."
            ),
            "ignoreStoreReadErrorWithClusterBreakingPotential": boolean("Accepted and without effect here."),
        },
    ),
    SCALE: resource_schema(
        "How many replicas are wanted and running; the part of an object that autoscalers read and write.",
        {
            "spec": object_schema("What is wanted.", {"replicas": integer("Replicas wanted.", "int32")}),
            "status": object_schema(
                "What is.",
                {
                    "replicas": integer("Replicas running.", "int32"),
                    "selector": string("Label selector of the replicas."),
                },
                ("replicas",),
            ),
        },
    ),
}
