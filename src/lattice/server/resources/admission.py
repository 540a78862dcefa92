"""Is this object fit to store? One pass over every write: schema, metadata, and what the kind itself knows."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.errors import Cause, Conflict, Denied, Invalid, Malformed
from lattice.kinds.meta.base import GROUP
from lattice.kinds.meta.metadata_validation import admit_metadata
from lattice.kinds.meta.partial_validation import readable_part_problems
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.meta.validator import Findings
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import FieldValidation
from lattice.store.protocol import Key

PERMANENT_NAMESPACES = frozenset({"default", "lattice-system"})
CA_SECRET = Key("secrets", "lattice-system", "lattice-ca")


@dataclass(frozen=True, slots=True)
class AdmittedObject:
    obj: Object
    warnings: tuple[str, ...] = ()


def validate_identity(served: ServedKind, obj: Any, namespace: str, name: str) -> Object:
    """The body must be an object of this kind, at this address; an address it leaves out is filled in."""
    resource = served.resource
    if not isinstance(obj, dict):
        raise Malformed(
            f"the body must be a {resource.kind} object",
            fix="send a JSON object with apiVersion, kind and metadata",
        )
    if (
        resource.group != GROUP
    ):  # Kubernetes lets its own kinds go unnamed, where the address says them: kopf posts events so
        obj = {
            **obj,
            "apiVersion": obj.get("apiVersion") or resource.api_version,
            "kind": obj.get("kind") or resource.kind,
        }
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if not kind or not isinstance(kind, str):
        raise Malformed(
            "Object 'Kind' is missing in the body", where="kind", fix=f'add kind: "{resource.kind}"'
        )
    if not api_version or not isinstance(api_version, str):
        raise Malformed(
            "Object 'apiVersion' is missing in the body",
            where="apiVersion",
            fix=f'add apiVersion: "{resource.api_version}"',
        )
    wrong = []
    if kind != resource.kind:
        wrong.append(Cause("kind", f'Invalid value: "{kind}": must be {resource.kind}'))
    if api_version != resource.api_version:
        wrong.append(Cause("apiVersion", f'Invalid value: "{api_version}": must be {resource.api_version}'))
    if wrong:
        raise Invalid(
            f"this address takes {resource.api_version} {resource.kind}, got {api_version} {kind}",
            causes=wrong,
        )
    metadata = obj.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise Invalid(
            "metadata must be an object", causes=[Cause("metadata", "Invalid value: must be an object")]
        )
    return {**obj, "metadata": _with_address(metadata, namespace, name)}


def _with_address(metadata: Object, namespace: str, name: str) -> Object:
    if (given := metadata.get("namespace")) and given != namespace:
        raise Malformed(
            f"the namespace of the provided object ({given}) does not match the namespace sent on the request ({namespace or 'none'})",
            where="metadata.namespace",
            fix="make them equal, or leave metadata.namespace out",
        )
    if name and (given := metadata.get("name")) and given != name:
        raise Malformed(
            f"the name of the object ({given}) does not match the name on the URL ({name})",
            where="metadata.name",
            fix="make them equal",
        )
    return metadata | ({"namespace": namespace} if namespace else {}) | ({"name": name} if name else {})


def admit(
    served: ServedKind, obj: Object, validation: FieldValidation, duplicates: tuple[str, ...] = ()
) -> AdmittedObject:
    """Pruned, defaulted and validated, or refused with everything that is wrong."""
    found = Findings()
    metadata = admit_metadata(served.resource, obj["metadata"], found)
    kept: Object = served.validator({**obj, "metadata": {}}, "", found)
    kept["metadata"] = metadata
    if served.resource.has_status and not isinstance(kept.get("status", {}), dict):
        kept.pop("status")
    told = {cause.field for cause in found.causes}
    found.causes.extend(cause for cause in _problems(served, kept, bool(told)) if cause.field not in told)
    strange = [f'unknown field "{path}"' for path in found.unknown_fields] + [
        f'duplicate field "{path}"' for path in duplicates
    ]
    if validation == "Strict" and strange and not found.causes:
        raise _undecodable(served, strange, [*found.unknown_fields, *duplicates])
    if validation == "Strict":
        found.causes.extend(Cause(path, "Invalid value: unknown field") for path in found.unknown_fields)
        found.causes.extend(Cause(path, "Invalid value: duplicate field") for path in duplicates)
    if found.causes:
        raise Invalid("is invalid", causes=found.causes)
    return AdmittedObject(kept, tuple(strange) if validation == "Warn" else ())


def _undecodable(served: ServedKind, strange: list[str], paths: list[str]) -> Malformed:
    resource = served.resource
    causes = [Cause(path, message) for path, message in zip(paths, strange, strict=True)]
    listed = ", ".join(strange)
    return Malformed(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: strict decoding error: {listed}',
        fix=f"`kubectl explain {resource.singular} --recursive` lists the fields there are",
        causes=causes,
    )


def _problems(served: ServedKind, obj: Object, already_wrong: bool) -> list[Cause]:
    """What only the class knows. Where the schema has passed it decodes; if not, the parts that do are asked."""
    try:
        typed = msgspec.convert(obj, served.kind)
    except msgspec.ValidationError as mismatch:
        if already_wrong:
            return list(readable_part_problems(served.kind, obj))
        what, _, where = str(mismatch).partition(" - at `$")
        return [Cause(where.rstrip("`").removeprefix("."), f"Invalid value: {what}")]
    return list(typed.problems())


def apply_kind_defaults(served: ServedKind, obj: Object, old: Object | None) -> Object:
    """What the API adds to the few core kinds by itself, as their users expect."""
    match served.resource.id:
        case "latticeservices.lattice.dev" if old is None:
            return {**obj, "status": {"phase": "Pending"}}
        case "namespaces" if old is None:
            return {**obj, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        case "secrets":
            _reject_immutable_change(served, obj, old)
            return _encode_secret(obj, old)
        case "configmaps":
            _reject_immutable_change(served, obj, old)
    return obj


def _encode_secret(obj: Object, old: Object | None) -> Object:
    """stringData is write-only; data is base64; the type stays."""
    sealed = {name: value for name, value in obj.items() if name != "stringData"}
    plain = {name: b64encode(text.encode()).decode() for name, text in obj.get("stringData", {}).items()}
    if plain:
        sealed["data"] = {**obj.get("data", {}), **plain}
    for name, text in sealed.get("data", {}).items():
        try:
            b64decode(text, validate=True)
        except (Base64Error, ValueError) as error:
            cause = Cause(
                f"data[{name}]", "Invalid value: must be base64"
            )  # never repeat the value: it may be the secret
            raise Invalid(
                "is invalid", where=f"data[{name}]", fix="encode it, or use stringData", causes=[cause]
            ) from error
    sealed.setdefault("type", "Opaque")
    if old is not None and old.get("type", "Opaque") != sealed["type"]:
        raise Invalid(
            "is invalid", causes=[Cause("type", f'Invalid value: "{sealed["type"]}": field is immutable')]
        )
    return sealed


def _reject_immutable_change(served: ServedKind, obj: Object, old: Object | None) -> None:
    if old is None or not old.get("immutable"):
        return
    before = {name: old.get(name) for name in ("data", "binaryData", "immutable")}
    after = {name: obj.get(name) for name in ("data", "binaryData", "immutable")}
    if before != after or obj.get("stringData"):
        raise Invalid(
            "is invalid",
            causes=[
                Cause("data", "Forbidden: field is immutable when `immutable` is set", "FieldValueForbidden")
            ],
        )


def reject_permanent_deletion(key: Key) -> None:
    """Without these nobody could be let in any more."""
    if (key.resource == "namespaces" and key.name in PERMANENT_NAMESPACES) or key == CA_SECRET:
        raise Denied(
            f'{key.resource} "{key.name}" is forbidden: it may not be deleted',
            fix="delete what you put into it instead",
        )


def stale_object_error(served: ServedKind, name: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {served.resource.id} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
