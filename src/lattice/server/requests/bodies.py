"""Request bodies in JSON, YAML or Kubernetes protobuf, parsed into plain values."""

from typing import Any, TypeVar

import msgspec

from lattice.errors import Malformed, UnsupportedMediaType
from lattice.kinds.meta import yaml_manifest as manifest
from lattice.kinds.meta.json_body import parse_json
from lattice.server.requests import kube_protobuf as protobuf

JSON_MEDIA_TYPES = frozenset({"", "application/json", "*/*"})
YAML_MEDIA_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})

# The value, and the paths of duplicate keys.
ParsedBody = tuple[Any, tuple[str, ...]]
T = TypeVar("T")


def parse_body(body: bytes, content_type: str, kind: str, *, allow_protobuf: bool) -> ParsedBody:
    """Parse a body by its content type. `kind` names the expected object in error messages.

    `Malformed` for an empty or unreadable body, `UnsupportedMediaType` for an unknown content type.
    """
    media = content_type.partition(";")[0].strip().lower()
    if not body:
        raise Malformed("the body is empty", fix=f"send a {kind} object")
    if media in JSON_MEDIA_TYPES:
        parsed = parse_json(body)
        return parsed.value, tuple(parsed.duplicates)
    # Kubernetes clients send only built-in kinds as protobuf.
    if media == protobuf.MEDIA_TYPE and allow_protobuf:
        return protobuf.decode(body), ()
    if media in YAML_MEDIA_TYPES:
        return read_yaml(body)
    raise UnsupportedMediaType(
        f"the body of the request was in an unknown format: {media}", fix="send application/json"
    )


def decode_request(body: bytes, request_type: type[T], fix: str) -> T:
    """Decode the JSON body of a request that is no API object; `Malformed`, with the fix, if the body does not
    match the type."""
    try:
        return msgspec.json.decode(body, type=request_type)
    except msgspec.MsgspecError as error:
        raise Malformed(f"the request cannot be read: {error}", fix=fix) from error


def read_yaml(body: bytes) -> ParsedBody:
    """Parse one YAML document. JSON is a subset of YAML and goes to the faster JSON parser."""
    if body.lstrip()[:1] == b"{":
        parsed = parse_json(body)
        return parsed.value, tuple(parsed.duplicates)
    documents = manifest.load_documents(body, "body", expand_lists=False)
    if len(documents) != 1:
        raise Malformed(f"the body has {len(documents)} documents; exactly one is allowed")
    return documents[0].value, ()
