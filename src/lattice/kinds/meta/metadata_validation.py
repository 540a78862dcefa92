"""Validate object metadata: names, labels, annotations and finalizers by the grammar of Kubernetes."""

from collections.abc import Sequence

from msgspec import inspect

from lattice.kinds.meta.base import Metadata, Resource
from lattice.kinds.meta.schema import struct_schema
from lattice.kinds.meta.selector import (
    dns_label_problem,
    label_key_problem,
    label_value_problem,
    subdomain_problem,
)
from lattice.kinds.meta.stored_encoding import Object
from lattice.kinds.meta.validator import Findings, compile_schema, join_path

METADATA_SCHEMA = struct_schema(inspect.type_info(Metadata))
MAX_ANNOTATION_BYTES = 256 * 1024
_validate = compile_schema(METADATA_SCHEMA)


def admit_metadata(resource: Resource, metadata: Object, out: Findings) -> Object:
    """The validated metadata to store; problems are added to `out`."""
    validated: Object = _validate(metadata, "metadata", out)
    # The checks below need values of the right types.
    if out.causes:
        return validated
    name, prefix = validated.get("name", ""), validated.get("generateName", "")
    if not name and not prefix:
        out.add_cause(
            "metadata.name", "Required value: name or generateName is required", "FieldValueRequired"
        )
    elif name and (problem := name_problem(resource, name)):
        out.add_invalid_value("metadata.name", name, problem)
    # The server appends a suffix to the prefix, so the prefix may end with a hyphen.
    elif not name and (problem := name_problem(resource, f"{prefix}x")):
        out.add_invalid_value("metadata.generateName", prefix, problem)
    for key, value in validated.get("labels", {}).items():
        if problem := label_key_problem(key):
            out.add_invalid_value("metadata.labels", key, problem)
        if problem := label_value_problem(value):
            out.add_invalid_value(join_path("metadata.labels", key), value, problem)
    size = 0
    for key, value in validated.get("annotations", {}).items():
        # Kubernetes validates an annotation key after lower-casing it, so upper-case letters are allowed.
        if problem := label_key_problem(key.lower()):
            out.add_invalid_value("metadata.annotations", key, problem)
        size += len(key) + len(value)
    if size > MAX_ANNOTATION_BYTES:
        out.add_cause(
            "metadata.annotations",
            f"Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes, got {size}",
            "FieldValueTooLong",
        )
    for i, finalizer in enumerate(validated.get("finalizers", ())):
        if problem := label_key_problem(finalizer):
            out.add_invalid_value(f"metadata.finalizers[{i}]", finalizer, problem)
    _check_controllers(validated.get("ownerReferences", ()), out)
    return validated


def _check_controllers(references: Sequence[Object], out: Findings) -> None:
    """An object has at most one owner that controls it: two controllers would undo each other's changes."""
    controllers = [
        reference["kind"] + "/" + reference["name"] for reference in references if reference.get("controller")
    ]
    if len(controllers) > 1:
        out.add_cause(
            "metadata.ownerReferences",
            'Invalid value: only one reference can have controller set to true; found "true" in references for '
            + " and ".join(controllers),
        )


def name_problem(resource: Resource, name: str) -> str:
    """The reason that `name` is invalid for an object of the resource; "" for a valid name."""
    return dns_label_problem(name) if resource.id == "namespaces" else subdomain_problem(name)
