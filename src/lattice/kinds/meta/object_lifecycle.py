"""What every writer must do to an object, whoever writes it: identity, generation, what may change, when it is really gone."""

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
    """A new object: its identity is ours to give, its status nobody's yet."""
    metadata = {
        name: value
        for name, value in obj["metadata"].items()
        if name not in {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}
    }
    return {**obj, "metadata": metadata | {"uid": uid, "creationTimestamp": now, "generation": 1}}


def updated_object(old: Object, new: Object, *, status: bool) -> Object:
    """`new` as it may follow `old`: through /status only status changes, through the object itself everything but status."""
    check_same_uid(old, new)
    if status:
        body = {**old, "status": new.get("status", {})}
    else:
        body = {name: value for name, value in new.items() if name != "status"}
        if "status" in old:
            body["status"] = old["status"]
    if status:
        return {
            **body,
            "metadata": {**old["metadata"], "managedFields": new["metadata"].get("managedFields", [])},
        }
    metadata = dict(new["metadata"])
    for name in SERVER_OWNED_METADATA:
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
        else:
            metadata.pop(name, None)
    _check_no_new_finalizers(old["metadata"], metadata)
    if _content(old) != _content(body):
        metadata["generation"] = old["metadata"].get("generation", 1) + 1
    return {**body, "metadata": metadata}


def check_same_uid(old: Object, new: Object) -> None:
    uid = new["metadata"].get("uid")
    if uid and uid != old["metadata"]["uid"]:
        have = old["metadata"]["uid"]
        raise Invalid(
            "names another object",
            where="metadata.uid",
            fix="read the object again: it was deleted and made anew",
            causes=[
                Cause(
                    "metadata.uid", f'Invalid value: "{uid}": field is immutable, the object has uid {have}'
                )
            ],
        )


def _check_no_new_finalizers(old: dict[str, Any], new: dict[str, Any]) -> None:
    if "deletionTimestamp" not in old:
        return
    added = sorted(set(new.get("finalizers", ())) - set(old.get("finalizers", ())))
    if added:
        cause = Cause(
            "metadata.finalizers",
            f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers: {', '.join(added)}",
            "FieldValueForbidden",
        )
        raise Invalid(
            "adds finalizers to an object that is being deleted",
            where="metadata.finalizers",
            fix="leave them out",
            causes=[cause],
        )


def _content(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in {"metadata", "status"}}


def is_unchanged(old: Object, new: Object) -> bool:
    """Would writing `new` change nothing? Revisions and the times of field managers do not count."""
    return _comparable(old) == _comparable(new)


def _comparable(obj: Object) -> Object:
    metadata = {
        name: value
        for name, value in obj["metadata"].items()
        if name not in {"resourceVersion", "managedFields", "selfLink"} and value not in ({}, [], "", None)
    }
    managers = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in obj["metadata"].get("managedFields", ())
    ]
    rest = {
        name: value
        for name, value in obj.items()
        if name != "metadata" and not (name == "status" and not value)
    }
    return {**rest, "metadata": metadata, "managers": managers}


def mark_for_deletion(obj: Object, *, now: str, finalizers: tuple[str, ...] = ()) -> Object:
    """Marked for deletion: gone once its finalizers are."""
    metadata = dict(obj["metadata"])
    if "deletionTimestamp" not in metadata:
        metadata |= {
            "deletionTimestamp": now,
            "deletionGracePeriodSeconds": 0,
            "generation": metadata.get("generation", 1) + 1,
        }
    wanted = [
        *metadata.get("finalizers", ()),
        *(each for each in finalizers if each not in metadata.get("finalizers", ())),
    ]
    return {**obj, "metadata": metadata | ({"finalizers": wanted} if wanted else {})}


def is_finalized(obj: Object) -> bool:
    """Marked for deletion and nobody holds it any more."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("finalizers")
