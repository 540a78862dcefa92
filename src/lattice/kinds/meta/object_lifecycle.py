"""The lifecycle rules of stored objects for every writer: identity, generation, immutable metadata, and
deletion by finalizers."""

from typing import Any

from lattice.errors import Cause, Invalid
from lattice.kinds.meta.stored_encoding import Object

FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
SERVER_OWNED_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "namespace",
    "name",
    "generateName",
)


def new_object(obj: Object, *, uid: str, now: str) -> Object:
    """A new object with the server's uid, creation time and generation."""
    # A client cannot create an object that is already being deleted.
    metadata = {
        name: value
        for name, value in obj["metadata"].items()
        if name not in {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}
    }
    return {**obj, "metadata": metadata | {"uid": uid, "creationTimestamp": now, "generation": 1}}


def updated_object(old: Object, new: Object, *, status: bool) -> Object:
    """The object that replaces `old`: a write through /status changes only the status, any other write
    changes all but the status."""
    # Raise Invalid if `new` names the uid of another object.
    uid = new["metadata"].get("uid")
    if uid and uid != old["metadata"]["uid"]:
        actual = old["metadata"]["uid"]
        raise Invalid(
            "belongs to another object",
            where="metadata.uid",
            fix="read the object again: it was deleted and created again",
            causes=[
                Cause(
                    "metadata.uid", f'Invalid value: "{uid}": field is immutable, the object has uid {actual}'
                )
            ],
        )
    if status:
        body = {**old, "status": new.get("status", {})}
    else:
        body = {name: value for name, value in new.items() if name != "status"}
        if "status" in old:
            body["status"] = old["status"]
    if status:
        # A write of the status keeps the stored metadata, except the records of field managers.
        return {
            **body,
            "metadata": {**old["metadata"], "managedFields": new["metadata"].get("managedFields", [])},
        }
    metadata = dict(new["metadata"])
    # A writer cannot change these fields: the stored values win, and absent fields stay absent.
    for name in SERVER_OWNED_METADATA:
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
        else:
            metadata.pop(name, None)
    _check_no_new_finalizers(old["metadata"], metadata)
    # The generation counts changes of the spec, not of metadata or status.
    if _content(old) != _content(body):
        metadata["generation"] = old["metadata"].get("generation", 1) + 1
    return {**body, "metadata": metadata}


def _check_no_new_finalizers(old: dict[str, Any], new: dict[str, Any]) -> None:
    # The set of finalizers may grow only until the deletion begins.
    if "deletionTimestamp" not in old:
        return
    added = sorted(set(new.get("finalizers", ())) - set(old.get("finalizers", ())))
    if added:
        cause = Cause(
            "metadata.finalizers",
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers: {', '.join(added)}",
            "FieldValueForbidden",
        )
        raise Invalid(
            "adds finalizers to an object that is being deleted",
            where="metadata.finalizers",
            fix="remove the new finalizers",
            causes=[cause],
        )


def _content(obj: Object) -> Object:
    """The object without metadata and status: a change of the content changes the generation."""
    return {name: value for name, value in obj.items() if name not in {"metadata", "status"}}


def is_unchanged(old: Object, new: Object) -> bool:
    """Whether a write of `new` would change nothing, apart from revisions and the timestamps of field
    managers."""
    return _comparable(old) == _comparable(new)


def _comparable(obj: Object) -> Object:
    # An empty field equals an absent field.
    metadata = {
        name: value
        for name, value in obj["metadata"].items()
        if name not in {"resourceVersion", "managedFields", "selfLink"} and value not in ({}, [], "", None)
    }
    managers = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in obj["metadata"].get("managedFields", ())
    ]
    content = {
        name: value
        for name, value in obj.items()
        if name != "metadata" and not (name == "status" and not value)
    }
    return {**content, "metadata": metadata, "managers": managers}


def mark_for_deletion(obj: Object, *, now: str, finalizers: tuple[str, ...] = ()) -> Object:
    """The object marked for deletion; the store removes the object once all finalizers are gone."""
    metadata = dict(obj["metadata"])
    # A second deletion keeps the first timestamp.
    if "deletionTimestamp" not in metadata:
        metadata |= {
            "deletionTimestamp": now,
            "deletionGracePeriodSeconds": 0,
            "generation": metadata.get("generation", 1) + 1,
        }
    all_finalizers = [
        *metadata.get("finalizers", ()),
        *(finalizer for finalizer in finalizers if finalizer not in metadata.get("finalizers", ())),
    ]
    return {**obj, "metadata": metadata | ({"finalizers": all_finalizers} if all_finalizers else {})}


def is_finalized(obj: Object) -> bool:
    """Whether the object is marked for deletion and has no finalizers."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")
