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
    "description": "API group and version of the schema of this object. The server rejects unknown versions.",
}
KIND_SCHEMA = {
    "type": "string",
    "description": "Kind of the object, in CamelCase. The endpoint determines the kind. Immutable.",
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
        "metadata": ref(OBJECT_META, "Name, labels and fields that the server sets."),
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
    "`All`: run every check and answer as usual, but store nothing.",
    **{"x-kubernetes-list-type": "atomic"},
)

SCHEMAS: Final[dict[str, Schema]] = {
    TIME: string("A time to the second, in RFC 3339.", format="date-time"),
    MICRO_TIME: string("A time to the microsecond, in RFC 3339.", format="date-time"),
    INT_OR_STRING: {"description": "A whole number or a string.", "x-kubernetes-int-or-string": True},
    PATCH: {
        "type": "object",
        "description": "A change to an object, in the form that the Content-Type names.",
    },
    f"{META_PACKAGE}.FieldsV1": {
        "type": "object",
        "description": "A set of fields, as a tree whose keys start with f:, k: or v:.",
    },
    f"{META_PACKAGE}.OwnerReference": object_schema(
        "An owner in the same namespace or without a namespace; this object is deleted with its owner.",
        {
            "apiVersion": string("API version of the owner."),
            "kind": string("Kind of the owner."),
            "name": string("Name of the owner."),
            "uid": string("UID of the owner: a later object of the same name is not the owner."),
            "controller": boolean(
                "Whether this owner is the controller of the object; at most one owner is."
            ),
            "blockOwnerDeletion": boolean(
                "Whether a foreground deletion of the owner waits until this object is deleted."
            ),
        },
        ("apiVersion", "kind", "name", "uid"),
    )
    | {"x-kubernetes-map-type": "atomic"},
    f"{META_PACKAGE}.ManagedFieldsEntry": object_schema(
        "The fields that one field manager has set, and the operation that set them.",
        {
            "manager": string("Field manager that set the fields."),
            "operation": string("Operation: `Apply` (server-side apply) or `Update` (any other write)."),
            "apiVersion": string("The API version of the field names."),
            "time": ref(TIME, "When the set of fields last changed."),
            "fieldsType": string("The format of the set; always `FieldsV1`."),
            "fieldsV1": ref(f"{META_PACKAGE}.FieldsV1", "The fields."),
            "subresource": string("The written subresource, such as `status`; empty for the object itself."),
        },
    ),
    OBJECT_META: object_schema(
        "Metadata of an object: identity, labels and fields that the server sets.",
        {
            "name": string(
                "Name of the object, unique among the objects of its kind in its namespace. Immutable."
            ),
            "generateName": string("Prefix of a name that the server completes if `name` is empty."),
            "namespace": string("Namespace of the object; empty for cluster-scoped kinds. Immutable."),
            "labels": string_map("Keys and values for selectors."),
            "annotations": string_map(
                "Keys and values for tools and people; selectors do not use annotations."
            ),
            "uid": string(
                "Set by the server: distinguishes this object from earlier and later objects with the same name."
            ),
            "resourceVersion": string(
                "Set by the server: the revision of the last change. An update with an "
                "older revision is rejected."
            ),
            "generation": integer("Set by the server: increases by one with every change of the spec."),
            "creationTimestamp": ref(TIME, "Set by the server: time of creation, in UTC."),
            "deletionTimestamp": ref(
                TIME,
                "Set by the server: time when deletion was requested. The object exists "
                "until `finalizers` is empty.",
            ),
            "deletionGracePeriodSeconds": integer(
                "Set by the server: grace period of the deletion, in seconds."
            ),
            "finalizers": string_list(
                "Steps that must finish before the object is deleted. The responsible controller removes its entry.",
                **{"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"},
            ),
            "ownerReferences": ref_list(
                f"{META_PACKAGE}.OwnerReference",
                "Owners of the object; it is deleted with its owners.",
                **_MERGED_BY_UID,
            ),
            "managedFields": ref_list(
                f"{META_PACKAGE}.ManagedFieldsEntry",
                "Fields by field manager, recorded by the server.",
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "selfLink": string("Deprecated; never set."),
        },
    ),
    LIST_META: object_schema(
        "Metadata of a list.",
        {
            "resourceVersion": string(
                "The revision of the list; a watch from this revision misses no change."
            ),
            "continue": string("Token for the next page of the same revision; empty on the last page."),
            "remainingItemCount": integer("Number of objects on later pages, if known."),
            "selfLink": string("Deprecated; never set."),
        },
    ),
    f"{META_PACKAGE}.StatusCause": object_schema(
        "One cause of an error.",
        {
            "field": string("Path of the field, such as `spec.maxNodes`."),
            "message": string("Description of the cause."),
            "reason": string("Reason for programs, such as `FieldValueInvalid`."),
        },
    ),
    f"{META_PACKAGE}.StatusDetails": object_schema(
        "The object that the answer is about.",
        {
            "name": string("Name of the object."),
            "group": string("API group of the object."),
            "kind": string("Kind or resource name of the object."),
            "uid": string("UID of the object."),
            "causes": ref_list(
                f"{META_PACKAGE}.StatusCause",
                "All causes of the error.",
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "retryAfterSeconds": integer("Seconds to wait before a retry.", "int32"),
        },
    ),
    STATUS: object_schema(
        "The answer to a request that returns no object: result and reason.",
        {
            "apiVersion": API_VERSION_SCHEMA,
            "kind": KIND_SCHEMA,
            "metadata": ref(LIST_META, "Empty."),
            "status": string("`Success` or `Failure`."),
            "code": integer("The HTTP status code.", "int32"),
            "reason": string("Reason as one word, for programs."),
            "message": string("Description, for people."),
            "details": ref(f"{META_PACKAGE}.StatusDetails", "Object that the status is about."),
        },
    ),
    f"{META_PACKAGE}.Preconditions": object_schema(
        "Preconditions of a deletion.",
        {
            "uid": string("The object must have this UID."),
            "resourceVersion": string("The object must still be at this revision."),
        },
    ),
    DELETE_OPTIONS: object_schema(
        "Options of a deletion.",
        {
            "apiVersion": API_VERSION_SCHEMA,
            "kind": KIND_SCHEMA,
            "dryRun": _DRY_RUN,
            "gracePeriodSeconds": integer("Grace period in seconds; 0 deletes immediately."),
            "orphanDependents": boolean("Deprecated form of propagationPolicy: true means `Orphan`."),
            "preconditions": ref(
                f"{META_PACKAGE}.Preconditions", "Preconditions; if one fails, the answer is 409 Conflict."
            ),
            "propagationPolicy": string(
                "Handling of owned objects: `Background` (deleted later), `Foreground` (deleted first) "
                "or `Orphan` (not deleted)."
            ),
            "ignoreStoreReadErrorWithClusterBreakingPotential": boolean("Accepted, but has no effect."),
        },
    ),
    SCALE: resource_schema(
        "Desired and running replicas; the part of an object that autoscalers read and write.",
        {
            "spec": object_schema(
                "Desired state.", {"replicas": integer("Desired number of replicas.", "int32")}
            ),
            "status": object_schema(
                "Current state.",
                {
                    "replicas": integer("Number of running replicas.", "int32"),
                    "selector": string("Label selector of the replicas."),
                },
                ("replicas",),
            ),
        },
    ),
}
