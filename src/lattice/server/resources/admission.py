"""Admission of every write: schema, metadata, the rules of the kind, and the defaults of core kinds."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.errors import Cause, Conflict, Denied, Invalid, Malformed
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, GROUP, SYSTEM_NAMESPACE
from lattice.kinds.meta.conditions import READY_CONDITION
from lattice.kinds.meta.metadata_validation import admit_metadata
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.meta.undecodable_objects import readable_part_problems
from lattice.kinds.meta.validator import Findings
from lattice.server.event_versions.conversion import new_event_causes
from lattice.server.event_versions.event_store import V1_RESOURCE as EVENT_V1_RESOURCE
from lattice.server.requests.catalog import ServedKind
from lattice.server.requests.options import FieldValidation
from lattice.store.protocol import Key

PERMANENT_NAMESPACES = frozenset({DEFAULT_NAMESPACE, SYSTEM_NAMESPACE})
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
# Kinds that users create and of which a controller reports whether they are ready. Controllers create the
# other kinds with status (nodes, clusters, ledgers, agreements), together with their first status.
BORN_PENDING = frozenset(
    f"{plural}.{GROUP}"
    for plural in (
        "latticepools",
        "latticenodeclasses",
        "latticeplacementpolicies",
        "cloudinfrastructures",
        "staticinfrastructures",
        "latticeservices",
        "latticeworkloads",
        "automationrules",
    )
)
CA_SECRET = Key("secrets", SYSTEM_NAMESPACE, "lattice-ca")


@dataclass(frozen=True, slots=True)
class AdmittedObject:
    """An object that admission has pruned, defaulted and validated, with the warnings for the client."""

    obj: Object
    warnings: tuple[str, ...] = ()


def require_name(obj: Any, name: str) -> None:
    """Raise Malformed for the new state of an object that lost its name: a body without metadata would drop
    labels, annotations, owners and finalizers too."""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    if isinstance(obj, dict) and not (isinstance(metadata, dict) and metadata.get("name")):
        raise Malformed(
            f'the name of the object (based on the URL: "{name}") was undeterminable: metadata.name is missing'
            " after the change",
            where="metadata.name",
            fix="keep metadata and metadata.name; to remove labels or annotations, remove them one by one",
        )


def validate_identity(served: ServedKind, obj: Any, namespace: str, name: str) -> Object:
    """Return the body with the namespace and name of the path; raise an error if the body is another kind or
    another object."""
    resource = served.resource
    if not isinstance(obj, dict):
        raise Malformed(
            f"the body must be a {resource.kind} object",
            fix="send a JSON object with apiVersion, kind and metadata",
        )
    # Kubernetes accepts its own kinds without apiVersion and kind, where the path names the kind: kopf posts
    # events without both.
    if resource.group != GROUP:
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
    causes = []
    if kind != resource.kind:
        causes.append(Cause("kind", f'Invalid value: "{kind}": must be {resource.kind}'))
    if api_version != resource.api_version:
        causes.append(Cause("apiVersion", f'Invalid value: "{api_version}": must be {resource.api_version}'))
    if causes:
        raise Invalid(
            f"this URL accepts {resource.api_version} {resource.kind}, got {api_version} {kind}",
            causes=causes,
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
    if (body_namespace := metadata.get("namespace")) and body_namespace != namespace:
        raise Malformed(
            f"the namespace of the provided object ({body_namespace}) does not match "
            f"the namespace sent on the request ({namespace or 'none'})",
            where="metadata.namespace",
            fix="use the same namespace, or omit metadata.namespace",
        )
    if name and (body_name := metadata.get("name")) and body_name != name:
        raise Malformed(
            f"the name of the object ({body_name}) does not match the name on the URL ({name})",
            where="metadata.name",
            fix="use the same name",
        )
    return metadata | ({"namespace": namespace} if namespace else {}) | ({"name": name} if name else {})


def admit(
    served: ServedKind,
    obj: Object,
    validation: FieldValidation,
    duplicates: tuple[str, ...] = (),
    *,
    is_new: bool = False,
) -> AdmittedObject:
    """Prune, default and validate an object; raise one error with every problem.

    Unknown and duplicate fields are errors under Strict, warnings under Warn, and dropped otherwise.
    """
    findings = Findings()
    metadata = admit_metadata(served.resource, obj["metadata"], findings)
    # Metadata has rules of its own and is validated above.
    admitted: Object = served.validator({**obj, "metadata": {}}, "", findings)
    admitted["metadata"] = metadata
    if served.resource.has_status and not isinstance(admitted.get("status", {}), dict):
        admitted.pop("status")
    fields_with_cause = {cause.field for cause in findings.causes}
    class_causes = _class_problems(served, admitted, bool(fields_with_cause))
    if is_new and served.resource.id == EVENT_V1_RESOURCE:
        class_causes += new_event_causes(admitted)
    # The class repeats problems that the schema has already reported for a field.
    findings.causes.extend(cause for cause in class_causes if cause.field not in fields_with_cause)
    field_problems = [
        f'unknown field "{path}"{findings.hints.get(path, "")}' for path in findings.unknown_fields
    ] + [f'duplicate field "{path}"' for path in duplicates]
    # Unknown fields alone make the body Malformed (400); together with other problems, they are causes of
    # Invalid (422).
    if validation == "Strict" and field_problems and not findings.causes:
        resource, paths = served.resource, [*findings.unknown_fields, *duplicates]
        raise Malformed(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"strict decoding error: {', '.join(field_problems)}",
            fix=f"`kubectl explain {resource.singular} --recursive` lists the valid fields",
            causes=list(map(Cause, paths, field_problems)),
        )
    if validation == "Strict":
        findings.causes.extend(
            Cause(path, f"Invalid value: unknown field{findings.hints.get(path, '')}")
            for path in findings.unknown_fields
        )
        findings.causes.extend(Cause(path, "Invalid value: duplicate field") for path in duplicates)
    if findings.causes:
        raise Invalid("is invalid", causes=findings.causes)
    return AdmittedObject(admitted, tuple(field_problems) if validation == "Warn" else ())


def _class_problems(served: ServedKind, obj: Object, has_schema_causes: bool) -> list[Cause]:
    """Return the problems that only the class of the kind detects.

    An object that fails the schema may not decode; then the readable parts are checked.
    """
    try:
        typed = msgspec.convert(obj, served.kind)
    except msgspec.ValidationError as mismatch:
        if has_schema_causes:
            return list(readable_part_problems(served.kind, obj))
        problem, _, where = str(mismatch).partition(" - at `$")
        return [Cause(where.rstrip("`").removeprefix("."), f"Invalid value: {problem}")]
    return list(typed.problems())


def apply_kind_defaults(served: ServedKind, obj: Object, previous: Object | None) -> Object:
    """Add the fields that the API sets by itself on new Lattice objects, namespaces and secrets; reject changes
    of immutable objects."""
    if previous is None and served.resource.id in BORN_PENDING:
        created = obj["metadata"].get("creationTimestamp", "")
        # Clients that wait by kstatus (Flux, Helm, kpt) would take an object without this status for a ready one.
        ready = {
            "type": READY_CONDITION,
            "status": "Unknown",
            "reason": "Pending",
            "message": "no controller has observed the object yet",
            "lastTransitionTime": created,
        }
        status: Object = {"observedGeneration": 0, "conditions": [ready]}
        obj = {
            **obj,
            "status": (
                {"phase": "Pending", **status}
                if served.resource.id == "latticeservices.lattice.dev"
                else status
            ),
        }
    match served.resource.id:
        case "namespaces":
            obj = _with_name_label(obj)
            if previous is None:
                return {**obj, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        case "secrets":
            _reject_immutable_change(served, obj, previous)
            return _encode_secret(obj, previous)
        case "configmaps":
            _reject_immutable_change(served, obj, previous)
    return obj


def _with_name_label(obj: Object) -> Object:
    """Return the namespace with the label that holds its name, by which selectors choose one namespace."""
    metadata = obj["metadata"]
    if not metadata.get("name"):
        return obj
    labels = {**metadata.get("labels", {}), NAMESPACE_NAME_LABEL: metadata["name"]}
    return {**obj, "metadata": {**metadata, "labels": labels}}


def _encode_secret(obj: Object, previous: Object | None) -> Object:
    """Return the secret as stored: stringData moves, base64-encoded, into data, and the type cannot
    change."""
    secret = {name: value for name, value in obj.items() if name != "stringData"}
    encoded = {name: b64encode(text.encode()).decode() for name, text in obj.get("stringData", {}).items()}
    if encoded:
        secret["data"] = {**obj.get("data", {}), **encoded}
    for name, text in secret.get("data", {}).items():
        try:
            b64decode(text, validate=True)
        except (Base64Error, ValueError) as error:
            # The message never repeats the value, which may be the secret in plain text.
            cause = Cause(f"data[{name}]", "Invalid value: must be base64")
            raise Invalid(
                "is invalid", where=f"data[{name}]", fix="encode the value, or use stringData", causes=[cause]
            ) from error
    secret.setdefault("type", "Opaque")
    if previous is not None and previous.get("type", "Opaque") != secret["type"]:
        raise Invalid(
            "is invalid", causes=[Cause("type", f'Invalid value: "{secret["type"]}": field is immutable')]
        )
    return secret


def _reject_immutable_change(served: ServedKind, obj: Object, previous: Object | None) -> None:
    if previous is None or not previous.get("immutable"):
        return
    previous_data = {name: previous.get(name) for name in ("data", "binaryData", "immutable")}
    new_data = {name: obj.get(name) for name in ("data", "binaryData", "immutable")}
    if previous_data != new_data or obj.get("stringData"):
        raise Invalid(
            "is invalid",
            causes=[
                Cause("data", "Forbidden: field is immutable when `immutable` is set", "FieldValueForbidden")
            ],
        )


def reject_permanent_deletion(key: Key) -> None:
    """Raise Denied for the permanent namespaces and the CA secret, without which no client could
    authenticate."""
    if key == CA_SECRET:
        raise Denied(
            f'{key.resource} "{key.name}" is forbidden: the certificate authority must not be deleted',
            fix="keep the secret: without it, no client can authenticate",
        )
    if key.resource == "namespaces" and key.name in PERMANENT_NAMESPACES:
        raise Denied(
            f'{key.resource} "{key.name}" is forbidden: the namespace must not be deleted',
            fix="delete the objects in the namespace instead",
        )


def stale_object_error(served: ServedKind, name: str) -> Conflict:
    """Return the Conflict of a write that was based on an older revision of the object."""
    return Conflict(
        f'Operation cannot be fulfilled on {served.resource.id} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
