"""What the shared parts of the API look like: metadata, Status, options, Scale, reviews. Names are Kubernetes' own.

A reference is written here as {"$ref": NAME}; openapi.py turns it into the form of each OpenAPI version.
"""

from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
OBJECT_META, LIST_META, STATUS = f"{META}.ObjectMeta", f"{META}.ListMeta", f"{META}.Status"
DELETE_OPTIONS, PATCH, TIME, MICRO_TIME = (
    f"{META}.DeleteOptions",
    f"{META}.Patch",
    f"{META}.Time",
    f"{META}.MicroTime",
)
SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"

API_VERSION = {
    "type": "string",
    "description": "The group and version of the schema that this object is written in. The server refuses versions it does not know.",
}
KIND = {
    "type": "string",
    "description": "What the object is, in CamelCase. It follows from the endpoint it is sent to and cannot be changed.",
}


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def whole(description: str, form: str = "int64") -> Schema:
    return {"type": "integer", "format": form, "description": description}


def yes_no(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def texts(description: str, **more: Any) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}


def text_map(description: str) -> Schema:
    return {"type": "object", "additionalProperties": {"type": "string"}, "description": description}


def ref(name: str, description: str) -> Schema:
    return {"$ref": name, "description": description}


def refs(name: str, description: str, **more: Any) -> Schema:
    return {"type": "array", "items": {"$ref": name}, "description": description, **more}


def shape(description: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    found: Schema = {"type": "object", "description": description, "properties": dict(properties)}
    return found | ({"required": list(required)} if required else {})


def whole_object(
    description: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()
) -> Schema:
    """An object with apiVersion, kind and metadata of its own."""
    own = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": ref(OBJECT_META, "Name, labels and the server's own notes."),
    }
    return shape(description, own | dict(properties), required)


_MERGED_BY_UID = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["uid"],
    "x-kubernetes-patch-merge-key": "uid",
    "x-kubernetes-patch-strategy": "merge",
}
_DRY_RUN = texts(
    "`All`: go through every check and answer as usual, but keep nothing.",
    **{"x-kubernetes-list-type": "atomic"},
)

SCHEMAS: Final[dict[str, Schema]] = {
    TIME: text("A moment to the second, in RFC 3339.", format="date-time"),
    MICRO_TIME: text("A moment to the microsecond, in RFC 3339.", format="date-time"),
    INT_OR_STRING: {"description": "A whole number or text.", "x-kubernetes-int-or-string": True},
    PATCH: {
        "type": "object",
        "description": "A change to an object, in the form that the Content-Type names.",
    },
    f"{META}.FieldsV1": {
        "type": "object",
        "description": "A set of fields, as a tree whose keys start with f:, k: or v:.",
    },
    f"{META}.OwnerReference": shape(
        "An object in the same namespace, or one without a namespace, that this object goes away with.",
        {
            "apiVersion": text("API version of the owner."),
            "kind": text("Kind of the owner."),
            "name": text("Name of the owner."),
            "uid": text("UID of the owner: a later object of the same name is not the owner."),
            "controller": yes_no("Whether this owner is the one that manages the object; at most one may."),
            "blockOwnerDeletion": yes_no(
                "Whether a foreground deletion of the owner waits for this object to go first."
            ),
        },
        ("apiVersion", "kind", "name", "uid"),
    )
    | {"x-kubernetes-map-type": "atomic"},
    f"{META}.ManagedFieldsEntry": shape(
        "The fields that one manager has set, and how.",
        {
            "manager": text("Who set the fields."),
            "operation": text("How: `Apply` (server-side apply) or `Update` (any other write)."),
            "apiVersion": text("The version that the field names belong to."),
            "time": ref(TIME, "When the set of fields last changed."),
            "fieldsType": text("The form of the set; always `FieldsV1`."),
            "fieldsV1": ref(f"{META}.FieldsV1", "The fields."),
            "subresource": text(
                "The subresource that was written to, such as `status`; empty for the object itself."
            ),
        },
    ),
    OBJECT_META: shape(
        "What every object carries besides its own content: its identity, its labels and what the server notes about it.",
        {
            "name": text("Unique among the objects of its kind in its namespace. It cannot be changed."),
            "generateName": text("Start of a name that the server completes when `name` is empty."),
            "namespace": text(
                "The namespace that the object lives in; empty for kinds outside namespaces. It cannot be changed."
            ),
            "labels": text_map("Keys and values to select objects by."),
            "annotations": text_map("Keys and values for tools and people; nothing selects by them."),
            "uid": text("Set by the server: tells this object from earlier and later ones of the same name."),
            "resourceVersion": text(
                "Set by the server: the revision of the last change. Send it back to refuse overwriting a newer one."
            ),
            "generation": whole("Set by the server: grows by one with each change of what is wanted."),
            "creationTimestamp": ref(TIME, "Set by the server: when the object was created, in UTC."),
            "deletionTimestamp": ref(
                TIME,
                "Set by the server: when deletion was asked for. The object stays until `finalizers` is empty.",
            ),
            "deletionGracePeriodSeconds": whole(
                "Set by the server: seconds that the object was given to end in good order."
            ),
            "finalizers": texts(
                "What must be done before the object may go; whoever does it removes its entry.",
                **{"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"},
            ),
            "ownerReferences": refs(
                f"{META}.OwnerReference", "Objects that this one goes away with.", **_MERGED_BY_UID
            ),
            "managedFields": refs(
                f"{META}.ManagedFieldsEntry",
                "Who set which fields. The server keeps it.",
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "selfLink": text("No longer set."),
        },
    ),
    LIST_META: shape(
        "What a list says about itself.",
        {
            "resourceVersion": text("The revision that the list shows; a watch from here misses nothing."),
            "continue": text(
                "Send it back to read the next page of the same revision; empty on the last page."
            ),
            "remainingItemCount": whole("How many objects come on later pages, where that is known."),
            "selfLink": text("No longer set."),
        },
    ),
    f"{META}.StatusCause": shape(
        "One thing that is wrong.",
        {
            "field": text("Path of the field, such as `spec.maxNodes`."),
            "message": text("What is wrong with it."),
            "reason": text("The same for programs, such as `FieldValueInvalid`."),
        },
    ),
    f"{META}.StatusDetails": shape(
        "What the answer is about.",
        {
            "name": text("Name of the object."),
            "group": text("API group of the object."),
            "kind": text("Kind or resource name of the object."),
            "uid": text("UID of the object."),
            "causes": refs(
                f"{META}.StatusCause", "Everything that is wrong.", **{"x-kubernetes-list-type": "atomic"}
            ),
            "retryAfterSeconds": whole("Seconds to wait before asking again.", "int32"),
        },
    ),
    STATUS: shape(
        "The answer to a request that yields no object: what happened and why.",
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": ref(LIST_META, "Empty."),
            "status": text("`Success` or `Failure`."),
            "code": whole("The HTTP status code.", "int32"),
            "reason": text("Why, in one word for programs."),
            "message": text("Why, for people."),
            "details": ref(f"{META}.StatusDetails", "What it is about."),
        },
    ),
    f"{META}.Preconditions": shape(
        "What must hold for a deletion to happen.",
        {
            "uid": text("The object must have this UID."),
            "resourceVersion": text("The object must still be at this revision."),
        },
    ),
    DELETE_OPTIONS: shape(
        "How to delete.",
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "dryRun": _DRY_RUN,
            "gracePeriodSeconds": whole("Seconds to end in good order; 0 deletes at once."),
            "orphanDependents": yes_no("Older form of propagationPolicy: true is `Orphan`."),
            "preconditions": ref(f"{META}.Preconditions", "What must hold, else 409 Conflict."),
            "propagationPolicy": text(
                "What happens to owned objects: `Background` (go later), `Foreground` (go first) or `Orphan` (stay)."
            ),
            "ignoreStoreReadErrorWithClusterBreakingPotential": yes_no("Accepted and without effect here."),
        },
    ),
    SCALE: whole_object(
        "How many replicas are wanted and running; the part of an object that autoscalers read and write.",
        {
            "spec": shape("What is wanted.", {"replicas": whole("Replicas wanted.", "int32")}),
            "status": shape(
                "What is.",
                {
                    "replicas": whole("Replicas running.", "int32"),
                    "selector": text("Label selector of the replicas."),
                },
                ("replicas",),
            ),
        },
    ),
}
