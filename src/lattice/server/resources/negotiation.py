"""Content negotiation: the representation that an Accept header requests, and the encoding of objects and
lists."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from lattice.errors import NotAcceptable
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored_encoding import Object, splice_revision, unpack
from lattice.server.requests.call import JSON, Call, Reply
from lattice.server.resources.api import Api
from lattice.server.resources.table_rows import TableOptions, rows, table
from lattice.store.protocol import Entry

META_VERSIONS = frozenset({"v1", "v1beta1"})
# Objects that one step decodes: a few milliseconds on the event loop.
DECODED_CHUNK_SIZE = 50
# Objects that one step copies as stored, without decoding.
RAW_CHUNK_SIZE = 500


@dataclass(frozen=True, slots=True)
class Representation:
    """The format of a response body; `kind` is json, table, partial or yaml."""

    kind: str = "json"
    version: str = "v1"

    @property
    def is_plain_json(self) -> bool:
        return self.kind == "json"

    @property
    def content_type(self) -> str:
        return "application/yaml" if self.kind == "yaml" else JSON


@lru_cache(maxsize=256)
def parse_accept(accept: str) -> Representation:
    """Return the first representation of an Accept header that the server supports, or raise
    NotAcceptable."""
    for item in (accept or "*/*").split(","):
        media_type, *parameter_parts = (part.strip() for part in item.split(";"))
        parameters = dict(part.split("=", 1) for part in parameter_parts if "=" in part)
        requested_kind = parameters.get("as", "")
        if media_type in {"application/yaml", "application/x-yaml"}:
            return Representation("yaml")
        if media_type not in {JSON, "*/*", "application/*"}:
            continue
        if not requested_kind:
            return Representation()
        version = parameters.get("v", "v1")
        if parameters.get("g") == "meta.k8s.io" and version in META_VERSIONS:
            if requested_kind == "Table":
                return Representation("table", version)
            if requested_kind in {"PartialObjectMetadata", "PartialObjectMetadataList"}:
                return Representation("partial", version)
    raise NotAcceptable(
        f"only application/json and application/yaml are available, not {accept}", fix=f"send Accept: {JSON}"
    )


def partial_metadata(obj: Object, version: str) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def represent(api: Api, call: Call, entry: Entry) -> Reply:
    """Return one object in the representation that the call requests."""
    representation = parse_accept(call.accept)
    obj = unpack(entry.value, entry.revision)
    if representation.kind == "table":
        metadata = {"resourceVersion": str(entry.revision)} if entry.revision else {}
        body: Any = table(table_options(api, call), [obj], metadata)
    elif representation.kind == "partial":
        body = partial_metadata(obj, representation.version)
    else:
        return Reply(yaml_of(obj), content_type=representation.content_type)
    return Reply(encode(body))


@dataclass(frozen=True, slots=True)
class ListEncoding:
    """The encoding of a list: the bytes before the first item, and a function that encodes a chunk of
    items."""

    opening: bytes
    encode_items: Callable[[list[Entry]], bytes]
    chunk_size: int


def list_encoding(api: Api, call: Call, metadata: dict[str, Any]) -> ListEncoding:
    """Return the encoding of a list in the representation that the call requests."""
    representation, served = parse_accept(call.accept), call.target.served
    if representation.kind == "table":
        options = table_options(api, call)
        return ListEncoding(
            # The rows are the last field of a Table, so the encoded rows follow the opening.
            encode(table(options, (), metadata)).removesuffix(b"]}"),
            lambda entries: encode(rows(options, map(_decoded, entries)))[1:-1],
            DECODED_CHUNK_SIZE,
        )
    if representation.kind == "partial":
        head = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": f"meta.k8s.io/{representation.version}",
            "metadata": metadata,
        }
        return ListEncoding(
            _opened(head),
            lambda entries: encode(
                [partial_metadata(_decoded(entry), representation.version) for entry in entries]
            )[1:-1],
            DECODED_CHUNK_SIZE,
        )
    head = {
        "kind": f"{served.resource.kind}List",
        "apiVersion": served.resource.api_version,
        "metadata": metadata,
    }
    return ListEncoding(
        _opened(head),
        # Stored values are already JSON: the revision is spliced in without decoding.
        lambda entries: b",".join(
            [splice_revision(entry.value, served.revision_offset, entry.revision) for entry in entries]
        ),
        RAW_CHUNK_SIZE,
    )


def _opened(head: dict[str, Any]) -> bytes:
    return encode(head)[:-1] + b',"items":['


def _decoded(entry: Entry) -> Object:
    return unpack(entry.value, entry.revision)


def table_options(api: Api, call: Call) -> TableOptions:
    representation = parse_accept(call.accept)
    return TableOptions(
        call.target.served.resource,
        api.clock.now(),
        call.query.get("includeObject", "Metadata"),
        representation.version,
    )


def yaml_of(value: Any) -> bytes:
    # JSON is YAML; loading the JSON turns Decimals into plain numbers.
    plain = yaml.safe_load(encode(value))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).encode()
